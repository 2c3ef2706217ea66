"""``ema`` against values by hand and torch's own ``AveragedModel``; swapping in and out; resuming."""

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from trainhooks import CheckpointError, OptionError, Trainer, UsageError, hookimpl
from trainhooks.optimizers import ByName
from trainhooks_builtins import EMA, SWA, Accumulate, Checkpoint, Freeze

UP = (-1.0,) * 4  # with start 1 the weight goes 1, 2, 3, 4, 5


def close(value):
    return pytest.approx(value, abs=1e-12)


class Loads:
    """Has the run go on from a state."""

    def __init__(self, state):
        self.state = state

    @hookimpl
    def setup(self, trainer):
        trainer.load_state_dict(self.state)


class Each:
    """Notes something after each step."""

    def __init__(self, note):
        self.note, self.seen = note, []

    @hookimpl
    def after_step(self, trainer):
        self.seen.append(self.note(trainer))


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))


def batches(number=6, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(5, 3, generator=generator), torch.randn(5, 1, generator=generator)) for _ in range(number)]


def network_trainer(plugins, model=None, **arguments):
    model = model or network()
    data = batches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    arguments.setdefault("max_epochs", 2)
    loaders = {"train": data, "val": data[:2]}
    return Trainer(
        model, loss=nn.functional.mse_loss, optimizer=optimizer, loaders=loaders, plugins=plugins, autoload=False, **arguments
    )


class TestValues:
    def test_by_hand(self, make_trainer):
        ema = EMA(decay=0.9)
        each = Each(lambda trainer: ema.average["w"].item())
        make_trainer([ema, each], values=UP, start=1.0).train()
        assert each.seen == close([1.1, 1.29, 1.561, 1.9049])
        assert ema.averagings == 4

    def test_decay_0_follows_the_weights(self, make_trainer):
        ema = EMA(decay=0.0)
        each = Each(lambda trainer: ema.average["w"].item())
        make_trainer([ema, each], values=UP, start=1.0).train()
        assert each.seen == [2.0, 3.0, 4.0, 5.0]

    def test_default_decay(self, make_trainer):
        ema = EMA()
        make_trainer([ema], values=UP[:1], start=1.0).train()
        assert ema.average["w"].item() == close(0.999 * 1 + 0.001 * 2)

    def test_half_life(self, make_trainer):
        ema = EMA(half_life_updates=1)
        make_trainer([ema], values=UP[:2], start=1.0).train()
        assert ema.average["w"].item() == close(0.5 * (0.5 * 1 + 0.5 * 2) + 0.5 * 3)

    def test_half_life_counts_updates_not_averagings(self):
        assert EMA(half_life_updates=10, every_updates=5).decay ** 2 == close(0.5)

    def test_every_updates(self, make_trainer):
        ema = EMA(decay=0.9, every_updates=2)
        each = Each(lambda trainer: ema.average["w"].item())
        make_trainer([ema, each], values=UP, start=1.0).train()
        # of 3 after the second update, of 5 after the fourth
        assert each.seen == close([1.0, 1.2, 1.2, 0.9 * 1.2 + 0.5])

    def test_warmup_is_that_of_tensorflow(self, make_trainer):
        ema = EMA(decay=0.15, warmup=True)
        make_trainer([ema], values=UP[:3], start=1.0).train()
        # decays (1 + n) / (10 + n) = 0.1, 2 / 11 > 0.15, ...
        first = 0.1 * 1 + 0.9 * 2
        second = 0.15 * first + 0.85 * 3
        assert ema.average["w"].item() == close(0.15 * second + 0.85 * 4)
        assert [EMA(decay=0.999, warmup=True).decay_of(n) for n in (0, 1, 90, 10**6)] == [0.1, 2 / 11, 0.91, 0.999]

    def test_updates_are_counted_not_steps(self, make_trainer):
        class EveryThird:
            @hookimpl
            def update_due(self, trainer):
                return trainer.every_n_steps(3) or trainer.end_of_epoch

        ema = EMA(decay=0.9)
        make_trainer([ema, EveryThird()], values=(-1.0,) * 7, start=1.0, max_epochs=2).train()
        assert ema.averagings == 6

    def test_an_update_that_was_skipped_does_not_count(self, make_trainer):
        class SkipSecond:
            @hookimpl
            def optimizer_step(self, trainer):
                if trainer.step == 1:
                    return False
                return None

        ema = EMA(decay=0.9)
        make_trainer([ema, SkipSecond()], values=UP[:3], start=1.0).train()
        assert ema.averagings == 2
        # weights 2 and then 3; the gradients of the skipped update were cleared
        assert ema.average["w"].item() == close(0.9 * (0.9 * 1 + 0.1 * 2) + 0.1 * 3)

    @pytest.mark.parametrize("buffers", ["copy", "average"])
    def test_equals_torchs_averaged_model(self, buffers):
        model = network()
        theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=buffers == "average")
        theirs.update_parameters(model)  # the first call copies

        class Theirs:
            @hookimpl
            def after_update(self, trainer):
                theirs.update_parameters(trainer.model)

        ema = EMA(decay=0.8, buffers=buffers)
        trainer = network_trainer([ema, Theirs()], model)
        trainer.train()
        with ema.averaged(trainer):
            mine = {name: one.clone() for name, one in model.state_dict().items()}
        wanted = dict(theirs.module.state_dict())
        # torch averages integers too, which rounds down; here they are the model's own
        wanted["1.num_batches_tracked"] = torch.tensor(12)
        assert mine.keys() == wanted.keys()
        for name, one in mine.items():
            assert torch.allclose(one, wanted[name], rtol=1e-6, atol=0), name

    @given(decay=st.floats(0, 0.999), values=st.lists(st.floats(-10, 10), min_size=1, max_size=8))
    @settings(max_examples=25, deadline=None)
    def test_the_average_is_among_the_weights(self, decay, values):
        parameter = nn.Parameter(torch.tensor(values[0], dtype=torch.float64))
        model = nn.ParameterList([parameter])
        weights = []

        class Set:
            @hookimpl
            def train_step(self, trainer):
                with torch.no_grad():
                    trainer.model[0].fill_(values[trainer.step])
                weights.append(values[trainer.step])
                return {}

        ema = EMA(decay=decay)
        Trainer(model, loaders={"train": values}, plugins=[Set(), ema], max_epochs=1, autoload=False).train()
        assert min(weights) - 1e-9 <= ema.average["0"].item() <= max(weights) + 1e-9


