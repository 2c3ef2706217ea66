"""EX: exception safety. The matrix of every hook and place in it is ``tests/integration/test_error_matrix.py``."""

import logging
import signal
import threading
from pathlib import Path

import pytest
import torch

from trainhooks import CheckpointError, Trainer, hookimpl
from trainhooks_builtins import LR, Checkpoint, Evaluation, MetricsLog, Progress, Timer


class Life:
    """Counts its own set-ups and teardowns."""

    def __init__(self, name):
        self.name = name
        self.setups = self.teardowns = self.ends = 0

    @hookimpl
    def setup(self):
        self.setups += 1

    @hookimpl
    def after_train(self):
        self.ends += 1

    @hookimpl
    def teardown(self):
        self.teardowns += 1


class FailsOnce:
    """Raises ``error`` in ``hook`` at step 2, which is the case's it 3; before or after its yield where it wraps."""

    def __init__(self, hook, error, place="plain", at=2):
        def fail(trainer):
            if trainer.step == at:
                raise error

        def before(trainer):
            fail(trainer)
            return (yield)

        def after(trainer):
            result = yield
            fail(trainer)
            return result

        function = {"plain": fail, "before": before, "after": after}[place]
        self.fails = hookimpl(specname=hook, wrapper=place != "plain")(function)


STAGES = {
    "before_train": 0,
    "prepare_batch": 2,
    "before_step": 2,
    "compute_loss": 2,
    "backward": 2,
    "optimizer_step": 2,
    "after_update": 2,
    "after_step": 2,
    "eval_step": 2,
    "evaluate": 2,
    "save_checkpoint": 2,
    "after_save": 2,
}


class TestEX01:
    """End hooks not called after an error."""

    @pytest.mark.parametrize("place", ["plain", "before", "after"])
    @pytest.mark.parametrize("stage", STAGES)
    def test_ex_01_every_stage(self, make_trainer, tmp_path, stage, place):
        error = ValueError("at it 3")
        first, last = Life("first"), Life("last")
        fails = FailsOnce(stage, error, place, STAGES[stage])
        plugins = [first, fails, last, Evaluation(every_steps=2), Checkpoint(every_steps=2)]
        trainer = make_trainer(plugins, val=(1.0,), work_dir=tmp_path / "run")
        with pytest.raises(ValueError) as caught:
            trainer.train()
        assert caught.value is error
        for life in (first, last):
            assert (life.setups, life.teardowns, life.ends) == (1, 1, 1)
        assert trainer.outcome.status == "failed"

    def test_ex_01_loader(self, scalar_model):
        error = OSError("shard 3 is gone")

        class Loader:
            def __iter__(self):
                yield from [torch.ones(1, dtype=torch.float64)] * 2
                raise error

        life = Life("life")
        model = scalar_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        trainer = Trainer(model, optimizer=optimizer, loaders={"train": Loader()}, plugins=[life], max_epochs=1, autoload=False)
        with pytest.raises(OSError) as caught:
            trainer.train()
        assert caught.value is error
        assert (life.teardowns, life.ends, trainer.step) == (1, 1, 2)

    def test_ex_01_log(self, make_trainer):
        class Logs:
            @hookimpl
            def after_step(self, trainer):
                trainer.log("x", "no number" if trainer.step == 2 else 1.0)

        life = Life("life")
        with pytest.raises(Exception, match="is no number"):
            make_trainer([Logs(), life]).train()
        assert (life.teardowns, life.ends) == (1, 1)

    def test_ex_01_after_train(self, make_trainer):
        """The run itself went well, the plugin's own error leaves; the others get theirs and their teardown."""
        error = ValueError("at the end")
        first, last = Life("first"), Life("last")
        trainer = make_trainer([first, FailsOnce("after_train", error, at=10), last])
        with pytest.raises(ValueError) as caught:
            trainer.train()
        assert caught.value is error
        assert (first.ends, last.ends, first.teardowns, last.teardowns) == (1, 1, 1, 1)
        assert trainer.outcome.status == "failed"

    def test_ex_01_who_was_not_set_up_gets_no_teardown(self, make_trainer):
        error = ValueError("in setup")

        class Fails(Life):
            @hookimpl
            def setup(self):
                raise error

        first, fails, last = Life("first"), Fails("fails"), Life("last")
        with pytest.raises(ValueError) as caught:
            make_trainer([first, fails, last]).train()
        assert caught.value is error
        assert [(one.setups, one.teardowns, one.ends) for one in (first, fails, last)] == [(1, 1, 0), (0, 0, 0), (0, 0, 0)]


