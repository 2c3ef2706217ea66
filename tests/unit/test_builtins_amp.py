"""Half precision: where autocast is on, what the scaler does, and that neither leaks or loses an update."""

import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainhooks import OptionError, SkipStep, Trainer, TrainingError, UsageError, hookimpl
from trainhooks_builtins import AMP, Accumulate, Checkpoint, Clip, Closure


def half(**options):
    return AMP(dtype="float16", **options)


def now():
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


class Seen:
    """Notes the type that autocast computes in, hook by hook."""

    def __init__(self):
        self.types = {}

    def note(self, hook):
        self.types.setdefault(hook, set()).add(now())

    @hookimpl(wrapper=True)
    def compute_loss(self):
        self.note("compute_loss")
        return (yield)

    @hookimpl(wrapper=True)
    def eval_step(self):
        self.note("eval_step")
        return (yield)

    @hookimpl(wrapper=True)
    def predict_step(self):
        self.note("predict_step")
        return (yield)

    @hookimpl(wrapper=True)
    def scale_loss(self):
        self.note("scale_loss")
        return (yield)

    @hookimpl(wrapper=True)
    def backward(self):
        self.note("backward")
        return (yield)

    @hookimpl
    def gradients_ready(self):
        self.note("gradients_ready")

    @hookimpl
    def after_step(self):
        self.note("after_step")


@pytest.fixture
def net():
    """Return a function that makes a trainer of a linear model which notes the type of what it computes."""

    def make(*plugins, **arguments):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        model.types = set()
        model.register_forward_hook(lambda module, _, output: module.types.add(output.dtype))
        batches = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(3)]
        arguments.setdefault("max_epochs", 1)
        return Trainer(
            model,
            loss=nn.functional.mse_loss,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loaders={"train": batches, "val": batches, "test": batches},
            plugins=plugins,
            autoload=False,
            **arguments,
        )

    return make


class TestAutocast:
    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_is_on_for_losses_and_predictions_only(self, net, dtype):
        seen = Seen()
        trainer = net(seen, AMP(dtype))
        trainer.train()
        trainer.evaluate("val")
        outputs = trainer.predict("test")
        there = {getattr(torch, dtype)}
        assert seen.types == {
            "compute_loss": there,
            "eval_step": there,
            "predict_step": there,
            "scale_loss": {None},
            "backward": {None},
            "gradients_ready": {None},
            "after_step": {None},
        }
        assert trainer.model.types == there == {output.dtype for output in outputs}
        assert trainer.model.weight.dtype == torch.float32

    def test_does_not_leak_from_a_step_that_is_dropped(self, net):
        class Drop:
            @hookimpl
            def compute_loss(self, trainer):
                if trainer.batch_index == 1:
                    message = "dropped"
                    raise SkipStep(message)

        trainer = net(Drop(), seen := Seen(), AMP())
        trainer.train()
        assert trainer.step == 2
        assert seen.types["after_step"] == {None}

    @pytest.mark.parametrize("where", ["compute_loss", "eval_step", "predict_step"])
    def test_does_not_leak_from_an_error(self, net, where):
        def fail():
            message = "broken"
            raise RuntimeError(message)

        trainer = net(Closure(**{where: fail}), AMP())
        work = {"compute_loss": trainer.train, "eval_step": trainer.evaluate, "predict_step": trainer.predict}[where]
        with pytest.raises(RuntimeError, match="broken"):
            work()
        assert now() is None

    def test_can_be_left_out_on_some_devices(self, net, messages):
        trainer = net(AMP("float16", devices=("cuda",)))
        trainer.train()
        assert trainer.model.types == {torch.float32}
        assert trainer.update == 3
        assert "amp: does nothing on cpu, only on cuda" in messages()

    def test_a_device_without_autocast_is_refused(self, net, monkeypatch):
        monkeypatch.setattr(torch.amp, "is_autocast_available", lambda device: False)
        with pytest.raises(UsageError, match="plugin 'amp': torch has no autocast for 'cpu'"):
            net(AMP()).train()

    def test_bfloat16_has_no_scaler_and_no_hooks_for_one(self, net):
        trainer = net(AMP())
        assert not any(trainer.manager.has(hook) for hook in ("scale_loss", "gradients_ready", "optimizer_step"))
        trainer.train()
        assert trainer.stateful["plugins/amp"].state_dict() == {}


