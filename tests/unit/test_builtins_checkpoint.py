"""``checkpoint``: when, what is kept, whole or not at all, and what is refused."""

import collections
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from trainhooks import CheckpointError, DataError, OptionError, UsageError, hookimpl
from trainhooks_builtins import EMA, Accumulate, Checkpoint, Evaluation
from trainhooks_builtins._checkpoint_files import (
    is_pinned,
    list_checkpoints,
    read_checkpoint,
    remove_checkpoint,
    set_pinned,
    step_of,
    take_snapshot,
    verify_checkpoint,
)
from trainhooks_builtins._checkpoint_files import write_checkpoint as write_snapshot
from trainhooks_builtins._checkpoint_rotation import Wish


def write_checkpoint(path, state, facts):
    write_snapshot(path, take_snapshot(state), {**facts, "step": step_of(path)})


def steps(work_dir):
    return [int(path.name.removeprefix("step-")) for path in list_checkpoints(work_dir / "checkpoints")]


def hidden(folder):
    return sorted(entry.name for entry in folder.iterdir() if entry.name.startswith("."))


class Saves:
    """Counts the writes."""

    def __init__(self):
        self.at = []
        self.paths = []

    @hookimpl
    def after_save(self, trainer, path, kind):
        self.at.append((trainer.step, kind))
        self.paths.append(path)


class Measures:
    """An evaluation that gives these values in turn."""

    def __init__(self, *values, metric="score"):
        self.values, self.metric = list(values), metric

    @hookimpl
    def eval_step(self):
        return {self.metric: self.values.pop(0)}


class TestEvaluationOfACheckpoint:
    """A baseline that is evaluated before a training leaves its weights, and nothing of its place in a run."""

    def test_what_was_saved_and_evaluated_there_does_not_count_here(self, make_trainer, tmp_path):
        def parts():
            return [Checkpoint(every_steps=2), Evaluation(every_steps=2)]

        make_trainer(parts(), val=(1.0,), max_steps=2, work_dir=tmp_path / "old").train()
        trainer = make_trainer(parts(), val=(1.0,), max_steps=2, work_dir=tmp_path / "run")
        assert trainer.evaluate(checkpoint=tmp_path / "old") == {"val/loss": -2.0}
        assert trainer.train().metrics["val/loss"] == -4.0
        assert steps(tmp_path / "run") == [2]

    def test_the_open_window_of_an_accumulation_is_not_gone_on_with(self, make_trainer, tmp_path):
        """Steps 1 and 2 of a window of 3 are in the checkpoint; what is trained after it begins with a window of its own."""
        make_trainer([Accumulate(3), Checkpoint(every_steps=2)], max_steps=2, work_dir=tmp_path / "old").train()
        trainer = make_trainer([Accumulate(3), Checkpoint()], val=(1.0,), max_steps=3)
        trainer.evaluate(checkpoint=tmp_path / "old" / "checkpoints" / "step-00000002")
        before = trainer.model.w.item()
        assert trainer.train().update == 1
        assert trainer.model.w.item() == before - 1.0

    def test_an_average_stays_with_the_weights(self, make_trainer, tmp_path):
        """Weights 0, -1, -2 with a decay of 0.5 give 0, -0.5, -1.25."""
        make_trainer([EMA(decay=0.5, warmup=False), Checkpoint()], max_steps=2, work_dir=tmp_path / "old").train()
        trainer = make_trainer([EMA(decay=0.5, warmup=False), Checkpoint()], val=(1.0,))
        assert trainer.evaluate(checkpoint=tmp_path / "old") == {"val/loss": -1.25}
        assert trainer.evaluate() == {"val/loss": -1.25}


