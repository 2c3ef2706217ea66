"""``nan_guard``: what is noticed and when, what it costs, and what is on disk afterwards."""

import json
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainhooks import OptionError, Trainer, TrainingError, UsageError, hookimpl
from trainhooks_builtins import AMP, Accumulate, Checkpoint, Evaluation, NanGuard

NAN, INF = math.nan, math.inf


def batches(bad, count=10, value=NAN):
    return [value if index in bad else 1.0 for index in range(count)]


def steps_on_disk(folder):
    return sorted(int(path.name.rpartition("-")[2]) for path in (folder / "checkpoints").glob("step-*"))


class BreaksGradient:
    """Makes the gradient infinite after the backward pass of some steps."""

    def __init__(self, *steps):
        self.steps = steps

    @hookimpl(wrapper=True)
    def backward(self, trainer):
        done = yield
        if trainer.step in self.steps:
            trainer.model.w.grad.fill_(INF)
        return done


class Scaler(BreaksGradient):
    """What AMP does in fp16, in small: an update with infinite gradients is left out."""

    @hookimpl
    def optimizer_step(self, trainer):
        if not bool(trainer.model.w.grad.isfinite()):
            return False
        trainer.optimizer.step()
        return True


class TestRaise:
    @pytest.mark.parametrize("value", [NAN, INF, -INF])
    @pytest.mark.parametrize(("every_steps", "noticed_at"), [(1, 4), (3, 5), (5, 4), (6, 5), (50, 10)])
    def test_names_the_first_bad_step(self, make_trainer, every_steps, noticed_at, value):
        """``trainer.step`` is the index of the step that looked, or 10 when the epoch's end did."""
        trainer = make_trainer([NanGuard(every_steps=every_steps)], values=batches({4, 6}, value=value), start=1.0)
        text = {NAN: "nan", INF: "-inf", -INF: "inf"}[value]  # w is 1 - 4 = -3 then
        with pytest.raises(TrainingError, match=rf"the loss is {text} at step 4 \(epoch 0, batch 4\)"):
            trainer.train()
        assert (trainer.outcome.status, trainer.step) == ("failed", noticed_at)

    def test_at_the_end_of_the_run(self, make_trainer):
        trainer = make_trainer([NanGuard()], values=batches({4}), max_steps=5)
        with pytest.raises(TrainingError, match="the loss is nan at step 4"):
            trainer.train()
        assert trainer.outcome.status == "failed"

    def test_before_the_evaluation_of_the_epoch(self, make_trainer, recorder):
        evaluations = recorder("before_eval")
        with pytest.raises(TrainingError):
            make_trainer([NanGuard(), Evaluation(), evaluations], values=batches({4}), val=(1.0,)).train()
        assert evaluations.calls == []

    @pytest.mark.parametrize("every_steps", [1, 50])
    def test_no_checkpoint_of_broken_weights(self, make_trainer, tmp_path, every_steps):
        """Rotation keeps two: a third, broken one would have cost a good one."""
        plugins = [NanGuard(every_steps=every_steps), Checkpoint(every_steps=1)]
        values = batches({4})
        with pytest.raises(TrainingError, match="the loss is nan at step 4"):
            make_trainer(plugins, values=values, work_dir=tmp_path / "run").train()
        assert steps_on_disk(tmp_path / "run") == [3, 4]
        # EX-06: the fourth is there, and the run goes on from it at the fifth it, here with data that was mended
        again = make_trainer([NanGuard(), Checkpoint()], work_dir=tmp_path / "run")
        assert again.train(resume="auto").status == "completed"
        assert again.model.w.item() == -10.0

    def test_no_final_checkpoint_either(self, make_trainer, tmp_path):
        plugins = [NanGuard(), Checkpoint(every_steps=4)]
        with pytest.raises(TrainingError):
            make_trainer(plugins, values=batches({8}), work_dir=tmp_path / "run", max_steps=10).train()
        assert steps_on_disk(tmp_path / "run") == [4, 8]

    def test_a_good_run_is_as_without(self, make_trainer):
        trainer = make_trainer([NanGuard(every_steps=3, gradients=True)])
        assert trainer.train().status == "completed"
        assert trainer.model.w.item() == -10.0

    def test_another_value_of_the_output(self, make_trainer):
        class Gives:
            @hookimpl
            def compute_loss(self, trainer, batch):
                loss = trainer.model(batch)
                return {"loss": loss, "critic": loss * (NAN if trainer.step == 2 else 1)}

        with pytest.raises(TrainingError, match="at step 2"):
            make_trainer([NanGuard(metric="critic"), Gives()]).train()
        assert make_trainer([NanGuard(), Gives()]).train().status == "completed"

    @pytest.mark.parametrize("output", [{"g_loss": 1.0}, {"loss": torch.ones(2)}])
    def test_a_value_that_is_not_there(self, make_trainer, output):
        class Gives:
            @hookimpl
            def train_step(self):
                return output

        message = f"nan_guard.metric = 'loss' is no scalar of what train_step returned, which has {next(iter(output))}"
        with pytest.raises(UsageError, match=message):
            make_trainer([NanGuard(), Gives()]).train()

    def test_a_second_training_begins_anew(self, make_trainer):
        trainer = make_trainer([NanGuard()], values=batches({4}), max_steps=5)
        with pytest.raises(TrainingError):
            trainer.train()
        trainer.model.w.data.fill_(0.0)
        trainer.loaders["train"] = [torch.ones(1, dtype=torch.float64)] * 10
        assert trainer.train(max_steps=8).status == "completed"


