"""``throughput`` on a clock that only moves where the test says so."""

import pytest
import torch

from trainhooks import DataError, OptionError, SkipStep, Trainer, hookimpl
from trainhooks_builtins import Checkpoint, Evaluation, Throughput


class Clock:
    def __init__(self):
        self.now = 50.0

    def __call__(self):
        return self.now


class Slow:
    """Takes these seconds in these hooks."""

    def __init__(self, clock, **seconds):
        self.clock = clock
        for hook, duration in seconds.items():
            setattr(self, hook, self._make(hook, duration))

    def _make(self, hook, seconds):
        def take():
            self.clock.now += seconds

        return hookimpl(specname=hook)(take)


class Reports:
    def __init__(self):
        self.values = []

    @hookimpl
    def report_metrics(self, records):
        self.values += [dict(record.values) for record in records]

    def of(self, name):
        return [values[f"throughput/{name}"] for values in self.values if f"throughput/{name}" in values]


class Loader:
    def __init__(self, clock, seconds, batches):
        self.clock, self.seconds, self.batches = clock, seconds, batches

    def __iter__(self):
        for batch in self.batches:
            self.clock.now += self.seconds
            yield batch

    def __len__(self):
        return len(self.batches)


def run(clock, batches, *plugins, loader=0.0, val=None, **arguments):
    """Train a loss of 0 on any batches."""
    weight = torch.nn.Linear(1, 1)

    class Nothing:
        @hookimpl
        def compute_loss(self, trainer):
            return sum(p.sum() for p in trainer.model.parameters()) * 0

    loaders = {"train": Loader(clock, loader, batches), **({"val": val} if val else {})}
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.0)
    arguments.setdefault("max_epochs", 1)
    own = [] if any(hasattr(plugin, "compute_loss") for plugin in plugins) else [Nothing()]
    trainer = Trainer(weight, optimizer=optimizer, loaders=loaders, plugins=[*plugins, *own], autoload=False, **arguments)
    trainer.train()
    return trainer


def test_rates_of_each_window():
    """Batches of 8 samples; a step takes 2 s and 3 s of waiting: 8 samples in 5 s."""
    clock, reports = Clock(), Reports()
    plugin = Throughput(clock=clock)
    run(clock, [torch.zeros(8, 3)] * 4, plugin, Slow(clock, gradients_ready=2.0), reports, loader=3.0, log_every_steps=2)
    assert reports.of("samples_per_s") == [1.6, 1.6]
    assert reports.of("steps_per_s") == [0.2, 0.2]
    assert not reports.of("tokens_per_s") and not reports.of("mfu")


def test_a_window_is_samples_over_seconds_not_a_mean_of_rates():
    """Batches of 8 and 2 samples of 1 s and 4 s of waiting: 10 samples in 5 s is 2, not the mean (8 + 0.5) / 2 of rates."""
    clock, reports = Clock(), Reports()

    class Waits:
        @hookimpl
        def before_step(self, batch):
            clock.now += 1.0 if len(batch) == 8 else 4.0

    run(clock, [torch.zeros(8), torch.zeros(2)], Throughput(clock=clock), Waits(), reports)
    assert reports.of("samples_per_s") == [2.0]


def test_the_mean_of_an_epoch_is_weighted_by_time():
    """The same two steps, flushed one by one: the epoch has 10 samples in 5 s all the same."""
    clock = Clock()
    seen = {}

    class Waits:
        @hookimpl
        def before_step(self, batch):
            clock.now += 1.0 if len(batch) == 8 else 4.0

        @hookimpl
        def after_epoch(self, metrics):
            seen.update(metrics)

    run(clock, [torch.zeros(8), torch.zeros(2)], Throughput(clock=clock), Waits(), Reports(), log_every_steps=1)
    assert seen["throughput/samples_per_s"] == 2.0


