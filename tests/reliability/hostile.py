"""Run folders and checkpoints from somebody who wants to run code, to write elsewhere, or to keep us busy.

    python tests/reliability/hostile.py [--scale 1.0]

Each case takes the run folder of a real training, plants something in it and goes through every way of reading it: resuming
from a checkpoint and from the folder, replacing the run, evaluating, predicting, listing runs, listing and verifying
checkpoints. An audit hook, a marker that every payload makes, and a folder beside the run tell what happened.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import logging
import os
import random
import shutil
import stat
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch._dynamo  # which the first optimizer of a process imports

sys.path.insert(0, str(Path(__file__).parent))
from guard import Watch, forked, measured, tree
from mutations import MANIFEST, NAMES, STATE, TENSORS, seal
from payloads import payloads, zip_bomb

from trainhooks.cli import main as command_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

torch.set_num_threads(1)  # a forked child has none of the threads that its parent may have computed with

SECONDS, MEGABYTES, SILENCE_S = 5.0, 500.0, 120.0
OLDER, NEWER = "step-00000003", "step-00000006"
TRAINCONF = """
import torch
from torch import nn
from trainhooks import hookimpl

@hookimpl
def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1), nn.Flatten(0))

@hookimpl
def make_optimizer(trainer):
    return torch.optim.Adam(trainer.model.parameters())

@hookimpl
def make_loader(split):
    return [(torch.ones(4, 4) * n, torch.ones(4)) for n in range(3)]

@hookimpl
def compute_loss(trainer, batch):
    return nn.functional.mse_loss(trainer.model(batch[0]), batch[1])

@hookimpl
def predict_step(trainer, batch):
    return trainer.model(batch[0])
"""


class Case(NamedTuple):
    """Something planted in a run folder.

    Args:
        name: What it is.
        plant: Puts it there, given the place.
    """

    name: str
    plant: Callable[[Place], None]


class Place:
    """The folders of one case.

    Args:
        folder: Above all of them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.template, self.project, self.run = folder / "template", folder / "project", folder / "run"
        self.outside, self.marker = folder / "outside", folder / "marker"
        self.log = folder / "log"

    @property
    def newer(self) -> Path:
        """The newest checkpoint."""
        return self.run / "checkpoints" / NEWER

    def make(self) -> None:
        """Train a run, as the template of all cases, and put something beside it that is not to be touched."""
        self.project.mkdir(parents=True)
        (self.project / "trainconf.py").write_text(TRAINCONF)
        (self.outside / "data").mkdir(parents=True)
        for name in ("secret.txt", "data/1.png", "data/2.png"):
            (self.outside / name).write_text(f"of the user: {name}")
        shutil.copytree(self.outside, self.folder / "untouched")

        before = os.getcwd()
        said = io.StringIO()
        os.chdir(self.project)
        try:  # in this process, so that children find everything imported
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                command(["train", *self.settings(self.template), "-o", "checkpoint.best=val/loss"])
        finally:
            os.chdir(before)
        if not (self.template / "checkpoints" / NEWER / MANIFEST).is_file():
            message = f"the training of the template left no checkpoint: {said.getvalue()}"
            raise RuntimeError(message)

    def settings(self, work_dir: Path, steps: int = 6) -> list[str]:
        """Return the words that every training has."""
        words = ["--set", f"max_steps={steps}", "--set", f"work_dir={work_dir}", "--set", "device=cpu"]
        return [*words, "-o", "checkpoint.every_steps=3", "-p", "no:progress"]

    def commands(self) -> dict[str, list[str]]:
        """Return every way of reading a run folder, those that change it last."""
        checkpoint, run = str(self.newer), str(self.run)
        more = self.settings(self.run, 9)
        return {
            "evaluate": ["evaluate", "--checkpoint", checkpoint],
            "evaluate the run": ["evaluate", "--checkpoint", run, "--json"],
            "predict": ["predict", "--checkpoint", run],
            "runs": ["runs", str(self.folder)],
            "one run": ["runs", run],
            "list": ["checkpoints", "list", run],
            "verify": ["checkpoints", "verify", run],
            "export": ["checkpoints", "export", checkpoint, "-o", str(self.folder / "exported" / "weights.safetensors")],
            "prune": ["checkpoints", "prune", run, "--keep", "1"],
            "resume elsewhere": ["train", *self.settings(self.folder / "elsewhere", 9), "--resume", checkpoint],
            "resume": ["train", *more, "--resume", checkpoint],
            "resume auto": ["train", *more, "--resume", "auto"],
            "overwrite": ["train", *self.settings(self.run, 3), "--overwrite"],
        }

    def plant(self, case: Case) -> None:
        """Make the run folder anew, with what the case puts into it."""
        for one in (self.run, self.folder / "elsewhere", self.folder / "exported"):
            shutil.rmtree(one, ignore_errors=True)
        (self.folder / "exported").mkdir()
        shutil.copytree(self.template, self.run)
        case.plant(self)