class TestGradients:
    def test_an_update_with_infinite_gradients(self, make_trainer):
        with pytest.raises(TrainingError, match=r"the largest gradient is inf at step 2 \(epoch 0, batch 2\)"):
            make_trainer([NanGuard(gradients=True), BreaksGradient(2)]).train()

    def test_the_loss_of_the_same_step_is_named_before_it(self, make_trainer):
        with pytest.raises(TrainingError, match="the loss is nan at step 2"):
            make_trainer([NanGuard(gradients=True)], values=batches({2})).train()

    def test_off_they_are_not_looked_at(self, make_trainer):
        with pytest.raises(TrainingError, match="the loss is -inf at step 3"):  # one later: w is -inf by then
            make_trainer([NanGuard(), BreaksGradient(2)]).train()
        assert make_trainer([NanGuard()]).hooks.gradients_ready is None

    def test_an_update_that_was_skipped_did_no_harm(self, make_trainer):
        """As with fp16: the scale was too high for one step, which is normal."""
        trainer = make_trainer([NanGuard(gradients=True, every_steps=1), Scaler(2, 5)])
        assert trainer.train().status == "completed"
        assert (trainer.model.w.item(), trainer.update) == (-8.0, 8)

    @pytest.mark.parametrize("action", ["raise", "skip"])
    def test_with_the_amp_plugin(self, action):
        """The gradient of a batch is 8: times 2**127, 2**126 and 2**125 it overflows float32, times 2**124 it does not."""

        class Scalar(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.w = torch.nn.Parameter(torch.zeros(()))

            def forward(self, x):
                return (self.w * x).mean()

        model = Scalar()
        amp = AMP(dtype="float16", init_scale=2.0**127)
        trainer = Trainer(
            model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.125),
            loaders={"train": [torch.full((1,), 8.0)] * 10},
            plugins=[NanGuard(action=action, gradients=True), amp],
            max_epochs=1,
            device="cpu",
            autoload=False,
        )
        assert trainer.train().status == "completed"
        assert (trainer.step, trainer.update, model.w.item()) == (10, 7, -7.0)

    def test_before_they_are_clipped(self, make_trainer):
        class Clips:
            @hookimpl
            def clip_gradients(self, trainer):
                trainer.model.w.grad.clamp_(-1, 1)

        with pytest.raises(TrainingError, match="the largest gradient is inf at step 2"):
            make_trainer([NanGuard(gradients=True), BreaksGradient(2), Clips()]).train()

    def test_sparse_ones(self):
        from trainhooks_builtins._finite import bad_names, largest_gradient

        class Stub:
            model = torch.nn.Embedding(4, 2, sparse=True)
            optimizers = {"optimizer": torch.optim.SGD(model.parameters(), lr=1.0)}  # noqa: RUF012

        loss = (Stub.model(torch.tensor([1, 1])) * torch.tensor([1.0, 3.0])).sum()
        loss.backward()
        assert largest_gradient(Stub).item() == 6.0  # the same row twice: 3 + 3
        Stub.model.weight.grad._values().fill_(INF)
        assert bad_names(Stub) == {"parameters": [], "gradients": ["weight"]}