def test_evaluations_and_checkpoints_take_no_time(tmp_path):
    """After every second of 4 steps of 5 s an evaluation of 10 s and a checkpoint of 100 s, with 50 s of hooks after it."""
    clock = Clock()
    slow = Slow(clock, gradients_ready=2.0, before_eval=10.0, on_save=100.0, after_save=50.0)
    plugins = [Throughput(clock=clock), slow, Evaluation(every_steps=2), Checkpoint(every_steps=2)]
    trainer = run(clock, [torch.zeros(8)] * 4, *plugins, loader=3.0, val=[torch.zeros(1)], work_dir=tmp_path / "run")
    assert trainer.metrics["throughput/samples_per_s"] == 1.6


def test_nested_pauses_count_once(tmp_path):
    """An evaluation of 10 s that saves for 100 s inside each step of 2 s."""

    class Saves:
        @hookimpl
        def after_eval(self, trainer):
            trainer.save_checkpoint(trainer.checkpoint_path())

        @hookimpl
        def gradients_ready(self, trainer):
            trainer.evaluate("val")

    clock = Clock()
    slow = Slow(clock, before_step=2.0, before_eval=10.0, on_save=100.0)
    plugins = [Throughput(clock=clock), slow, Saves(), Checkpoint(every_epochs=0, at_end=False)]
    trainer = run(clock, [torch.zeros(8)] * 3, *plugins, val=[torch.zeros(1)], work_dir=tmp_path / "run")
    assert trainer.metrics["throughput/samples_per_s"] == 4.0


def test_between_epochs_nothing_is_counted(messages):
    """1000 s in after_epoch; 2 epochs of 2 steps of 2 s with 8 samples: 32 samples in 8 s."""
    clock = Clock()
    slow = Slow(clock, after_epoch=1000.0, gradients_ready=2.0)
    trainer = run(clock, [torch.zeros(8)] * 2, Throughput(clock=clock), slow, max_epochs=2)
    assert trainer.metrics["throughput/samples_per_s"] == 4.0
    assert "throughput: 4 samples/s, 0.5 steps/s over 4 steps (8 s)" in messages()


def test_a_dropped_batch_costs_time_but_is_no_samples():
    """3 batches of 8 samples and 2 s each, the second is dropped: 16 samples in 6 s."""

    class Drops:
        @hookimpl
        def before_step(self, trainer):
            if trainer.batch_index == 1:
                raise SkipStep("no")

    clock = Clock()
    trainer = run(clock, [torch.zeros(8)] * 3, Throughput(clock=clock), Drops(), loader=2.0)
    assert trainer.metrics["throughput/samples_per_s"] == pytest.approx(16 / 6)


def test_a_clock_that_stands_still_gives_no_rate():
    clock = Clock()
    assert "throughput/samples_per_s" not in run(clock, [torch.zeros(8)], Throughput(clock=clock)).metrics


class Output:
    def __init__(self, **values):
        self.values = values

    @hookimpl
    def compute_loss(self, trainer):
        return {"loss": sum(p.sum() for p in trainer.model.parameters()) * 0, **self.values}


IDS = {"input_ids": torch.zeros(2, 6, dtype=torch.long), "mask": torch.tensor([[True] * 6, [True] * 3 + [False] * 3])}


@pytest.mark.parametrize(
    ("tokens", "batch", "plugins", "in_a_step"),
    [
        ("sequence", torch.zeros(2, 6), (), 12),
        ("sequence", (torch.zeros(2, 6), torch.zeros(2)), (), 12),
        ("sequence", IDS, (), 12),
        ("input_ids", IDS, (), 12),
        ("mask", IDS, (), 9),
        ("count", {**IDS, "count": 7}, (), 7),
        ("count", {**IDS, "count": torch.tensor(7)}, (), 7),
        ("count", {**IDS, "count": torch.tensor([7])}, (), 7),
        ("words", {**IDS, "words": ["a", "b", "c"]}, (), 3),
        ("count", IDS, (Output(count=torch.tensor(5.0)),), 5),
    ],
)
def test_tokens(tokens, batch, plugins, in_a_step):
    """Two steps of 2 s each."""
    clock = Clock()
    trainer = run(clock, [batch] * 2, Throughput(tokens, clock=clock), *plugins, loader=2.0)
    assert trainer.metrics["throughput/tokens_per_s"] == in_a_step / 2
    assert trainer.metrics["throughput/samples_per_s"] == 1.0