class TestTensors:
    def test_half_precision_is_averaged_in_single(self):
        parameter = nn.Parameter(torch.tensor(1.0, dtype=torch.bfloat16))
        model = nn.ParameterList([parameter])

        class Set:
            @hookimpl
            def train_step(self, trainer):
                with torch.no_grad():
                    trainer.model[0].fill_(2.0)
                return {}

        ema = EMA(decay=0.999)
        trainer = Trainer(model, loaders={"train": [0] * 10}, plugins=[Set(), ema], max_epochs=1, autoload=False)
        trainer.train()
        average = ema.average["0"]
        assert average.dtype == torch.float32
        assert average.item() == pytest.approx(2 - 0.999**10, abs=1e-6)  # in bfloat16 it would have stayed 1
        with ema.averaged(trainer):
            assert parameter.dtype == torch.bfloat16
            assert parameter.item() == torch.tensor(average.item(), dtype=torch.bfloat16).item()
        assert parameter.item() == 2.0

    def test_tied_parameters_are_one(self):
        model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        model[1].weight = model[0].weight
        ema = EMA()
        data = [(torch.ones(1, 2), torch.ones(1, 2))]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = nn.functional.mse_loss
        trainer = Trainer(
            model, loss=loss, optimizer=optimizer, loaders={"train": data}, plugins=[ema], max_epochs=1, autoload=False
        )
        trainer.train()
        assert list(ema.average) == ["0.weight"]
        with ema.averaged(trainer):
            assert model[0].weight is model[1].weight
            assert torch.equal(model[1].weight, ema.average["0.weight"])

    def test_frozen_and_integer_parameters(self, make_trainer):
        model = network()
        model[0].requires_grad_(False)
        model.counts = nn.Parameter(torch.tensor([3]), requires_grad=False)
        before = model[0].weight.clone()
        ema = EMA(decay=0.9)
        trainer = network_trainer([ema], model)
        trainer.train()
        assert torch.equal(ema.average["0.weight"], before)  # to the last bit
        assert "counts" not in ema.average
        with ema.averaged(trainer):
            assert model.counts.item() == 3

    def test_a_module_that_replaces_its_buffer(self):
        class Replaces(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.tensor(0.0, dtype=torch.float64))
                self.register_buffer("seen", torch.tensor(0.0, dtype=torch.float64))

            def forward(self, x):
                if self.training:
                    self.seen = self.seen + x
                return self.w * x

        ema = EMA(decay=0.5, buffers="average")
        model = Replaces()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        data = [torch.tensor(1.0, dtype=torch.float64)] * 2
        Trainer(model, optimizer=optimizer, loaders={"train": data}, plugins=[ema], max_epochs=1, autoload=False).train()
        assert ema.average["seen"].item() == close(0.5 * (0.5 * 0 + 0.5 * 1) + 0.5 * 2)

    @pytest.mark.parametrize("change", ["add", "replace", "remove"])
    def test_parameters_that_change_later_are_refused(self, change):
        class Change:
            @hookimpl
            def after_epoch(self, trainer):
                if change == "add":
                    trainer.model.extra = nn.Linear(2, 2)
                elif change == "replace":
                    trainer.model[3].bias = nn.Parameter(torch.zeros(1))
                else:
                    del trainer.model[3].bias
                    trainer.model[3].bias = None

        name = {"add": "extra.weight, extra.bias", "replace": "3.bias", "remove": "3.bias"}[change]
        with pytest.raises(UsageError, match=rf"ema: parameters of the model were added, removed or replaced .*\({name}\)"):
            network_trainer([EMA(), Change()]).train()

    def test_an_update_fetches_nothing_from_the_device_and_takes_few_kernels(self):
        from torch.utils._python_dispatch import TorchDispatchMode

        called = []

        class Note(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                called.append(str(function))
                return function(*args, **(kwargs or {}))

        class Watch:
            @hookimpl(wrapper=True)
            def optimizer_step(self, trainer):
                updated = yield
                with Note():
                    ema.after_update(trainer)
                return updated

        ema = EMA()
        network_trainer([ema, Watch()], max_epochs=1).train()
        assert set(called) == {"aten._foreach_lerp_.Scalar"}
        assert len(called) == 6

    def test_one_copy_and_no_other_while_it_stands_in(self):
        ema = EMA()
        trainer = network_trainer([ema])
        trainer.train()
        own = {name: one.data_ptr() for name, one in trainer.model.named_parameters()}
        with ema.averaged(trainer):
            now = {name: one.data_ptr() for name, one in trainer.model.named_parameters()}
        assert now == {name: one.data_ptr() for name, one in ema.average.items()}
        assert own == {name: one.data_ptr() for name, one in trainer.model.named_parameters()}
        assert not set(own.values()) & set(now.values())


class TestStandingIn:
    def test_evaluations_and_predictions_use_it_and_nested_ones_too(self, make_trainer):
        ema = EMA(decay=0.9)
        seen = []

        class Nested:
            @hookimpl
            def after_eval(self, trainer, split):
                seen.append((split, trainer.model.w.item()))
                if split == "val":
                    trainer.evaluate("train")
                    seen.append(("back in val", trainer.model.w.item()))

        trainer = make_trainer([ema, Nested()], values=UP, start=1.0, val=(1.0,))
        trainer.train()
        assert trainer.evaluate("val")["val/loss"] == close(1.9049)
        assert seen == [("val", close(1.9049)), ("train", close(1.9049)), ("back in val", close(1.9049))]
        assert trainer.predict("val")[0].item() == close(1.9049)
        assert trainer.model.w.item() == 5.0

    @pytest.mark.parametrize("call", ["evaluate", "predict"])
    def test_the_weights_are_back_after_a_failure(self, make_trainer, call):
        class Broken:
            @hookimpl
            def after_eval_step(self, trainer):
                raise ValueError("broken")

            @hookimpl
            def after_predict_step(self, trainer):
                raise ValueError("broken")

        trainer = make_trainer([EMA(decay=0.9), Broken()], values=UP, start=1.0, val=(1.0,))
        trainer.train()
        with pytest.raises(ValueError, match="broken"):
            getattr(trainer, call)("val")
        assert trainer.model.w.item() == 5.0

    def test_optimizer_and_training_go_on_with_the_same_parameters(self, make_trainer):
        ema = EMA(decay=0.9)
        each = Each(lambda trainer: trainer.evaluate("val")["val/loss"])
        trainer = make_trainer([ema, each], values=UP, start=1.0, val=(1.0,))
        parameter = trainer.model.w
        trainer.train()
        assert each.seen == close([1.1, 1.29, 1.561, 1.9049])
        assert trainer.model.w is parameter
        assert trainer.optimizer.param_groups[0]["params"][0] is parameter
        assert parameter.item() == 5.0

    def test_momentum_is_not_disturbed(self):
        plain = network_trainer([], network())
        plain.train()
        each = Each(lambda trainer: trainer.evaluate("val")["val/loss"])
        with_ema = network_trainer([EMA(decay=0.5), each], network())
        with_ema.train()
        for mine, theirs in zip(with_ema.model.state_dict().values(), plain.model.state_dict().values()):
            assert torch.equal(mine, theirs)

    def test_not_used_where_it_is_not_wanted(self, make_trainer):
        ema = EMA(decay=0.9, evaluate=False)
        trainer = make_trainer([ema], values=UP, start=1.0, val=(1.0,))
        trainer.train()
        assert trainer.evaluate("val")["val/loss"] == 5.0
        assert ema.average["w"].item() == close(1.9049)
        assert not trainer.manager.has("evaluate")
        with ema.averaged(trainer):
            assert trainer.model.w.item() == close(1.9049)
            assert trainer.state_dict()["model"]["w"].item() == 5.0

    def test_a_state_that_is_restored_inside_an_evaluation_goes_to_the_models_own_weights(self, make_trainer):
        start = make_trainer([EMA(decay=0.9)], values=UP, start=7.0)
        start.train()
        state = start.state_dict()

        class Restore:
            @hookimpl
            def after_eval(self, trainer):
                trainer.load_state_dict(state, weights_only=True)

        ema = EMA(decay=0.9)
        trainer = make_trainer([ema, Restore()], values=UP, start=1.0, val=(1.0,))
        trainer.train()
        trainer.evaluate("val")
        assert trainer.model.w.item() == 11.0
        assert ema.average["w"].item() == close(start.plugins["ema"].average["w"].item())

    def test_left_in_the_model_at_the_end_but_not_in_the_last_checkpoint(self, make_trainer, tmp_path):
        from trainhooks_builtins.checkpoint import read_checkpoint

        ema, checkpoint = EMA(decay=0.9, apply_at_end=True), Checkpoint(every_epochs=0)
        trainer = make_trainer([ema, checkpoint], values=UP, start=1.0, work_dir=tmp_path / "run")
        trainer.train()
        assert trainer.model.w.item() == close(1.9049)
        assert read_checkpoint(checkpoint.path)["model"]["w"].item() == 5.0
        before = ema.average["w"].item()
        with torch.no_grad():
            trainer.model.w.add_(1)
        assert ema.average["w"].item() == before  # a copy

    def test_not_left_in_the_model_of_a_run_that_failed_nor_by_an_evaluation(self, make_trainer):
        class Fails:
            @hookimpl
            def before_step(self, trainer):
                if trainer.step == 3:
                    raise ValueError("broken")

        trainer = make_trainer([EMA(decay=0.9, apply_at_end=True), Fails()], values=UP, start=1.0, val=(1.0,))
        with pytest.raises(ValueError, match="broken"):
            trainer.train()
        assert trainer.model.w.item() == 4.0
        trainer.evaluate("val")
        assert trainer.model.w.item() == 4.0

    def test_taking_it_out_during_a_run_changes_no_weights(self, make_trainer):
        class Out:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 1:
                    trainer.unregister("ema")

        trainer = make_trainer([EMA(decay=0.9, apply_at_end=True), Out()], values=UP, start=1.0)
        trainer.train()
        assert trainer.model.w.item() == 5.0

    def test_two_trainers_with_one_model_do_not_disturb_each_other(self, make_trainer):
        first = make_trainer([EMA(decay=0.9)], values=UP, start=1.0, val=(1.0,))
        first.train()
        second = Trainer(first.model, loaders={"val": first.loaders["val"]}, autoload=False)
        seen = []

        class Other:
            @hookimpl
            def after_eval(self):
                seen.append(second.evaluate("val")["val/loss"])

        first.register(Other())
        assert first.evaluate("val")["val/loss"] == close(1.9049)
        assert seen == close([1.9049])  # the model is what it is at that time
        assert second.evaluate("val")["val/loss"] == 5.0

    def test_a_finished_trainer_is_freed(self, make_trainer):
        trainer = make_trainer([EMA()], values=UP, val=(1.0,))
        trainer.train()
        trainer.evaluate("val")
        gone = weakref.ref(trainer)
        gc.disable()
        try:
            del trainer
            assert gone() is None
        finally:
            gc.enable()


class TestResume:
    @pytest.mark.parametrize("cut", [3, 6, 8])
    @pytest.mark.parametrize(
        "arguments", [{}, {"buffers": "average"}, {"start_update": 5, "every_updates": 2}, {"warmup": True}]
    )
    def test_equals_the_uninterrupted_run_bit_for_bit(self, tmp_path, cut, arguments):
        def make(name):
            return network_trainer([EMA(decay=0.8, **arguments), Checkpoint(every_epochs=0)], work_dir=tmp_path / name)

        whole = make("whole")
        whole.train()
        first = make("cut")
        first.train(max_steps=cut)
        second = make("cut")
        second.train(resume="auto")
        assert second.step == whole.step == 12
        mine, theirs = second.state_dict(), whole.state_dict()
        assert mine["plugins/ema"]["averagings"] == theirs["plugins/ema"]["averagings"]
        for part in ("model", "plugins/ema"):
            mine_, theirs_ = (one[part].get("average", one[part]) for one in (mine, theirs))
            assert mine_.keys() == theirs_.keys()
            for name, tensor in mine_.items():
                assert torch.equal(tensor, theirs_[name]), name
        assert second.evaluate("val") == whole.evaluate("val")

    def test_an_evaluation_from_a_checkpoint_uses_the_average(self, make_trainer, tmp_path):
        checkpoint = Checkpoint(every_epochs=0)
        make_trainer([EMA(decay=0.9), checkpoint], values=UP, start=1.0, work_dir=tmp_path / "run").train()
        trainer = make_trainer([EMA(decay=0.9), Checkpoint()], start=77.0, val=(1.0,))
        assert trainer.evaluate("val", checkpoint=checkpoint.path)["val/loss"] == close(1.9049)
        assert trainer.model.w.item() == 5.0

    def test_another_model_is_refused(self, tmp_path):
        checkpoint = Checkpoint(every_epochs=0)
        trainer = network_trainer([EMA(), checkpoint], work_dir=tmp_path / "run")
        trainer.train()
        state = trainer.state_dict()
        model = network()
        model[3] = nn.Linear(4, 1, bias=False)
        state["model"] = model.state_dict()
        state["optimizers/optimizer"] = ByName(torch.optim.SGD(model.parameters(), lr=0.1), model).state_dict()
        other = network_trainer([EMA(), Loads(state)], model)
        with pytest.raises(CheckpointError, match=r"the average that 'ema' has loaded is not one of this model: see 3\.bias"):
            other.train(max_epochs=3)

    def test_buffers_can_be_averaged_from_now_on_or_no_longer(self, tmp_path):
        for first, second in (("copy", "average"), ("average", "copy")):
            checkpoint = Checkpoint(every_epochs=0)
            folder = tmp_path / first
            network_trainer([EMA(decay=0.5, buffers=first), checkpoint], work_dir=folder, max_epochs=1).train()
            ema = EMA(decay=0.5, buffers=second)
            network_trainer([ema, Checkpoint(every_epochs=0)], work_dir=folder).train(resume="auto")
            assert ("1.running_mean" in ema.average) == (second == "average")

    def test_the_state_of_another_trainer_is_copied(self, make_trainer):
        first = make_trainer([EMA(decay=0.9)], values=UP, start=1.0)
        first.train()
        second = make_trainer([EMA(decay=0.9), Loads(first.state_dict())], values=UP, start=1.0)
        second.train(max_epochs=2)
        assert first.plugins["ema"].average["w"].item() == close(1.9049)

    def test_a_second_training_goes_on(self, make_trainer):
        ema = EMA(decay=0.9)
        trainer = make_trainer([ema], values=UP[:2], start=1.0)
        trainer.train()
        trainer.train(max_epochs=2)
        assert ema.average["w"].item() == close(1.9049)


class TestTogether:
    def test_with_freeze_the_average_of_what_is_frozen_is_what_it_is(self):
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
                self.b = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

            def forward(self, x):
                return -(self.a + self.b) * x

        model = Two()
        ema = EMA(decay=0.9)
        each = Each(lambda trainer: (model.a.item(), model.b.item(), *(one.item() for one in ema.average.values())))
        data = [torch.tensor(1.0, dtype=torch.float64)] * 4
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        plugins = [ema, Freeze(("a",), until_update=2), each]
        Trainer(model, optimizer=optimizer, loaders={"train": data}, plugins=plugins, max_epochs=1, autoload=False).train()
        # a stays 1, 1 and is then trained: 2, 3; b goes 2, 3, 4, 5
        assert each.seen[1] == (1.0, 3.0, 1.0, close(1.29))
        assert each.seen[3] == (3.0, 5.0, close(1.29), close(1.9049))

    @pytest.mark.parametrize("order", [1, -1])
    def test_with_swa_each_keeps_its_own_and_swa_is_evaluated_in_its_part(self, make_trainer, tmp_path, order):
        from trainhooks_builtins.checkpoint import read_checkpoint

        path = tmp_path / "kept" / "three"
        path.parent.mkdir()
        ema, swa = EMA(decay=0.9), SWA(start=0.5, every_updates=1)

        class Save:
            @hookimpl
            def after_eval(self, trainer):
                if trainer.step == 3:
                    trainer.save_checkpoint(path)

        each = Each(lambda trainer: trainer.evaluate("val")["val/loss"])
        plugins = [ema, swa][::order]
        trainer = make_trainer([*plugins, each, Save(), Checkpoint(every_epochs=0)], values=UP, start=1.0, val=(1.0,))
        trainer.train()
        # weights 2, 3, 4, 5; the last part has 4 and 5
        assert each.seen == close([1.1, 1.29, 4.0, 4.5])
        assert trainer.model.w.item() == 5.0
        assert ema.average["w"].item() == close(1.9049)
        assert swa.average["w"].item() == close(4.5)
        state = read_checkpoint(path)
        assert state["model"]["w"].item() == 5.0
        assert state["plugins/ema"]["average"]["w"].item() == close(1.9049)
        assert state["plugins/swa"]["average"]["w"].item() == close(4.5)

    def test_with_swa_and_both_at_the_end(self, make_trainer):
        plugins = [EMA(decay=0.9, apply_at_end=True), SWA(start=0.5, every_updates=1, apply_at_end=True)]
        trainer = make_trainer(plugins, values=UP, start=1.0)
        trainer.train()
        assert trainer.model.w.item() == close(1.9049)  # as documented

    def test_with_accumulation(self, make_trainer):
        ema = EMA(decay=0.9)
        make_trainer([ema, Accumulate(3)], values=(-1.0,) * 7, start=1.0, max_epochs=2).train()
        assert ema.averagings == 6  # windows of 3, 3 and 1 steps in each epoch


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"decay": 1.0}, "decay = 1.0: must be at least 0 and below 1"),
            ({"decay": -0.1}, "decay = -0.1"),
            ({"decay": float("nan")}, "decay = nan"),
            ({"half_life_updates": 0}, "half_life_updates = 0: must be above 0"),
            ({"decay": 0.9, "half_life_updates": 3}, "give one of them"),
            ({"every_updates": 0}, "every_updates = 0: must be at least 1"),
            ({"start_update": -1}, "start_update = -1: must be 0 or more"),
            ({"buffers": "swap"}, "buffers = 'swap': must be 'copy' or 'average'"),
        ],
    )
    def test_wrong_ones(self, options, message):
        with pytest.raises(OptionError) as error:
            EMA(**options)
        assert message in str(error.value)

    def test_a_training_without_a_model(self):
        class Step:
            @hookimpl
            def train_step(self):
                return {}

        with pytest.raises(UsageError, match="plugin 'ema' needs a model"):
            Trainer(plugins=[EMA(), Step()], max_steps=1, autoload=False).train()

    def test_an_evaluation_without_a_model(self):
        class Step:
            @hookimpl
            def eval_step(self):
                return {"x": 1.0}

        trainer = Trainer(plugins=[EMA(), Step()], loaders={"val": [1]}, autoload=False)
        assert trainer.evaluate("val") == {"val/x": 1.0}

    def test_by_name_with_options_as_text(self, make_trainer):
        trainer = make_trainer(["ema"], options={"ema": {"decay": "0.5", "buffers": "average"}}, values=UP[:1], start=1.0)
        trainer.train()
        assert trainer.plugins["ema"].average["w"].item() == close(1.5)


def test_it_says_whose_weights_are_evaluated(make_trainer, messages):
    make_trainer([EMA(decay=0.9)], max_steps=1).train()
    assert "ema: evaluations and predictions use the average (decay 0.9), checkpoints hold both" in messages()
    make_trainer([EMA(decay=0.9, evaluate=False)], max_steps=1).train()
    assert "ema: nothing is evaluated with the average (decay 0.9), checkpoints hold both" in messages()