class TestSkip:
    def test_the_weights_stay_good(self, make_trainer, messages):
        guard = NanGuard(action="skip")
        trainer = make_trainer([guard], values=batches({2, 3, 7}))
        assert trainer.train().status == "completed"
        assert (trainer.model.w.item(), trainer.step, guard.skipped) == (-7.0, 7, 3)
        assert trainer.metrics["nan_guard/skipped"] == 3
        assert "nan_guard: the loss is nan at step 2 (epoch 0, batch 3); the batch was dropped" in messages()

    def test_gradients(self, make_trainer):
        """Step 3 is tried with the next batch: its gradient breaks again and again until the epoch has no more."""

        class Breaks:
            calls = 0

            @hookimpl(wrapper=True)
            def backward(self, trainer):
                done = yield
                self.calls += 1
                if self.calls in (4, 5):
                    trainer.model.w.grad.fill_(INF)
                return done

        guard = NanGuard(action="skip", gradients=True)
        trainer = make_trainer([guard, Breaks()])
        trainer.train()
        assert (trainer.model.w.item(), trainer.update, guard.skipped) == (-8.0, 8, 2)

    def test_gradients_are_left_to_a_plugin_that_skips_updates_itself(self, make_trainer, messages):
        guard = NanGuard(action="skip", gradients=True)
        trainer = make_trainer([guard, Scaler(2, 5)], values=batches({7}))
        trainer.train()
        assert (trainer.model.w.item(), trainer.step, trainer.update, guard.skipped) == (-7.0, 9, 7, 1)
        assert any("only the loss is watched" in text for text in messages())

    def test_with_accumulation(self, make_trainer):
        """Windows of two good batches; the bad one is not in any: w is -1 after each of the five, the last of them short."""
        trainer = make_trainer([NanGuard(action="skip"), Accumulate(steps=2)], values=batches({3}))
        trainer.train()
        assert (trainer.model.w.item(), trainer.step, trainer.update) == (-5.0, 9, 5)

    def test_too_many_in_a_row(self, make_trainer):
        trainer = make_trainer([NanGuard(action="skip", max_skipped=3)], values=batches({4, 5, 6, 7}))
        with pytest.raises(
            TrainingError, match=r"the loss is nan at step 4 \(epoch 0, batch 7\), and so it was for 3 batches before"
        ):
            trainer.train()
        assert trainer.model.w.item() == -4.0

    def test_in_a_row_only(self, make_trainer):
        trainer = make_trainer([NanGuard(action="skip", max_skipped=1)], values=batches({1, 3, 5, 7, 9}))
        assert trainer.train().status == "completed"
        assert trainer.model.w.item() == -5.0

    @pytest.mark.parametrize("action", ["skip", "stop"])
    def test_a_step_that_does_not_show_its_loss(self, make_trainer, action):
        class Own:
            @hookimpl
            def train_step(self):
                return {"loss": 1.0}

        with pytest.raises(UsageError, match=f"nan_guard.action = '{action}' looks at the loss in scale_loss"):
            make_trainer([NanGuard(action=action), Own()]).train()

    def test_resume(self, make_trainer, tmp_path):
        """Cut right after a skipped batch: the counters go on, and what was skipped is in the file."""
        values = batches({1, 2, 5, 7})

        def train(folder, steps, guard):
            trainer = make_trainer([guard, Checkpoint(every_steps=1)], values=values, max_steps=steps, work_dir=folder)
            trainer.train(resume="auto")
            return trainer

        whole, cut = NanGuard(action="skip"), NanGuard(action="skip")
        train(tmp_path / "whole", 6, whole)
        train(tmp_path / "cut", 3, NanGuard(action="skip"))
        trainer = train(tmp_path / "cut", 6, cut)
        assert trainer.model.w.item() == -6.0
        assert cut.state_dict() == whole.state_dict()
        assert cut.skipped == 4
        files = [json.loads((tmp_path / run / "nan_guard.json").read_text()) for run in ("whole", "cut")]
        assert files[0] == files[1]
        assert [event["batch_index"] for event in files[0]["events"]] == [1, 2, 5, 7]