def command(words: list[str]) -> int:
    """Run the command line in this process; return the exit code."""
    logging.getLogger("trainhooks").handlers = []
    try:
        command_line(words)
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 1
    return 0


# --- Cases ---


def put(path: Path, data: bytes) -> None:
    """Write a file where anything may have been before."""
    clear(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def clear(path: Path) -> None:
    """Remove what is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


#: Every file that a reader of a run folder opens, and some that it has no reason to open.
READ = (
    *(f"checkpoints/{NEWER}/{name}" for name in NAMES),
    "run.json",
    "crash.json",
    "run.lock",
    "metrics.jsonl",
    "metrics.csv",
)
BESIDE = (
    *(
        f"checkpoints/{NEWER}/{name}"
        for name in ("state.pt", "optimizer.pt", "rng.pkl", "__init__.py", ".hidden", "trainconf.py")
    ),
    *("checkpoints/step-00000009/manifest.json", f"checkpoints/.{NEWER}.old/manifest.json", "checkpoints/.step-00000009.tmp"),
    *("trainconf.py", "hooks.py", "sitecustomize.py", "conftest.py", "json.py", "safetensors.py", "torch.py", "trainhooks.py"),
    *(
        "pyproject.toml",
        "trainhooks.toml",
        ".env",
        ".run.json.tmp",
        "checkpoints/index.json",
        f"checkpoints/{OLDER}/manifest.json",
    ),
)


def payload_cases(place: Place) -> Iterator[Case]:
    """Put code in place of every file that is read, and beside them."""
    contents = payloads(place.marker)
    for name in READ:
        for what, data in contents.items():
            yield Case(f"{what} as {name}", lambda here, name=name, data=data: put(here.run / name, data))
    for index, name in enumerate(BESIDE):
        for what in list(contents)[index % 3 :: 3]:
            yield Case(f"{what} beside: {name}", lambda here, name=name, data=contents[what]: put(here.run / name, data))
    for what, data in contents.items():
        yield Case(f"{what} as all files", lambda here, data=data: [put(here.newer / name, data) for name in NAMES])
    code = contents["Python code"]
    yield Case("modules named like dependencies, everywhere", lambda here: _shadowing(here, code))


def _shadowing(place: Place, code: bytes) -> None:
    for folder in (place.run, place.run / "checkpoints", place.newer):
        for name in ("torch", "safetensors", "numpy", "json", "logging", "pydantic", "click", "encodings", "usercustomize"):
            put(folder / f"{name}.py", code)


def link_cases(place: Place) -> Iterator[Case]:
    """Put links out of the folder where we read, write and delete."""
    secret, folder = place.outside / "secret.txt", place.outside / "data"

    def linked(name: str, target: Path | str) -> Callable[[Place], None]:
        def plant(here: Place) -> None:
            clear(here.run / name)
            (here.run / name).parent.mkdir(parents=True, exist_ok=True)
            (here.run / name).symlink_to(target)

        return plant

    files = (
        *READ,
        ".run.json.tmp",
        f"checkpoints/{NEWER}/.pinned",
        f"checkpoints/{NEWER}/extra",
        ".metrics.jsonl.tmp",
        "run.json.tmp",
    )
    for name in files:
        yield Case(f"link to a file: {name}", linked(name, secret))
        yield Case(f"link to what is not there: {name}", linked(name, place.outside / "new.txt"))
    hidden = (
        "checkpoints/.step-00000009.tmp",
        f"checkpoints/.{NEWER}.old",
        f"checkpoints/.{NEWER}.trash",
        f"checkpoints/.{OLDER}.tmp",
    )
    for name in (
        *hidden,
        f"checkpoints/{NEWER}",
        f"checkpoints/{OLDER}",
        "checkpoints/step-00000009",
        "checkpoints/x",
    ):
        yield Case(f"link to a folder: {name}", linked(name, folder))
    for target in ("/dev/zero", "/dev/full", "/proc/self/environ", "/etc/passwd", "/proc/self/mem", "self"):
        for name in (f"checkpoints/{NEWER}/{MANIFEST}", f"checkpoints/{NEWER}/{TENSORS}", "run.json"):
            yield Case(f"link to {target}: {name}", linked(name, target))
    for name in (MANIFEST, STATE, TENSORS):
        yield Case(f"link to another step's {name}", linked(f"checkpoints/{NEWER}/{name}", f"../{OLDER}/{name}"))

    def moved_out(here: Place) -> None:
        away = here.folder / "elsewhere" / NEWER
        shutil.copytree(here.newer, away)
        linked(f"checkpoints/{NEWER}", away)(here)

    yield Case("a whole checkpoint behind a link", moved_out)


def special_cases() -> Iterator[Case]:
    """Put pipes, devices, sockets and folders where files are read."""

    def made(name: str, how: Callable[[Path], Any]) -> Callable[[Place], None]:
        def plant(here: Place) -> None:
            clear(here.run / name)
            (here.run / name).parent.mkdir(parents=True, exist_ok=True)
            how(here.run / name)

        return plant

    kinds: dict[str, Callable[[Path], Any]] = {
        "pipe": os.mkfifo,
        "folder": lambda path: (path / "inside").mkdir(parents=True),
        "socket": lambda path: os.mknod(path, 0o600 | stat.S_IFSOCK),
        "unreadable": lambda path: (path.write_text("{}"), path.chmod(0)),
    }
    for name in (*READ, ".run.json.tmp", f"checkpoints/{NEWER}/.pinned"):
        for kind, how in kinds.items():
            yield Case(f"{kind} as {name}", made(name, how))
    for name in ("checkpoints/step-00000009", "checkpoints/.step-00000009.tmp", "checkpoints"):
        yield Case(f"pipe as {name}", made(name, os.mkfifo))
        yield Case(f"file as {name}", made(name, lambda path: path.write_text("x")))


def bomb_cases(place: Place) -> Iterator[Case]:
    """Claim, or be, more than fits: sizes, counts and nesting."""

    def sparse(path: Path) -> None:
        clear(path)
        with path.open("wb") as file:
            file.truncate(1 << 30)

    def bombed(name: str, data: bytes | Callable[[], bytes]) -> Callable[[Place], None]:
        return lambda here: put(here.run / name, data() if callable(data) else data)

    inflates = zip_bomb()
    many = b'{"files": {' + b",".join(b'"f%d": {"size_bytes": 1}' % number for number in range(10**6)) + b'}, "format": 2}'
    deep = b"[" * 10**6 + b"]" * 10**6
    entry = b'"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    header = b"{" + b",".join(entry % number for number in range(10**6)) + b"}"
    huge = b'{"w":{"dtype":"F32","shape":[1152921504606846976],"data_offsets":[0,4611686018427387904]}}'
    tensors = {
        "10**6 tensors": struct.pack("<Q", len(header)) + header,
        "tensor of 2**60 values": struct.pack("<Q", len(huge)) + huge,
        "header of 2**62 bytes": struct.pack("<Q", 2**62) + huge,
        "header that is deep": struct.pack("<Q", len(deep)) + deep,
    }
    for name in READ:
        if name.startswith("metrics"):  # a log of metrics may be large, and is read as a whole
            continue
        yield Case(f"sparse GB as {name}", lambda here, name=name: sparse(here.run / name))
        yield Case(f"nested a million times: {name}", bombed(name, deep))
        yield Case(f"zip bomb as {name}", bombed(name, inflates))
    for name in (f"checkpoints/{NEWER}/{MANIFEST}", f"checkpoints/{NEWER}/{STATE}", "run.json"):
        yield Case(f"10**6 entries: {name}", bombed(name, many))
        yield Case(f"one number of 10 MB: {name}", bombed(name, b'{"format": ' + b"9" * 10**7 + b"}"))
        yield Case(f"one text of 15 MB: {name}", bombed(name, b'{"format": "' + b"a" * 15_000_000 + b'"}'))
    for what, data in tensors.items():
        yield Case(what, bombed(f"checkpoints/{NEWER}/{TENSORS}", data))
        yield Case(f"{what}, sealed", lambda here, data=data: sealed_files(here, {TENSORS: data}))
    yield Case("many folders", lambda here: [(here.run / f"checkpoints/step-{n:08d}").mkdir() for n in range(10, 3000)])
    yield Case("step of 200 digits", lambda here: shutil.copytree(here.newer, here.newer.with_name("step-" + "9" * 200)))
    yield Case("step in other digits", lambda here: shutil.copytree(here.newer, here.newer.with_name("step-٠٠٠٠٠٠٠٩")))


def sealed_files(place: Place, changed: dict[str, bytes]) -> None:
    """Change files of the newest checkpoint, with digests that fit."""
    files = {name: (place.newer / name).read_bytes() for name in NAMES}
    for name, data in seal({**files, **changed}).items():
        put(place.newer / name, data)


def named_cases(place: Place) -> Iterator[Case]:
    """Name code, and files elsewhere, in what we read; with digests that fit."""
    code = (
        "os:system",
        "os.system",
        "trainhooks_builtins.lr:LR",
        "__import__('os').system('x')",
        "../outside/secret",
        "\x1b[31m\n\r\0",
    )
    wanted = {"name": "evil", "distribution": "evil", "version": "1", "options": {"module": "os:system"}, "order": 0}

    def in_manifest(change: Callable[[Any], Any]) -> Callable[[Place], None]:
        def plant(here: Place) -> None:
            manifest = json.loads((here.newer / MANIFEST).read_bytes())
            new = change(manifest)
            sealed_files(here, {MANIFEST: json.dumps(manifest if new is None else new).encode()})

        return plant

    def in_state(change: Callable[[Any], Any]) -> Callable[[Place], None]:
        def plant(here: Place) -> None:
            state = json.loads((here.newer / STATE).read_bytes())
            new = change(state)
            sealed_files(here, {STATE: json.dumps(state if new is None else new).encode()})

        return plant

    def in_record(change: Callable[[Any], Any]) -> Callable[[Place], None]:
        def plant(here: Place) -> None:
            record = json.loads((here.run / "run.json").read_bytes())
            new = change(record)
            put(here.run / "run.json", json.dumps(record if new is None else new).encode())

        return plant

    for word in code:
        yield Case(
            f"plugin lock names {word!r}",
            in_state(lambda state, word=word: state.update(plugin_lock=[{**wanted, "name": word}])),
        )
        yield Case(
            f"settings name {word!r}", in_state(lambda state, word=word: state.update(settings={"conf": word, "device": word}))
        )
        yield Case(
            f"state of a plugin named {word!r}", in_state(lambda state, word=word: state.update({f"plugins/{word}": {"x": 1}}))
        )
        yield Case(f"tag ${word!r}", in_state(lambda state, word=word: state.update(model={f"${word}": [1]})))
        yield Case(f"data type {word!r}", in_state(lambda state, word=word: state.update(metrics={"$dtype": word})))
        yield Case(f"device {word!r}", in_state(lambda state, word=word: state.update(metrics={"$device": word})))
        yield Case(f"tensor {word!r}", in_state(lambda state, word=word: state.update(model={"w": {"$tensor": word}})))
        yield Case(
            f"record names {word!r}",
            in_record(lambda one, word=word: one.update(name=word, plugins=[{**wanted, "name": word}], status=word)),
        )
        yield Case(f"metric named {word!r}", in_manifest(lambda one, word=word: one.update(metrics={word: 1.0})))
        yield Case(f"kind {word!r}", in_manifest(lambda one, word=word: one.update(kind=word)))
    outside = (
        "../outside/secret.txt",
        "../../outside",
        str(place.outside),
        "/",
        ".",
        "..",
        "",
        "checkpoints/../../outside",
        "a\0b",
        "~",
        "*",
    )
    for name in outside:
        yield Case(
            f"the manifest lists {name!r}",
            in_manifest(lambda one, name=name: one["files"].update({name: next(iter(one["files"].values()))})),
        )
        yield Case(
            f"the record lists {name!r}", in_record(lambda one, name=name: one.update(files=[*one.get("files", []), name]))
        )

    def link_and_list(here: Place) -> None:
        (here.run / "away").symlink_to(here.outside)
        in_record(lambda one: one.update(files=[*one.get("files", []), "away/data", "away/secret.txt", "away"]))(here)

    yield Case("the record lists what is behind a link", link_and_list)
    for what in ([], "x", 1, None, True, {}, [[]], {"files": 1}, {"files": {"a": 1}}, {"files": [1, None, {}]}, {"format": 99}):
        yield Case(f"the record is {what!r}", in_record(lambda _one, what=what: what))
    for key in (
        "status",
        "step",
        "files",
        "metrics",
        "plugins",
        "settings",
        "started",
        "resumed",
        "seconds",
        "checkpoint",
        "best",
    ):
        for value in ({"a": {}}, [[1]], "x" * 10_000, -1, None, True):
            yield Case(
                f"{key} of the record is {str(value)[:20]}",
                in_record(lambda one, key=key, value=value: one.update({key: value})),
            )


def all_cases(place: Place, scale: float = 1.0) -> list[Case]:
    """Return about 280 cases at scale 1, where those that differ in their payload only are a sample; all 600 at scale 4."""
    kinds = (
        (payload_cases(place), 0.25),
        (link_cases(place), 1.0),
        (special_cases(), 1.0),
        (bomb_cases(place), 1.0),
        (named_cases(place), 0.35),
    )
    chance = random.Random(0)
    found = []
    for cases, share in kinds:
        kind = list(cases)
        number = min(len(kind), max(3, round(len(kind) * share * scale)))
        found += [kind[index] for index in sorted(chance.sample(range(len(kind)), number))]
    return found


# --- Running them ---


def try_case(place: Place, case: Case, only: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Go through every command in a forked child; return what each did, and its faults."""

    def work(tell: Callable[[Any], None]) -> None:
        os.chdir(place.project)
        os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # what torch offers against itself must not matter
        place.marker.unlink(missing_ok=True)
        watch = Watch([place.run, place.folder / "elsewhere", place.folder / "exported"])
        for name, words in place.commands().items():
            if only and name not in only:
                continue
            watch.stop()
            place.plant(case)
            position = place.log.stat().st_size
            tell({"started": name})
            watch.start()
            code, spent = measured(lambda words=words: command(words))
            watch.stop()
            sys.stdout.flush()
            sys.stderr.flush()
            with place.log.open(errors="replace") as log:
                log.seek(position)
                text = log.read()
            faults = [f"exec: {event}" for event in watch.executed] + [f"outside: {event}" for event in watch.outside]
            watch.executed.clear()
            watch.outside.clear()
            if place.marker.exists():
                faults.append("exec: the marker is there")
                place.marker.unlink()
            if tree(place.outside) != tree(place.folder / "untouched"):
                faults.append("outside: what lies beside the run was changed")
                shutil.rmtree(place.outside)
                shutil.copytree(place.folder / "untouched", place.outside)
            if spent.seconds > SECONDS:
                faults.append(f"slow: {spent.seconds:.1f} s")
            if spent.megabytes > MEGABYTES:
                faults.append(f"big: {spent.megabytes:.0f} MB")
            ends_so = code == 1 and "Traceback (most recent call last)" in text  # else it is that of a plugin that was disabled
            if ends_so or code not in (0, 1, 2, 3):
                faults.append(f"untyped: exit {code}: {text.strip()[-600:]}")
            tell({"command": name, "code": code, "faults": faults, "log": text[-2000:]})

    ended = forked(work, place.log, silence_s=SILENCE_S)
    results = [one for one in ended.records if "command" in one]
    started = [one["started"] for one in ended.records if "started" in one]
    if len(started) > len(results) or not started:
        why = f"hangs: {started[-1:]}" if ended.timed_out else f"died: of signal {ended.signal}: {ended.log[-1500:]}"
        results.append({"command": started[-1] if started else "", "code": None, "faults": [why], "log": ended.log[-2000:]})
    return [{"case": case.name, **one} for one in results]


def explore(scale: float = 1.0, match: str = "") -> tuple[int, list[dict[str, Any]]]:
    """Return the number of cases and what every command did with each."""
    with tempfile.TemporaryDirectory(
        prefix="trainhooks-hostile-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    ) as name:
        place = Place(Path(name))
        place.make()
        cases = [case for case in all_cases(place, scale) if match in case.name]
        return len(cases), [one for case in cases for one in try_case(place, case)]


def count(cases: int, results: list[dict[str, Any]]) -> dict[str, int]:
    """Return the number of cases, and of commands with each fault."""
    faults = collections.Counter(kind for one in results for kind in {text.partition(":")[0] for text in one["faults"]})
    return {"hostile": cases, **{name: faults[name] for name in ("exec", "hangs", "outside", "died", "slow", "big", "untyped")}}


def run(scale: float = 1.0) -> dict[str, int]:
    """Return the counters."""
    return count(*explore(scale))


def main() -> None:
    """Print every fault, how each command ended, and the counters."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--match", default="", help="only cases whose name has this in it")
    parser.add_argument("--show", action="store_true", help="print what each command said")
    given = parser.parse_args()
    began = time.perf_counter()
    cases, results = explore(given.scale, given.match)
    for one in results:
        for text in one["faults"]:
            print(f"FAULT [{one['case']}] {one['command']}: {text}")
        if given.show:
            print(f"--- [{one['case']}] {one['command']}: exit {one['code']}\n{one['log']}")
    for (name, code), number in sorted(collections.Counter((one["command"], str(one["code"])) for one in results).items()):
        print(f"{name:18} exit {code:5} {number}")
    counters = count(cases, results)
    print(json.dumps(counters), f"{time.perf_counter() - began:.0f} s")
    sys.exit(any(number for name, number in counters.items() if name != "hostile"))


if __name__ == "__main__":
    main()
