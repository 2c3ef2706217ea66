"""Every state that a power cut may leave on the disk while the run saves, rotates or resumes, each one resumed.

    python tests/reliability/powercut.py [--scale 0.1] [--only rotation,resume] [--verbose]

A training's file operations are recorded; after each of them, ``diskmodel`` works out what may be there if the power fails then.
Each such state is put into a folder and resumed by the same code. Counted: ``states`` that differ in what is there or what had been
acknowledged; ``lost``: what is resumed is older than what had been acknowledged, or starting anew fails, or the run then ends with
other weights; ``corrupt``: a folder has the name of a checkpoint and is not a whole one.

That the check would notice is shown with protocols that are not safe: the same code without syncing anything, without syncing
folders, and a file that is overwritten in place.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import support
from crash import SCENARIOS, Scenario, train_before, trainer_of
from diskmodel import Disk, Tree, materialise
from shim import Operation, Shim, ShimScript, loaded, read_record
from support import Report

from trainhooks import Trainer, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RUN = "runs/one"
#: Choices of pending changes after each operation, at scale 1.
MOST = 12


#: A first start that is killed where it would sync a folder; the power fails while the second one runs.
KILLED = Scenario("killed", 2, {"every_steps": 1, "keep": 1})


class Marks:
    """Puts what is acknowledged into the record."""

    def __init__(self, shim: Shim) -> None:
        self.shim = shim

    @hookimpl
    def after_save(self, path: Path) -> None:
        """Mark the step."""
        self.shim.mark(int(path.name.partition("-")[2]))


def trained(scenario: Scenario, folder: Path, shim: Shim) -> str:
    """Train the scenario in a folder and return the digest of what comes out; that it is complete is an acknowledgement too."""
    with support.collected_warnings():
        trainer = trainer_of(scenario, folder / RUN, Marks(shim))
        step = trainer.train(resume="auto").step
    if scenario.options.get("at_end", True):
        shim.mark(step)
    return support.digest(trainer)


def recorded(work: Callable[[Path], Any], folder: Path, shim: Shim, kill_at: int = 0) -> tuple[list[Operation], Any]:
    """Do ``work`` in a fork and return its file operations below ``folder`` and its result.

    Args:
        work: What to do in the folder.
        folder: Which one.
        shim: In this process.
        kill_at: An operation at which a first process is killed, before another one does the work again.
    """
    with tempfile.NamedTemporaryFile(dir=folder.parent) as log:

        def watched(report: Report, kill_at: int = 0) -> None:
            shim.reset()
            shim.set(record=log.fileno(), kill_at=kill_at)
            shim.watch(folder)
            try:
                result = work(folder)
            finally:
                shim.watch(None)
            report("result", result)

        if kill_at and not support.forked(lambda report: watched(report, kill_at)).signal:
            message = f"there is no operation {kill_at} at which the process could be killed"
            raise RuntimeError(message)
        child = support.forked(watched)
        if (error := child.last("error")) is not None:
            raise RuntimeError(error[2])
        return read_record(Path(log.name)), child.last("result")


def states(operations: list[Operation], disk: Disk, before: int, most: int) -> Iterator[tuple[int, int, Tree]]:
    """Return every different state: after which operation, what had been acknowledged, and what is on the disk."""
    seen = set()
    for number in range(len(operations) + 1):
        if number:
            disk.do(operations[number - 1])
        acknowledged = max(disk.marks, default=before)
        for tree in disk.states(most, seed=number):
            key = (acknowledged, digest_of(tree))
            if key not in seen:
                seen.add(key)
                yield number, acknowledged, tree


def digest_of(tree: Tree) -> str:
    """Return a digest of a state."""
    sha = hashlib.sha256()
    for name, data in sorted(tree.items()):
        sha.update(f"{name!r}:{'-' if data is None else len(data)}:".encode() + (data or b""))
    return sha.hexdigest()


Verdict = tuple[int, list[str], str]  # resumed at step, corrupt checkpoints, what else is wrong


def resumed(scenario: Scenario, folder: Path, digest: str) -> Verdict:
    """Verify the checkpoints of a state, start anew with the same code and train to the end."""
    start, corrupt = [], []

    class Start:
        @hookimpl
        def before_train(self, trainer: Trainer) -> None:
            start.append(trainer.step)

    trainer = trainer_of(scenario, folder / RUN, Start())
    with support.collected_warnings():
        for path in support.checkpoints_of(folder / RUN):
            try:
                trainer.hooks.load_checkpoint(trainer=trainer, path=path)
            except Exception as error:
                corrupt.append(f"{path.name}: {error}")
        try:
            trainer.train(resume="auto")
        except Exception as error:
            return -1, corrupt, f"{type(error).__name__}: {error}"
    wrong = "" if support.digest(trainer) == digest else "ended with other weights than without interruption"
    return start[0], corrupt, wrong


class Scan:
    """Checks states and counts.

    Args:
        name: In reports.
        check: Gives a verdict on a folder that holds a state.
        base: A folder for them.
    """

    def __init__(self, name: str, check: Callable[[Path], Verdict], base: Path) -> None:
        self.name, self.check, self.base = name, check, base
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self._known: dict[str, Verdict] = {}

    def state(self, number: int, what: str, acknowledged: int, tree: Tree) -> None:
        """Check one."""
        self.counts["states"] += 1
        start, corrupt, wrong = self._verdict(tree)
        place = f"{self.name}, after {number} ({what}), {acknowledged} acknowledged"
        inside = {name: "folder" if data is None else len(data) for name, data in tree.items()}
        if corrupt:
            self.counts["corrupt"] += 1
            self.faults.append(f"corrupt: {place}: {corrupt}; {inside}")
        if wrong or start < acknowledged:
            self.counts["lost"] += 1
            self.faults.append(f"lost: {place}: {wrong or f'resumed at {start}'}; {inside}")

    def _verdict(self, tree: Tree) -> Verdict:
        key = digest_of(tree)
        if key not in self._known:
            folder = self.base / f"state-{os.getpid()}"
            folder.mkdir()
            materialise(tree, folder)
            self._known[key] = self.check(folder)
            shutil.rmtree(folder)
        return self._known[key]


def scan(
    name: str,
    work: Callable[[Path], Any],
    check: Callable[[Path, Any], Verdict],
    base: Path,
    shim: Shim,
    *,
    before: int = 0,
    most: int = MOST,
    prepare: Callable[[Path], None] | None = None,
    one_is_enough: bool = False,
    kill_at: int = 0,
) -> tuple[Counter[str], list[str]]:
    """Record ``work``, then check every state of it, in as many processes as there are processors.

    Args:
        name: In reports.
        work: What is recorded, in the folder that it is given.
        check: Gives a verdict on a folder, and is given what ``work`` returned.
        base: Where to do it.
        shim: In this process.
        before: What had been acknowledged before.
        most: Choices of changes after each operation.
        prepare: Fills the folder.
        one_is_enough: End with the first state that is lost.
        kill_at: Where a first process is killed, before the power fails in the second one.

    Returns:
        The counts and a sentence for each fault.
    """
    folder = base / name
    folder.mkdir()
    if prepare is not None:
        prepared = support.forked(lambda report: prepare(folder))
        assert not prepared.all("error"), prepared.last("error")
    disk = Disk(folder)
    operations, result = recorded(work, folder, shim, kill_at)
    complete = copy.deepcopy(disk)
    for operation in operations:
        complete.do(operation)
    if complete.tree() != support.tree_of(folder):
        different = sorted(dict(complete.tree().items() ^ support.tree_of(folder).items()))
        message = f"{name}: an operation was not recorded: the record gives other {different} than there are"
        raise RuntimeError(message)

    def share(index: int, count: int) -> dict[str, Any]:
        one = Scan(name, lambda state: check(state, result), base)
        for number, acknowledged, tree in states(operations, copy.deepcopy(disk), before, most):
            if int(digest_of(tree), 16) % count == index:
                one.state(number, str(operations[number - 1]) if number else "nothing", acknowledged, tree)
            if one_is_enough and one.counts["lost"]:
                break
        return {"counts": one.counts, "faults": one.faults}

    counts, faults = Counter[str](), []
    for part in support.in_processes(share):
        counts.update(part["counts"])
        faults += part["faults"]
    print(f"{name}: {len(operations)} operations, {dict(counts)}", flush=True)
    return counts, faults


# --- Protocols that are not safe ---


@contextmanager
def syncing(wanted: Callable[[int], bool]) -> Iterator[None]:
    """Let ``os.fsync`` do its work only for some descriptors."""
    real = os.fsync
    os.fsync = lambda file: real(file) if wanted(file if isinstance(file, int) else file.fileno()) else None
    try:
        yield
    finally:
        os.fsync = real


def overwritten(folder: Path, shim: Shim) -> None:
    """Save three times into the same file."""
    for step in (1, 2, 3):
        text = json.dumps({"step": step, "weights": [step] * 100})
        with (folder / "latest.json").open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        shim.mark(step)


def read_overwritten(folder: Path, _: Any = None) -> Verdict:
    """Return the step that the file holds."""
    try:
        return json.loads((folder / "latest.json").read_text())["step"], [], ""
    except (OSError, ValueError):
        return 0, [], ""


def unsafe(base: Path, shim: Shim) -> dict[str, int]:
    """Return how many states each of three unsafe protocols loses."""
    scenario = next(one for one in SCENARIOS if one.name == "rotation")

    def without(wanted: Callable[[int], bool]) -> Callable[[Path], str]:
        def work(folder: Path) -> str:
            with syncing(wanted):
                return trained(scenario, folder, shim)

        return work

    def no_folder(descriptor: int) -> bool:
        return not stat.S_ISDIR(os.fstat(descriptor).st_mode)

    def check(folder: Path, digest: str) -> Verdict:
        return resumed(scenario, folder, digest)

    found = {
        "no-sync": scan("no-sync", without(lambda descriptor: False), check, base, shim, most=4, one_is_enough=True),
        "no-folder-sync": scan("no-folder-sync", without(no_folder), check, base, shim, most=4, one_is_enough=True),
        "in-place": scan("in-place", lambda folder: overwritten(folder, shim), read_overwritten, base, shim),
    }
    return {name: counts["lost"] for name, (counts, _) in found.items()}


def before_folder_syncs(scenario: Scenario, base: Path, shim: Shim) -> list[int]:
    """Return where each folder is synced first and last: a process that is killed there leaves names that are not durable."""

    folder = base / "names"
    folder.mkdir()

    def names(report: Report) -> None:
        shim.reset()
        shim.watch(folder)
        trained(scenario, folder, shim)
        report("names", shim.names())

    done: list[str] = support.forked(names).last("names")
    shutil.rmtree(folder)
    synced = [(number, name.removeprefix("fsync ")) for number, name in enumerate(done, 1) if name.startswith("fsync ")]
    first = {path: number for number, path in reversed(synced) if "." not in Path(path).name}
    last = {path: number for number, path in synced if "." not in Path(path).name}
    return sorted({*first.values(), *last.values()})


def all_states(scale: float, only: list[str], verbose: bool) -> dict[str, int]:
    """Check every state of every scenario, and that the unsafe protocols are found."""
    shim, total, faults = loaded(), Counter[str](), list[str]()
    chosen = [scenario for scenario in SCENARIOS if not only or scenario.name in only]
    with support.scratch_folder() as base:
        trainer_of(SCENARIOS[-1], base / "warm").train()  # what is imported late is imported before the forks
        for scenario in chosen:
            counts, sentences = scan(
                scenario.name,
                lambda folder, scenario=scenario: trained(scenario, folder, shim),
                lambda folder, digest, scenario=scenario: resumed(scenario, folder, digest),
                base,
                shim,
                before=scenario.before,
                most=max(2, round(MOST * scale)),
                prepare=(lambda folder, scenario=scenario: train_before(scenario, folder / RUN)) if scenario.before else None,
            )
            total.update(counts)
            faults += sentences
        for number in before_folder_syncs(KILLED, base, shim) if not only or "killed" in only else []:
            counts, sentences = scan(
                f"killed-at-{number}",
                lambda folder: trained(KILLED, folder, shim),
                lambda folder, digest: resumed(KILLED, folder, digest),
                base,
                shim,
                most=2,
                kill_at=number,
            )
            total.update(counts)
            faults += sentences
        losses = unsafe(base, shim) if not only or "unsafe" in only else {}
    for sentence in faults if verbose else faults[:20]:
        print(sentence)
    missed = [name for name, lost in losses.items() if not lost]
    if missed:
        message = f"the check does not notice what is lost by {', '.join(missed)}"
        raise AssertionError(message)
    return {"states": total["states"], "lost": total["lost"], "corrupt": total["corrupt"], "unsafe": len(losses)}


_SCRIPT = ShimScript(__file__, all_states)
run = _SCRIPT.run

if __name__ == "__main__":
    _SCRIPT.main(__doc__, ", 'killed' or 'unsafe'")
