"""``freeze``: values by hand, batch normalization, thawing, what is left behind, resuming."""

import copy
import pickle

import pytest
import torch
from torch import nn

from trainhooks import OptionError, Trainer, UsageError, hookimpl
from trainhooks_builtins import SWA, Checkpoint, Freeze


class Pair(nn.Module):
    """Two weights; each update with gradients makes each one larger."""

    def __init__(self, start=1.0):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(start, dtype=torch.float64))
        self.b = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x):
        return -(self.a + self.b) * x


def pair_trainer(plugins, *, model=None, batches=4, optimizer=None, **arguments):
    model = model or Pair()
    data = [torch.tensor(1.0, dtype=torch.float64)] * batches
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1.0)
    arguments.setdefault("max_epochs", 1)
    return Trainer(model, optimizer=optimizer, loaders={"train": data}, plugins=plugins, autoload=False, **arguments)


class Weights:
    """Notes the weights after each step."""

    def __init__(self):
        self.seen = []

    @hookimpl
    def after_step(self, trainer):
        self.seen.append(tuple(one.item() for one in trainer.model.parameters()))


def backbone():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4, affine=False))
    return nn.Sequential(body, nn.BatchNorm1d(4), nn.Linear(4, 1))


def backbone_trainer(plugins, model=None, **arguments):
    model = model or backbone()
    generator = torch.Generator().manual_seed(1)
    data = [(torch.randn(5, 3, generator=generator), torch.randn(5, 1, generator=generator)) for _ in range(4)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    arguments.setdefault("max_epochs", 3)
    loss = nn.functional.mse_loss
    loaders = {"train": data, "val": data[:1]}
    return Trainer(model, loss=loss, optimizer=optimizer, loaders=loaders, plugins=plugins, autoload=False, **arguments)


class TestParameters:
    def test_for_the_whole_run(self):
        freeze, weights = Freeze(("a",)), Weights()
        trainer = pair_trainer([freeze, weights])
        trainer.train()
        assert weights.seen == [(1.0, 2.0), (1.0, 3.0), (1.0, 4.0), (1.0, 5.0)]
        assert trainer.model.a.grad is None
        assert trainer.model.a.requires_grad  # as it was found
        assert freeze.frozen == []

    @pytest.mark.parametrize("limit", ["until_step", "until_update"])
    def test_until_a_step_or_an_update(self, limit):
        weights = Weights()
        pair_trainer([Freeze(("a",), **{limit: 2}), weights]).train()
        assert weights.seen == [(1.0, 2.0), (1.0, 3.0), (2.0, 4.0), (3.0, 5.0)]

    def test_until_an_epoch(self):
        weights = Weights()
        pair_trainer([Freeze(("a",), until_epoch=1), weights], batches=2, max_epochs=2).train()
        assert weights.seen == [(1.0, 2.0), (1.0, 3.0), (2.0, 4.0), (3.0, 5.0)]

    @pytest.mark.parametrize(("limit", "wanted"), [("until_step", 2), ("until_update", 4)])
    def test_steps_are_not_updates(self, limit, wanted):
        class EverySecond:
            @hookimpl
            def update_due(self, trainer):
                return trainer.every_n_steps(2)

        weights = Weights()
        pair_trainer([Freeze(("a",), **{limit: 2}), EverySecond(), weights], batches=6).train()
        moved = [a for a, _ in weights.seen]
        assert moved.index(next(a for a in moved if a > 1)) == wanted + 1  # the update at the end of the next window
        assert [b for _, b in weights.seen] == [1.0, 3.0, 3.0, 5.0, 5.0, 7.0]

    def test_weight_decay_and_momentum_do_not_reach_them(self):
        model = backbone()
        before = copy.deepcopy(model.state_dict())
        trainer = backbone_trainer([Freeze(("0.*",))], model)
        trainer.optimizer.param_groups[0]["weight_decay"] = 0.5
        trainer.train()
        for name, one in model.state_dict().items():
            assert torch.equal(one, before[name]) == name.startswith("0."), name

    def test_gradients_that_were_there_are_gone(self):
        model = Pair()
        for one in model.parameters():
            one.grad = torch.ones_like(one)

        class Keep:
            @hookimpl
            def before_step(self, trainer):
                assert trainer.model.a.grad is None

        pair_trainer([Freeze(("a",)), Keep()], model=model).train()

    def test_what_needed_no_gradient_before_needs_none_afterwards(self):
        model = backbone()
        model[0][0].bias.requires_grad = False
        backbone_trainer([Freeze(("0.*",), until_epoch=1)], model).train()
        assert [name for name, one in model.named_parameters() if not one.requires_grad] == ["0.0.bias"]

    def test_as_found_after_a_failure(self):
        class Fails:
            @hookimpl
            def before_step(self):
                raise ValueError("broken")

        model = backbone()
        trainer = backbone_trainer([Freeze(("0.*",)), Fails()], model)
        with pytest.raises(ValueError, match="broken"):
            trainer.train()
        assert all(one.requires_grad for one in model.parameters())
        assert all(module.training and "train" not in vars(module) for module in model.modules())

    def test_an_evaluation_freezes_nothing(self):
        model = backbone()
        backbone_trainer([Freeze(("0.*",))], model).evaluate("val")
        assert all(one.requires_grad for one in model.parameters())

    def test_a_tied_parameter_by_any_of_its_names(self):
        model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 1))
        model[1].weight = model[0].weight
        before = model[0].weight.clone()
        data = [(torch.ones(1, 2), torch.ones(1, 1))]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = nn.functional.mse_loss
        freeze = Freeze(("1.*",))
        Trainer(
            model, loss=loss, optimizer=optimizer, loaders={"train": data}, plugins=[freeze], max_epochs=1, autoload=False
        ).train()
        assert torch.equal(model[0].weight, before)

    def test_it_says_what_it_does(self, messages):
        pair_trainer([Freeze(("a",), until_update=2)]).train()
        said = [one for one in messages() if one.startswith("freeze")]
        assert said == ["freeze: 1 of 2 parameters are frozen until update 2", "freeze: a: trained from now on"]