class TestWhen:
    """When it saves; that nothing is saved twice: CK-11."""

    def test_by_epochs_the_default(self, make_trainer, tmp_path):
        saves = Saves()
        make_trainer([Checkpoint(keep=0), saves], values=(1.0,) * 4, max_steps=10, work_dir=tmp_path / "run").train()
        assert saves.at == [(4, "periodic"), (8, "periodic"), (10, "final")]

    def test_several_intervals_meet_in_one_step(self, make_trainer, tmp_path):
        saves = Saves()
        plugin = Checkpoint(every_epochs=1, every_steps=2, every_updates=4, keep=0)
        make_trainer([plugin, saves], values=(1.0,) * 4, max_epochs=2, work_dir=tmp_path / "run").train()
        assert [step for step, _ in saves.at] == [2, 4, 6, 8]

    def test_not_at_end(self, make_trainer, tmp_path):
        make_trainer([Checkpoint(every_steps=3, at_end=False)], max_steps=8, work_dir=tmp_path / "run").train()
        assert steps(tmp_path / "run") == [3, 6]

    def test_without_a_work_dir_nothing_is_written(self, make_trainer, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        make_trainer([Checkpoint(every_steps=1)], max_steps=3).train()
        assert list(tmp_path.iterdir()) == []

    def test_a_failed_run_has_no_final_one(self, make_trainer, tmp_path):
        class Fails:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 4:
                    raise ValueError

        with pytest.raises(ValueError):
            make_trainer([Checkpoint(every_steps=3), Fails()], work_dir=tmp_path / "run").train()
        assert steps(tmp_path / "run") == [3]

    @pytest.mark.parametrize("async_save", [False, True])
    def test_an_interrupted_run_has_one(self, make_trainer, tmp_path, async_save):
        """After the step in which it was interrupted, and only once if that one is saved anyway."""

        class Interrupts:
            def __init__(self, at):
                self.at = at

            @hookimpl
            def after_step(self, trainer):
                if trainer.step == self.at:
                    trainer.interrupt(KeyboardInterrupt(), "Ctrl-C")

        for name, at, expected in (("off", 3, [3, 4]), ("on", 5, [3, 6])):
            saves = Saves()
            plugin = Checkpoint(every_steps=3, keep=0, async_save=async_save)
            trainer = make_trainer([plugin, Interrupts(at), saves], work_dir=tmp_path / name)
            with pytest.raises(KeyboardInterrupt):
                trainer.train()
            assert trainer.outcome.status == "interrupted"
            assert [int(path.name[5:]) for path in saves.paths] == expected == steps(tmp_path / name)

    def test_a_step_that_was_broken_off_is_not_saved(self, make_trainer, tmp_path):
        class Leaves:
            @hookimpl
            def gradients_ready(self, trainer):
                if trainer.step == 4:
                    raise KeyboardInterrupt

        trainer = make_trainer([Checkpoint(every_steps=3, keep=0), Leaves()], work_dir=tmp_path / "run")
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        assert steps(tmp_path / "run") == [3]

    @pytest.mark.parametrize(
        "name",
        ["every_epochs", "every_steps", "every_updates", "every_minutes", "keep", "pin_every_epochs", "pin_every_steps"],
    )
    def test_options(self, name):
        with pytest.raises(OptionError, match=f"^{name} = -1: must be 0 \\(\\w+\\) or more"):
            Checkpoint(**{name: -1})

    def test_other_options(self):
        with pytest.raises(OptionError, match="^keep_best = 0: must be 1 or more"):
            Checkpoint(keep_best=0)
        with pytest.raises(OptionError, match="^on_failure = 'ignore': must be 'stop' or 'continue'"):
            Checkpoint(on_failure="ignore")
        with pytest.raises(OptionError, match="^every_minutes = nan"):
            Checkpoint(every_minutes=float("nan"))

    def test_every_minutes(self, make_trainer, tmp_path, monkeypatch):
        """Each step takes 25 s: more than a minute has passed after 3, 6 and 9; an epoch of 10 is no interval then."""
        now = [1000.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])

        class Takes25s:
            @hookimpl
            def train_step(self, trainer):
                now[0] += 25

        saves = Saves()
        plugin = Checkpoint(every_minutes=1, keep=0)
        make_trainer([plugin, saves, Takes25s()], max_steps=11, work_dir=tmp_path / "run").train()
        assert saves.at == [(3, "periodic"), (6, "periodic"), (9, "periodic"), (11, "final")]

    def test_minutes_count_from_the_last_save_of_whatever_reason(self, make_trainer, tmp_path, monkeypatch):
        now = [0.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])

        class Takes25s:
            @hookimpl
            def train_step(self, trainer):
                now[0] += 25

        saves = Saves()
        plugin = Checkpoint(every_minutes=1, every_steps=5, keep=0)
        make_trainer([plugin, saves, Takes25s()], max_steps=10, work_dir=tmp_path / "run").train()
        assert [step for step, _ in saves.at] == [3, 5, 8, 10]

    def test_the_clock_is_read_only_when_it_matters(self, make_trainer, tmp_path, monkeypatch):
        plugin = Checkpoint(every_epochs=1)
        assert plugin.after_step is None
        assert Checkpoint(every_minutes=1).after_step is not None
        assert Checkpoint(pin_every_steps=5).after_step is not None
        assert Checkpoint(every_minutes=1).interval.epochs == 0

    def test_a_copy_elsewhere_is_no_checkpoint_of_the_run(self, make_trainer, tmp_path):
        class Copies:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 2:
                    trainer.save_checkpoint(tmp_path / "elsewhere" / "mine")
                    trainer.save_checkpoint(trainer.work_dir / "checkpoints" / "mine")

        plugin = Checkpoint(keep=1)
        make_trainer([plugin, Copies()], max_steps=3, work_dir=tmp_path / "run").train()
        assert steps(tmp_path / "run") == [3]
        assert plugin.path == tmp_path / "run/checkpoints/step-00000003"
        for mine in (tmp_path / "elsewhere" / "mine", tmp_path / "run" / "checkpoints" / "mine"):
            assert read_checkpoint(mine)["run"]["step"] == 2


class TestRotation:
    """By number, never by name or time: CK-07."""

    def test_what_is_not_ours_is_never_removed(self, make_trainer, tmp_path):
        class Places:
            @hookimpl
            def before_step(self, trainer):
                if trainer.step == 3:
                    folder = trainer.work_dir / "checkpoints"
                    (folder / "step-1-my-favourite").mkdir()
                    (folder / "step-00000001.bak").write_text("")
                    (folder / "notes").write_text("")

        make_trainer([Checkpoint(every_steps=2, keep=1), Places()], max_steps=8, work_dir=tmp_path / "run").train()
        names = sorted(entry.name for entry in (tmp_path / "run" / "checkpoints").iterdir())
        assert names == ["notes", "step-00000001.bak", "step-00000008", "step-1-my-favourite"]


class TestPinned:
    def test_by_intervals(self, make_trainer, tmp_path):
        """Epochs of 3 steps; every second epoch and every fifth step stay: 5, 6, 10, 12, beside the newest."""
        saves = Saves()
        plugin = Checkpoint(keep=1, pin_every_epochs=2, pin_every_steps=5)
        make_trainer([plugin, saves], values=(1.0,) * 3, max_steps=14, work_dir=tmp_path / "run").train()
        assert saves.at == [
            *((3, "periodic"), (5, "pinned"), (6, "pinned"), (9, "periodic"), (10, "pinned"), (12, "pinned"), (14, "final"))
        ]
        assert steps(tmp_path / "run") == [5, 6, 10, 12, 14]
        assert [is_pinned(path) for path in list_checkpoints(tmp_path / "run/checkpoints")] == [True, True, True, True, False]

    def test_on_request_whatever_else_was_due(self, make_trainer, tmp_path):
        class Likes:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step + 1 in (2, 3):
                    trainer.request_checkpoint("pinned")

        saves = Saves()
        make_trainer([Checkpoint(every_steps=2, keep=1), Likes(), saves], max_steps=8, work_dir=tmp_path / "run").train()
        assert saves.at[:2] == [(2, "pinned"), (3, "pinned")]
        assert steps(tmp_path / "run") == [2, 3, 8]

    def test_a_mark_made_by_hand_counts_and_can_be_taken_off(self, make_trainer, tmp_path):
        run = tmp_path / "run"
        make_trainer([Checkpoint(every_steps=2, keep=0)], max_steps=6, work_dir=run).train()
        set_pinned(run / "checkpoints/step-00000002", True)
        set_pinned(run / "checkpoints/step-00000002", True)
        (run / "checkpoints/step-00000004/.pinned").touch()
        make_trainer([Checkpoint(every_steps=2, keep=1)], max_steps=8, work_dir=run).train(resume="auto")
        assert steps(run) == [2, 4, 8]
        set_pinned(run / "checkpoints/step-00000002", False)
        make_trainer([Checkpoint(every_steps=2, keep=1)], max_steps=10, work_dir=run).train(resume="auto")
        assert steps(run) == [4, 10]
        with pytest.raises(CheckpointError, match=r"manifest\.json is missing"):
            set_pinned(run / "checkpoints/step-00000002", True)

    def test_one_that_is_saved_again_stays_pinned(self, tmp_path):
        path = tmp_path / "step-00000001"
        write_checkpoint(path, state_of(1), {**FACTS, "pinned": True})
        write_checkpoint(path, state_of(2), FACTS)
        assert is_pinned(path)


