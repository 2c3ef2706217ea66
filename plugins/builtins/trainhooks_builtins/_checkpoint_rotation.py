"""Which checkpoints are kept: the newest, the best and those that are pinned."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainhooks.best import Best

from ._checkpoint_files import is_pinned, newest_first, read_manifests, remove_checkpoints, step_of
from ._checkpoint_folders import in_words, read_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from trainhooks import CheckpointError, Trainer
    from trainhooks.best import Mode

log = logging.getLogger("trainhooks")


class Ranking(Best):
    """The values of one metric at the steps that have a checkpoint; ``step`` and ``value`` are the best of them.

    Args:
        metric: Its name, for example ``val/accuracy``.
        mode: Which direction is better; inferred from the name.
        count: How many are the best.
    """

    def __init__(self, metric: str, mode: Mode, count: int) -> None:
        super().__init__(metric, mode)
        self.count = count
        self._values: dict[int, float] = {}
        self._latest: tuple[int, float] | None = None
        #: Whether any value was a finite number.
        self.measured = False

    def update(self, value: float, step: int) -> bool:
        """Take the value of an evaluation; return whether it is among the best. NaN and infinity never are, nor is a tie."""
        if not math.isfinite(value):
            return False
        self._latest, self.measured = (step, float(value)), True
        best = self.best_of(self._values)
        return len(best) < self.count or self._loss(value) < self._loss(self._values[best[-1]])

    def values_after(self, step: int) -> dict[int, float]:
        """Return the values as they are once there is a checkpoint of ``step``."""
        latest = {step: self._latest[1]} if self._latest is not None and self._latest[0] == step else {}
        return self._values | latest

    def commit(self, values: dict[int, float], steps: Collection[int]) -> None:
        """Take over the values of those checkpoints that are there; another thread may read meanwhile."""
        self._values = {step: value for step, value in values.items() if step in steps}
        self.step = next(iter(self.best_of(self._values)), None)
        self.value = self._values[self.step] if self.step is not None else None

    def keep_only(self, steps: Collection[int]) -> None:
        """Forget the values of checkpoints that are not there: the best is that of those that are."""
        self.commit(self._values, steps)

    def best_of(self, values: dict[int, float]) -> list[int]:
        """Return the best steps, the best first; of equal ones the earlier."""
        return sorted(values, key=lambda step: (self._loss(values[step]), step))[: self.count]

    def _loss(self, value: float) -> float:
        return value if self.mode == "min" else -value

    def state_after(self, step: int) -> dict[str, Any]:
        """Return what a checkpoint of ``step`` should know."""
        values = self.values_after(step)
        ranked = [[best, values[best]] for best in self.best_of(values)]
        first, value = ranked[0] if ranked else (None, None)
        return {"metric": self.metric, "value": value, "step": first, "ranked": ranked, "values": values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it, unless it belongs to another metric."""
        if state["metric"] == self.metric:
            self.commit(state["values"], state["values"])
            self.measured = bool(self._values)


@dataclass(frozen=True)
class Wish:
    """What one instance of the plugin wants to keep.

    Args:
        keep: How many that are not pinned; 0 for all.
        best: The steps that are the best, as far as they are there.
    """

    keep: int
    best: tuple[int, ...]

    def wanted(self, steps: Sequence[int], pinned: Collection[int] = ()) -> set[int]:
        """Return which steps to keep: the newest, the best, and as many of the next newest as ``keep`` leaves room for.

        Args:
            steps: Of those that are there, the newest first.
            pinned: Those of them that are kept anyway, and do not count.
        """
        if self.keep == 0:
            return set(steps)
        loose = [step for step in steps if step not in pinned]
        always = [step for step in dict.fromkeys([*steps[:1], *self.best]) if step in loose]
        return set(pinned) | set(list(dict.fromkeys([*always, *loose]))[: max(self.keep, len(always))])


def steps_there(trainer: Trainer) -> set[int] | None:
    """Return the steps of what a run has saved in its folder: none if it was resumed into one of its own; ``None`` if unknown."""
    if trainer.run_folder is None or trainer.session is None:
        return None
    folder, source = trainer.run_folder.path / "checkpoints", trainer.session.restored_from
    own = [place.resolve() for place in (trainer.run_folder.path, folder)]
    if source is not None and not any(source.resolve().is_relative_to(place) for place in own):
        return set()
    try:
        return set(map(step_of, read_folder(folder))) if folder.is_dir() else set()
    except OSError as error:
        log.warning("cannot read the folder of checkpoints %s: %s", folder, in_words(error))
        return None


def rotate(newest: Path, run: str, wishes: Sequence[Wish], said: set[Path]) -> tuple[list[Path], set[int]]:
    """Remove the checkpoints of a run that nobody wants to keep, of those beside ``newest`` that have no more steps.

    Args:
        newest: The one that was just saved.
        run: The ``id`` of the run. What another one wrote, or nobody knows who, stays and does not count.
        wishes: What to keep.
        said: Those of which it was said that nobody knows; more are added.

    Returns:
        Those that were removed, and the steps of those that are there.
    """
    try:
        there = [path for path in read_folder(newest.parent) if step_of(path) <= step_of(newest)]
    except OSError as error:
        log.warning(
            "cannot read the folder of checkpoints %s: %s; older ones are removed next time", newest.parent, in_words(error)
        )
        return [], {step_of(newest)}.union(*(wish.best for wish in wishes))
    pinned = {path for path in there if is_pinned(path)}
    if any(wish.keep == 0 for wish in wishes):
        return [], set(map(step_of, there))
    loose = [path for path in there if path not in pinned and path != newest]
    own = {step_of(path): path for path in (newest, *_own(loose, run, said), *pinned)}
    wanted = {step_of(newest)}.union(*(wish.wanted([*own], set(map(step_of, pinned))) for wish in wishes))
    unwanted = [path for step, path in own.items() if step not in wanted]
    errors = remove_checkpoints(unwanted)
    for problem in errors.values():
        log.warning(
            "%s; tried again at the next one; there are %d checkpoints now", problem, len(own) - len(unwanted) + len(errors)
        )
    removed = [path for path in unwanted if path not in errors]
    return removed, own.keys() - {step_of(path) for path in removed}


def _own(paths: Sequence[Path], run: str, said: set[Path]) -> list[Path]:
    """Return those of the checkpoints that a run wrote, the newest first."""
    found, errors = read_manifests(paths)
    note_unread(errors, said)
    return newest_first({path: manifest for path, manifest in found.items() if manifest.run == run}, run)


def note_unread(errors: Mapping[Path, CheckpointError], said: set[Path]) -> None:
    """Warn, once for each, of checkpoints whose manifest cannot be read.

    Args:
        errors: Why not.
        said: Those of which it was said; the others are added.
    """
    for path in errors.keys() - said:
        said.add(path)
        log.warning("%s stays, since it is not known whether this run wrote it: %s", path, errors[path])