class TestEX02:
    """Clean-up error masks the original."""

    def test_ex_02_three_clean_up_errors_are_attached(self, make_trainer, tmp_path):
        """``teardown`` of A and B, and the save of what was trained when an evaluation fails (ENOSPC: no space left)."""
        real = ValueError("real")

        class Cleans(Life):
            def __init__(self, name, error):
                super().__init__(name)
                self.error = error

            @hookimpl
            def teardown(self):
                self.teardowns += 1
                raise self.error

        class Full:
            @hookimpl
            def save_checkpoint(self):
                raise OSError(28, "No space left on device")

        a, b = Cleans("a", OSError("a failed")), Cleans("b", RuntimeError("b failed"))
        plugins = [a, Full(), FailsOnce("eval_step", real, at=3), b, Evaluation(every_steps=3)]
        trainer = make_trainer(plugins, val=(1.0,), work_dir=tmp_path / "run")
        with pytest.raises(ValueError) as caught:
            trainer.train()
        assert caught.value is real
        notes = "\n".join(caught.value.__notes__)
        assert all(text in notes for text in ("OSError: a failed", "RuntimeError: b failed", "No space left on device"))
        assert (a.teardowns, b.teardowns) == (1, 1)

    def test_ex_02_only_the_clean_up_fails(self, make_trainer):
        class Cleans(Life):
            @hookimpl
            def teardown(self):
                raise OSError(f"{self.name} failed")

        with pytest.raises(OSError, match="a failed"):
            make_trainer([Cleans("a")]).train()
        with pytest.raises(BaseException, match="several plugins failed while cleaning up") as caught:
            make_trainer([Cleans("a"), Cleans("b")]).train()
        assert sorted(str(error) for error in caught.value.exceptions) == ["a failed", "b failed"]


def snapshot(trainer):
    """Return what a plugin for one call must not leave behind."""
    root = logging.getLogger()
    ours = logging.getLogger("trainhooks")
    return {
        "plugins": list(trainer.plugins),
        "state": sorted(trainer.stateful),
        "hooks": [len(module._forward_hooks) + len(module._backward_hooks) for module in trainer.model.modules()],
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "handlers": [list(root.handlers), list(ours.handlers), ours.level],
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": len(list(Path("/proc/self/fd").iterdir())),
    }


class TestEX03:
    """Temporary plugins stay registered."""

    @pytest.mark.usefixtures("quiet")
    def test_ex_03_gone_after_an_exception(self, make_trainer, recorder):
        class Temporary:
            def __init__(self):
                self.calls = 0

            @hookimpl
            def before_step(self, trainer):
                self.calls += 1
                if trainer.step == 1:
                    raise ValueError("it 2")

            @hookimpl
            def report_metrics(self):
                self.calls += 0

            def state_dict(self):
                return {}

            def load_state_dict(self, state):
                pass

        steps = recorder("after_step")
        trainer = make_trainer([steps], max_steps=4)
        before = snapshot(trainer)
        temporary = Temporary()
        with pytest.raises(ValueError, match="it 2"), trainer.using(temporary):
            trainer.train()
        assert {**snapshot(trainer), "state": before["state"]} == before
        assert sorted(trainer.stateful) == ["model", "optimizers/optimizer"]
        calls = temporary.calls
        trainer.train()
        assert temporary.calls == calls == 2
        assert [step for _, step in steps.calls] == [0, 1, 2, 3]


class TestEX06:
    """Abort on NaN deletes the resume file."""

    def test_ex_06_a_plugin_can_tell_an_abort_from_a_good_end(self, make_trainer, tmp_path):
        class Guard:
            @hookimpl
            def after_step(self, output):
                if output["loss"].isnan():
                    raise FloatingPointError("the loss is NaN")

        class Backup:
            """Removes its checkpoints when the run went well: what it may do depends on the outcome."""

            seen = None

            @hookimpl
            def after_train(self, trainer):
                self.seen = (trainer.outcome.status, trainer.outcome.reason)
                if trainer.outcome.status == "completed":
                    for path in (trainer.work_dir / "checkpoints").iterdir():
                        (path / "state.json").unlink()

        backup = Backup()
        # The batch of it 5 is NaN. One checkpoint each it; the fifth never comes to its place.
        values = (1.0,) * 4 + (float("nan"),) + (1.0,) * 5
        trainer = make_trainer(
            [Guard(), backup, Checkpoint(every_steps=1)], values=values, max_steps=8, work_dir=tmp_path / "run"
        )
        with pytest.raises(FloatingPointError):
            trainer.train()
        assert backup.seen == ("failed", "FloatingPointError: the loss is NaN")
        assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["step-00000003", "step-00000004"]

        class First:
            step = None

            @hookimpl
            def before_step(self, trainer):
                if self.step is None:
                    self.step = trainer.step

        first = First()
        again = make_trainer([first, Checkpoint()], max_steps=8, work_dir=tmp_path / "run")
        again.train(resume="auto")
        assert first.step == 4  # the fifth it
        assert again.model.w.item() == -8.0


@pytest.mark.usefixtures("quiet")
def test_ex_02_and_built_ins_with_a_full_disk(make_trainer, tmp_path, monkeypatch):
    """All built-ins on; the disk is full from the first save on: one error with the path, everything closed."""

    mkdir = Path.mkdir

    def full(path, *args, **kwargs):
        if path.suffix == ".tmp":
            raise OSError(28, "No space left on device")
        mkdir(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", full)
    plugins = [Timer(), LR(), Evaluation(), Checkpoint(), MetricsLog(), Progress(style="lines")]
    trainer = make_trainer(plugins, val=(1.0,), max_epochs=2, work_dir=tmp_path / "run")
    before = {**snapshot(trainer), "state": None}
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint .*step-00000010: .*No space left on device"):
        trainer.train()
    assert {**snapshot(trainer), "state": None} == before
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