class TestWithinAStep:
    @pytest.mark.parametrize(
        ("hook", "expected"), [("after_step", 1), ("after_update", 1), ("after_epoch", 0), ("on_exception", 0)]
    )
    def test_it_is_said_once_that_the_step_is_half_done(self, make_trainer, tmp_path, messages, hook, expected):
        """Resumed from what ``after_step`` saves at step 2, whose number is still 1, the run trains the second step again."""

        @hookimpl(specname=hook)
        def save(trainer):
            trainer.save_checkpoint(tmp_path / "mine")

        class Fails:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 3:
                    raise ValueError

        plugin = type("Saves", (), {hook: staticmethod(save)})()
        with pytest.raises(ValueError):
            make_trainer([plugin, Checkpoint(), Fails()], values=(1.0,) * 2, max_epochs=2, work_dir=tmp_path / "run").train()
        assert read_checkpoint(tmp_path / "mine")["run"]["step"] == {"after_epoch": 2}.get(hook, 3)
        said = [text for text in messages() if "save_checkpoint() was called within a step" in text]
        assert len(said) == expected
        assert all("request_checkpoint() saves when the step is done" in text for text in said)


class TestBest:
    @pytest.mark.parametrize(
        ("steps_", "pinned", "keep", "best", "expected"),
        [
            ([1, 2, 3], [], 0, [], {1, 2, 3}),
            ([1, 2, 3], [], 1, [], {3}),
            ([1, 2, 3], [], 2, [], {2, 3}),
            ([1, 2, 3], [], 1, [1], {1, 3}),
            ([1, 2, 3, 4], [], 3, [1], {1, 3, 4}),
            ([1, 2, 3, 4], [], 1, [1, 2], {1, 2, 4}),
            ([1, 2, 3, 4], [1], 1, [], {1, 4}),
            ([1, 2, 3, 4], [1, 4], 1, [], {1, 3, 4}),
            ([1, 2, 3, 4], [1], 1, [1], {1, 4}),
            ([1, 2, 3, 4], [], 1, [9], {4}),
            ([], [], 1, [], set()),
        ],
    )
    def test_what_is_wanted(self, steps_, pinned, keep, best, expected):
        assert Wish(keep, tuple(best)).wanted(steps_[::-1], pinned) == expected

    def test_the_best_three(self, make_trainer, tmp_path):
        """Accuracies at steps 1..7: 0.3, 0.5, 0.4, 0.6, 0.2, 0.55, 0.1. The best three are 4, 6 and 2; 7 is the newest."""
        saves = Saves()
        values = [0.3, 0.5, 0.4, 0.6, 0.2, 0.55, 0.1]
        plugin = Checkpoint(every_epochs=0, keep=1, best="val/score", keep_best=3)
        parts = [Evaluation(every_steps=1), Measures(*values), plugin, saves]
        make_trainer(parts, val=(1.0,), max_steps=7, work_dir=tmp_path / "run").train()
        assert [step for step, _ in saves.at] == [1, 2, 3, 4, 6, 7]
        assert steps(tmp_path / "run") == [2, 4, 6, 7]
        assert (plugin.best.step, plugin.best.value) == (4, 0.6)

    def test_a_resumed_run_knows_the_best_three(self, make_trainer, tmp_path):
        def train(*values, max_steps):
            plugin = Checkpoint(every_steps=1, keep=1, best="val/score", keep_best=3)
            parts = [Evaluation(every_steps=1), Measures(*values), plugin]
            make_trainer(parts, val=(1.0,), max_steps=max_steps, work_dir=tmp_path / "run").train(resume="auto")
            return steps(tmp_path / "run")

        assert train(0.3, 0.5, 0.4, 0.6, max_steps=4) == [2, 3, 4]
        assert train(0.2, 0.55, 0.1, max_steps=7) == [2, 4, 6, 7]

    def test_one_that_could_not_be_saved_does_not_cost_the_one_before(self, make_trainer, tmp_path, monkeypatch, messages):
        """0.5 at step 1 is there, 0.9 at step 2 cannot be written: the best that there is stays, and 0.7 at step 3 beats it."""
        refuse_to_write(monkeypatch, "step-00000002")
        plugin = Checkpoint(every_epochs=0, keep=1, best="val/score", on_failure="continue")
        parts = [Evaluation(every_steps=1), Measures(0.5, 0.9, 0.7, 0.1), plugin]
        make_trainer(parts, val=(1.0,), max_steps=4, work_dir=tmp_path / "run").train()
        assert steps(tmp_path / "run") == [3, 4]
        assert (plugin.best.step, plugin.best.value) == (3, 0.7)

    @pytest.mark.parametrize("metric", ["val/scoer", "val_score", "score", "vall/score"])
    def test_a_misspelt_metric_ends_the_run_at_its_first_evaluation(self, make_trainer, tmp_path, metric):
        parts = [Evaluation(every_steps=1), Measures(1.0, 2.0), Checkpoint(best=metric)]
        trainer = make_trainer(parts, val=(1.0,), max_steps=2, work_dir=tmp_path / "run")
        wanted = f"checkpoint.best = '{metric}' is not among the metrics val/score; did you mean 'val/score'?"
        with pytest.raises(DataError, match=re.escape(wanted)):
            trainer.train()
        assert steps(tmp_path / "run") == [1]  # what was trained is not lost

    def test_the_end_says_where_the_best_is(self, make_trainer, tmp_path, messages):
        plugin = Checkpoint(every_steps=1, keep=1, best="val/score")
        trainer = make_trainer(
            [Evaluation(every_steps=1), Measures(1.0, 3.0, 2.0), plugin], val=(1.0,), max_steps=3, work_dir=tmp_path / "run"
        )
        trainer.train()
        assert plugin.best_path(trainer) == tmp_path / "run/checkpoints/step-00000002"
        assert f"the checkpoint with the best val/score, 3, is {plugin.best_path(trainer)}" in messages()

    def test_the_first_is_saved_at_its_evaluation(self, make_trainer, tmp_path):
        saves = Saves()
        parts = [Evaluation(every_steps=2), Measures(0.9, 0.5, 0.6, 0.3), Checkpoint(keep=1, best="val/score"), saves]
        make_trainer(parts, val=(1.0,), max_steps=7, work_dir=tmp_path / "run").train()
        assert saves.at == [(2, "best"), (7, "final")]
        assert steps(tmp_path / "run") == [2, 7]

    def test_the_best_of_the_last_evaluation(self, make_trainer, tmp_path):
        saves = Saves()
        parts = [Evaluation(every_steps=2), Measures(0.1, 0.5), Checkpoint(best="val/score", at_end=False), saves]
        make_trainer(parts, val=(1.0,), max_steps=3, work_dir=tmp_path / "run").train()
        assert saves.at == [(2, "best"), (3, "final")]

    def test_an_evaluation_outside_of_a_training_asks_for_nothing(self, make_trainer, tmp_path):
        saves = Saves()
        parts = [Measures(0.1, 0.9), Checkpoint(every_epochs=0, best="val/score"), Evaluation(every_epochs=0), saves]
        trainer = make_trainer(parts, val=(1.0,), max_steps=3, work_dir=tmp_path / "run")
        trainer.evaluate("val")
        assert not (tmp_path / "run").exists()
        trainer.train()
        assert saves.at == [(3, "final")]


