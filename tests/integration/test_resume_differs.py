"""A run that is resumed with another model, optimizer, data or place than it was saved with: refused or said, never silent."""

import logging
import os

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainhooks import CheckpointError, Trainer, UsageError
from trainhooks.differences import lock_differences
from trainhooks_builtins import Checkpoint

pytestmark = pytest.mark.filterwarnings("error")


def make(folder, *, model=None, optimizer=None, samples=8, plugins=(), **arguments):
    """Return a trainer of one layer; the first run and the resumed one differ in what a test gives."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1) if model is None else model
    optimizer = (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)) if optimizer is None else optimizer
    dtype = next(model.parameters()).dtype
    data = TensorDataset(torch.linspace(-1, 1, 2 * samples, dtype=dtype).view(samples, 2), torch.ones(samples, 1, dtype=dtype))
    return Trainer(
        model,
        loss=nn.functional.mse_loss,
        optimizer=optimizer(model.parameters()),
        loaders={"train": DataLoader(data, batch_size=2)},
        plugins=plugins or [Checkpoint()],
        work_dir=folder,
        autoload=False,
        device="cpu",
        **{"max_epochs": 2} | arguments,
    )


class Wide(torch.optim.Optimizer):
    """SGD with a momentum of more bits than the parameters have."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter, dtype=torch.float32))
            momentum.mul_(0.9).add_(parameter.grad.float())
            parameter.sub_((0.01 * momentum).to(parameter.dtype))


class TestTheOptimizer:
    def test_moments_of_another_dtype_than_the_parameters_come_back_as_they_were(self, tmp_path):
        def run(folder, epochs, **resume):
            torch.manual_seed(0)
            trainer = make(folder, model=nn.Linear(2, 1).bfloat16(), optimizer=Wide, max_epochs=epochs)
            trainer.train(**resume)
            return [trainer.model.weight, *[state["momentum"] for state in trainer.optimizer.state.values()]]

        whole = run(tmp_path / "whole", 4)
        run(tmp_path / "parts", 1)
        resumed = run(tmp_path / "parts", 4, resume="auto")
        assert [one.dtype for one in resumed] == [torch.bfloat16, torch.float32, torch.float32]
        assert all(torch.equal(one, other) for one, other in zip(resumed, whole, strict=True))

    @pytest.mark.parametrize(
        ("before", "now", "lacks"),
        [
            (torch.optim.SGD, torch.optim.Adam, "betas, eps, which Adam needs"),
            (torch.optim.Adam, torch.optim.SGD, "dampening, momentum, which SGD needs"),
            (torch.optim.Adam, torch.optim.RMSprop, "alpha, momentum, which RMSprop needs"),
        ],
    )
    def test_another_kind_is_refused(self, tmp_path, before, now, lacks):
        make(tmp_path / "run", optimizer=lambda parameters: before(parameters, lr=0.1), max_epochs=1).train()
        trainer = make(tmp_path / "run", optimizer=lambda parameters: now(parameters, lr=0.1))
        with pytest.raises(CheckpointError, match=f"that of another kind: it has no {lacks}; give the same optimizer"):
            trainer.train(resume="auto")

    @pytest.mark.parametrize(("before", "now"), [("Adam", "AdamW"), ("Adam", "RAdam"), ("Adam", "Adamax")])
    def test_another_kind_with_the_same_options_is_refused(self, tmp_path, before, now):
        """torch takes all of these; the last one would fail in its first step."""
        make(tmp_path / "run", optimizer=lambda parameters: getattr(torch.optim, before)(parameters), max_epochs=1).train()
        trainer = make(tmp_path / "run", optimizer=lambda parameters: getattr(torch.optim, now)(parameters))
        with pytest.raises(CheckpointError, match=f"of another kind: of {before}, the optimizer is {now}; give the same"):
            trainer.train(resume="auto")

    def test_another_class_of_ones_own_is_said(self, tmp_path, caplog):
        class Renamed(torch.optim.SGD):
            pass

        make(tmp_path / "run", max_epochs=1).train()
        with caplog.at_level(logging.WARNING):
            make(tmp_path / "run", optimizer=lambda one: Renamed(one, lr=0.1, momentum=0.9)).train(resume="auto")
        assert "optimizer: class saved SGD, given Renamed, using Renamed" in caplog.text

    @pytest.mark.parametrize(("weight", "bias", "said"), [(0.1, 0.2, None), (0.3, 0.2, "lr saved 0.1, given 0.3, using 0.1")])
    def test_groups_in_another_order_are_compared_by_what_is_in_them(self, tmp_path, caplog, weight, bias, said):
        def groups(one, other):
            return lambda parameters: torch.optim.SGD(sorted([one, other], key=lambda group: group["lr"], reverse=reverse))

        first, second = nn.Linear(2, 1), nn.Linear(2, 1)
        reverse = False
        before = groups({"params": [first.weight], "lr": 0.1}, {"params": [first.bias], "lr": 0.2})
        make(tmp_path / "run", model=first, optimizer=before, max_epochs=1).train()
        reverse = True
        now = groups({"params": [second.weight], "lr": weight}, {"params": [second.bias], "lr": bias})
        with caplog.at_level(logging.WARNING):
            make(tmp_path / "run", model=second, optimizer=now).train(resume="auto")
        sentences = [record.message.partition("optimizer: ")[2] for record in caplog.records if "lr saved" in record.message]
        assert sentences == ([] if said is None else [said])

    def test_an_option_that_a_torch_of_before_did_not_have_is_no_other_kind(self, tmp_path):
        trainer = make(tmp_path / "run", max_epochs=1)
        trainer.train()
        state = trainer.state_dict()
        del state["optimizers/optimizer"]["param_groups"][0]["maximize"]
        trainer.load_state_dict(state)
        assert trainer.optimizer.param_groups[0]["maximize"] is False

    def test_an_option_with_another_value_is_said(self, tmp_path, caplog):
        make(tmp_path / "run", max_epochs=1).train()
        with caplog.at_level(logging.WARNING):
            make(
                tmp_path / "run", optimizer=lambda one: torch.optim.SGD(one, lr=0.1, momentum=0.9, nesterov=True)
            ).train(resume="auto")  # fmt: skip
        assert "optimizer: nesterov saved False, given True, using False" in caplog.text

    def test_another_name_is_refused(self, tmp_path):
        make(tmp_path / "run", max_epochs=1).train()
        trainer = make(tmp_path / "run", optimizer=lambda parameters: {"main": torch.optim.SGD(parameters, lr=0.1)})
        with pytest.raises(CheckpointError, match="missing optimizers/main; unexpected optimizers/optimizer"):
            trainer.train(resume="auto")


