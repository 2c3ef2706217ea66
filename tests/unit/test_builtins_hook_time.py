"""``hook_time`` on a clock that only moves where the test says so."""

import functools
import gc
import json
import weakref

import pytest

from trainhooks import OptionError, SkipStep, hookimpl
from trainhooks_builtins import Checkpoint, Evaluation, HookTime
from trainhooks_builtins._hook_table import as_plain, table_of


class Clock:
    def __init__(self):
        self.now = 50.0

    def __call__(self):
        return self.now

    def take(self, seconds):
        self.now += seconds


class Slow:
    """Takes these seconds in these hooks."""

    def __init__(self, clock, name="slow", **seconds):
        self.clock, self.name = clock, name
        for hook, duration in seconds.items():
            setattr(self, hook, self._make(hook, duration))

    def _make(self, hook, seconds):
        def take():
            self.clock.now += seconds

        return hookimpl(specname=hook)(take)


class Wraps:
    """1 s before and 2 s after each step, which is somebody else's."""

    def __init__(self, clock):
        self.clock = clock

    @hookimpl(wrapper=True)
    def train_step(self):
        self.clock.take(1.0)
        try:
            return (yield)
        finally:
            self.clock.take(2.0)


def only(totals, *plugins):
    """Return what was measured of these plugins, without hooks that took no time."""
    return {
        plugin: {hook: value for hook, value in hooks.items() if value[1]}
        for plugin, hooks in totals.items()
        if plugin in plugins
    }


def test_calls_and_seconds(make_trainer):
    """4 steps."""
    clock = Clock()
    plugin = HookTime(clock=clock)
    make_trainer(
        [plugin, Slow(clock, before_step=1.0, after_step=5.0, after_epoch=7.0, teardown=9.0)], values=(1.0,) * 4
    ).train()
    assert only(plugin.totals, "slow") == {
        "slow": {"before_step": (4, 4.0), "after_step": (4, 20.0), "after_epoch": (1, 7.0), "teardown": (1, 9.0)}
    }


def test_a_wrapper_is_charged_with_its_own_time(make_trainer):
    """3 steps: 1 + 2 s of the wrapper, 4 s of who listens inside, 8 s of a second wrapper's part of it."""
    clock = Clock()
    plugin = HookTime(clock=clock)
    make_trainer([plugin, Wraps(clock), Slow(clock, gradients_ready=4.0)], values=(1.0,) * 3).train()
    assert only(plugin.totals, "wraps", "slow") == {
        "wraps": {"train_step": (3, 9.0)},
        "slow": {"gradients_ready": (3, 12.0)},
    }


def test_what_a_hook_calls_is_not_its_time(make_trainer):
    """In each of 2 steps ``after_step`` takes 1 s and evaluates: 10 s in another plugin's ``before_eval``, 3 s in ``eval_step``."""
    clock = Clock()

    class Evaluates:
        @hookimpl
        def after_step(self, trainer):
            clock.take(0.5)
            trainer.evaluate("val")
            clock.take(0.5)

    class Evals:
        @hookimpl
        def eval_step(self):
            clock.take(3.0)
            return {"loss": 0.0}

    plugin = HookTime(clock=clock)
    plugins = [plugin, Evaluates(), Evals(), Slow(clock, before_eval=10.0)]
    make_trainer(plugins, values=(1.0,) * 2, val=(1.0,)).train()
    assert only(plugin.totals, "evaluates", "evals", "slow") == {
        "evaluates": {"after_step": (2, 2.0)},
        "evals": {"eval_step": (2, 6.0)},
        "slow": {"before_eval": (2, 20.0)},
    }


def test_the_engine_is_measured_too(make_trainer, monkeypatch):
    """The model takes 2 s in each of 3 steps, which are the engine's in ``compute_loss``."""
    clock = Clock()
    plugin = HookTime(clock=clock)
    trainer = make_trainer([plugin], values=(1.0,) * 3)
    trainer.model.register_forward_hook(lambda *_: clock.take(2.0))
    trainer.train()
    assert only(plugin.totals, "engine") == {"engine": {"compute_loss": (3, 6.0)}}


