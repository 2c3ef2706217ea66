"""Every file operation of saving, rotating, resuming and keeping the run folder: killed there, torn there, failing there.

    python tests/reliability/crash.py [--scale 0.1] [--only rotation,resume] [--verbose]

Each point is one process that trains, with a fault at its n-th file operation, and another one that resumes what is left with the
same code and trains to the end. Promised, and counted when it is not so:

- ``lost``: the newest acknowledged checkpoint, or a complete newer one, is what a start anew resumes; never an older one, never an
  error; and the run then ends bit for bit as if it had not been interrupted.
- ``corrupt``: a folder with the name of a checkpoint that is not a whole one.
- ``bad``: an operation that fails and is silent, or whose error is not ours, or does not name path and cause, or costs a checkpoint,
  or, with ``on_failure="continue"``, ends the training.
- ``leftovers``: hidden files that stay after such a failure, or that a resumed run does not clean up.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import support
from shim import Shim, ShimScript, loaded
from support import Child, Report

from trainhooks import Trainer, hookimpl
from trainhooks_builtins import Checkpoint, Evaluation

ERRNOS = ("ENOSPC", "EIO", "EROFS", "EACCES", "EDQUOT", "EMFILE", "EFBIG", "ENOENT")
#: File operations that at least are there in each scenario; fewer mean that the shim no longer sees them.
FEWEST_OPERATIONS = 8


@dataclass(frozen=True)
class Scenario:
    """A training and the part of it in which faults are injected.

    Attributes:
        name: In reports.
        steps: How many the whole run has.
        options: Of ``checkpoint``.
        before: Steps that an earlier process trained without faults; 0 if this is the first start.
        begin: Faults begin before this step; ``None`` for from the start of the process.
        end: Faults end before this step; ``None`` for never.
        evaluate_every: Epochs between evaluations, negative for steps, 0 for none.
        defaults: Whether the plugins take part that are active by themselves.
    """

    name: str
    steps: int
    options: dict[str, Any] = field(default_factory=dict)
    before: int = 0
    begin: int | None = None
    end: int | None = None
    evaluate_every: int = 0
    defaults: bool = False


SCENARIOS = (
    Scenario("first-save", 3, {"every_steps": 1}, end=1),
    Scenario("rotation", 5, {"every_steps": 1, "keep": 1}, begin=2, end=4),
    Scenario("best-changes", 7, {"every_steps": 1, "keep": 1, "best": "val/score"}, begin=4, end=6, evaluate_every=-1),
    Scenario("same-step", 9, {"every_steps": 8, "best": "val/score", "keep": 1}, begin=7, end=8, evaluate_every=1),
    Scenario("final", 6, {"every_steps": 4, "keep": 1}, begin=5),
    Scenario("resume", 6, {"every_steps": 1, "keep": 2}, before=3, end=4),
    Scenario("run-folder", 3, {"every_epochs": 0, "at_end": False}),
    Scenario("asynchronous", 5, {"every_steps": 1, "keep": 1, "async_save": True}),
    Scenario("defaults", 5, {"every_steps": 2, "keep": 1}, defaults=True),
)


class Window:
    """Injects faults between two steps, and reports what is acknowledged."""

    def __init__(self, scenario: Scenario, shim: Shim, folder: Path, report: Report) -> None:
        self.scenario, self.shim, self.folder, self.report = scenario, shim, folder, report

    @hookimpl
    def before_train(self, trainer: Trainer) -> None:
        self.report("resumed", trainer.step)

    @hookimpl
    def before_step(self, trainer: Trainer) -> None:
        if trainer.step == self.scenario.begin:
            self.shim.watch(self.folder)
        if trainer.step == self.scenario.end:
            self.shim.watch(None)

    @hookimpl
    def after_save(self, path: Path) -> None:
        self.report("acknowledged", int(path.name.partition("-")[2]))


def trainer_of(scenario: Scenario, work_dir: Path, plugin: Any = None, steps: int | None = None, **options: Any) -> Trainer:
    """Return the trainer of a scenario; each process makes it with the same code."""
    every = scenario.evaluate_every
    plugins: list[Any] = [Checkpoint(**scenario.options, **options)]
    if every:
        plugins.append(Evaluation(every_epochs=max(every, 0), every_steps=max(-every, 0), at_end=False))
    if plugin is not None:
        plugins.append(plugin)
    more: dict[str, Any] = {"autoload": True, "options": {}} if scenario.defaults else {}
    if scenario.defaults:
        plugins.append("no:progress")
    return support.make_trainer(work_dir, steps or scenario.steps, plugins, **more)


def train(scenario: Scenario, work_dir: Path, report: Report, shim: Shim, **faults: Any) -> None:
    """Train with a fault and report how it went."""
    options = faults.pop("options", {})
    shim.reset()
    shim.set(**faults)
    window = Window(scenario, shim, work_dir.parent.parent, report)
    with support.collected_warnings() as warnings:
        try:
            if scenario.begin is None:
                shim.watch(window.folder)
            trainer = trainer_of(scenario, work_dir, window, **options)
            outcome = trainer.train(resume="auto")
            shim.watch(None)
            report("completed", outcome.step)
            report("digest", support.digest(trainer))
        finally:
            shim.watch(None)
            report("count", shim.get("count"))
            report("fired", shim.get("fired"))
            report("warnings", list(warnings))
            report("names", shim.names())


def resume(scenario: Scenario, work_dir: Path, report: Report) -> None:
    """Verify every checkpoint, then start anew with the same code and train to the end."""

    class Start:
        @hookimpl
        def before_train(self, trainer: Trainer) -> None:
            report("resumed", trainer.step)

    with support.collected_warnings() as warnings:
        trainer = trainer_of(scenario, work_dir, Start())
        for path in support.checkpoints_of(work_dir):
            try:
                trainer.hooks.load_checkpoint(trainer=trainer, path=path)
            except Exception as error:
                report("corrupt", f"{path.name}: {error}")
        warnings.clear()
        trainer.train(resume="auto")
        report("digest", support.digest(trainer))
        report("warnings", list(warnings))
        report("left", support.left_over(work_dir))


class Points:
    """Does one point after the other and counts.

    Args:
        scenario: Whose points.
        base: A folder for them.
        shim: In this process.
    """

    def __init__(self, scenario: Scenario, base: Path, shim: Shim) -> None:
        self.scenario, self.base, self.shim = scenario, base, shim
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.prepared = base / "prepared"
        self.prepared.mkdir()
        if scenario.before:
            made = support.forked(lambda report: train_before(scenario, self.prepared / "runs/one"))
            assert not made.all("error"), made.last("error")
        reference, work_dir = self._train(self.fresh())
        assert not reference.all("error"), reference.last("error")[2]
        self.digest = reference.last("digest")
        self.names = [name.partition(" ")[0] for name in reference.last("names")]
        assert len(self.names) == reference.last("count") >= FEWEST_OPERATIONS, (scenario.name, self.names)
        again, _ = self._train(self.fresh(), reads=1)
        assert again.last("digest") == self.digest, f"{scenario.name}: two runs without a fault differ"
        self.all_names = again.last("names")
        shutil.rmtree(work_dir.parent.parent)

    def fresh(self) -> Path:
        """Return the run folder of a new point, as the earlier process left it."""
        folder = self.base / f"{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.prepared, folder)
        return folder / "runs" / "one"

    def _train(self, work_dir: Path, **faults: Any) -> tuple[Child, Path]:
        child = support.forked(lambda report: train(self.scenario, work_dir, report, self.shim, **faults))
        return child, work_dir

    def killed(self, kind: str, number: int) -> None:
        """Kill the process at an operation, or in the middle of a write."""
        child, work_dir = self._train(self.fresh(), **{f"{kind}_at": number})
        if not child.signal:
            self._not_reached(child, number)
            return
        self.counts["kills"] += 1
        self._check(child, work_dir, f"{kind} at {number} ({self.names[number - 1]})")

    def failed(self, name: str, number: int, *, sticky: bool = False, on_failure: str = "stop") -> None:
        """Let an operation fail; the run may fail too, but not silently and not with a loss."""
        options = {"on_failure": on_failure} if on_failure != "stop" else {}
        faults = {"err_at": number, "err": getattr(errno, name), "err_sticky": int(sticky), "reads": 1, "options": options}
        child, work_dir = self._train(self.fresh(), **faults)
        assert not child.signal, (name, number)
        if not child.last("fired"):
            self._not_reached(child, number)
            return
        self.counts["errno"] += 1
        operation, *later = child.last("names")[number - 1 :]
        what = f"{name}{' from' if sticky else ''} at {number} ({operation}), on_failure={on_failure}"
        why = self._why_bad(child, work_dir.parent.parent, name, (operation, later), on_failure)
        if why:
            self._fault("bad", what, why)
        left = support.left_over(work_dir) if work_dir.exists() else []
        in_removal = any(
            f"{ending}" in operation for ending in (".trash", ".old")
        )  # it stays, with a warning, till the next save
        if left and not sticky and not in_removal:
            self._fault("leftovers", what, f"left {left}")
        self._check(child, work_dir, what)

    def _why_bad(self, child: Child, base: Path, name: str, operations: tuple[str, list[str]], on_failure: str) -> str:
        """Return what is wrong with how a failing operation was met, if anything."""
        operation, later = operations
        said, text = "\n".join(child.last("warnings", [])), os.strerror(getattr(errno, name))
        what, _, path = operation.partition(" ")
        error = child.last("error")
        if error is None:
            tried_again = what in ("mkdir", "fsync", "read") and Path(path).is_dir() and operation in later
            means_nothing = path.endswith("/run.lock") and what == "unlink"  # the lock is not the file
            if tried_again or means_nothing or (str(base) in said and (text in said or what == "read")):
                return ""
            return f"no word of it; warnings: {said!r}"
        names, message, trace = error
        if "TrainhooksError" not in names:
            return f"{names[0]} is none of ours: {message}\n{trace}"
        if text not in message + said or str(base) not in message:
            return f"{names[0]} does not name path and cause: {message}; warnings: {said!r}"
        in_a_save = "/checkpoints/" in operation and child.all("resumed")
        return f"ended the training: {message}" if on_failure == "continue" and in_a_save else ""

    def _not_reached(self, child: Child, number: int) -> None:
        """Count a point that was not reached: only background threads may do other operations each time."""
        assert self.scenario.options.get("async_save") or self.scenario.defaults, (self.scenario.name, number, child.messages)
        self.counts["not reached"] += 1

    def _check(self, child: Child, work_dir: Path, what: str) -> None:
        """Resume what is left."""
        acknowledged = max(child.all("acknowledged"), default=self.scenario.before)
        after = support.forked(lambda report: resume(self.scenario, work_dir, report))
        for sentence in after.all("corrupt"):
            self._fault("corrupt", what, sentence)
        error, start = after.last("error"), after.last("resumed")
        if error is not None or after.signal:
            self._fault("lost", what, f"acknowledged {acknowledged}, a start anew fails: {error[1] if error else after.signal}")
        elif start < acknowledged:
            self._fault("lost", what, f"acknowledged {acknowledged}, resumed at {start}; {after.last('warnings')}")
        elif after.last("digest") != self.digest:
            self._fault("lost", what, f"resumed at {start}, and ended with other weights than without interruption")
        elif after.last("left"):
            self._fault("leftovers", what, f"the resumed run leaves {after.last('left')}")

    def _fault(self, count: str, what: str, why: str) -> None:
        self.counts[count] += 1
        self.faults.append(f"{count}: {self.scenario.name}, {what}: {why}")


def train_before(scenario: Scenario, work_dir: Path) -> None:
    """Train the part of an earlier process."""
    trainer_of(scenario, work_dir, steps=scenario.before).train(resume="auto")


def sampled(items: list[Any], scale: float) -> list[Any]:
    """Return a part of a list, evenly spread and at least three items of it."""
    wanted = min(len(items), max(3, math.ceil(len(items) * scale)))
    return [items[index * len(items) // wanted] for index in range(wanted)]


def points_of(one: Points, scale: float) -> list[tuple[Any, ...]]:
    """Return the points of a scenario, as calls."""
    numbers = range(1, len(one.names) + 1)
    kills = [("killed", "kill", number) for number in numbers]
    torn = [("killed", "torn", number) for number in numbers if one.names[number - 1] == "write"]
    calls: list[tuple[Any, ...]] = sampled(kills, scale) + sampled(torn, scale)
    if one.scenario.defaults:
        return calls  # what loggers do when their file fails is their own policy
    failures = [(name, number) for number in range(1, len(one.all_names) + 1) for name in ERRNOS]
    calls += [("failed", *each, False, "stop") for each in sampled(failures, scale)]
    calls += [("failed", *each, False, "continue") for each in sampled(failures[:: len(ERRNOS) // 2 + 1], scale)]
    return calls + [("failed", *each, True, "stop") for each in sampled(failures[:: len(ERRNOS) - 1], scale)]


def all_points(scale: float, only: list[str], verbose: bool) -> dict[str, Any]:
    """Do every point of every scenario, in as many processes as there are processors."""
    shim, total, faults = loaded(), Counter[str](), list[str]()
    chosen = [scenario for scenario in SCENARIOS if not only or scenario.name in only]
    with support.scratch_folder() as base:
        trainer_of(SCENARIOS[-1], base / "warm").train()  # what is imported late is imported before the forks
        for scenario in chosen:

            def work(index: int, count: int, scenario: Scenario = scenario) -> dict[str, Any]:
                folder = base / f"{scenario.name}-{index}"
                folder.mkdir()
                one = Points(scenario, folder, shim)
                for call in points_of(one, scale)[index::count]:
                    name, *arguments = call
                    if name == "killed":
                        one.killed(*arguments)
                    else:
                        one.failed(*arguments[:2], sticky=arguments[2], on_failure=arguments[3])
                shutil.rmtree(folder)
                return {"counts": one.counts, "faults": one.faults, "operations": len(one.names)}

            counts: Counter[str] = Counter()
            operations = 0
            for result in support.in_processes(work):
                counts.update(result["counts"])
                faults += result["faults"]
                operations = result["operations"]
            total.update(counts)
            print(f"{scenario.name}: {operations} operations; {dict(counts)}", flush=True)
    for sentence in faults if verbose else faults[:20]:
        print(sentence)
    zero = dict.fromkeys(("kills", "lost", "corrupt", "errno", "bad", "leftovers"), 0)
    return {**zero, **{name: count for name, count in total.items() if name in zero}}


_SCRIPT = ShimScript(__file__, all_points)
run = _SCRIPT.run

if __name__ == "__main__":
    _SCRIPT.main(__doc__)