class TestTheModel:
    def test_compiled_or_not(self, tmp_path):
        first = make(tmp_path / "run", model=torch.compile(nn.Linear(2, 1), backend="eager"), max_epochs=1)
        first.train()
        assert list(first.state_dict()["model"]) == ["weight", "bias"]
        second = make(tmp_path / "run")
        assert second.train(resume="auto").step == 8

    def test_another_dtype_is_said(self, tmp_path, caplog):
        make(tmp_path / "run", max_epochs=1).train()
        with caplog.at_level(logging.WARNING):
            make(tmp_path / "run", model=nn.Linear(2, 1).double()).train(resume="auto")
        assert caplog.text.count("dtype saved float32, given float64, using float64") == 1

    def test_a_state_is_not_half_restored_before_there_is_a_run(self, tmp_path):
        first = make(tmp_path / "run", max_epochs=1)
        first.train()
        second = make(tmp_path / "other")
        with pytest.raises(UsageError, match="before the run was built"):
            second.load_state_dict(first.state_dict())
        assert second.step == 0


class Weighted(nn.Module):
    """The squared error times a weight that is trained, and one that is not."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.w = nn.Parameter(torch.ones(()))
        self.register_buffer("factor", torch.tensor(factor))

    def forward(self, output, target):
        return self.factor * (self.w * (output - target) ** 2).mean()


class TestTheLoss:
    def test_what_it_holds_is_part_of_the_state(self, tmp_path):
        """Its parameter may be trained, as those of uncertainty weighting or ArcFace are."""

        def run(folder, epochs, **resume):
            loss = Weighted(1.0 if resume else 3.0)
            sgd = lambda parameters: torch.optim.SGD([*parameters, loss.w], lr=0.002, momentum=0.9)  # noqa: E731
            trainer = make(folder, optimizer=sgd, max_epochs=epochs)
            trainer.loss = loss
            trainer.train(**resume)
            return [trainer.model.weight, loss.w, loss.factor]

        whole = run(tmp_path / "whole", 4)
        run(tmp_path / "parts", 1)
        resumed = run(tmp_path / "parts", 4, resume="auto")
        assert whole[1].item() != 1 and whole[1].isfinite()
        assert all(torch.equal(one, other) for one, other in zip(resumed, whole, strict=True))

    def test_an_evaluation_of_a_checkpoint_has_it_too(self, tmp_path):
        first = make(tmp_path / "run", max_epochs=1)
        first.loss = Weighted(3.0)
        first.train()
        second = make(tmp_path / "other")
        second.loss, second.loaders["val"] = Weighted(), [(torch.zeros(1, 2), second.model.bias.detach()[None] + 1)]
        second.evaluate("val", checkpoint=tmp_path / "run")
        assert second.loss.factor == 3

    def test_one_without_tensors_has_no_state(self, tmp_path):
        trainer = make(tmp_path / "run", max_epochs=1)
        trainer.loss = nn.MSELoss()
        trainer.train()
        assert "loss" not in trainer.state_dict()


class TestTheData:
    @pytest.mark.parametrize("samples", [6, 10])
    def test_another_number_of_samples_is_said(self, tmp_path, caplog, samples):
        make(tmp_path / "run", max_epochs=None, max_steps=2).train()
        with caplog.at_level(logging.WARNING):
            make(tmp_path / "run", samples=samples).train(resume="auto")
        assert f"dataset_length saved 8, given {samples}, using {samples}" in caplog.text


class TestWhatElse:
    def test_an_object_under_another_name_is_a_warning(self, tmp_path, caplog):
        class Counter:
            def state_dict(self):
                return {}

            def load_state_dict(self, state):
                raise AssertionError

        first, second = make(tmp_path / "run", max_epochs=1), make(tmp_path / "run")
        first.stateful["counter"], second.stateful["counters"] = Counter(), Counter()
        first.train()
        with caplog.at_level(logging.WARNING):
            second.train(resume="auto")
        assert "of these the checkpoint has no state, so they begin anew: counters" in caplog.text

    def test_from_an_older_one_of_the_same_run(self, tmp_path, caplog):
        """A job that is restarted with ``--resume auto`` before it has saved would go on from what was given up."""
        make(tmp_path / "run", max_epochs=3, plugins=[Checkpoint(keep=0)]).train()
        older = tmp_path / "run" / "checkpoints" / "step-00000004"
        with caplog.at_level(logging.WARNING):
            make(tmp_path / "run", max_epochs=1, plugins=[Checkpoint(keep=0)]).train(resume=older)
        assert "goes on at step 4" in caplog.text
        assert "step-00000012 was saved last; --resume auto would take that one until this run has saved" in caplog.text
        caplog.clear()
        make(tmp_path / "run", max_epochs=3, plugins=[Checkpoint(keep=0)]).train(resume="auto")
        assert "was saved last" not in caplog.text

    @pytest.mark.parametrize("name", ["manifest.json", "state.json", "tensors.safetensors"])
    def test_a_file_of_a_checkpoint(self, tmp_path, name):
        make(tmp_path / "run", max_epochs=1).train()
        folder = tmp_path / "run" / "checkpoints" / "step-00000004"
        with pytest.raises(UsageError, match=f"is one file of a checkpoint: name the folder {folder}"):
            make(tmp_path / "run").train(resume=folder / name)

    def test_a_path_that_is_too_long_as_a_whole(self, tmp_path):
        with pytest.raises(UsageError, match=f"work_dir .*: {os.strerror(36)}; name another folder"):
            make(tmp_path.joinpath(*["y" * 200] * 25)).train()


def test_an_option_that_only_one_of_both_runs_was_given():
    def lock(**options):
        return [{"name": "lr", "distribution": None, "version": None, "options": options}]

    assert lock_differences(lock(), lock(schedule="linear")) == [
        "'lr': option schedule was left at its default, now it is 'linear'"
    ]
    assert lock_differences(lock(schedule="linear"), lock()) == [
        "'lr': option schedule was 'linear', now it is left at its default"
    ]