class Weights:
    def __init__(self):
        self.seen = []

    @hookimpl
    def after_step(self, trainer):
        self.seen.append(trainer.model.w.item())


class TestScale:
    def test_gradients_are_unscaled_before_anybody_sees_them(self, make_trainer):
        found = []

        class Look:
            phase = "bookkeeping"

            @hookimpl(wrapper=True)
            def backward(self, trainer):
                done = yield
                found.append(trainer.model.w.grad.item())
                return done

            @hookimpl(tryfirst=True)
            def gradients_ready(self, trainer):
                found.append(trainer.model.w.grad.item())

        trainer = make_trainer([Look(), half(init_scale=1024.0)], values=[3.0])
        trainer.train()
        assert found == [3072.0, 3.0]
        assert trainer.model.w.item() == -3.0

    def test_a_step_that_is_not_finite_is_skipped_and_halves_the_scale(self, make_trainer):
        weights = Weights()
        trainer = make_trainer([half(init_scale=8.0), weights], values=[1.0, math.inf, 2.0, math.nan, 4.0])
        trainer.train()
        assert weights.seen == [-1.0, -1.0, -3.0, -3.0, -7.0]
        assert (trainer.step, trainer.update) == (5, 3)
        state = trainer.stateful["plugins/amp"].state_dict()
        counts = {"made": 0, "skipped": 0}  # both were logged at the end
        assert state == {"scale": 2.0, "growth_tracker": 1, "skipped_in_a_row": 0, "is_scaled": False, **counts}
        assert trainer.metrics["amp/scale"] == 2.0
        assert trainer.metrics["amp/skipped"] == 2.0

    def test_it_grows_after_an_interval(self, make_trainer):
        trainer = make_trainer([half(init_scale=8.0, growth_interval=2, growth_factor=4.0)], values=[1.0] * 5)
        trainer.train()
        assert trainer.metrics["amp/scale"] == 128.0

    def test_the_backoff_can_be_chosen(self, make_trainer):
        trainer = make_trainer([half(init_scale=8.0, backoff_factor=0.25)], values=[math.inf])
        trainer.train()
        assert trainer.metrics["amp/scale"] == 2.0

    def test_all_optimizers_skip_together(self):
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.unused = (nn.Parameter(torch.zeros(())) for _ in range(3))

            def forward(self, x):
                return self.a * x[0] + self.b * x[1]

        model = Two()
        optimizers = {name: torch.optim.SGD([getattr(model, name)], lr=1.0) for name in ("a", "b", "unused")}
        optimizers["again"] = torch.optim.SGD([model.b], lr=1.0)  # it is unscaled once, and stepped twice
        batches = [(torch.tensor([1.0, math.inf]),), (torch.tensor([2.0, 3.0]),)]
        trainer = Trainer(
            model, optimizer=optimizers, loaders={"train": batches}, max_epochs=1, plugins=[half()], autoload=False
        )
        trainer.train()
        assert (model.a.item(), model.b.item(), trainer.update) == (-2.0, -6.0, 1)

    def test_an_update_without_any_gradient_is_none_of_its_business(self):
        class Odd(nn.Module):
            def __init__(self):
                super().__init__()
                self.w, self.v = nn.Parameter(torch.zeros(())), torch.ones((), requires_grad=True)

            def forward(self, x):
                return (x * (self.v if x > 1 else self.w)).sum()

        model = Odd()
        batches = [torch.tensor(x) for x in (2.0, 3.0, 1.0, 2.0)]
        trainer = Trainer(
            model,
            optimizer=torch.optim.SGD([model.w], lr=1.0),
            loaders={"train": batches},
            max_epochs=1,
            plugins=[half()],
            autoload=False,
        )
        trainer.train()
        assert (model.w.item(), trainer.update) == (-1.0, 4)

    def test_sparse_gradients_are_unscaled_too(self):
        model = nn.Embedding(4, 2, sparse=True)
        nn.init.zeros_(model.weight)
        trainer = Trainer(
            model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
            loaders={"train": [torch.tensor([1, 1, 3])] * 2},
            max_epochs=1,
            plugins=[half(), Accumulate(2), Clip(100.0), Sum()],
            autoload=False,
        )
        trainer.train()
        assert model.weight.tolist() == [[0, 0], [-2, -2], [0, 0], [-1, -1]]

    def test_an_optimizer_step_of_the_user_is_called_when_it_is_right(self, make_trainer):
        class Own:
            calls = 0

            @hookimpl
            def optimizer_step(self, trainer):
                self.calls += 1
                trainer.optimizer.step()
                return self.calls != 2  # says that it has made none

        own = Own()
        trainer = make_trainer([own, half()], values=[1.0, math.inf, 2.0, 4.0])
        trainer.train()
        assert (own.calls, trainer.model.w.item(), trainer.update) == (3, -7.0, 2)
        assert trainer.metrics["amp/skipped"] == 1.0


