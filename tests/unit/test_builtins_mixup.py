"""``mixup`` with shares and pairs that are fixed, against values worked out by hand."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainhooks import OptionError, Trainer, UsageError, hookimpl
from trainhooks_builtins import Checkpoint, Cutmix, Mixup, _mixing


@pytest.fixture
def fixed(monkeypatch):
    """Return a function that fixes the share, and the pairs to the batch in reverse."""

    def fix(share):
        monkeypatch.setattr(_mixing, "draw_share", lambda alpha: share)
        monkeypatch.setattr(torch, "randperm", lambda n, device=None: torch.arange(n - 1, -1, -1))

    return fix


class Watch:
    """Notes each batch as it is trained or evaluated, and the loss."""

    def __init__(self):
        self.batches, self.losses, self.evaluated = [], [], []

    @hookimpl
    def after_step(self, batch, output):
        self.batches.append(batch)
        self.losses.append(output["loss"].item())

    @hookimpl
    def after_eval_step(self, batch, output):
        self.evaluated.append((batch[0].tolist(), output["loss"].item()))


class Identity(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(()))
        self.calls = 0

    def forward(self, *inputs):
        self.calls += 1
        return self.w * sum(inputs)


def train(plugins, batches, loss, *, model=None, val=None, **arguments):
    watch, model = Watch(), model or Identity()
    loaders = {"train": batches, **({"val": val} if val is not None else {})}
    trainer = Trainer(
        model,
        loss=loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        loaders=loaders,
        plugins=[*plugins, watch],
        autoload=False,
        device="cpu",
        **{"max_epochs": 1, **arguments},
    )
    trainer.train()
    return trainer, watch


class TestMixup:
    def test_inputs_and_loss(self, fixed):
        """x = 0, 10 and y = 0, 1 with lam 0.75: x becomes 2.5, 7.5; with the error |x - y| the loss is
        0.75 * (2.5 + 6.5) / 2 + 0.25 * (1.5 + 7.5) / 2 = 4.5."""
        fixed(0.75)
        x, y = torch.tensor([0.0, 10.0]), torch.tensor([0.0, 1.0])
        model = Identity()
        _, watch = train([Mixup()], [(x, y)], nn.functional.l1_loss, model=model)
        assert watch.batches[0][0].tolist() == [2.5, 7.5]
        assert watch.batches[0][1] is y
        assert watch.losses == [4.5]
        assert model.calls == 1  # the model runs once
        assert x.tolist() == [0, 10]  # the loader's tensor is left alone

    def test_classes_as_with_probabilities(self, fixed):
        """Cross entropy is linear in the target: mixing losses equals mixing one-hot targets."""
        fixed(0.3)
        x, y = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
        _, watch = train([Mixup()], [(x, y)], nn.functional.cross_entropy)
        hot = nn.functional.one_hot(y, 3).float()
        mixed = 0.3 * x + 0.7 * x.flip(0)
        expected = nn.functional.cross_entropy(mixed, 0.3 * hot + 0.7 * hot.flip(0))
        assert watch.losses[0] == pytest.approx(expected.item(), rel=1e-6)

    def test_gradients_are_those_of_the_mixed_loss(self, fixed):
        fixed(0.25)
        seen = []

        class Gradient:
            @hookimpl
            def gradients_ready(self, trainer):
                seen.append(trainer.model.w.grad.item())

        # x 0.25 * (1, 3) + 0.75 * (3, 1) = 2.5, 1.5; loss (w x - y)^2; y = 0, 4.
        # d/dw = mean over samples of 2 x (x - y): own 2*2.5*2.5, 2*1.5*(1.5-4); other 2*2.5*(2.5-4), 2*1.5*1.5.
        train([Mixup(), Gradient()], [(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 4.0]))], nn.functional.mse_loss)
        assert seen == pytest.approx([0.25 * (12.5 - 7.5) / 2 + 0.75 * (-7.5 + 4.5) / 2])

    def test_every_input_is_mixed_and_losses_may_have_names(self, fixed):
        fixed(0.5)
        a, b = torch.tensor([0.0, 4.0]), torch.tensor([8.0, 2.0])

        def loss(output, target):
            return {"one": (output - target).mean(), "two": target.mean()}

        _, watch = train([Mixup()], [[a, b, torch.tensor([1.0, 3.0])]], loss)
        assert [one.tolist() for one in watch.batches[0]] == [[2, 2], [5, 5], [1, 3]]
        assert type(watch.batches[0]) is list
        assert watch.losses == [7.0]  # one: 7 - 2, two: 2

    def test_evaluation_is_untouched_even_of_the_train_loader(self, fixed):
        fixed(0.75)
        batch = (torch.tensor([0.0, 10.0]), torch.tensor([0.0, 1.0]))
        watch, model = Watch(), Identity()
        trainer = Trainer(
            model,
            loss=nn.functional.l1_loss,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
            loaders={"train": [batch], "val": [batch]},
            plugins=[Mixup(), watch],
            max_epochs=1,
            autoload=False,
        )
        before = trainer.evaluate("train")["train/loss"]
        trainer.train()
        assert before == trainer.evaluate("val")["val/loss"] == trainer.evaluate("train")["train/loss"] == 4.5
        assert watch.evaluated == [([0, 10], 4.5)] * 3
        assert trainer.loss is nn.functional.l1_loss

    def test_the_loss_function_is_put_back_when_a_step_fails(self, fixed):
        fixed(0.75)

        def breaks(output, target):
            raise ZeroDivisionError

        model = Identity()
        trainer = Trainer(
            model,
            loss=breaks,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
            loaders={"train": [(torch.ones(2), torch.ones(2))]},
            plugins=[Mixup()],
            max_epochs=1,
            autoload=False,
        )
        with pytest.raises(ZeroDivisionError):
            trainer.train()
        assert trainer.loss is breaks

    def test_probability(self):
        torch.manual_seed(0)
        batches = [(torch.tensor([0.0, 10.0]), torch.zeros(2))] * 400
        _, watch = train([Mixup(probability=0.25)], batches, nn.functional.l1_loss)
        share = sum(batch[0].tolist() not in ([0, 10], [10, 0]) for batch in watch.batches) / 400
        assert 0.05 < share < 0.2  # half of the mixed ones pair each sample with itself
        _, watch = train([Mixup(probability=0.0)], batches[:9], nn.functional.l1_loss)
        assert all(batch[0].tolist() == [0, 10] for batch in watch.batches)

    def test_the_share_is_of_the_beta_distribution(self):
        torch.manual_seed(0)
        draws = torch.tensor([_mixing.draw_share(0.4) for _ in range(4000)])
        # Beta(a, a): mean 1/2, variance 1 / (4 (2 a + 1)).
        assert draws.mean().item() == pytest.approx(0.5, abs=0.03)
        assert draws.var().item() == pytest.approx(1 / (4 * 1.8), abs=0.01)

    def test_a_step_that_does_not_ask_the_loss_function_is_an_error(self):
        class Own:
            @hookimpl
            def compute_loss(self, trainer, batch):
                return nn.functional.mse_loss(trainer.model(batch[0]), batch[1])

        with pytest.raises(UsageError, match="mixup mixed the batch, but the step computed its loss without trainer.loss"):
            train([Mixup(), Own()], [(torch.ones(2), torch.ones(2))], nn.functional.mse_loss)

    def test_a_step_of_ones_own_that_asks_it_is_mixed(self, fixed):
        fixed(0.75)

        class Own:
            @hookimpl
            def train_step(self, trainer, batch):
                return {"loss": trainer.loss(trainer.model(batch[0]), batch[1])}

        _, watch = train([Mixup(), Own()], [(torch.tensor([0.0, 10.0]), torch.tensor([0.0, 1.0]))], nn.functional.l1_loss)
        assert watch.losses == [4.5]

    @pytest.mark.parametrize(
        ("batch", "text"),
        [
            (torch.ones(2), "not Tensor"),
            ({"x": torch.ones(2)}, "not dict"),
            ((torch.ones(2), "ab"), "not tuple"),
            ((torch.ones(2, dtype=torch.int64), torch.ones(2)), r"not int64\[2\], float32\[2\]"),
            ((torch.ones(3), torch.ones(2)), r"not float32\[3\], float32\[2\]"),
        ],
    )
    def test_batches_that_cannot_be_mixed(self, batch, text):
        with pytest.raises(UsageError, match=text):
            train([Mixup()], [batch], nn.functional.mse_loss)

    def test_it_needs_the_loss_function(self):
        with pytest.raises(UsageError, match="Trainer was given no loss="):
            train([Mixup()], [(torch.ones(2), torch.ones(2))], None)

    @pytest.mark.parametrize("plugin", [Mixup, Cutmix])
    @pytest.mark.parametrize("options", [{"alpha": 0.0}, {"alpha": float("inf")}, {"probability": 1.1}, {"probability": -0.1}])
    def test_options(self, plugin, options):
        with pytest.raises(OptionError, match=next(iter(options))):
            plugin(**options)


class TestTheLoss:
    @pytest.mark.parametrize("plugins", [[Mixup], [Mixup, Mixup]], ids=["one", "two"])
    def test_an_evaluation_within_a_step_measures_the_loss_itself(self, plugins):
        """w = 1, so that |x - y| is 2 for the one and 4 for the other sample of the split, whatever is mixed meanwhile."""

        class Evaluates:
            def __init__(self):
                self.values = []

            @hookimpl
            def after_update(self, trainer):
                self.values.append(trainer.evaluate("val")["val/loss"])

        evaluates = Evaluates()
        val = [(torch.tensor([3.0]), torch.tensor([1.0])), (torch.tensor([5.0]), torch.tensor([1.0]))]
        x, y = torch.rand(4), torch.rand(4)
        train([*(one() for one in plugins), evaluates], [(x, y)] * 2, nn.functional.l1_loss, val=val)
        assert evaluates.values == [3.0, 3.0]

    @pytest.mark.parametrize("how", ["positions", "names"])
    def test_it_is_called_as_the_function_would_be(self, fixed, how):
        """The same numbers as above: 4.5; doubled, since the loss says that it is a mean."""
        fixed(0.75)

        class Asks:
            @hookimpl
            def compute_loss(self, trainer, batch):
                output, target, loss = trainer.model(batch[0]), batch[1], trainer.loss
                value = loss(output, target) if how == "positions" else loss(input=output, target=target)
                return value * (2 if loss.reduction == "mean" else 1)

        x, y = torch.tensor([0.0, 10.0]), torch.tensor([0.0, 1.0])
        _, watch = train([Mixup(), Asks()], [(x, y)], nn.L1Loss())
        assert watch.losses == [9.0]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(12, 3))

    def forward(self, x):
        return self.body(x)


class TestResume:
    @pytest.mark.parametrize(
        "plugins",
        [lambda: [Mixup(probability=0.7)], lambda: [Cutmix(probability=0.7)], lambda: [Mixup(), Cutmix()]],
        ids=["mixup", "cutmix", "both"],
    )
    def test_it_is_exact(self, tmp_path, plugins):
        def run(folder, resume=None, **limits):
            torch.manual_seed(5)
            samples = TensorDataset(torch.randn(20, 3, 4), torch.randint(3, (20,)))
            watch, model = Watch(), Net()
            Trainer(
                model,
                loss=nn.functional.cross_entropy,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
                loaders={"train": DataLoader(samples, batch_size=4, shuffle=True)},
                plugins=[*plugins(), Checkpoint(), watch],
                work_dir=tmp_path / folder,
                autoload=False,
                device="cpu",
                **limits,
            ).train(resume=resume)
            return watch.losses, copy.deepcopy(model.state_dict())

        losses, weights = run("whole", max_steps=10)
        first, _ = run("cut", max_steps=7)
        second, others = run("cut", resume="auto", max_steps=10)
        assert first + second == losses
        assert all(torch.equal(weights[name], others[name]) for name in weights)
