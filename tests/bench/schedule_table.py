"""Prints how far the schedules are from their sources: a run of each, update by update, against a formula or torch's own class.

python tests/bench/schedule_table.py

MMCV's formulas are written down here a second time, from its documentation and research notes, not from the plugins' code. Where
a source computes a small number as the difference of large ones its own rounding is what is measured, so parameters are chosen
that keep this below the limit: one-cycle with linear annealing ends at a thousandth of its peak, not at a 250000th.
"""

import math
import warnings

import torch
from torch.optim import lr_scheduler as ts

from trainhooks import Trainer, hookimpl
from trainhooks_builtins import LR, Momentum, Plateau, WeightDecay

LIMIT = 1e-12
STEPS = 90  # updates of a run
EPOCH = 6  # updates of an epoch


class Notes:
    """Notes what is in force when each update is applied."""

    phase = "reporting"

    def __init__(self, read):
        self.read, self.seen = read, []

    @hookimpl
    def gradients_ready(self, trainer):
        self.seen.append(float(self.read(trainer.optimizer.param_groups[0])))

    @hookimpl
    def compute_loss(self, trainer):
        return sum(parameter.sum() for parameter in trainer.model.parameters())


READ = {
    LR: lambda group: group["lr"],
    Momentum: lambda group: group["momentum"] if "momentum" in group else group["betas"][0],
    WeightDecay: lambda group: group["weight_decay"],
}


def ours(plugin, make_optimizer, updates=STEPS):
    """Return the value of each update of a run with the plugin."""
    model = torch.nn.ParameterList([torch.zeros(())])
    notes = Notes(READ[type(plugin)])
    loaders = {"train": [0] * EPOCH}
    Trainer(
        model,
        optimizer=make_optimizer(model),
        loaders=loaders,
        plugins=[plugin, notes],
        max_updates=updates,
        autoload=False,
    ).train()
    return notes.seen


def torchs(make_scheduler, make_optimizer, read, every=1, updates=STEPS):
    """Return the value of each update with torch's scheduler alone, stepped after every n-th update."""
    optimizer = make_optimizer([torch.nn.Parameter(torch.zeros(()))])
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SequentialLR calls step() in a way that torch itself deprecates
        scheduler = make_scheduler(optimizer)
        for update in range(updates):
            seen.append(float(read(optimizer.param_groups[0])))
            optimizer.step()
            if (update + 1) % every == 0:
                scheduler.step()
    return seen


def difference(a, b):
    """Return the largest relative difference of two lists."""
    assert len(a) == len(b)
    return max(abs(x - y) / max(abs(x), abs(y)) if x != y else 0.0 for x, y in zip(a, b))


# --- MMCV 1.7, mmcv/runner/hooks/lr_updater.py: t of T, the regular rate lr ---


def annealing(kind, start, end, share, weight=1.0):
    if kind == "cos":
        return end + 0.5 * weight * (start - end) * (1 + math.cos(math.pi * share))
    return start + (end - start) * share


def mmcv_step(t, T, lr, step, gamma=0.1, min_lr=None):
    if isinstance(step, int):
        k = t // step
    else:
        k = sum(1 for milestone in step if t >= milestone)
    value = lr * gamma**k
    return value if min_lr is None else max(value, min_lr)


def mmcv_poly(t, T, lr, power=1.0, min_lr=0.0):
    return (lr - min_lr) * (1 - t / T) ** power + min_lr


def mmcv_cosine(t, T, lr, min_lr=None, min_lr_ratio=None):
    return annealing("cos", lr, lr * min_lr_ratio if min_lr_ratio is not None else min_lr, t / T)


def mmcv_linear(t, T, lr, min_lr=None, min_lr_ratio=None):
    return annealing("linear", lr, lr * min_lr_ratio if min_lr_ratio is not None else min_lr, t / T)


def mmcv_flat_cosine(t, T, lr, start_percent=0.75, min_lr=None, min_lr_ratio=None):
    start = round(T * start_percent)
    end = lr * min_lr_ratio if min_lr_ratio is not None else min_lr
    return lr if t < start else annealing("cos", lr, end, (t - start) / (T - start))