def state_of(value):
    return {"model": {"w": torch.tensor(float(value))}, "run": {"step": value}}


FACTS = {"step": 1, "metrics": {}}

OPERATIONS = [
    (os, "fsync"),
    (Path, "rename"),
    (Path, "mkdir"),
    (Path, "open"),
    (Path, "iterdir"),
    (Path, "unlink"),
    (Path, "rmdir"),
    (os, "open"),
    (os, "close"),
    (json, "dumps"),
]


class Disturbed:
    """Raises at the n-th call of any of the operations on files; ``None`` for never."""

    def __init__(self, monkeypatch, at, error):
        self.count, self.at = 0, at
        for owner, name in OPERATIONS:
            self._wrap(monkeypatch, owner, name, error)

    def _wrap(self, monkeypatch, owner, name, error):
        original = getattr(owner, name)

        def call(*args, **kwargs):
            self.count += 1
            if self.count == self.at:
                raise error
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)


def operations_of(write):
    """Count the operations of an undisturbed write."""
    with pytest.MonkeyPatch.context() as patch:
        disturbed = Disturbed(patch, None, None)
        write()
    return disturbed.count


def refuse_to_write(monkeypatch, *names):
    """Have the disk be full whenever a folder of these names is made."""
    mkdir, refused = Path.mkdir, [f".{name}.tmp" for name in names]

    def full(path, *args, **kwargs):
        if path.name in refused:
            raise OSError(28, "No space left on device", str(path))
        mkdir(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", full)


class TestFailure:
    def test_stops_the_run(self, make_trainer, tmp_path, monkeypatch):
        refuse_to_write(monkeypatch, "step-00000004")
        ended = []

        class Watches:
            @hookimpl
            def after_train(self, trainer):
                ended.append((trainer.outcome.status, trainer.step))

        plugin = Checkpoint(every_steps=2, keep=0)
        trainer = make_trainer([plugin, Watches()], max_steps=8, work_dir=tmp_path / "run")
        with pytest.raises(
            CheckpointError, match=r"cannot write the checkpoint .*step-00000004: No space .*errno 28"
        ) as caught:
            trainer.train()
        assert isinstance(caught.value.__cause__, OSError)
        assert ended == [("failed", 4)]
        assert steps(tmp_path / "run") == [2]
        assert (plugin.saved_step, plugin.path.name) == (2, "step-00000002")

    @pytest.mark.parametrize("async_save", [False, True])
    def test_or_is_told_and_tried_again(self, make_trainer, tmp_path, monkeypatch, messages, async_save):
        refuse_to_write(monkeypatch, "step-00000004", "step-00000006")
        saves = Saves()
        plugin = Checkpoint(every_steps=2, keep=1, on_failure="continue", async_save=async_save)
        outcome = make_trainer([plugin, saves], max_steps=9, work_dir=tmp_path / "run").train()
        assert (outcome.status, outcome.step) == ("completed", 9)
        assert {path.name for path in saves.paths} == {"step-00000002", "step-00000008", "step-00000009"}
        warned = [text for text in messages() if "cannot write the checkpoint" in text]
        folder = tmp_path / "run" / "checkpoints"
        assert len(warned) == 2
        for step, text in zip((4, 6), warned, strict=True):
            assert text.startswith(
                f"cannot write the checkpoint {folder}/step-0000000{step}: No space left on device (errno 28): "
            )
            assert re.search(r"; it needs \d+ bytes, \d+ are free: make room", text)
            assert text.endswith("; the run goes on without it, the next checkpoint is tried as usual")
        assert steps(tmp_path / "run") == [9]
        assert hidden(folder) == []

    def test_something_else_in_its_place_is_left_alone(self, make_trainer, tmp_path, messages):
        class Places:
            @hookimpl
            def before_step(self, trainer):
                if trainer.step == 3:
                    (trainer.work_dir / "checkpoints" / "step-00000004").write_text("mine")

        plugin = Checkpoint(every_steps=2, keep=1, on_failure="continue")
        make_trainer([plugin, Places()], max_steps=6, work_dir=tmp_path / "run").train()
        assert (tmp_path / "run/checkpoints/step-00000004").read_text() == "mine"
        assert steps(tmp_path / "run") == [6]
        warned = [text for text in messages() if "step-00000004" in text]
        assert len(warned) == 1
        assert "exists and was not made by trainhooks; move it away" in warned[0]
        again = make_trainer([Checkpoint(every_steps=2), Places()], max_steps=6, work_dir=tmp_path / "other")
        with pytest.raises(UsageError, match="step-00000004 exists and was not made by trainhooks"):
            again.train()

    def test_files_of_others_in_a_checkpoint_are_moved_not_removed(self, tmp_path, messages):
        path = tmp_path / "step-00000001"
        write_checkpoint(path, state_of(1), FACTS)
        (path / "notes.txt").write_text("good run")
        with pytest.raises(CheckpointError, match=r"cannot remove the checkpoint .*notes\.txt"):
            remove_checkpoint(path)
        write_checkpoint(path, state_of(2), FACTS)
        assert read_checkpoint(path)["model"]["w"] == 2
        assert (tmp_path / "step-00000001.aside" / "notes.txt").read_text() == "good run"
        assert [text for text in messages() if "notes.txt" in text] == [
            f"{path} holds notes.txt, which is no part of a checkpoint: it is moved to {tmp_path / 'step-00000001.aside'}"
        ]

    def test_the_folder_of_all_checkpoints_cannot_be_made(self, make_trainer, tmp_path, messages):
        """As on a file system that has become read-only: the policy holds for this too."""

        class Places:
            @hookimpl
            def before_train(self, trainer):
                (trainer.work_dir / "checkpoints").write_text("")

        parts = [Checkpoint(every_steps=2, on_failure="continue"), Places()]
        assert make_trainer(parts, max_steps=3, work_dir=tmp_path / "run").train().status == "completed"
        warned = [text for text in messages() if "cannot write the checkpoint" in text]
        assert [re.search(r"step-0000000\d: File exists \(errno 17\)", text) is not None for text in warned] == [True, True]


class TestInTheBackground:
    """CK-04 and CK-12: the training goes on meanwhile, and what is written is what was."""

    def slowed(self, monkeypatch, steps_):
        """Have the writers of these steps wait for an event each, which is returned by step, once they have begun."""
        gates = {step: threading.Event() for step in steps_}
        begun = {step: threading.Event() for step in steps_}
        mkdir = Path.mkdir

        def waits(path, *args, **kwargs):
            mkdir(path, *args, **kwargs)
            for step in steps_:
                if path.name == f".step-{step:08d}.tmp":
                    begun[step].set()
                    assert gates[step].wait(60)

        monkeypatch.setattr(Path, "mkdir", waits)
        return gates, begun

    def test_it_holds_the_state_of_its_step(self, make_trainer, tmp_path, monkeypatch):
        """The writer of step 1 waits until step 3 has been trained: weight, momentum and list are those of step 1."""
        gates, _ = self.slowed(monkeypatch, [1])

        class Keeps:
            name = "keeps"

            def __init__(self):
                self.steps = []

            @hookimpl
            def after_step(self, trainer):
                self.steps.append(trainer.step)
                if trainer.step == 0:
                    trainer.request_checkpoint()
                if trainer.step == 3:
                    gates[1].set()

            def state_dict(self):
                return {"steps": self.steps}

            def load_state_dict(self, state):
                self.steps = state["steps"]

        plugin = Checkpoint(every_epochs=0, keep=0, async_save=True)
        trainer = make_trainer([plugin, Keeps()], max_steps=5, work_dir=tmp_path / "run")
        trainer.optimizer.param_groups[0]["momentum"] = 0.5
        trainer.train()
        state = read_checkpoint(tmp_path / "run/checkpoints/step-00000001")
        assert state["model"]["w"] == -1.0
        assert state["plugins/keeps"] == {"steps": [0]}
        assert state["run"]["step"] == 1
        assert "1." in str(state["optimizers/optimizer"])
        assert state["plugins/checkpoint"]["saved_step"] == 1
        assert read_checkpoint(tmp_path / "run/checkpoints/step-00000005")["run"]["step"] == 5

    def test_nothing_is_removed_before_it_is_durable(self, make_trainer, tmp_path, monkeypatch):
        gates, begun = self.slowed(monkeypatch, [4])
        seen = []
        plugin = Checkpoint(every_steps=2, keep=1, async_save=True)

        class Watches:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 4:
                    assert begun[4].wait(60)
                    seen.append((plugin.saved_step, plugin.path.name, steps(tmp_path / "run")))
                    gates[4].set()

            @hookimpl
            def after_save(self, trainer, path):
                seen.append((int(path.name[5:]), plugin.saved_step, steps(tmp_path / "run")))

        make_trainer([plugin, Watches()], max_steps=5, work_dir=tmp_path / "run").train()
        assert seen[0] == (2, 2, [2])
        assert (2, "step-00000002", [2]) in seen
        assert seen[-2:] == [(4, 4, [4]), (5, 5, [5])]

    def test_one_at_a_time(self, make_trainer, tmp_path, monkeypatch):
        """The second save waits for the first, so the memory of one copy is enough, and they end in their order."""
        gates, begun = self.slowed(monkeypatch, [1])
        saves = Saves()
        there = []

        class Opens:
            @hookimpl
            def on_save(self, trainer):
                there.append(sorted(path.name for path in (tmp_path / "run").glob("checkpoints/*")))

            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 1:
                    assert begun[1].wait(60)
                    threading.Timer(0.2, gates[1].set).start()

        parts = [Checkpoint(every_steps=1, keep=0, async_save=True), saves, Opens()]
        make_trainer(parts, max_steps=3, work_dir=tmp_path / "run").train()
        names = [f"step-0000000{step}" for step in (1, 2, 3)]
        assert there == [[], names[:1], names[:2]]  # whole, under its name, and nothing that is being written
        assert [path.name for path in saves.paths] == names

    def test_a_failure_ends_the_run(self, make_trainer, tmp_path, monkeypatch):
        refuse_to_write(monkeypatch, "step-00000002")
        trainer = make_trainer(
            [Checkpoint(every_steps=2, async_save=True)], max_steps=50, values=(1.0,) * 50, work_dir=tmp_path / "run"
        )
        with pytest.raises(CheckpointError, match=r"cannot write the checkpoint .*step-00000002"):
            trainer.train()
        assert trainer.outcome.status == "failed"

    def test_a_run_that_fails_meanwhile_still_has_it(self, make_trainer, tmp_path, monkeypatch):
        gates, begun = self.slowed(monkeypatch, [2])

        class Fails:
            @hookimpl
            def before_step(self, trainer):
                if trainer.step == 3:
                    assert begun[2].wait(60)
                    threading.Timer(0.2, gates[2].set).start()
                    raise ValueError

        saves = Saves()
        trainer = make_trainer(
            [Checkpoint(every_steps=2, async_save=True), Fails(), saves], max_steps=9, work_dir=tmp_path / "run"
        )
        with pytest.raises(ValueError):
            trainer.train()
        assert steps(tmp_path / "run") == [2]
        assert [path.name for path in saves.paths] == ["step-00000002"]

    def test_outside_of_a_training_it_is_written_at_once(self, make_trainer, tmp_path):
        """Nobody would wait for it, nor tell of it."""
        saves = Saves()
        trainer = make_trainer([Checkpoint(every_epochs=0, async_save=True), saves], max_steps=2, work_dir=tmp_path / "run")
        trainer.train()
        path = trainer.save_checkpoint(tmp_path / "elsewhere")
        assert saves.paths[-1] == path
        assert read_checkpoint(path)["model"]["w"] == -2

    def test_a_training_after_one_that_was_left_in_a_hurry_waits_for_it(self, make_trainer, tmp_path, monkeypatch):
        gates, begun = self.slowed(monkeypatch, [2])
        run = tmp_path / "run"

        class Leaves:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 2:
                    assert begun[2].wait(60)
                    trainer.interrupt(KeyboardInterrupt(), "Ctrl-C")
                    trainer.interruption.hurried = True

        leaves = Leaves()
        trainer = make_trainer([Checkpoint(every_steps=2, async_save=True), leaves], max_steps=5, work_dir=run)
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        assert steps(run) == []
        trainer.unregister(leaves)
        threading.Timer(0.2, gates[2].set).start()
        trainer.train()
        assert steps(run) == [4, 5]

    def test_a_second_ctrl_c_ends_the_process_while_one_is_written(self, tmp_path):
        """The writer of step 4 never ends. What was acknowledged is there, and the run goes on from it."""
        code = """
import os, signal, sys, threading, time
import torch
from trainhooks import Trainer, hookimpl
from trainhooks_builtins import Checkpoint, Signals

class Never:
    begun = threading.Event()

    @hookimpl
    def before_step(self, trainer):
        if trainer.step == 3 and sys.argv[2] == "first":
            trainer.settle_saves()
            os.fsync = self.wait
        if trainer.step == 5 and sys.argv[2] == "first":
            self.begun.wait()
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.15)
            os.kill(os.getpid(), signal.SIGINT)

    def wait(self, descriptor):
        if threading.current_thread() is not threading.main_thread():
            self.begun.set()
            threading.Event().wait()

    @hookimpl
    def before_train(self, trainer):
        print("began at", trainer.step)

model = torch.nn.Linear(1, 1)
Trainer(
    model, loss=torch.nn.functional.mse_loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), max_steps=6,
    loaders={"train": [(torch.ones(1, 1), torch.ones(1, 1))] * 6}, work_dir=sys.argv[1], autoload=False,
    plugins=[Signals(), Checkpoint(every_steps=2, async_save=True), Never()],
).train(resume="auto")
"""
        command = [sys.executable, "-c", code, str(tmp_path / "run")]
        done = subprocess.run([*command, "first"], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (-signal.SIGINT, "began at 0\n"), done.stderr
        assert steps(tmp_path / "run") == [2]
        done = subprocess.run([*command, "again"], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (0, "began at 2\n"), done.stderr
        assert steps(tmp_path / "run") == [4, 6]
        assert hidden(tmp_path / "run/checkpoints") == []

    def test_it_is_the_same_run_bit_for_bit(self, make_trainer, tmp_path):
        def final(name, **options):
            make_trainer([Checkpoint(every_steps=1, keep=0, **options)], max_steps=6, work_dir=tmp_path / name).train()
            return [(path / "tensors.safetensors").read_bytes() for path in list_checkpoints(tmp_path / name / "checkpoints")]

        assert final("waits") == final("goes on", async_save=True)


class TestAtomic:
    @pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()])
    @pytest.mark.parametrize("same", [False, True])
    def test_an_error_at_any_operation_leaves_the_older_one_and_nothing_else(self, tmp_path, error, same):
        """Of another step, or of the same one, which steps aside for the new: it loads after every possible failure."""
        folder = tmp_path / "real"
        older, newer = folder / "step-00000001", folder / f"step-0000000{1 if same else 2}"
        write_checkpoint(older, state_of(1), FACTS)
        shutil.copytree(folder, tmp_path / "practice")
        practice = tmp_path / "practice" / newer.name
        snapshot = take_snapshot(state_of(2))
        total = operations_of(lambda: write_snapshot(practice, snapshot, {"step": step_of(practice)}))
        assert total >= 15
        for at in range(1, total + 1):
            with pytest.MonkeyPatch.context() as patch:
                Disturbed(patch, at, error)
                raised = None
                try:
                    write_snapshot(newer, snapshot, {"step": step_of(newer)})
                except (CheckpointError, type(error)) as caught:
                    raised = caught
            values = [read_checkpoint(path)["model"]["w"].item() for path in list_checkpoints(folder)]
            if raised is None:  # only what it replaced could not be removed
                assert same
                assert values == [2.0]
            elif isinstance(error, OSError):
                assert isinstance(raised, CheckpointError)
                assert str(newer) in str(raised)
                assert "No space left on device" in str(raised)
            assert values in ([1.0], [2.0], [1.0, 2.0])  # the new one, where only the last sync failed
            assert not same or len(values) == 1
            assert [name for name in hidden(folder) if name.endswith(".tmp")] == []
            shutil.rmtree(newer, ignore_errors=True)
            write_checkpoint(older, state_of(1), FACTS)
            assert hidden(folder) == []

    def test_a_kill_between_the_two_renames(self, make_trainer, tmp_path):
        """The same step saved twice: the old one has stepped aside, the new one is not in its place yet."""
        make_trainer([Checkpoint()], max_steps=3, work_dir=tmp_path / "run").train()
        folder = tmp_path / "run" / "checkpoints"
        (folder / "step-00000003").rename(folder / ".step-00000003.old")
        (folder / ".step-00000003.tmp").mkdir()
        trainer = make_trainer([Checkpoint(keep=0)], max_steps=5, work_dir=tmp_path / "run")
        outcome = trainer.train(resume=tmp_path / "run")
        assert (outcome.step, trainer.model.w.item()) == (5, -5.0)
        assert steps(tmp_path / "run") == [3, 5]  # it is back in its place
        assert hidden(folder) == []

    def test_reading_changes_nothing(self, tmp_path):
        folder = tmp_path / "checkpoints"
        write_checkpoint(folder / "step-00000001", state_of(1), FACTS)
        (folder / "step-00000001").rename(folder / ".step-00000001.old")
        (folder / ".step-00000002.tmp").mkdir()
        assert Checkpoint().load_checkpoint(path=tmp_path)["model"]["w"] == 1
        assert hidden(folder) == [".step-00000001.old", ".step-00000002.tmp"]

    def test_saved_twice_the_second_counts(self, tmp_path):
        path = tmp_path / "step-00000001"
        write_checkpoint(path, state_of(1), FACTS)
        write_checkpoint(path, state_of(2), FACTS)
        assert read_checkpoint(path)["model"]["w"] == 2
        assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000001"]

    def test_synced_before_it_is_renamed(self, tmp_path, monkeypatch):
        """Each data file and their folder, then the rename, then the parent folder."""
        trace = []
        sync, rename = os.fsync, Path.rename
        monkeypatch.setattr(os, "fsync", lambda fd: (trace.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd)))
        monkeypatch.setattr(
            Path, "rename", lambda self, to: (trace.append(("rename", self.name, to.name)), rename(self, to))[1]
        )
        write_checkpoint(tmp_path / "step-00000001", state_of(1), FACTS)
        temporary = tmp_path / ".step-00000001.tmp"
        assert trace == [
            *(str(temporary / name) for name in ("tensors.safetensors", "state.json", "manifest.json")),
            str(temporary),
            ("rename", ".step-00000001.tmp", "step-00000001"),
            str(tmp_path),
        ]

    def test_folders_that_are_made_are_synced_too(self, tmp_path, monkeypatch):
        synced = []
        sync = os.fsync
        monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd)))
        write_checkpoint(tmp_path / "new" / "checkpoints" / "step-00000001", state_of(1), FACTS)
        assert synced[:2] == [str(tmp_path), str(tmp_path / "new")]
        assert synced[-1] == str(tmp_path / "new" / "checkpoints")