class TestStop:
    def test_the_last_checkpoint_is_good(self, make_trainer, tmp_path):
        """The bad batch was dropped before the backward pass; a resume goes on behind it."""
        run = {"values": batches({4}), "work_dir": tmp_path / "run"}
        trainer = make_trainer([NanGuard(action="stop"), Checkpoint(every_steps=3)], **run)
        outcome = trainer.train()
        assert (outcome.status, outcome.step) == ("stopped", 4)
        assert outcome.reason == "nan_guard: the loss is nan at step 4 (epoch 0, batch 4)"
        assert trainer.model.w.item() == -4.0
        assert steps_on_disk(tmp_path / "run") == [3, 4]
        again = make_trainer([NanGuard(action="stop"), Checkpoint()], **run)
        assert again.train(resume="auto").status == "completed"
        assert again.model.w.item() == -9.0

    def test_gradients(self, make_trainer):
        trainer = make_trainer([NanGuard(action="stop", gradients=True), BreaksGradient(3)])
        outcome = trainer.train()
        assert (outcome.reason, trainer.model.w.item()) == (
            "nan_guard: the largest gradient is inf at step 3 (epoch 0, batch 3)",
            -3.0,
        )


class TestFile:
    def test_what_it_holds(self, make_trainer, tmp_path):
        class Logs:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 1:
                    trainer.log_dict({"a": 1.5, "b": NAN})
                    trainer.flush()

        plugins = [NanGuard(every_steps=2), Logs()]
        trainer = make_trainer(plugins, values=batches({4}, 6), max_epochs=2, work_dir=tmp_path / "run")
        with pytest.raises(TrainingError, match=r"; see .*nan_guard\.json; go on from a checkpoint before it"):
            trainer.train()
        (event,) = json.loads((tmp_path / "run" / "nan_guard.json").read_text())["events"]
        metrics = event.pop("metrics")
        assert event == {
            "what": "loss",
            "value": "nan",
            "step": 4,
            "update": 4,
            "epoch": 0,
            "batch_index": 4,
            "noticed_at_step": 5,
            "parameters": ["w"],
            "gradients": [],  # that of step 5 is x = 1
        }
        assert (metrics["a"], metrics["b"]) == (1.5, "nan")

    def test_names_of_gradients_at_once(self, make_trainer, tmp_path):
        trainer = make_trainer([NanGuard(every_steps=1)], values=batches({4}), work_dir=tmp_path / "run")
        with pytest.raises(TrainingError):
            trainer.train()
        (event,) = json.loads((tmp_path / "run" / "nan_guard.json").read_text())["events"]
        assert (event["parameters"], event["gradients"]) == (["w"], ["w"])

    def test_only_the_last_are_kept(self, make_trainer, tmp_path):
        guard = NanGuard(action="skip", max_skipped=99)
        make_trainer([guard], values=batches(range(1, 30), 40), work_dir=tmp_path / "run").train()
        file = json.loads((tmp_path / "run" / "nan_guard.json").read_text())
        assert file["skipped"] == 29
        assert [event["batch_index"] for event in file["events"]] == list(range(10, 30))


class TestAnomaly:
    def test_is_on_during_training_only(self, make_trainer):
        seen = []

        class Notes:
            @hookimpl
            def after_step(self):
                seen.append(torch.is_anomaly_enabled())

        make_trainer([NanGuard(detect_anomaly=True), Notes()], values=(1.0,)).train()
        make_trainer([NanGuard(detect_anomaly=True, action="skip"), Notes()], values=(1.0,)).train()
        make_trainer([NanGuard(), Notes()], values=(1.0,)).train()
        assert seen == [True, True, False]
        assert not torch.is_anomaly_enabled()

    @pytest.mark.parametrize("before", [True, False])
    def test_is_put_back_after_a_failure(self, make_trainer, before):
        class Fails:
            @hookimpl
            def after_step(self):
                raise ValueError("no")

        with torch.autograd.set_detect_anomaly(before):
            with pytest.raises(ValueError, match="no"):
                make_trainer([NanGuard(detect_anomaly=True), Fails()]).train()
            assert torch.is_anomaly_enabled() is before


class Syncs(TorchDispatchMode):
    """Counts what would wait for a device."""

    WAITS = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal", "_to_copy")

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ in self.WAITS
        return func(*args, **(kwargs or {}))


class CountsSyncs:
    """Notes for each step how often something waited."""

    phase = "reporting"

    def __init__(self):
        self.steps = []

    @hookimpl(wrapper=True)
    def train_epoch(self):
        with Syncs() as self.mode:
            return (yield)

    @hookimpl
    def after_step(self):
        self.steps.append(self.mode.count)
        self.mode.count = 0