def mmcv_cosine_restart(t, T, lr, periods, restart_weights, min_lr=None, min_lr_ratio=None):
    end = lr * min_lr_ratio if min_lr_ratio is not None else min_lr
    begin = 0
    for period, weight in zip(periods, restart_weights):
        if t < begin + period:
            return annealing("cos", lr, end, (t - begin) / period, weight)
        begin += period
    raise ValueError(t)


def mmcv_cyclic(t, T, lr, target_ratio, cyclic_times=1, step_ratio_up=0.4, anneal="cos", gamma=1.0):
    period = T // cyclic_times
    up = int(step_ratio_up * period)
    cycle, place = t // period, t % period
    top = 1 - gamma**cycle + target_ratio[0] * gamma**cycle
    if place < up:
        return annealing(anneal, lr, lr * top, place / up)
    return annealing(anneal, lr * top, lr * target_ratio[1], (place - up) / (period - up))


def mmcv_one_cycle(t, T, max_lr, pct_start=0.3, anneal="cos", div_factor=25.0, final_div_factor=1e4, three_phase=False):
    lr = max_lr / div_factor
    phases = [(pct_start * T - 1, 1.0, div_factor)]
    if three_phase:
        phases += [(2 * pct_start * T - 2, div_factor, 1.0), (T - 1, 1.0, 1 / final_div_factor)]
    else:
        phases += [(T - 1, div_factor, 1 / final_div_factor)]
    start = 0
    for end, first, last in phases:
        if t <= end:
            return annealing(anneal, lr * first, lr * last, (t - start) / (end - start))
        start = end
    raise ValueError(t)


def mmcv_one_cycle_momentum(t, T, base, low, high, pct_start=0.3, anneal="cos", three_phase=False):
    phases = [(pct_start * T - 1, high, low)]
    if three_phase:
        phases += [(2 * pct_start * T - 2, low, high), (T - 1, high, high)]
    else:
        phases += [(T - 1, low, high)]
    start = 0
    for end, first, last in phases:
        if t <= end:
            return annealing(anneal, first, last, (t - start) / (end - start))
        start = end
    raise ValueError(t)


def mmcv_warmup(kind, t, length, ratio, regular):
    if t >= length:
        return regular
    if kind == "constant":
        return regular * ratio
    if kind == "linear":
        return regular * (1 - (1 - t / length) * (1 - ratio))
    return regular * ratio ** (1 - t / length)


def mmcv_momentum_warmup(kind, t, length, ratio, regular):
    if t >= length:
        return regular
    if kind == "constant":
        return regular / ratio
    if kind == "linear":
        return regular / (1 - (1 - t / length) * (1 - ratio))
    return regular / ratio ** (1 - t / length)


# --- transformers 5.24, optimization.py: warmup W from 0, then these factors ---


def hf_inverse_sqrt(t, warmup, timescale):
    return t / warmup if t < warmup else 1 / math.sqrt((t + timescale - warmup) / timescale)


def hf_wsd(t, warmup, total, decay, kind, ratio):
    if t < warmup:
        return t / warmup
    stable = total - warmup - decay
    if t < warmup + stable:
        return 1.0
    x = (t - warmup - stable) / decay
    fall = {"linear": 1 - x, "cosine": 0.5 * (1 + math.cos(math.pi * x)), "1-sqrt": 1 - math.sqrt(x)}[kind]
    return fall * (1 - ratio) + ratio


def epochs_of(t):
    return t // EPOCH


def sgd(lr=0.3, momentum=0.9, weight_decay=0.05):
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)


def adam(lr=0.3, beta=0.9):
    return lambda parameters: torch.optim.Adam(parameters, lr=lr, betas=(beta, 0.99))