class Sum:
    @hookimpl
    def compute_loss(self, trainer, batch):
        return trainer.model(batch).sum()


class TestOwnTrainStep:
    def test_one_that_steps_the_optimizer_itself_is_refused(self, make_trainer):
        """It would train without a scale, and small gradients would be zero, while the options say float16."""

        class Own:
            @hookimpl
            def train_step(self, trainer, batch):
                trainer.optimizer.zero_grad()
                loss = trainer.hooks.compute_loss(trainer=trainer, batch=batch)
                loss.backward()
                trainer.optimizer.step()
                return {"loss": loss}

        with pytest.raises(UsageError, match=r"was not scaled; .* call trainer\.update_parameters\(\)"):
            make_trainer([half(), Own()]).train()
        assert make_trainer([AMP(), Own()]).train().update == 10


class DropUpdates:
    """Drops the batches of some steps when their gradients are there."""

    def __init__(self, hook, *indices):
        def drop(trainer):
            if trainer.batch_index in indices:
                message = "dropped"
                raise SkipStep(message)

        setattr(self, hook, hookimpl(drop, specname=hook))


class TestDroppedUpdates:
    @pytest.mark.parametrize("hook", ["gradients_ready", "clip_gradients", "optimizer_step"])
    def test_the_scale_follows_what_was_found(self, make_trainer, hook):
        trainer = make_trainer([DropUpdates(hook, 0, 1, 3), half(init_scale=64.0)], values=[math.inf, math.inf, 1.0, 2.0])
        trainer.train()
        assert (trainer.model.w.item(), trainer.update) == (-1.0, 1)
        state = trainer.stateful["plugins/amp"].state_dict()
        assert (state["scale"], state["growth_tracker"]) == (16.0, 2)

    def test_those_that_are_not_finite_count_as_skipped(self, make_trainer):
        amp = half(max_skipped=3)
        with pytest.raises(TrainingError, match="3 updates in a row were skipped"):
            make_trainer([DropUpdates("gradients_ready", *range(9)), amp], values=[math.inf] * 9).train()


class TestTooManySkipped:
    def test_says_how_many_and_what_was_last(self, make_trainer):
        trainer = make_trainer([half(max_skipped=4)], values=[1.0, math.inf, 1.0] + [math.inf] * 9)
        with pytest.raises(
            TrainingError, match=r"4 updates in a row were skipped .* scale is 2048, the last finite update was number 2; look"
        ):
            trainer.train()
        assert trainer.step == 6

    def test_0_is_never(self, make_trainer):
        trainer = make_trainer([half(max_skipped=0)], values=[math.inf] * 30)
        trainer.train()
        assert (trainer.step, trainer.update) == (30, 0)