def test_a_plugin_that_comes_later_is_measured(make_trainer):
    """Registered in the second of 4 steps: ``after_step`` of three."""
    clock = Clock()

    class Registers:
        @hookimpl
        def before_step(self, trainer):
            if trainer.step == 1:
                trainer.register(Slow(clock, name="late", setup=100.0, after_step=1.0))

    plugin = HookTime(clock=clock)
    make_trainer([plugin, Registers()], values=(1.0,) * 4).train()
    assert only(plugin.totals, "late", "registers") == {"late": {"setup": (1, 100.0), "after_step": (3, 3.0)}, "registers": {}}


def test_the_reporter_thread(make_trainer):
    """``report_metrics`` runs on a thread of its own, with calls of its own."""
    clock = Clock()

    class Reports:
        @hookimpl
        def report_metrics(self, records):
            clock.take(1.0 * len(records))

    plugin = HookTime(clock=lambda: 0.0)
    trainer = make_trainer([plugin, Reports()], log_every_steps=1)
    trainer.train()
    assert plugin.totals["reports"]["report_metrics"][0] >= 1
    assert clock.now == 50.0 + trainer.records


def test_one_that_came_in_the_middle_measures_from_then_on(make_trainer):
    """Registered in the second of 4 steps, before ``after_step`` of that step."""
    clock = Clock()
    plugin = HookTime(clock=clock)

    class Registers:
        @hookimpl
        def before_step(self, trainer):
            if trainer.step == 1:
                trainer.register(plugin)

    make_trainer([Registers(), Slow(clock, after_step=1.0)], values=(1.0,) * 4).train()
    assert only(plugin.totals, "slow") == {"slow": {"after_step": (3, 3.0)}}


def functions(trainer):
    return {
        (name, hook): one.function
        for name, plugin in trainer.manager.plugins.items()
        for hook, one in plugin.implementations.items()
    }


def test_everything_is_left_as_it_was(make_trainer):
    clock = Clock()
    trainer = make_trainer([HookTime(clock=clock), Wraps(clock), Slow(clock, after_step=1.0)])
    before, engine = functions(trainer), trainer.hooks.compute_loss
    trainer.train()
    assert functions(trainer) == before
    assert trainer.hooks.compute_loss == engine
    assert trainer.bus.before_flush == []


def test_also_when_it_is_taken_out(make_trainer):
    """Unregistered in the third of 4 steps: two calls of ``after_step`` were measured."""
    clock = Clock()
    plugin = HookTime(clock=clock)

    class Leaves:
        @hookimpl
        def before_step(self, trainer):
            if trainer.step == 2:
                trainer.unregister("hook_time")

    slow = Slow(clock, after_step=1.0)
    trainer = make_trainer([plugin, Leaves(), slow], values=(1.0,) * 4)
    trainer.train()
    assert only(plugin.totals, "slow") == {"slow": {"after_step": (2, 2.0)}}
    assert clock.now == 54.0
    assert not hasattr(functions(trainer)["slow", "after_step"], "__wrapped__")


def test_a_second_run_counts_from_zero(make_trainer):
    clock = Clock()
    plugin = HookTime(clock=clock)
    trainer = make_trainer([plugin, Slow(clock, after_step=1.0)], values=(1.0,) * 4)
    trainer.train()
    trainer.train(max_epochs=2)
    assert only(plugin.totals, "slow") == {"slow": {"after_step": (4, 4.0)}}


def test_an_error_keeps_its_type_its_note_and_its_time(make_trainer):
    clock = Clock()

    class Fails:
        @hookimpl
        def after_step(self, trainer):
            clock.take(3.0)
            raise ValueError("no")

    plugin = HookTime(clock=clock)
    with pytest.raises(ValueError, match="no") as caught:
        make_trainer([plugin, Wraps(clock), Fails()]).train()
    assert "raised in after_step() of plugin 'fails'" in "".join(caught.value.__notes__)
    assert only(plugin.totals, "fails", "wraps") == {"fails": {"after_step": (1, 3.0)}, "wraps": {"train_step": (1, 3.0)}}


def test_an_error_inside_a_wrapper_passes_through_it(make_trainer):
    clock = Clock()

    class Fails:
        @hookimpl
        def compute_loss(self):
            raise ValueError("no")

    class Skips:
        @hookimpl(wrapper=True)
        def train_step(self):
            try:
                return (yield)
            except ValueError as error:
                raise SkipStep("not this one") from error

    plugin = HookTime(clock=clock)
    trainer = make_trainer([plugin, Skips(), Wraps(clock), Fails()], values=(1.0,) * 3)
    trainer.train()
    assert trainer.step == 0
    assert only(plugin.totals, "wraps") == {"wraps": {"train_step": (3, 9.0)}}


