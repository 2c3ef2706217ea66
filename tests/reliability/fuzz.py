"""Checkpoints that are damaged, or edited by somebody who can compute the digests: named, never loaded as other data, never run.

    python tests/reliability/fuzz.py [--scale 1.0]

A real training leaves two checkpoints. The newer one is mutated and read again as ``resume`` reads it, in forked children with
an audit hook and 4 GB of address space. Without new digests it is refused by name or loads to the last bit as it was written;
the run folder then gives the older one, with one warning. With new digests it is refused, or is a state like any other: tensors
and plain values, which the trainer takes or refuses.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import itertools
import json
import logging
import os
import random
import struct
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainhooks import CheckpointError, Trainer, UsageError, hookimpl
from trainhooks_builtins import Checkpoint, Clip

sys.path.insert(0, str(Path(__file__).parent))
import mutations
from guard import Watch, forked, measured, tree
from mutations import MANIFEST, NAMES, STATE, Files, Mutation, seal

torch.set_num_threads(1)  # a forked child has none of the threads that its parent may have computed with

SECONDS, MEGABYTES = 5.0, 500.0
BATCH = 250
PLAIN = (type(None), bool, int, float, complex, str, bytes)
CONTAINERS = (list, tuple, set, frozenset)


class Everything:
    """Keeps a value of every kind that a state may hold."""

    name = "everything"

    def __init__(self) -> None:
        self.state: Any = {
            "list": [1, 1.0, True, None, "text", b"\x00\xff"],
            "tuple": (1, (2.5, [3])),
            ("a", 1): {1: "int", None: "none"},
            "floats": [float("nan"), float("inf"), -0.0, 1e-320],
            "set": {1, 2},
            "complex": torch.tensor([1 + 2j]),
            "channels_last": torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
            "empty": torch.empty(0, 3),
            "half": torch.tensor(1.5, dtype=torch.bfloat16),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return it."""
        return {"kept": self.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.state = state["kept"]


def make_trainer(work_dir: Path | None) -> Trainer:
    """Return a training of 6 steps with a checkpoint at steps 3 and 6: Linear, BatchNorm, Adam, a list of every plain value."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    batches = [(torch.randn(4, 8), torch.randint(0, 2, (4,))) for _ in range(4)]
    return Trainer(
        model,
        loss=nn.functional.cross_entropy,
        optimizer=torch.optim.Adam(model.parameters()),
        loaders={"train": batches},
        plugins=[Checkpoint(every_steps=3), Clip(1.0), Everything()],
        max_steps=6,
        device="cpu",
        work_dir=work_dir,
        autoload=False,
    )


def canonical(state: Any) -> str:
    """Return a digest of a state to the last bit: types, data types, shapes, order of keys."""
    digest = hashlib.sha256()
    for part in _parts(state):
        digest.update(part)
    return digest.hexdigest()


def _parts(value: Any) -> Any:
    yield f"<{type(value).__name__}>".encode()
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype} {tuple(value.shape)} {value.stride()}".encode()
        yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _parts(key)
            yield from _parts(item)
    elif isinstance(value, list | tuple) and set(map(type, value)) == {int}:  # a generator's state has hundreds
        yield repr(value).encode()
    elif isinstance(value, CONTAINERS):
        for item in sorted(value, key=repr) if isinstance(value, set | frozenset) else value:
            yield from _parts(item)
    elif isinstance(value, float | complex):
        yield struct.pack("<dd", value.real, value.imag)
    else:
        yield repr(value).encode("utf-8", "surrogatepass")


def well_typed(value: Any, depth: int = 0) -> bool:
    """Return whether a state has tensors and plain values in it and nothing else."""
    if type(value) is torch.Tensor:
        for _ in _parts(value):
            pass  # its memory can be read
        return True
    if isinstance(value, dict):
        return depth < 200 and all(well_typed(one, depth + 1) for pair in value.items() for one in pair)
    if type(value) in CONTAINERS:
        return depth < 200 and all(well_typed(one, depth + 1) for one in value)
    return type(value) in PLAIN or isinstance(value, torch.Size | torch.dtype | torch.device)


# --- One mutation ---


class Reader:
    """Writes a mutation into its place and reads it, within a child.

    Args:
        run: The run folder with both checkpoints.
    """

    def __init__(self, run: Path, watch: Watch) -> None:
        self.run, self.watch = run, watch
        self.older, self.newer = newest_first(run)[1::-1]
        self.expected = {path: canonical(Checkpoint().load_checkpoint(path)) for path in (self.older, self.newer)}
        self.older_tree = tree(self.older)
        self.warnings: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.warnings.append(record.getMessage())  # type: ignore[method-assign]
        log = logging.getLogger("trainhooks")
        log.handlers, log.propagate = [handler], False

    def judge(self, mutation: Mutation) -> dict[str, Any]:
        """Return what is wrong with how a mutation was read, and how it was read."""
        for name in os.listdir(self.newer):
            (self.newer / name).unlink()
        for name, data in mutation.files.items():
            (self.newer / name).write_bytes(data)
        faults: list[str] = []
        how, spent = measured(lambda: self._read(mutation, faults))
        if spent.seconds > SECONDS:
            faults.append(f"slow: {spent.seconds:.1f} s")
        if spent.megabytes > MEGABYTES:
            faults.append(f"big: {spent.megabytes:.0f} MB")
        for name in ("executed", "outside"):
            faults += [f"exec: {event}" for event in getattr(self.watch, name)]
            getattr(self.watch, name).clear()
        return {"kind": mutation.kind, "how": how, "faults": faults}

    def _read(self, mutation: Mutation, faults: list[str]) -> str:
        state = self._state(self.newer, faults)
        how = "refused" if state is None else "loaded" if canonical(state) == self.expected[self.newer] else "other data"
        if how == "other data":
            if not mutation.sealed:
                faults.append("silent: loads as other data")
            elif not well_typed(state):
                faults.append("untyped: the state has more than tensors and plain values")
            else:
                how = self._restored(faults)
        self.warnings.clear()
        found = self._state(self.run, faults)
        whole = [self.expected[self.older]] if state is None or mutation.sealed else []  # sealed: it may say that it is older
        whole += [canonical(state)] if state is not None else []
        if found is None or canonical(found) not in whole:
            faults.append("lost: the run folder does not give the checkpoint that is whole")
        if tree(self.older) != self.older_tree:
            faults.append("lost: the older checkpoint was touched")
        if [self.newer.name in text for text in self.warnings] != [True] * (state is None):
            faults.append(f"unnamed: a run folder with a broken checkpoint warns {self.warnings}")
        return how

    def _state(self, path: Path, faults: list[str]) -> Any:
        try:
            return Checkpoint().load_checkpoint(path)
        except CheckpointError as error:
            if not any(str(place) in str(error) for place in (self.newer, self.run)):
                faults.append(f"unnamed: {error}")
        except BaseException as error:
            faults.append(f"untyped: {type(error).__name__}: {error}"[:300])
        return None

    def _restored(self, faults: list[str]) -> str:
        """Go on from a state that was made up: it is refused, or a step is trained with it, well or not."""
        trainer, begun = make_trainer(None), []
        trainer.max_steps = 10**6
        trainer.register(Once(begun))
        try:
            trainer.train(resume=self.newer)
        except (CheckpointError, UsageError):
            return "other data, refused by the trainer"
        except Exception as error:
            if begun:  # the model, or a plugin in its hooks, cannot work with such values
                return "other data, fails in training"
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(frame.filename).name}:{frame.lineno}"
            faults.append(f"untyped: {type(error).__name__}: {error} at {place}"[:300])
        except BaseException as error:
            faults.append(f"untyped: {type(error).__name__}: {error}"[:300])
        return "other data"


class Once:
    """Ends a run after one step.

    Args:
        begun: Gets an entry when training begins.
    """

    phase = "reporting"

    def __init__(self, begun: list[bool]) -> None:
        self.begun = begun

    @hookimpl
    def before_step(self) -> None:
        """Note that everything is restored."""
        self.begun.append(True)

    @hookimpl
    def after_step(self, trainer: Trainer) -> None:
        """End it."""
        trainer.stop("one step")


def newest_first(run: Path) -> list[Path]:
    """Return the checkpoints of a run folder."""
    return sorted((run / "checkpoints").glob("step-*"), reverse=True)


# --- All of them ---


def all_mutations(newer: Files, older: Files, scale: float, seed: int = 0) -> list[Mutation]:
    """Return at least 10,000 mutations at scale 1."""
    chance = random.Random(seed)

    def many(count: int) -> int:
        return max(15, round(count * scale))

    everything = [
        *mutations.bit_flips(newer, chance, many(3600)),
        *mutations.zeroed_pages(newer, chance, many(450)),
        *mutations.swapped_sectors(newer, chance, many(600)),
        *mutations.truncations(newer, chance, many(600)),
        *mutations.appended(newer, chance, many(300)),
        *mutations.splices(newer, older, chance, many(450)),
        *mutations.missing_and_extra(newer),
        *mutations.format_numbers(newer, seal),
        *mutations.json_edits(newer, MANIFEST, chance, many(1000), None),
        *mutations.json_edits(newer, STATE, chance, many(1000), None),
        *mutations.json_edits(newer, MANIFEST, chance, many(900), seal),
        *mutations.json_edits(newer, STATE, chance, many(1200), seal),
        *mutations.header_edits(newer, chance, many(400), None),
        *mutations.header_edits(newer, chance, many(1000), seal),
        *mutations.sealed_noise(newer, chance, many(600), seal),
    ]
    return [mutation for mutation in everything if mutation.files != newer]


def read_all(everything: list[Mutation], run: Path, log: Path) -> list[dict[str, Any]]:
    """Read every mutation in forked children; one that kills its child is a fault, and the next child goes on behind it."""
    results: list[dict[str, Any]] = []
    while len(results) < len(everything):
        todo = everything[len(results) : len(results) + BATCH]

        def work(tell: Any, todo: list[Mutation] = todo) -> None:
            watch = Watch([run])
            reader = Reader(run, watch)
            watch.executed.clear()
            for mutation in todo:
                tell(reader.judge(mutation))

        restore(run)
        ended = forked(work, log)
        results += ended.records
        if len(ended.records) < len(todo):
            why = (
                f"slow: silent for 30 s: {ended.log[-1500:]}"
                if ended.timed_out
                else f"signal: {ended.signal}, {ended.log[-1500:]}"
            )
            results.append({"kind": todo[len(ended.records)].kind, "how": "died", "faults": [why]})
    restore(run)
    return results


_ORIGINALS: dict[Path, Files] = {}


def make_checkpoints(run: Path) -> None:
    """Train, and remember what both checkpoints are."""
    make_trainer(run).train()
    for path in newest_first(run):
        _ORIGINALS[path] = {name: (path / name).read_bytes() for name in NAMES}


def restore(run: Path) -> None:
    """Put the checkpoints of a run back as they were written."""
    for path in newest_first(run):
        for name in os.listdir(path):
            if name not in NAMES:
                (path / name).unlink()
        for name, data in _ORIGINALS[path].items():
            (path / name).write_bytes(data)


def explore(scale: float = 1.0) -> list[dict[str, Any]]:
    """Return how every mutation was read."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="trainhooks-fuzz-", dir=memory) as folder:
        run = Path(folder) / "run"
        make_checkpoints(run)
        newer, older = newest_first(run)
        return read_all(all_mutations(_ORIGINALS[newer], _ORIGINALS[older], scale), run, Path(folder) / "log")


def count(results: list[dict[str, Any]]) -> dict[str, int]:
    """Return how many there were, and how many of each fault."""
    faults = collections.Counter(kind for one in results for kind in {text.partition(":")[0] for text in one["faults"]})
    names = ("silent", "exec", "signals", "slow", "big", "untyped", "lost", "unnamed")
    return {
        "mutations": len(results),
        **{name: faults[name.removesuffix("s") if name == "signals" else name] for name in names},
    }


def run(scale: float = 1.0) -> dict[str, int]:
    """Return the counters."""
    return count(explore(scale))


def main() -> None:
    """Print what was done with each kind of mutation, every fault, and the counters."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0)
    results = explore(parser.parse_args().scale)
    ways = collections.Counter((one["kind"], one["how"]) for one in results)
    for kind, group in itertools.groupby(sorted(ways.items()), key=lambda item: item[0][0]):
        print(f"{kind:46}  " + ", ".join(f"{number} {how}" for (_, how), number in group))
    faults = collections.Counter((text, one["kind"]) for one in results for text in one["faults"])
    for (text, kind), number in faults.most_common(200):
        print(f"FAULT x{number} [{kind}] {text}")
    counters = count(results)
    print(json.dumps(counters))
    sys.exit(any(number for name, number in counters.items() if name != "mutations"))


if __name__ == "__main__":
    main()