def formula_rows():
    """Yield (schedule, parameters, source, ours, theirs)."""
    T, lr = STEPS, 0.3
    numbers = range(T)

    def lrs(name, args, source, formula, **options):
        shown = {**args, **options}
        return name, shown, source, ours(LR(name, args=args or None, **options), sgd(lr)), [formula(t) for t in numbers]

    yield lrs("fixed", {}, "MMCV Fixed", lambda t: lr)
    yield lrs("step", {"every": 13, "gamma": 0.5}, "MMCV Step", lambda t: mmcv_step(t, T, lr, 13, 0.5))
    for args in ({"milestones": [20, 33, 70], "gamma": 0.2}, {"milestones": [20, 33, 70], "gamma": 0.2, "floor": 0.01}):
        yield lrs("step", args, "MMCV Step", lambda t: mmcv_step(t, T, lr, [20, 33, 70], 0.2, args.get("floor")))
    yield lrs("exp", {"gamma": 0.97}, "MMCV Exp", lambda t: lr * 0.97**t)
    for power, low in ((1.0, 0.0), (0.9, 1e-4), (2.5, 0.02)):
        args = {"power": power, "end_value": low}
        yield lrs("poly", args, "MMCV Poly", lambda t: mmcv_poly(t, T, lr, power, low))
    yield lrs("inv", {"gamma": 0.01, "power": 0.75}, "MMCV Inv", lambda t: lr * (1 + 0.01 * t) ** -0.75)
    yield lrs("cosine", {}, "MMCV CosineAnnealing", lambda t: mmcv_cosine(t, T, lr, min_lr_ratio=0.1), end=0.1)
    yield lrs("cosine", {"end_value": 2e-5}, "MMCV CosineAnnealing", lambda t: mmcv_cosine(t, T, lr, min_lr=2e-5))
    yield lrs("linear", {}, "MMCV LinearAnnealing", lambda t: mmcv_linear(t, T, lr, min_lr_ratio=0.1), end=0.1)
    yield lrs("linear", {"end_value": 2e-5}, "MMCV LinearAnnealing", lambda t: mmcv_linear(t, T, lr, min_lr=2e-5))
    for flat in (0.75, 0.31):
        args = {"flat": flat, "end": 0.02}
        source = "MMCV FlatCosineAnnealing"
        yield lrs("flat_cosine", args, source, lambda t: mmcv_flat_cosine(t, T, lr, flat, min_lr_ratio=0.02))
    args = {"periods": [10, 30, 50], "weights": [1.0, 0.5, 0.25], "end_value": 1e-3}
    source = "MMCV CosineRestart"
    yield lrs(
        "cosine_restart", args, source, lambda t: mmcv_cosine_restart(t, T, lr, [10, 30, 50], [1, 0.5, 0.25], min_lr=1e-3)
    )
    for args in (
        {"target_ratio": [10, 1e-4]},
        {"target_ratio": [5, 0.1], "cyclic_times": 3, "step_ratio_up": 0.3, "gamma": 0.5},
        {"target_ratio": [4, 0.2], "cyclic_times": 4, "anneal": "linear"},
    ):
        yield lrs("cyclic", args, "MMCV Cyclic", lambda t: mmcv_cyclic(t, T, lr, **args))
    for args in (
        {},
        {"pct_start": 0.4, "anneal": "linear", "div_factor": 10.0, "final_div_factor": 100.0},
        {"three_phase": True, "final_div_factor": 50.0},
    ):
        yield lrs("one_cycle", args, "MMCV OneCycle", lambda t: mmcv_one_cycle(t, T, lr, **args))
    for kind, start in (("constant", 0.1), ("linear", 0.1), ("exp", 0.1)):
        options = {"warmup": kind, "warmup_updates": 20, "warmup_start": start, "warmup_overlaps": True, "end": 0.1}
        regular = lambda t: mmcv_cosine(t, T, lr, min_lr_ratio=0.1)
        yield lrs("cosine", {}, f"MMCV warmup {kind}", lambda t: mmcv_warmup(kind, t, 20, start, regular(t)), **options)
    # by epoch, as MMCV's by_epoch=True: the rate of the epoch, a warmup by iterations
    E = T // EPOCH
    yield lrs("step", {"every": 4}, "MMCV Step by_epoch", lambda t: mmcv_step(epochs_of(t), E, lr, 4), by="epoch")
    options = {"by": "epoch", "warmup_updates": 20, "warmup_start": 0.01, "end": 0.05}
    regular = lambda t: mmcv_cosine(epochs_of(t), E, lr, min_lr_ratio=0.05)
    yield lrs("cosine", {}, "MMCV Cosine by_epoch", lambda t: mmcv_warmup("linear", t, 20, 0.01, regular(t)), **options)
    source = "transformers inverse_sqrt"
    args = {"timescale": 15}
    yield lrs("inverse_sqrt", args, source, lambda t: lr * hf_inverse_sqrt(t, 15, 15), warmup_updates=15)
    for kind in ("linear", "cosine", "1-sqrt"):
        args, source = {"decay_length": 25, "shape": kind, "end": 0.05}, "transformers warmup_stable_decay"
        yield lrs("wsd", args, source, lambda t: lr * hf_wsd(t, 10, T, 25, kind, 0.05), warmup_updates=10)

    def momenta(name, args, source, formula, optimizer=None, **options):
        plugin = Momentum(name, args=args or None, **options)
        return f"momentum {name}", {**args, **options}, source, ours(plugin, optimizer or sgd()), [formula(t) for t in numbers]

    m = 0.9
    yield momenta("step", {"every": 20}, "MMCV momentum Step", lambda t: mmcv_step(t, T, m, 20, 0.5))
    yield momenta("cosine", {"end_value": 0.5}, "MMCV momentum Cosine", lambda t: mmcv_cosine(t, T, m, min_lr=0.5), adam())
    yield momenta("linear", {}, "MMCV momentum Linear", lambda t: mmcv_linear(t, T, m, min_lr_ratio=0.9), end=0.9)
    cycle = (0.85 / 0.95, 1)
    yield momenta("cyclic", {"cyclic_times": 3}, "MMCV momentum Cyclic", lambda t: mmcv_cyclic(t, T, m, cycle, 3))
    for args in ({}, {"low": 0.8, "high": 0.99, "three_phase": True, "anneal": "linear"}):
        values = {"low": 0.85, "high": 0.95, **args}
        yield momenta("one_cycle", args, "MMCV momentum OneCycle", lambda t: mmcv_one_cycle_momentum(t, T, m, **values), adam())
    for kind in ("constant", "linear", "exp"):
        options = {"warmup": kind, "warmup_updates": 20, "warmup_start": 0.95, "warmup_overlaps": True, "end": 0.5}
        regular = lambda t: mmcv_cosine(t, T, m, min_lr_ratio=0.5)
        formula = lambda t: mmcv_momentum_warmup(kind, t, 20, 0.95, regular(t))
        yield momenta("cosine", {}, f"MMCV momentum warmup {kind}", formula, **options)
    for end in (0.0, 8.0):
        seen = ours(WeightDecay("cosine", end=end), sgd())
        wanted = [annealing("cos", 0.05, 0.05 * end, t / T) for t in numbers]
        yield "weight_decay cosine", {"end": end}, "formula of cosine", seen, wanted


