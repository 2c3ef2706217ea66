"""``starvation`` on a clock that only moves where the test says so."""

from types import SimpleNamespace

import pytest

from trainhooks import OptionError, SkipStep, hookimpl
from trainhooks_builtins import Checkpoint, Evaluation, Starvation
from trainhooks_builtins.starvation import opening_remedy, remedies


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Slow:
    """Takes these seconds in these hooks."""

    def __init__(self, clock, **seconds):
        for hook, duration in seconds.items():
            setattr(self, hook, self._make(clock, hook, duration))

    def _make(self, clock, hook, seconds):
        def take():
            clock.now += seconds

        return hookimpl(specname=hook)(take)


class Loader:
    """Takes ``opening`` seconds before the first batch and ``seconds`` for each."""

    num_workers = 0

    def __init__(self, clock, batches, seconds, opening):
        self.clock, self.batches, self.seconds, self.opening = clock, batches, seconds, opening

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        self.clock.now += self.opening
        for batch in self.batches:
            self.clock.now += self.seconds
            yield batch


class Reports:
    def __init__(self):
        self.shares = []

    @hookimpl
    def report_metrics(self, records):
        self.shares += [record.values["data/wait_share"] for record in records if "data/wait_share" in record.values]


@pytest.fixture
def shares(make_trainer):
    """Return a function that trains and gives what was logged."""

    def run(*plugins, seconds=0.0, opening=0.0, slow=None, window_steps=4, warn_share=0.3, batches=4, **arguments):
        clock, reports = Clock(), Reports()
        starvation = Starvation(warn_share, window_steps, clock)
        plugins = [starvation, Slow(clock, **(slow or {})), reports, *plugins]
        arguments = {"log_every_steps": 1, "values": (1.0,) * batches, **arguments}
        trainer = make_trainer(plugins, device="cpu", **arguments)
        trainer.loaders["train"] = Loader(clock, trainer.loaders["train"], seconds, opening)
        trainer.train()
        return reports.shares

    return run


def warnings(messages):
    return [message for message in messages() if message.startswith("starvation:")]


def test_share_of_a_window(shares, messages):
    """4 s of waiting, and 1 + 10 + 1 s in the step, which others take: a quarter."""
    seen = shares(seconds=4.0, slow={"before_step": 1.0, "gradients_ready": 10.0, "after_step": 1.0}, max_epochs=2)
    assert seen == [0.25, 0.25]
    assert warnings(messages) == []


def test_one_warning_with_a_remedy(shares, messages):
    """6 of 10 s, in every window."""
    assert shares(seconds=6.0, slow={"gradients_ready": 4.0}, max_epochs=3) == [0.6] * 3
    (message,) = warnings(messages)
    assert message.startswith("starvation: steps wait for data during 60% of the time (4 steps): set num_workers")


def test_a_share_at_the_limit_is_none(shares, messages):
    shares(seconds=1.0, slow={"gradients_ready": 1.0}, warn_share=0.5)
    assert warnings(messages) == []
    shares(seconds=1.0, slow={"gradients_ready": 1.0}, warn_share=0.49)
    assert len(warnings(messages)) == 1


def test_a_window_that_is_not_full_is_not_judged(shares, messages):
    assert shares(seconds=9.0, slow={"gradients_ready": 1.0}, window_steps=5) == []
    assert warnings(messages) == []


def test_the_first_opening_is_logged_only(shares, messages):
    """100 s to start, then 4 steps of 25 s: half of the first window; nothing that could be done better."""
    assert shares(opening=100.0, slow={"gradients_ready": 25.0}) == [0.5]
    assert warnings(messages) == []


def test_openings_of_later_epochs(shares, messages):
    """From the second epoch on 100 s of opening for 4 steps of 25 s."""
    assert shares(opening=100.0, slow={"gradients_ready": 25.0}, max_epochs=4) == [0.5] * 4
    (message,) = warnings(messages)
    assert message.startswith("starvation: 50% of the time goes to opening the loader for each epoch (4 steps)")