class TestBatchNorm:
    def modes(self, **options):
        model, seen = backbone(), []

        class Modes:
            @hookimpl
            def before_step(self, trainer):
                trainer.model.train()  # as people do

            @hookimpl
            def after_step(self, trainer):
                found = [one.training for one in model.modules() if isinstance(one, nn.BatchNorm1d)]
                seen.append((trainer.epoch, *found))
                trainer.evaluate("val")
                assert found == [one.training for one in model.modules() if isinstance(one, nn.BatchNorm1d)]

        backbone_trainer([Freeze(("0.*",), **options), Modes()], model).train()
        assert all(module.training and "train" not in vars(module) for module in model.modules())
        return model, dict.fromkeys(seen)

    def test_of_frozen_modules_stays_in_eval_mode(self):
        model, seen = self.modes()
        assert list(seen) == [(0, False, False, True), (1, False, False, True), (2, False, False, True)]
        fresh = backbone()
        assert torch.equal(model[0][1].running_mean, fresh[0][1].running_mean)
        assert torch.equal(model[0][2].running_var, fresh[0][2].running_var)
        assert not torch.equal(model[1].running_mean, fresh[1].running_mean)

    def test_until_it_is_thawed(self):
        _, seen = self.modes(until_epoch=1)
        assert list(seen) == [(0, False, False, True), (1, True, True, True), (2, True, True, True)]

    def test_or_trains_on(self):
        model, seen = self.modes(batch_norm="train")
        assert list(seen) == [(0, True, True, True), (1, True, True, True), (2, True, True, True)]
        assert not torch.equal(model[0][1].running_mean, backbone()[0][1].running_mean)

    def test_a_layer_of_which_only_a_part_is_frozen_is_not(self):
        model = backbone()
        backbone_trainer([Freeze(("1.weight",))], model).train()
        assert not torch.equal(model[1].running_mean, backbone()[1].running_mean)

    def test_the_model_can_be_copied_and_pickled_meanwhile(self):
        copies = []

        class Copies:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 0:
                    copies.append(copy.deepcopy(trainer.model))
                    copies.append(pickle.loads(pickle.dumps(trainer.model)))

        model = backbone()
        backbone_trainer([Freeze(("0.*",)), Copies()], model).train()
        for one in copies:
            one.train()
            assert not one[0][1].training
            assert one[1].training
        assert model[0][1].training

    def test_one_that_was_in_eval_mode_still_is(self):
        model = backbone()
        model[0][1].eval()
        backbone_trainer([Freeze(("0.*",))], model).train()
        assert not model[0][1].training
        assert model[0][2].training