def test_a_plugin_that_is_disabled(make_trainer, messages):
    clock = Clock()

    class Fragile:
        on_error = "disable"

        @hookimpl
        def after_step(self, trainer):
            clock.take(1.0)
            if trainer.step == 1:
                raise ValueError("no")

    plugin = HookTime(clock=clock)
    trainer = make_trainer([plugin, Fragile()], values=(1.0,) * 4)
    trainer.train()
    assert trainer.step == 4
    assert only(plugin.totals, "fragile") == {"fragile": {"after_step": (2, 2.0)}}


# --- What is said and written ---


def test_file_and_table(make_trainer, tmp_path, messages):
    clock = Clock()
    plugin = HookTime(clock=clock)
    trainer = make_trainer([plugin, Slow(clock, before_step=1.0, after_step=0.5)], values=(1.0,) * 4, work_dir=tmp_path / "run")
    trainer.train()
    written = json.loads((tmp_path / "run" / "hook_time.json").read_text())
    assert (written["format"], written["steps"]) == (1, 4)
    assert written["plugins"]["slow"] == {
        "calls": 8,
        "seconds": 6.0,
        "hooks": {
            "before_step": {"calls": 4, "seconds": 4.0, "mean_us": 1e6},
            "after_step": {"calls": 4, "seconds": 2.0, "mean_us": 5e5},
        },
    }
    (table,) = [text for text in messages() if text.startswith("hook_time: host time of each plugin")]
    lines = [" ".join(line.split()) for line in table.splitlines()]
    assert lines[1:5] == [
        "plugin hook calls seconds us a call",
        "slow all 8 6.0000 750000.0",
        "before_step 4 4.0000 1000000.0",
        "after_step 4 2.0000 500000.0",
    ]


def test_the_table_is_cut():
    """Of four hooks the two that took most, whoever's they are; every plugin's total."""
    totals = {"a": {"x": (1, 1.0), "y": (2, 4.0)}, "b": {"x": (1, 3.0), "z": (1, 0.5)}}
    assert [" ".join(line.split()) for line in table_of(totals, 2)[1:]] == [
        "a all 3 5.0000 1666666.7",
        "y 2 4.0000 2000000.0",
        "b all 2 3.5000 1750000.0",
        "x 1 3.0000 3000000.0",
        "... and 2 hooks that took less",
    ]
    assert len(table_of(totals, 0)) == 7
    assert as_plain({}) == {} and len(table_of({}, 3)) == 1


def test_an_evaluation_writes_nothing(make_trainer, tmp_path, messages):
    trainer = make_trainer([HookTime()], val=(1.0,), work_dir=tmp_path / "run")
    trainer.evaluate("val")
    assert not (tmp_path / "run").exists()
    assert any(text.startswith("hook_time: host time") for text in messages())


def warnings_of(messages):
    return [text for text in messages() if text.startswith("hook_time: plugins take")]


def engine_step(trainer, clock, seconds):
    trainer.model.register_forward_hook(lambda *_: clock.take(seconds))


def test_a_warning_that_names_the_worst(make_trainer, messages):
    """Steps of 6 s of the engine, 3 s of ``slow`` and 1 s of ``other``: 40 %, 30 % of it one plugin's; said once."""
    clock = Clock()
    plugins = [HookTime(clock=clock), Slow(clock, before_step=0.5, after_step=2.5), Slow(clock, "other", after_step=1.0)]
    trainer = make_trainer(plugins, values=(1.0,) * 30, max_epochs=3)
    engine_step(trainer, clock, 6.0)
    trainer.train()
    (warning,) = warnings_of(messages)
    assert warning == (
        "hook_time: plugins take 40% of the training's time (warn_share = 0.2), 'slow' alone 30%, most of it in after_step, "
        "2500000 us a call: have it do less there, or only in every n-th step, or leave it out with -p no:slow"
    )


@pytest.mark.parametrize(
    ("seconds", "share", "warns"), [(2.0, 0.2, False), (2.1, 0.2, True), (2.1, 0.0, False), (2.1, 0.5, False)]
)
def test_the_limit(make_trainer, messages, seconds, share, warns):
    """8 s of the engine: 2 s of a plugin are a fifth."""
    clock = Clock()
    trainer = make_trainer([HookTime(share, clock=clock), Slow(clock, after_step=seconds)], values=(1.0,) * 40)
    engine_step(trainer, clock, 8.0)
    trainer.train()
    assert bool(warnings_of(messages)) is warns