class TestLoopsOfTheUser:
    @pytest.mark.parametrize("amp", [half(), AMP()])
    def test_a_train_step_that_uses_the_stages(self, make_trainer, amp):
        class Own:
            @hookimpl
            def train_step(self, trainer, batch, update_due):
                trainer.optimizer.zero_grad()
                for _ in range(2):
                    loss = trainer.hooks.compute_loss(trainer=trainer, batch=batch)
                    scaled = trainer.hooks.scale_loss(trainer=trainer, loss=loss, update_due=update_due)
                    trainer.hooks.backward(trainer=trainer, loss=scaled, update_due=update_due)
                trainer.update_parameters()
                return {"loss": loss}

        amp = AMP(amp.dtype)
        trainer = make_trainer([Own(), amp], values=[1.0, 2.0])
        trainer.train()
        assert trainer.model.w.item() == -6.0

    def test_one_that_does_not_scale_is_refused_with_float16(self, make_trainer):
        class Own:
            @hookimpl
            def train_step(self, trainer, batch):
                trainer.model(batch).backward()
                trainer.update_parameters()
                return {}

        with pytest.raises(UsageError, match=r"the loss of this train_step was not scaled; pass it through trainer\.hooks"):
            make_trainer([Own(), half()]).train()
        make_trainer([Own(), AMP()]).train()

    def test_an_optimizer_with_a_closure_is_refused_with_float16(self, make_trainer):
        def lbfgs(trainer):
            def closure():
                trainer.optimizer.zero_grad()
                loss = trainer.hooks.compute_loss(trainer=trainer, batch=torch.ones(1, dtype=torch.float64))
                scaled = trainer.hooks.scale_loss(trainer=trainer, loss=loss, update_due=True)
                trainer.hooks.backward(trainer=trainer, loss=scaled, update_due=True)
                return loss

            trainer.optimizer.step(closure)
            return True

        with pytest.raises(UsageError, match=r"the optimizer computes the loss again within its step \(a closure\)"):
            make_trainer([Closure(optimizer_step=lbfgs), half()]).train()
        trainer = make_trainer([Closure(optimizer_step=lbfgs), AMP()])
        trainer.train()
        assert trainer.model.w.item() == -10.0

    def test_a_model_in_float16_is_refused(self, net):
        trainer = net(half())
        trainer.model.half()
        with pytest.raises(UsageError, match=r"plugin 'amp': 'weight' is in float16; leave the model in float32"):
            trainer.train()


def test_without_a_limit_many_skipped_updates_are_said_once(make_trainer, messages):
    make_trainer([half(max_skipped=0)], values=[math.inf] * 45).train()
    assert [text for text in messages() if text.startswith("amp")] == [
        "amp: float16 on cpu",
        "amp: 20 updates in a row were skipped, since their gradients were not finite; max_skipped = 0",
    ]


class StopAt:
    @hookimpl
    def after_step(self, trainer):
        if trainer.step == 2:
            trainer.stop("test")