class TestRefused:
    def test_no_match(self):
        for pattern, hint in (
            ("0", "did you mean '0.*'?"),
            ("0.0.wieght", "did you mean '0.0.weight'?"),
            ("encoder.*", "there are 0.0.weight, 0.0.bias, 0.1.weight, 0.1.bias, 1.weight, ..."),
        ):
            with pytest.raises(OptionError) as error:
                backbone_trainer([Freeze(("2.*", pattern))]).train()
            assert f"no parameter of the model matches {pattern!r}; {hint}" in str(error.value)

    def test_capitals_count(self):
        with pytest.raises(OptionError, match="no parameter of the model matches 'A'"):
            pair_trainer([Freeze(("A",))]).train()

    def test_everything(self):
        with pytest.raises(UsageError, match=r"freeze.parameters = \['\*'\] leaves no parameter of the model to train"):
            pair_trainer([Freeze("*")]).train()

    def test_what_would_be_thawed_for_no_optimizer(self):
        model = backbone()
        optimizer = torch.optim.SGD(model[1:].parameters(), lr=0.1)
        trainer = backbone_trainer([Freeze(("0.*",), until_epoch=1)], model)
        trainer.take_optimizer(optimizer)
        with pytest.raises(UsageError, match=r"'0.0.weight' and 3 more would be thawed but is in no optimizer"):
            trainer.train()
        assert all(one.requires_grad for one in model.parameters())
        trainer.unregister("freeze")
        trainer.register(Freeze(("0.*",)))  # for ever it may be in none
        trainer.train()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, "parameters is empty"),
            ({"parameters": ()}, "parameters is empty"),
            ({"parameters": "a", "until_step": 1, "until_epoch": 2}, "until_step = 1 and until_epoch = 2: give one of them"),
            ({"parameters": "a", "until_epoch": 0}, "until_epoch = 0: must be at least 1"),
            ({"parameters": "a", "batch_norm": "freeze"}, "batch_norm = 'freeze': must be 'eval' or 'train'"),
        ],
    )
    def test_wrong_options(self, options, message):
        with pytest.raises(OptionError) as error:
            Freeze(**options)
        assert message in str(error.value)

    def test_no_model(self):
        class Step:
            @hookimpl
            def train_step(self):
                return {}

        with pytest.raises(UsageError, match="plugin 'freeze' needs a model"):
            Trainer(plugins=[Freeze("a"), Step()], max_steps=1, autoload=False).train()

    @pytest.mark.parametrize("parameters", [["a"], "a", ("a",)])
    def test_by_name_with_options(self, parameters):
        weights = Weights()
        pair_trainer(["freeze", weights], options={"freeze": {"parameters": parameters, "until_update": 3}}).train()
        assert weights.seen == [(1.0, 2.0), (1.0, 3.0), (1.0, 4.0), (2.0, 5.0)]


class TestResume:
    @pytest.mark.parametrize("cut", [3, 4, 9])
    @pytest.mark.parametrize("limit", [{"until_step": 5}, {"until_update": 5}, {"until_epoch": 1}, {}])
    def test_equals_the_uninterrupted_run_bit_for_bit(self, tmp_path, cut, limit):
        def make(name):
            return backbone_trainer([Freeze(("0.*",), **limit), Checkpoint(every_epochs=0)], work_dir=tmp_path / name)

        whole = make("whole")
        whole.train()
        make("cut").train(max_steps=cut)
        second = make("cut")
        second.train(resume="auto")
        assert second.step == whole.step == 12
        for name, one in second.model.state_dict().items():
            assert torch.equal(one, whole.model.state_dict()[name]), name
        mine, theirs = (one.optimizer.state_dict()["state"] for one in (second, whole))
        assert mine.keys() == theirs.keys()
        for index in mine:
            assert all(torch.equal(mine[index][key], theirs[index][key]) for key in mine[index])


class TestTogether:
    def test_with_swa(self):
        swa = SWA(start=0.5)
        pair_trainer([Freeze(("a",), until_epoch=3), swa], batches=2, max_epochs=4).train()
        # after the epochs a is 1, 1, 1, 3 and b 3, 5, 7, 9; the last two are averaged
        assert {name: one.item() for name, one in swa.average.items()} == {"a": 2.0, "b": 8.0}