def torch_rows():
    """Yield (schedule, parameters, source, ours, theirs)."""
    T, lr = STEPS, 0.3

    def lrs(name, args, make, every=1, optimizer=None, **options):
        optimizer = optimizer or sgd(lr)
        theirs = torchs(make, optimizer, READ[LR], every)
        shown = args if isinstance(name, str) else {"parts": [part["name"] for part in name]}
        seen = ours(LR(name, args=args or None, **options), optimizer)
        title = name if isinstance(name, str) else "composition"
        return title, {**shown, **options}, "torch " + type(make(optimizer([torch.zeros(1)]))).__name__, seen, theirs

    yield lrs("constant", {"factor": 0.25}, lambda o: ts.ConstantLR(o, 0.25, total_iters=1000))
    yield lrs("step", {"every": 13, "gamma": 0.5}, lambda o: ts.StepLR(o, 13, 0.5))
    yield lrs("step", {"every": 4, "gamma": 0.5}, lambda o: ts.StepLR(o, 4, 0.5), every=EPOCH, by="epoch")
    yield lrs("multi_step", {"milestones": [20, 33, 70]}, lambda o: ts.MultiStepLR(o, [20, 33, 70]))
    yield lrs("exp", {"gamma": 0.97}, lambda o: ts.ExponentialLR(o, 0.97))
    yield lrs("poly", {"power": 2.0}, lambda o: ts.PolynomialLR(o, T, power=2.0))
    yield lrs("linear", {"start": 0.25, "end": 1.0}, lambda o: ts.LinearLR(o, 0.25, 1.0, total_iters=T))
    yield lrs("linear", {}, lambda o: ts.LinearLR(o, 1.0, 0.05, total_iters=T), end=0.05)
    yield lrs("cosine", {}, lambda o: ts.CosineAnnealingLR(o, T))
    yield lrs("cosine", {"end_value": 0.001}, lambda o: ts.CosineAnnealingLR(o, T, eta_min=0.001))
    yield lrs("cosine", {}, lambda o: ts.CosineAnnealingLR(o, T // EPOCH), every=EPOCH, by="epoch")
    args = {"periods": [10, 20, 40, 80], "end_value": 0.001}
    yield lrs("cosine_restart", args, lambda o: ts.CosineAnnealingWarmRestarts(o, 10, 2, eta_min=0.001))
    args = {"target_ratio": [5.0, 1.0], "cyclic_times": 3, "step_ratio_up": 0.4, "anneal": "linear"}
    for mode, gamma in (("triangular", 1.0), ("triangular2", 0.5)):
        make = lambda o: ts.CyclicLR(o, lr, 5 * lr, step_size_up=12, step_size_down=18, mode=mode, cycle_momentum=False)
        yield lrs("cyclic", {**args, "gamma": gamma}, make)
    for args, theirs in (
        ({}, {}),
        (
            {"pct_start": 0.2, "anneal": "linear", "final_div_factor": 40.0},
            {"pct_start": 0.2, "anneal_strategy": "linear", "final_div_factor": 40.0},
        ),
        ({"three_phase": True, "div_factor": 8.0, "final_div_factor": 100.0},) * 2,
    ):
        yield lrs("one_cycle", args, lambda o: ts.OneCycleLR(o, lr, T, cycle_momentum=False, **theirs))
    parts = [
        {"name": "linear", "updates": 15, "start": 0.1, "end": 1.0},
        {"name": "constant", "updates": 30, "factor": 1.0},
        {"name": "exp", "gamma": 0.9},
    ]
    chain = lambda o: ts.SequentialLR(
        o, [ts.LinearLR(o, 0.1, 1.0, 15), ts.ConstantLR(o, 1.0, 1), ts.ExponentialLR(o, 0.9)], [15, 45]
    )
    yield lrs(parts, {}, chain)
    warm = lambda o: ts.SequentialLR(o, [ts.LinearLR(o, 0.01, 1.0, 20), ts.CosineAnnealingLR(o, T - 20)], [20])
    yield lrs("cosine", {}, warm, warmup_updates=20, warmup_start=0.01)
    # A function of the user, and torch's own class inside a run.
    falling = lambda progress: 0.95 ** (progress // 7)
    theirs = torchs(lambda o: ts.LambdaLR(o, falling), sgd(lr), READ[LR])
    yield "function", {}, "torch LambdaLR", ours(LR(falling), sgd(lr)), theirs
    make = lambda o: ts.OneCycleLR(o, lr, T)
    yield "torch_scheduler", {}, "torch OneCycleLR", ours(LR(torch_scheduler=make), sgd(lr)), torchs(make, sgd(lr), READ[LR])
    make = lambda o: ts.StepLR(o, 4)
    theirs = torchs(make, sgd(lr), READ[LR], every=EPOCH)
    yield "torch_scheduler", {"by": "epoch"}, "torch StepLR", ours(LR(torch_scheduler=make, by="epoch"), sgd(lr)), theirs
    for title, optimizer in (("SGD", sgd()), ("Adam", adam())):
        for three in (False, True):
            theirs = torchs(lambda o: ts.OneCycleLR(o, lr, T, three_phase=three), optimizer, READ[Momentum])
            seen = ours(Momentum(args={"three_phase": three}), optimizer)
            yield "momentum one_cycle", {"three_phase": three}, f"torch OneCycleLR, {title}", seen, theirs
    args = {"target_ratio": [0.8 / 0.9, 1.0], "cyclic_times": 3, "step_ratio_up": 0.4, "anneal": "linear"}
    make = lambda o: ts.CyclicLR(o, lr, 1.0, 12, 18, base_momentum=0.8, max_momentum=0.9)
    seen, theirs = ours(Momentum("cyclic", args=args), sgd()), torchs(make, sgd(), READ[Momentum])
    yield "momentum cyclic", args, "torch CyclicLR", seen, theirs


def plateau_rows():
    """Yield the same for ``plateau``: the rate after each of many evaluations."""
    losses = [abs(math.sin(7 * i)) + 5 / (i + 1) for i in range(120)]
    for ours_, theirs in (
        ({"patience": 2}, {"patience": 2}),
        ({"patience": 3, "cooldown": 2, "factor": 0.7, "min_lr": 0.01},) * 2,
        (
            {"mode": "max", "patience": 1, "min_delta": 0.1, "delta_mode": "abs", "factor": 0.9},
            {"mode": "max", "patience": 1, "threshold": 0.1, "threshold_mode": "abs", "factor": 0.9},
        ),
    ):
        optimizer = sgd()([torch.nn.Parameter(torch.zeros(()))])
        scheduler = ts.ReduceLROnPlateau(optimizer, **theirs)
        wanted = []
        for loss in losses:
            scheduler.step(loss)
            wanted.append(optimizer.param_groups[0]["lr"])
        yield "plateau", ours_, "torch ReduceLROnPlateau", plateau_rates(Plateau(**ours_), losses), wanted


def plateau_rates(plugin, losses):
    """Return the rate after each evaluation of a run whose evaluations give these losses."""
    seen, left = [], iter(losses)

    class Evaluates:
        @hookimpl
        def compute_loss(self, trainer):
            return sum(parameter.sum() for parameter in trainer.model.parameters())

        @hookimpl
        def after_step(self, trainer):
            trainer.request_eval()

        @hookimpl
        def evaluate(self, trainer):
            metrics = {"val/loss": next(left)}
            trainer.hooks.after_eval(trainer=trainer, split="val", metrics=metrics)
            seen.append(trainer.optimizer.param_groups[0]["lr"])
            return metrics

    model = torch.nn.ParameterList([torch.zeros(())])
    loaders = {"train": [0] * len(losses), "val": [0]}
    Trainer(model, optimizer=sgd()(model), loaders=loaders, plugins=[plugin, Evaluates()], max_epochs=1, autoload=False).train()
    return seen


def table():
    """Return (schedule, parameters, source, largest relative difference) of every row."""
    rows = []
    for make in (formula_rows, torch_rows, plateau_rows):
        for name, parameters, source, seen, wanted in make():
            text = ", ".join(f"{key} {value}" for key, value in parameters.items())
            rows.append((name, text, source, difference(seen, wanted)))
    return rows


def main():
    """Print the table; return the largest difference of all."""
    rows = table()
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in [("schedule", "parameters", "source", "largest relative difference"), *rows]:
        last = row[3] if isinstance(row[3], str) else f"{row[3]:.1e}"
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)) + "  " + last)
    worst = max(row[3] for row in rows)
    print(f"{len(rows)} rows of {STEPS} updates each (plateau: 120 evaluations), largest {worst:.1e}, limit {LIMIT:.0e}")
    return worst


if __name__ == "__main__":
    assert main() <= LIMIT
