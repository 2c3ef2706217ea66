"""Every pair of the plugins that take part in an update, against a training that is written out in plain floating-point numbers.

The model is ``a * x + 2 * b * x``, so the gradients of a batch ``x`` are ``x`` and ``2 * x``; SGD with momentum and weight decay;
two epochs of seven batches. ``by_hand`` knows no torch and no hook: it is the definition of each plugin, line by line.
"""

import itertools
import math

import pytest
import torch
from torch import nn

from trainhooks import Trainer
from trainhooks_builtins import AMP, EMA, LR, SWA, Accumulate, Clip, Compile, Freeze, GradNorms, Momentum, WeightDecay

VALUES = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)
EPOCHS, RATE, MOMENTUM, DECAY = 2, 0.125, 0.5, 0.25
WINDOW, MAX_NORM, EMA_DECAY = 3, 4.0, 0.75

PLUGINS = {
    "lr": lambda: LR("cosine", end=0.1, warmup_updates=2, warmup_start=0.5),
    "momentum": lambda: Momentum("linear", end=0.2),
    "weight_decay": lambda: WeightDecay("linear", end=2.0),
    "accumulate": lambda: Accumulate(steps=WINDOW),
    "clip": lambda: Clip(max_norm=MAX_NORM),
    "amp_bf16": AMP,
    "amp_fp16": lambda: AMP(dtype="float16", init_scale=1024.0, growth_interval=3),
    "freeze": lambda: Freeze(("b",), until_epoch=1),
    "ema": lambda: EMA(decay=EMA_DECAY),
    "swa": lambda: SWA(start_epoch=0),
    "compile": lambda: Compile(backend="eager"),
    "grad_norms": lambda: GradNorms(every_updates=1, weights=True, updates=True),
}
ALONE = [(), *((name,) for name in PLUGINS)]
PAIRS = [pair for pair in itertools.combinations(PLUGINS, 2) if pair != ("amp_bf16", "amp_fp16")]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
        self.b = nn.Parameter(torch.tensor(-2.0, dtype=torch.float64))

    def forward(self, x):
        return (self.a * x + 2 * self.b * x).sum()


def cosine(update, total):
    """From 1 to 0.1, after two updates of warmup from one half."""
    if update < 2:
        return 0.5 + 0.5 * update / 2
    return 0.1 + 0.9 * (1 + math.cos(math.pi * (update - 2) / (total - 2))) / 2


def line(end, update, total):
    return end + (1 - end) * (1 - update / total)


def by_hand(on):
    """Return the weights and their averages after a training with these plugins."""
    windows = [VALUES[i : i + WINDOW] for i in range(0, 7, WINDOW)] if "accumulate" in on else [(value,) for value in VALUES]
    total = EPOCHS * len(windows)
    weights, velocity = {"a": 1.0, "b": -2.0}, {}
    ema, of_epochs = dict(weights), []
    update = 0
    for epoch in range(EPOCHS):
        for window in windows:
            x = sum(window) / len(window)
            gradients = {"a": x, "b": 2 * x}
            if "freeze" in on and epoch == 0:
                del gradients["b"]
            if "clip" in on:
                norm = math.sqrt(sum(gradient**2 for gradient in gradients.values()))
                gradients = {name: gradient * min(1.0, MAX_NORM / (norm + 1e-6)) for name, gradient in gradients.items()}
            rate = RATE * (cosine(update, total) if "lr" in on else 1)
            momentum = MOMENTUM * (line(0.2, update, total) if "momentum" in on else 1)
            decay = DECAY * (line(2.0, update, total) if "weight_decay" in on else 1)
            for name, gradient in gradients.items():
                step = gradient + decay * weights[name]
                velocity[name] = momentum * velocity[name] + step if name in velocity else step
                weights[name] -= rate * velocity[name]
            ema = {name: EMA_DECAY * value + (1 - EMA_DECAY) * weights[name] for name, value in ema.items()}
            update += 1
        of_epochs.append(dict(weights))
    return weights, ema, {name: sum(one[name] for one in of_epochs) / EPOCHS for name in weights}


@pytest.mark.parametrize("on", [*ALONE, *PAIRS], ids="+".join)
def test_weights_are_those_worked_out_by_hand(on):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    plugins = {name: PLUGINS[name]() for name in on}
    trainer = Trainer(
        model,
        optimizer=optimizer,
        loaders={"train": [torch.tensor([value], dtype=torch.float64) for value in VALUES]},
        max_epochs=EPOCHS,
        plugins=list(plugins.values()),
        autoload=False,
        device="cpu",
    )
    trainer.train()
    weights, ema, swa = by_hand(on)
    assert {name: one.item() for name, one in model.named_parameters()} == pytest.approx(weights, rel=1e-12)
    for name, average in (("ema", ema), ("swa", swa)):
        if name in on:
            assert {key: one.item() for key, one in plugins[name].average.items()} == pytest.approx(average, rel=1e-12)
    assert trainer.update == (6 if "accumulate" in on else 14)