Point = collections.namedtuple("Point", "x")


class Odd:
    """A plugin whose state is what it is given."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"x": self.value}

    def load_state_dict(self, state):
        self.value = state["x"]


class TestWhatCanBeIn:
    @pytest.mark.parametrize(
        "value",
        [np.float64(1), np.arange(3), Path("x"), Point(1), range(3), lambda: 0, iter([]), torch.zeros(2, device="meta")],
        ids=lambda value: type(value).__name__,
    )
    def test_what_safe_loading_refuses_is_refused_at_the_save(self, make_trainer, tmp_path, value):
        """It would otherwise be noticed after days, when the run is to be resumed."""
        trainer = make_trainer([Odd(value), Checkpoint()], max_steps=2, work_dir=tmp_path / "run")
        with pytest.raises(CheckpointError, match=r"plugins/odd\['x'\] is a .*: a checkpoint holds tensors and plain values"):
            trainer.train()
        assert list((tmp_path / "run" / "checkpoints").iterdir()) == []

    def test_a_disk_that_works_does_not_make_it_go_on(self, make_trainer, tmp_path):
        """A state that can never be saved would otherwise never be saved, behind a warning each time."""
        trainer = make_trainer([Odd(range(3)), Checkpoint(on_failure="continue")], max_steps=2, work_dir=tmp_path / "run")
        with pytest.raises(CheckpointError, match="is a range"):
            trainer.train()

    def test_what_it_takes_comes_back_equal(self, make_trainer, tmp_path):
        value = {
            "nested": [1, 2.5, "text", None, True, (3, 4), {5, 6}],
            7: b"bytes",
            "ordered": collections.OrderedDict(b=1, a=2),
            "nan": float("inf"),
            "tensor": torch.arange(3),
        }
        make_trainer([Odd(value), Checkpoint()], max_steps=1, work_dir=tmp_path / "run").train()
        odd = Odd(None)
        make_trainer([odd, Checkpoint()], max_steps=1, work_dir=tmp_path / "run").train(resume="auto")
        tensor, expected = odd.value.pop("tensor"), value.pop("tensor")
        assert torch.equal(tensor, expected)
        assert odd.value == value


def damage(path, name, how):
    file = path / name
    data = bytearray(file.read_bytes())
    if how == "bit":
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    elif how == "cut":
        file.write_bytes(data[: len(data) // 2])
    elif how == "longer":
        file.write_bytes(data + b"x")
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "missing":
        file.unlink()
    elif how == "a link":
        file.rename(path.parent / "elsewhere")
        file.symlink_to(path.parent / "elsewhere")
    elif how == "a pipe":
        file.unlink()
        os.mkfifo(file)
    elif how == "a folder":
        file.unlink()
        file.mkdir()


FILES = ["tensors.safetensors", "state.json", "manifest.json"]
DAMAGES = ["bit", "cut", "longer", "empty", "missing", "a link", "a pipe", "a folder"]


class TestDamage:
    @pytest.mark.parametrize("how", DAMAGES)
    @pytest.mark.parametrize("name", FILES)
    def test_is_named_never_loaded_and_the_older_one_is_taken(self, make_trainer, tmp_path, messages, name, how):
        run = tmp_path / "run"
        make_trainer([Checkpoint(every_steps=2, keep=0)], max_steps=4, work_dir=run).train()
        newest = run / "checkpoints" / "step-00000004"
        damage(newest, name, how)
        with pytest.raises(CheckpointError, match=f"step-00000004/{name} (is|has) .*use another checkpoint"):
            make_trainer([Checkpoint()], max_steps=6).train(resume=newest)

        class First:
            step = None

            @hookimpl
            def before_step(self, trainer):
                self.step = trainer.step if self.step is None else self.step

        first = First()
        trainer = make_trainer([Checkpoint(every_steps=2, keep=0), first], max_steps=6, work_dir=run)
        trainer.train(resume="auto")
        assert (first.step, trainer.model.w.item()) == (2, -6.0)
        warned = [text for text in messages() if "broken checkpoint" in text]
        assert len(warned) == 1
        assert f"step-00000004/{name} " in warned[0]
        assert read_checkpoint(newest)["run"]["step"] == 4  # it was saved again when the run came there
        assert steps(run) == [2, 4, 6]

    def test_no_whole_one_is_an_error_not_a_new_start(self, make_trainer, tmp_path):
        make_trainer([Checkpoint()], max_steps=2, work_dir=tmp_path / "run").train()
        damage(tmp_path / "run" / "checkpoints" / "step-00000002", "tensors.safetensors", "bit")
        with pytest.raises(CheckpointError, match="no whole checkpoint in"):
            make_trainer([Checkpoint()], max_steps=6, work_dir=tmp_path / "run").train(resume="auto")

    def test_a_later_format(self, tmp_path):
        path = tmp_path / "step-00000001"
        write_checkpoint(path, state_of(1), FACTS)
        text = (path / "manifest.json").read_text()
        (path / "manifest.json").write_text(text.replace('"format": 2', '"format": 99'))
        with pytest.raises(CheckpointError, match=r"manifest\.json: format 99 is not known; this release reads format 2"):
            read_checkpoint(path)

    def test_the_first_damaged_block_is_named(self, tmp_path):
        """Blocks are of 4 MiB: byte 9,000,000 is in the third one."""
        path = tmp_path / "step-00000001"
        write_checkpoint(path, {"model": {"w": torch.zeros(3_000_000)}}, FACTS)
        with (path / "tensors.safetensors").open("r+b") as file:
            file.seek(9_000_000)
            file.write(b"x")
        for read in (read_checkpoint, verify_checkpoint):
            with pytest.raises(
                CheckpointError, match=r"tensors\.safetensors is damaged between byte 8388608 and byte 1200\d{4}: "
            ):
                read(path)

    def test_a_file_that_does_not_belong_there(self, tmp_path):
        path = tmp_path / "step-00000001"
        write_checkpoint(path, state_of(1), FACTS)
        (path / ".note").write_text("hidden names are nobody's business")
        assert read_checkpoint(path)["model"]["w"] == 1
        (path / "state.pt").write_text("")
        with pytest.raises(CheckpointError, match=r"state\.pt does not belong to the checkpoint"):
            read_checkpoint(path)

    def test_the_files_of_another_step(self, tmp_path):
        for step in (3, 6):
            write_checkpoint(tmp_path / f"step-0000000{step}", state_of(step), FACTS)
        shutil.rmtree(tmp_path / "step-00000006")
        shutil.copytree(tmp_path / "step-00000003", tmp_path / "step-00000006")
        with pytest.raises(
            CheckpointError, match=r"manifest\.json is of step 3, the folder of step 6: it was put in the wrong place"
        ):
            read_checkpoint(tmp_path / "step-00000006")
        with pytest.raises(CheckpointError, match="it is of step 3, which its name contradicts; give it another name"):
            write_snapshot(tmp_path / "step-00000007", take_snapshot(state_of(3)), {"step": 3})
        (tmp_path / "step-00000006").rename(tmp_path / "a copy")
        assert read_checkpoint(tmp_path / "a copy")["model"]["w"] == 3

    def test_a_path_that_is_not_there(self, make_trainer, tmp_path):
        with pytest.raises(UsageError, match="no checkpoint at"):
            make_trainer([Checkpoint()], max_steps=1).train(resume=tmp_path / "step-00000009")

    @pytest.mark.parametrize("words", ["", "last", True])
    def test_words_that_others_use(self, make_trainer, tmp_path, monkeypatch, words):
        """The empty one may be an unset variable of a shell, and is not the folder that one is in."""
        monkeypatch.chdir(tmp_path)
        make_trainer([Checkpoint()], max_steps=1, work_dir=tmp_path).train()
        with pytest.raises(UsageError, match=f"no checkpoint at '{words}': name a checkpoint or a run folder, or write 'auto'"):
            make_trainer([Checkpoint()], max_steps=2).train(resume=words)

    def test_nothing_to_resume_starts_anew(self, make_trainer, tmp_path, messages):
        trainer = make_trainer([Checkpoint()], max_steps=1, work_dir=tmp_path / "run")
        assert trainer.train(resume="auto").step == 1
        assert any("nothing to resume" in text for text in messages())


def test_a_run_that_could_not_save_everything_says_so_at_its_end(make_trainer, tmp_path, monkeypatch, messages):
    from trainhooks_builtins import checkpoint as module

    def full(path, *arguments):
        if path.name == "step-00000002":
            return written(path, *arguments)
        raise CheckpointError(f"cannot write the checkpoint {path}: no room")

    written = module.write_checkpoint
    monkeypatch.setattr(module, "write_checkpoint", full)
    plugin = Checkpoint(every_steps=2, on_failure="continue")
    make_trainer([plugin], values=(1.0,) * 6, work_dir=tmp_path / "run").train()
    assert plugin.failures == 3  # the last one is tried again at the end
    assert messages()[-1] == "checkpoints that could not be written: 3; the newest one is step-00000002"


def test_the_newest_one_is_known_when_there_was_nothing_to_train(make_trainer, tmp_path):
    make_trainer([Checkpoint()], max_steps=3, work_dir=tmp_path / "run").train()
    plugin = Checkpoint()
    make_trainer([plugin], max_steps=3, work_dir=tmp_path / "run").train(resume="auto")
    assert plugin.path == tmp_path / "run" / "checkpoints" / "step-00000003"


@pytest.mark.parametrize(
    ("options", "warns"), [({}, True), ({"every_steps": 2}, False), ({"every_minutes": 5}, False), ({"every_epochs": 0}, False)]
)
def test_a_loader_without_a_length_may_have_no_end_of_an_epoch_to_save_at(make_trainer, tmp_path, messages, options, warns):
    trainer = make_trainer([Checkpoint(**options)], work_dir=tmp_path / "run", max_steps=4)
    trainer.loaders["train"] = (torch.ones(1, dtype=torch.float64) for _ in range(10))
    trainer.train()
    assert [text.startswith("checkpoint: the train loader has no length") for text in messages() if "no length" in text] == [
        True
    ] * warns


def test_a_folder_that_cannot_be_listed_when_a_run_is_resumed_is_said(make_trainer, tmp_path, messages, monkeypatch):
    arguments = {"work_dir": tmp_path / "run", "max_steps": 4}
    make_trainer([Checkpoint(every_steps=2)], **arguments).train()

    def fails(folder):
        raise FileNotFoundError(2, "No such file or directory", str(folder))

    monkeypatch.setattr("trainhooks_builtins._checkpoint_rotation.read_folder", fails)
    make_trainer([Checkpoint()], **{**arguments, "max_steps": 6}).train(resume="auto")
    said = [text for text in messages() if "older ones are removed" not in text]  # what the rotation says later
    assert any(text.startswith(f"cannot read the folder of checkpoints {tmp_path / 'run/checkpoints'}: ") for text in said)
