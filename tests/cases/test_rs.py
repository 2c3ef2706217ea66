"""RS: resume exactness. Plugins, steps and values as the cases have them."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainhooks import Trainer, hookimpl
from trainhooks_builtins import AMP, LR, Checkpoint, Evaluation


class TestRS10:
    """Evaluation changes the training order."""

    def run(self, evaluation, *, shared=False, made=False):
        """Return the order of the samples, epoch by epoch, and the loss of each step."""
        samples = TensorDataset(torch.arange(6.0))
        generator = torch.Generator().manual_seed(0) if shared else None
        train = DataLoader(samples, batch_size=1, shuffle=True, generator=generator)
        seen, losses = [], []

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.zeros(()))

            def forward(self, x):
                return (nn.functional.dropout(x, training=self.training) * self.w - x).square().mean()

        class Listener:
            @hookimpl
            def before_epoch(self):
                seen.append([])

            @hookimpl
            def after_step(self, batch, output):
                seen[-1].append(int(batch[0]))
                losses.append(output["loss"].item())

            @hookimpl
            def make_loader(self, split):
                torch.rand(7)  # such as random_split, which draws from the global generator
                return DataLoader(TensorDataset(torch.ones(2)), shuffle=True, generator=generator)

        model = Model()
        loaders = {"train": train}
        if not made:
            loaders["val"] = DataLoader(TensorDataset(torch.ones(2)), shuffle=True, generator=generator)
        plugins = [Listener(), *([evaluation] if evaluation is not None else [])]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        Trainer(
            model, optimizer=optimizer, loaders=loaders, plugins=plugins, max_epochs=3, seed=0, autoload=False, device="cpu"
        ).train()
        return seen, losses

    @pytest.mark.parametrize("made", [False, True], ids=["given", "made"])
    @pytest.mark.parametrize("shared", [False, True], ids=["global", "shared generator"])
    @pytest.mark.parametrize(
        "options",
        [{"every_epochs": 1}, {"every_steps": 2}, {"every_epochs": 2}, {"every_steps": 1}],
        ids=lambda options: "-".join(map(str, next(iter(options.items())))),
    )
    def test_rs_10_order_and_losses_are_the_same_with_and_without_evaluation(self, options, shared, made):
        without = self.run(None, shared=shared, made=made)
        assert self.run(Evaluation(**options), shared=shared, made=made) == without
        assert len(without[1]) == 18
        assert all(sorted(epoch) == list(range(6)) for epoch in without[0])

    def test_rs_10_the_order_is_that_of_raw_pytorch(self):
        torch.manual_seed(0)
        loader = DataLoader(TensorDataset(torch.arange(6)), batch_size=1, shuffle=True)
        raw = [[int(x) for (x,) in loader] for _ in range(3)]
        assert raw[1] == [2, 3, 1, 5, 4, 0]

        class Order:
            seen = []

            @hookimpl
            def before_epoch(self):
                self.seen.append([])

            @hookimpl
            def after_step(self, batch):
                self.seen[-1].append(int(batch[0]))

            @hookimpl
            def compute_loss(self, trainer):
                return trainer.model.weight.sum()

        model = nn.Linear(1, 1)
        val = DataLoader(TensorDataset(torch.ones(2)), shuffle=True)
        for evaluation in (Evaluation(), Evaluation(every_steps=2), None):
            Order.seen = []
            plugins = [Order(), *([evaluation] if evaluation is not None else [])]
            Trainer(
                model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
                loaders={"train": loader, "val": val},
                plugins=plugins,
                max_epochs=3,
                seed=0,
                autoload=False,
                device="cpu",
            ).train()
            assert Order.seen == raw


class TestRS08:
    """The scheduler is stepped once more at resume."""

    class Rates:
        """Notes the rate of each update; asks for a checkpoint before the first step, and stops when told."""

        def __init__(self, stop=None):
            self.seen, self.stop = [], stop

        @hookimpl
        def before_train(self, trainer):
            if self.stop is not None:
                trainer.request_checkpoint()

        @hookimpl
        def before_step(self, trainer):
            if trainer.step == self.stop:
                trainer.stop("asked")

        @hookimpl
        def gradients_ready(self, trainer):
            self.seen.append(trainer.optimizer.param_groups[0]["lr"])

    PLUGINS = {
        "cosine": LR,
        "torch": lambda: LR(torch_scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)),
        "function": lambda: LR(lambda progress, total: (1 + math.cos(math.pi * progress / total)) / 2),
        "step": lambda: LR(by="step"),
    }

    @pytest.mark.parametrize("kind", PLUGINS)
    @pytest.mark.parametrize("stops", [(4,), (0,), (4, 4, 4), (0, 4), (2, 3, 4, 4)])
    def test_rs_08_the_rates_go_on(self, make_trainer, tmp_path, kind, stops):
        """Cosine over 10 updates, base 1; updates 5, 6, 7 have 0.654508, 0.5, 0.345492 however often it was resumed."""
        seen = []
        for number, stop in enumerate([*stops, None]):
            rates = self.Rates(stop)
            plugins = [self.PLUGINS[kind](), rates, Checkpoint()]
            trainer = make_trainer(plugins, max_updates=10, work_dir=tmp_path / "run")
            trainer.train(resume="auto" if number else None)
            seen += rates.seen
        wanted = [(1 + math.cos(math.pi * i / 10)) / 2 for i in range(10)]
        assert seen == pytest.approx(wanted, rel=1e-12, abs=1e-15)
        assert seen[4:7] == pytest.approx([0.654508, 0.5, 0.345492], abs=1e-6)

        rates = self.Rates()
        make_trainer([self.PLUGINS[kind](), rates], max_updates=10).train()
        assert seen == rates.seen  # bit for bit what one run has


class TestRS09:
    """The state of the loss scaler is not restored, or only its scale is."""

    def test_rs_09_the_scale_and_its_growth_go_on(self, make_trainer, tmp_path):
        class Scales:
            def __init__(self):
                self.seen = []

            @hookimpl
            def after_step(self, trainer):
                self.seen.append(trainer.stateful["plugins/amp"].state_dict()["scale"])

        def train(**arguments):
            scales = Scales()
            plugins = [AMP("float16", init_scale=65536.0, growth_interval=3), scales, Checkpoint(every_steps=5, at_end=False)]
            trainer = make_trainer(plugins, values=[math.inf] + [1.0] * 8, work_dir=tmp_path / "run", max_epochs=1)
            trainer.train(**arguments)
            return scales.seen

        wanted = [32768.0] * 3 + [65536.0] * 3 + [131072.0] * 3
        assert train(max_steps=5) == wanted[:5]
        assert train(resume="auto", max_steps=9) == wanted[5:]