def test_both_kinds_are_said_once_each(shares, messages):
    """A window with slow batches, then windows with a slow opening alone: one warning each."""

    class Faster:
        @hookimpl
        def after_epoch(self, trainer):
            trainer.loaders["train"].seconds, trainer.loaders["train"].opening = 0.0, 100.0

    shares(Faster(), seconds=100.0, slow={"gradients_ready": 25.0}, max_epochs=5)
    assert ["steps wait" in message for message in warnings(messages)] == [True, False]


@pytest.mark.parametrize("hook", ["before_step", "after_step", None])
def test_evaluations_and_checkpoints_are_left_out(shares, tmp_path, hook):
    """10 s each between two steps, or inside one, the checkpoint inside the evaluation too; 1 s of waiting for 3 of work.

    The hooks after a checkpoint, which take as long, belong to it.
    """

    class Between:
        def __init__(self):
            if hook is not None:
                self.now = hookimpl(specname=hook)(lambda trainer: trainer.evaluate("val"))

        @hookimpl
        def after_eval(self, trainer):
            trainer.save_checkpoint(trainer.checkpoint_path())

    slow = {"gradients_ready": 3.0, "before_eval": 10.0, "on_save": 10.0, "after_save": 10.0}
    plugins = [Evaluation(every_steps=1), Checkpoint(every_steps=1), Between()]
    assert shares(*plugins, seconds=1.0, slow=slow, val=(1.0,), work_dir=tmp_path / "run") == [0.25]


def test_what_happens_between_epochs_is_left_out(shares):
    slow = {"gradients_ready": 3.0, "after_epoch": 1000.0, "after_train_epoch": 1000.0}
    assert shares(seconds=1.0, slow=slow, max_epochs=3) == [0.25] * 3


def test_a_dropped_batch_is_no_step(shares):
    """The waiting for it counts, the second before it was dropped does not: 5 batches of 3 s, 4 steps of 1 + 4 s."""

    class Drops:
        phase = "reporting"

        @hookimpl
        def before_step(self, trainer):
            if trainer.batch_index == 1:
                raise SkipStep("no")

    assert shares(Drops(), seconds=4.0, slow={"before_step": 1.0, "gradients_ready": 4.0}, batches=5) == [0.5]


def test_windows_go_on_over_epochs(shares):
    """6 steps in 3 epochs of 2: one window of 4."""
    assert shares(seconds=1.0, slow={"gradients_ready": 3.0}, batches=2, max_epochs=3) == [0.25]


def loader(**attributes):
    return SimpleNamespace(**{"pin_memory": False, "prefetch_factor": 2, "persistent_workers": False, **attributes})


def test_remedies_fit_the_loader(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    assert "set num_workers" in remedies(loader(num_workers=0), "cpu")[0]
    assert [advice.split()[:2] for advice in remedies(loader(num_workers=2), "cpu")] == [
        ["raise", "num_workers"],
        ["raise", "prefetch_factor"],
    ]
    assert remedies(loader(num_workers=4), "cpu")[0].startswith("make the dataset cheaper")
    assert any("pin_memory=True" in advice for advice in remedies(loader(num_workers=4), "cuda"))
    assert not any("pin_memory" in advice for advice in remedies(loader(num_workers=4, pin_memory=True), "cuda"))
    assert "num_workers=n" in remedies([], "cpu")[0]
    assert "persistent_workers=True" in opening_remedy(loader(num_workers=2))
    assert "persistent_workers" not in opening_remedy(loader(num_workers=2, persistent_workers=True))
    assert "persistent_workers" not in opening_remedy([])


@pytest.mark.parametrize("options", [{"warn_share": 0.0}, {"warn_share": 1.1}, {"window_steps": 0}])
def test_options_are_checked(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        Starvation(**options)