def test_utilization():
    """8 samples in 2 s of 50 operations each are 200 a second, a tenth of a peak of 2000; of tokens 12 in 2 s likewise 300."""
    clock = Clock()
    by_sample = Throughput(flops_per_sample=50.0, peak_flops=2000.0, clock=clock)
    assert run(clock, [torch.zeros(8)] * 2, by_sample, loader=2.0).metrics["throughput/mfu"] == 0.1
    by_token = Throughput("sequence", flops_per_token=50.0, peak_flops=2000.0, clock=clock)
    assert run(clock, [torch.zeros(2, 6)] * 2, by_token, loader=2.0).metrics["throughput/mfu"] == 0.15


def test_two_runs_of_one_trainer_do_not_count_twice(messages):
    clock = Clock()
    plugin = Throughput(clock=clock)
    trainer = run(clock, [torch.zeros(8)] * 2, plugin, loader=2.0)
    clock.now += 1000
    trainer.train(max_epochs=2)
    assert trainer.metrics["throughput/samples_per_s"] == 4.0
    assert [line for line in messages() if line.startswith("throughput")] == [
        "throughput: 4 samples/s, 0.5 steps/s over 2 steps (4 s)"
    ] * 2
    assert trainer.bus.before_flush == []


def test_one_that_comes_later_measures_whole_steps():
    """Registered within the second of 4 steps of 2 s: 16 samples in 4 s."""
    clock = Clock()

    class Registers:
        @hookimpl
        def before_step(self, trainer):
            if trainer.step == 1:
                trainer.register(Throughput(clock=clock))

    trainer = run(clock, [torch.zeros(8)] * 4, Registers(), loader=2.0)
    assert trainer.metrics["throughput/samples_per_s"] == 4.0


def test_tokens_stay_on_their_device(monkeypatch):
    """A count that is a tensor is added, not read."""
    from trainhooks_builtins._tokens import tokens_of

    monkeypatch.setattr(torch.Tensor, "item", lambda *a: pytest.fail("synchronizes"))
    assert isinstance(tokens_of("n", None, {"n": torch.tensor(7)}), torch.Tensor)
    assert isinstance(tokens_of("mask", IDS, {}), torch.Tensor)
    assert tokens_of("input_ids", IDS, {}) == 12


@pytest.mark.parametrize(
    ("tokens", "batch", "message"),
    [
        ("ids", IDS, "'ids': neither the output nor the batch has it .there are loss, input_ids, mask."),
        ("what", {**IDS, "what": None}, "'what': NoneType is neither"),
        ("sequence", ["text"], "'sequence': there is no tensor in a batch of type list"),
    ],
)
def test_tokens_that_cannot_be_counted(tokens, batch, message):
    clock = Clock()
    with pytest.raises(DataError, match=message):
        run(clock, [batch], Throughput(tokens, clock=clock))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"peak_flops": 0.0, "flops_per_sample": 1.0}, "peak_flops = 0.0"),
        ({"peak_flops": 1.0}, "needs peak_flops together with"),
        ({"flops_per_sample": 1.0}, "needs peak_flops together with"),
        ({"flops_per_token": 1.0, "flops_per_sample": 1.0, "peak_flops": 1.0}, "not both"),
        ({"flops_per_token": 1.0, "peak_flops": 1.0}, "needs tokens"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(OptionError, match=message):
        Throughput(**options)