class TestCost:
    @pytest.mark.parametrize("on_device", [False, True])
    @pytest.mark.parametrize("gradients", [False, True])
    def test_a_step_that_does_not_look_does_not_synchronize(self, make_trainer, monkeypatch, on_device, gradients):
        if on_device:  # what a loss on an accelerator goes through
            monkeypatch.setattr("trainhooks_builtins._step_values.kept", lambda value: value.detach().clone())
        counts = CountsSyncs()
        make_trainer([NanGuard(every_steps=5, gradients=gradients), counts]).train()
        assert [n for index, n in enumerate(counts.steps) if (index + 1) % 5] == [0] * 8

    def test_the_count_sees_those_that_do(self, make_trainer):
        counts = CountsSyncs()
        make_trainer([NanGuard(action="skip"), counts]).train()
        assert counts.steps == [1] * 10

    def test_one_copy_for_all_steps(self, monkeypatch):
        from trainhooks_builtins._step_values import Place, StepValues

        values = StepValues()
        monkeypatch.setattr("trainhooks_builtins._step_values.kept", lambda value: value.detach().clone())
        loss = torch.zeros(())
        for step in range(7):
            loss.fill_(step)  # in place, as a captured graph does
            values.add(Place(step, step, 0, step), "loss", loss)
        copies = []
        original = torch.Tensor.tolist
        monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: copies.append(tensor.shape) or original(tensor))
        assert [(place.step, name, value) for place, name, value in values.take()] == [(n, "loss", float(n)) for n in range(7)]
        assert copies == [torch.Size([7])]
        assert values.take() == []

    def test_what_is_off_is_not_called(self, make_trainer):
        trainer = make_trainer([NanGuard()])
        hooks = trainer.hooks
        assert not hooks.scales_loss
        assert (hooks.gradients_ready, hooks.after_update) == (None, None)
        trainer = make_trainer([NanGuard(action="skip")])
        hooks = trainer.hooks
        assert (hooks.gradients_ready, hooks.after_update, hooks.after_train_epoch) == (None, None, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every_steps": 0}, "every_steps = 0: must be at least 1"),
        ({"max_skipped": 0}, "max_skipped = 0: must be at least 1"),
        ({"action": "skip", "every_steps": 5}, "every_steps = 5: with action = 'skip' every step is looked at"),
        ({"action": "stop", "every_steps": 5}, "every_steps = 5: with action = 'stop'"),
    ],
)
def test_options(options, message):
    with pytest.raises(OptionError, match=message):
        NanGuard(**options)


class TestStatistics:
    """The forward pass of a bad batch has changed what normalization layers keep before anybody knows the loss."""

    @pytest.mark.parametrize("action", ["skip", "stop"])
    def test_they_are_put_back(self, action):
        """As without the batch: the running mean of batches of 1, 2 and 3 with momentum 0.5 is 0.5, 1.25, 2.125."""

        def run(values):
            model = torch.nn.Sequential(torch.nn.BatchNorm1d(1, momentum=0.5), torch.nn.Linear(1, 1))
            trainer = Trainer(
                model,
                loss=torch.nn.functional.mse_loss,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
                loaders={"train": [(torch.tensor([[value], [value]]), torch.ones(2, 1)) for value in values]},
                max_epochs=1,
                plugins=[NanGuard(action=action)],
                autoload=False,
                device="cpu",
            )
            trainer.train()
            return model[0]

        norm = run([1.0, 2.0, NAN, 3.0])
        whole = action == "skip"
        assert norm.running_mean.tolist() == [2.125 if whole else 1.25]
        assert norm.num_batches_tracked.item() == (3 if whole else 2)
        assert norm.running_var.isfinite().all()

    def test_a_model_of_ones_own_step(self):
        """Without a model there is nothing to keep."""

        class Step:
            @hookimpl
            def train_step(self, trainer):
                return {"loss": trainer.hooks.scale_loss(trainer=trainer, loss=torch.tensor(1.0), update_due=True)}

        outcome = Trainer(plugins=[NanGuard(action="skip"), Step()], max_steps=2, autoload=False).train()
        assert outcome.step == 2


def test_the_message_names_the_value(make_trainer):
    class Two:
        @hookimpl
        def compute_loss(self, trainer):
            return {"loss": trainer.model.w * 1, "penalty": torch.tensor(NAN)}

    with pytest.raises(TrainingError, match="the penalty is nan at step 0"):
        make_trainer([NanGuard(metric="penalty", every_steps=1), Two()]).train()