@pytest.mark.parametrize(("steps", "warns"), [(24, False), (25, True)])
def test_not_before_there_are_enough_steps(make_trainer, messages, steps, warns):
    clock = Clock()
    make_trainer([HookTime(clock=clock), Slow(clock, after_step=1.0)], values=(1.0,) * steps).train()
    assert bool(warnings_of(messages)) is warns


def test_the_first_steps_do_not_count(make_trainer, messages):
    """A plugin that takes 1000 s in its first call, to import something, and nothing afterwards."""
    clock = Clock()

    class Lazy:
        @hookimpl
        def before_step(self, trainer):
            clock.take(1000.0 if trainer.step == 0 else 0.0)

    trainer = make_trainer([HookTime(clock=clock), Lazy()], values=(1.0,) * 40)
    engine_step(trainer, clock, 1.0)
    trainer.train()
    assert warnings_of(messages) == []


def test_waiting_for_data_is_training_evaluations_are_not(make_trainer, messages, tmp_path):
    """9 s of waiting and 1 s of a plugin are 10 %; an evaluation's 1000 s and a checkpoint's neither lower nor raise the share."""

    class Batches(list):
        def __iter__(self):
            for batch in super().__iter__():
                clock.take(9.0)
                yield batch

    def run(seconds, folder):
        slow = Slow(clock, after_step=seconds, before_eval=1000.0, on_save=1000.0)
        plugins = [HookTime(clock=clock), slow, Evaluation(every_steps=1), Checkpoint(every_steps=3)]
        trainer = make_trainer(plugins, values=(1.0,) * 40, val=(1.0,), work_dir=tmp_path / folder)
        trainer.loaders["train"] = Batches(trainer.loaders["train"])
        trainer.train()
        return warnings_of(messages)

    clock = Clock()
    assert run(1.0, "little") == []
    assert [text[:39] for text in run(6.0, "much")] == ["hook_time: plugins take 40% of the trai"]


def test_what_is_done_in_place_of_the_engine_is_no_cost(make_trainer, messages):
    """``compute_loss`` of the project file is the training itself; what wraps it is not."""
    clock = Clock()

    class Project:
        @hookimpl
        def compute_loss(self, trainer, batch):
            clock.take(5.0)
            return trainer.model(batch)

    make_trainer([HookTime(clock=clock), Project()], values=(1.0,) * 40).train()
    assert warnings_of(messages) == []
    make_trainer([HookTime(clock=clock), Project(), Wraps(clock)], values=(1.0,) * 40).train()
    assert [text[:30] for text in warnings_of(messages)] == ["hook_time: plugins take 38% of"]  # 3 of 8 s


def test_two_do_not_measure_each_other(make_trainer, messages):
    clock = Clock()
    first, second = HookTime(clock=clock), HookTime(clock=clock)
    make_trainer([first, second, Slow(clock, after_step=1.0)], values=(1.0,) * 4).train()
    assert only(first.totals, "slow") == {"slow": {"after_step": (4, 4.0)}}
    assert second.totals == {}
    assert "hook_time: this run is traced by something else already, so nothing is measured" in messages()


def test_the_same_weights_and_a_trainer_that_is_freed(make_trainer):
    gc.collect()
    gc.disable()
    try:
        trainer = make_trainer([HookTime(), Evaluation()], val=(1.0,))
        trainer.train()
        assert trainer.model.w.item() == -10.0
        gone = weakref.ref(trainer.model)
        del trainer
        assert gone() is None
    finally:
        gc.enable()


def test_a_decorated_hook_is_still_found(make_trainer):
    """The marks and the signature are those of the plugin's own function."""
    clock = Clock()
    seen = []

    class Plugin:
        @hookimpl
        @functools.lru_cache(maxsize=None)  # noqa: B019
        def count_updates(self, epoch, steps):
            return steps

        @hookimpl
        def after_step(self, output, batch):
            seen.append(sorted(output))

    make_trainer([HookTime(clock=clock), Plugin()], values=(1.0,) * 2).train()
    assert seen == [["loss"]] * 2


@pytest.mark.parametrize(("options", "message"), [({"warn_share": 1.1}, "warn_share = 1.1"), ({"top": -1}, "top = -1")])
def test_wrong_options(options, message):
    with pytest.raises(OptionError, match=message):
        HookTime(**options)
