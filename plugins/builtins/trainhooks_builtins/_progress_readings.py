"""What can be read off a trainer at any moment, by any thread: where it is, how far that is from the end, its metrics; no plugin."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainhooks import Trainer

    from ._progress_rate import Rate


def steps_text(trainer: Trainer, step: int) -> str:
    """Return the steps that are done, and of how many."""
    total = trainer.total_steps
    return f"step {step}/{total}" if total is not None else f"step {step}"


def counts(trainer: Trainer) -> list[str]:
    """Return the running epoch where ``max_epochs`` ends the run, and the updates where ``max_updates`` may."""
    found = []
    epochs, length = trainer.max_epochs, trainer.epoch_length
    if epochs is not None and epochs > 1:
        steps, updates = trainer.max_steps, trainer.max_updates
        if (steps is None and updates is None) or (length is not None and steps is not None and length * epochs <= steps):
            found.append(f"epoch {min(trainer.epoch + 1, epochs)}/{epochs}")
    if trainer.max_updates is not None:
        found.append(f"update {trainer.update}/{trainer.max_updates}")
    return found


def end_of(trainer: Trainer, step: int, began_at: tuple[int, int] = (0, 0)) -> int | None:
    """Return at which step the run will end, as far as it can be told.

    Args:
        trainer: The run.
        step: Steps done.
        began_at: Steps and updates done when this process began; where updates are what counts, they go on as they came since.
    """
    ends = [trainer.total_steps] if trainer.total_steps is not None else []
    if trainer.max_updates is not None:
        left, made = max(trainer.max_updates - trainer.update, 0), trainer.update - began_at[1]
        if made > 0 or not left:
            ends.append(step + math.ceil(left * (step - began_at[0]) / max(made, 1)))
    return min(ends, default=None)


def metric_names(trainer: Trainer, chosen: Sequence[str]) -> list[str]:
    """Return which metrics to show, the most telling ones first: the loss, evaluations, what else is of training, the rest."""
    metrics, splits = dict(trainer.metrics), set(trainer.loaders) - {"train"}
    if chosen:
        return [name for name in chosen if name in metrics]
    parts = {name: name.rpartition("/")[0] for name in metrics}
    telling = {"train/loss": 0} | {name: 1 for name, split in parts.items() if split in splits}
    names = [name for name, split in parts.items() if split in ("", "train") or name in telling]
    return sorted(names, key=lambda name: telling.get(name, 2 if parts[name] else 3))


def latest_metrics(trainer: Trainer, chosen: Sequence[str]) -> list[str]:
    """Return them with the values that were flushed last."""
    latest = dict(trainer.metrics)
    return [f"{name} {short(latest[name])}" for name in metric_names(trainer, chosen) if name in latest]


def speed(trainer: Trainer, steps_per_second: float | None) -> list[str]:
    """Return steps a second, and samples if the loader says how large its batches are."""
    if not steps_per_second:
        return []
    size = getattr(trainer.loaders.get("train"), "batch_size", None)
    samples = [f"{short(steps_per_second * size)} samples/s"] if isinstance(size, int) else []
    return [f"{short(steps_per_second)} steps/s", *samples]


def time_left(trainer: Trainer, rate: Rate, step: int, now: float) -> list[str]:
    """Return the time left in words, if it is known."""
    end = end_of(trainer, step, rate.began_at)
    seconds = 0.0 if end is not None and step >= end else rate.seconds_left(step, end, now)
    return [f"{duration(seconds)} left"] if seconds is not None and math.isfinite(seconds) else []


def time_split(trainer: Trainer) -> list[tuple[str, float]]:
    """Return the share of each stage in the time so far, if the run is timed."""
    timer = trainer.plugins.get("timer")
    so_far = getattr(timer, "so_far", None)
    seconds = {stage: total[1] for stage, total in so_far().items()} if so_far is not None else {}
    whole = sum(seconds.values())
    stages = ("step", "data", "evaluate", "checkpoint")
    return [(stage, seconds[stage] / whole) for stage in stages if stage in seconds] if whole > 0 else []


def run_name(trainer: Trainer) -> str:
    """Return the name of the run, or of its folder."""
    return trainer.settings.name or (trainer.work_dir.name if trainer.work_dir is not None else "run")


def short(value: float) -> str:
    """Return four digits of a number: enough to follow a run."""
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))