class TestResume:
    def test_goes_on_as_if_nothing_had_been(self, make_trainer, tmp_path):
        values = [math.inf, 1.0, math.inf, 1.0, 1.0, 1.0, math.inf]

        def trainer(*plugins, work_dir=None):
            return make_trainer([half(growth_interval=2), Checkpoint(), *plugins], values=values, work_dir=work_dir)

        whole = trainer()
        whole.train()
        trainer(StopAt(), work_dir=tmp_path).train()
        second = trainer(work_dir=tmp_path)
        second.train(resume="auto")
        assert second.stateful["plugins/amp"].state_dict() == whole.stateful["plugins/amp"].state_dict()
        assert second.model.w.item() == whole.model.w.item()

    def test_a_window_that_was_saved_needs_no_further_step_to_be_used(self, make_trainer, tmp_path):
        class DropLast:
            @hookimpl(wrapper=True)
            def prepare_batch(self, batch):
                if batch.item() == 9:
                    message = "filtered"
                    raise SkipStep(message)
                return (yield)

        def trainer(*plugins):
            plugins = [half(), Accumulate(5), Checkpoint(), DropLast(), *plugins]
            return make_trainer(plugins, values=[1.0, 2.0, 6.0, 9.0], work_dir=tmp_path)

        trainer(StopAt()).train()
        second = trainer()
        second.train(resume="auto")
        assert (second.model.w.item(), second.update) == (-3.0, 1)

    def test_skipped_updates_are_counted_across_it(self, make_trainer, tmp_path):
        def trainer(*plugins):
            plugins = [half(max_skipped=5), Checkpoint(), *plugins]
            return make_trainer(plugins, values=[math.inf] * 9, work_dir=tmp_path)

        trainer(StopAt()).train()
        second = trainer()
        with pytest.raises(TrainingError, match="5 updates in a row"):
            second.train(resume="auto")
        assert second.step == 4

    def test_how_the_scale_grows_is_the_new_runs_own(self, make_trainer, tmp_path):
        make_trainer([half(init_scale=8.0, growth_interval=9), Checkpoint(), StopAt()], work_dir=tmp_path).train()
        amp = half(init_scale=2.0, growth_interval=4)
        trainer = make_trainer([amp, Checkpoint()], work_dir=tmp_path)
        trainer.train(resume="auto", max_steps=4)
        assert trainer.metrics["amp/scale"] == 16.0

    def test_one_that_is_registered_late_has_its_state(self, make_trainer, tmp_path):
        class Late:
            @hookimpl
            def before_train(self, trainer):
                trainer.register(half(init_scale=8.0), "amp")

        make_trainer([half(init_scale=64.0), Checkpoint(), StopAt()], work_dir=tmp_path).train()
        trainer = make_trainer([Late(), Checkpoint()], work_dir=tmp_path)
        trainer.train(resume="auto")
        assert trainer.metrics["amp/scale"] == 64.0

    def test_a_second_training_keeps_the_scale_and_logs_it_once(self, make_trainer):
        amp = half(init_scale=8.0)
        trainer = make_trainer([amp], values=[math.inf, 1.0], max_epochs=1)
        trainer.train()
        trainer.train(max_epochs=2)
        assert trainer.metrics["amp/scale"] == 2.0
        assert trainer.bus.before_flush == []


class CountSyncs(TorchDispatchMode):
    """Counts what would wait for a device: numbers read from tensors."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


class TestSynchronization:
    def steps(self, net, *plugins):
        class Count:
            @hookimpl(wrapper=True)
            def train_step(self):
                with counter:
                    return (yield)

        counter = CountSyncs()
        net(Count(), *plugins).train()
        return counter.count

    @pytest.mark.parametrize("clip", [{"max_norm": 0.1}, {"max_value": 0.1}, {"adaptive": 0.1}])
    def test_bfloat16_accumulation_and_clipping_have_none(self, net, clip):
        assert self.steps(net, AMP(), Accumulate(2), Clip(**clip)) == 0

    def test_float16_has_one_for_each_update(self, net):
        assert self.steps(net, half(), Clip()) == 3
        assert self.steps(net, half(), Clip(), Accumulate(2)) == 2


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"dtype": "float32"}, r"dtype = 'float32': must be 'bfloat16' or 'float16'"),
            ({"init_scale": 0.0}, r"init_scale = 0\.0: must be above 0"),
            ({"growth_factor": 1.0}, r"growth_factor = 1\.0: must be above 1"),
            ({"backoff_factor": 1.0}, r"backoff_factor = 1\.0: must be between 0 and 1"),
            ({"growth_interval": 0}, "growth_interval = 0: must be at least 1"),
            ({"max_skipped": -1}, r"max_skipped = -1: must be 0 \(never\) or more"),
        ],
    )
    def test_must_make_sense(self, options, message):
        with pytest.raises(OptionError, match=message):
            AMP(**options)

    def test_of_a_file_fit(self, make_trainer):
        options = {"dtype": "float16", "init_scale": 8, "devices": ["cpu"]}
        trainer = make_trainer(["amp"], options={"amp": options}, values=[1.0])
        trainer.train()
        assert trainer.metrics["amp/scale"] == 8.0
