"""Stages that are declined, repeated or lost; plugins that fail and are let go; who is named for an error."""

import contextlib
import gc
import importlib.util
import logging
import threading
import weakref

import pytest

from trainhooks import SkipEpoch, SkipStep, StageResultError, UsageError, hookimpl
from trainhooks.manager import plugin_name, snake_case


class Declines:
    """Forgets to return what it did."""

    @hookimpl
    def train_step(self, trainer, batch):
        trainer.model(batch)


def test_a_declined_stage_with_side_effects_is_reported_once(make_trainer, messages):
    trainer = make_trainer([Declines()])
    trainer.train()
    said = [text for text in messages() if "returned None" in text]
    assert len(said) == 1
    assert said[0].startswith("plugin 'declines' (given to Trainer) implements train_step() but returned None")
    assert trainer.model.w.item() == -10.0  # the engine did the work
    trainer.train(max_epochs=2)
    assert len([text for text in messages() if "returned None" in text]) == 1


def test_each_plugin_that_declined_is_named(make_trainer, messages):
    class Other(Declines):
        on_error = "disable"

    make_trainer([Declines(), Other()]).train()
    said = sorted(text.partition(" (")[0] for text in messages() if "returned None" in text)
    assert said == ["plugin 'declines'", "plugin 'other'"]


def test_declining_is_not_reported_when_another_plugin_does_the_work(make_trainer, messages):
    class Works:
        phase = "reporting"

        @hookimpl
        def train_step(self, trainer, batch):
            return {"loss": trainer.model(batch)}

    trainer = make_trainer([Declines(), Works()])
    trainer.train()
    assert trainer.model.w.item() == 0.0  # nobody stepped the optimizer
    trainer.unregister("declines")
    trainer.unregister("works")
    trainer.train(max_epochs=2)
    assert not [text for text in messages() if "returned None" in text]


def test_declining_a_stage_without_side_effects_is_no_matter(make_trainer, messages):
    class Quiet:
        @hookimpl
        def update_due(self): ...

    make_trainer([Quiet()]).train()
    assert not messages()


# --- call_others ---


class Repeats:
    """Runs each step twice, through the others."""

    name = "repeats"

    @hookimpl
    def train_step(self, trainer, batch, update_due):
        trainer.call_others("train_step", self, batch=batch, update_due=update_due)
        return trainer.call_others("train_step", "repeats", batch=batch, update_due=update_due)


def test_call_others_repeats_a_stage(make_trainer):
    trainer = make_trainer([Repeats()])
    trainer.train()
    assert trainer.model.w.item() == -20.0


def test_call_others_asks_only_those_that_come_later_and_no_wrapper(make_trainer):
    log = []

    def one(label, phase_, answer):
        class One:
            name, phase = label, phase_

            @hookimpl
            def update_due(self, trainer):
                log.append(label)
                return answer

        return One()

    class Asks:
        phase = "algorithm"

        @hookimpl
        def update_due(self, trainer, batch):
            return trainer.call_others("update_due", self, batch=batch)

    class Wraps:
        @hookimpl(wrapper=True)
        def update_due(self):
            log.append("wraps")
            return (yield)

    plugins = [
        one("early", "bookkeeping", None),
        Asks(),
        Wraps(),
        one("declines", "decision", None),
        one("late", "reporting", False),
    ]
    trainer = make_trainer(plugins, values=(1.0,))
    trainer.train()
    assert log == ["wraps", "early", "declines", "late"]
    assert trainer.update == 0


@pytest.mark.parametrize(
    ("hook", "arguments", "words"),
    [
        ("train_stepp", {}, "there is no such stage; did you mean 'train_step'?"),
        ("after_step", {}, "there is no such stage"),
        ("train_step", {"batch": 1}, "give the stage its arguments by name: batch, update_due"),
        ("train_step", {"batch": 1, "update_due": True, "bacth": 2}, "give the stage its arguments by name"),
        ("compute_loss", {"batch": 1}, "is no active plugin that replaces this stage"),
    ],
)
def test_call_others_says_what_is_wrong(hook, arguments, words, make_trainer):
    plugin = Repeats()
    trainer = make_trainer([plugin])
    with pytest.raises(UsageError) as caught:
        trainer.call_others(hook, plugin, **arguments)
    assert words in str(caught.value)
    assert repr(hook) in str(caught.value)


# --- Lost results ---


class Innocent:
    def __init__(self, name):
        self.name = name

    @hookimpl(wrapper=True)
    def compute_loss(self):
        return (yield)


class Swallows:
    @hookimpl(wrapper=True)
    def compute_loss(self):
        try:
            return (yield)
        except ZeroDivisionError:
            pass


class Fails:
    phase = "reporting"

    @hookimpl
    def compute_loss(self):
        return 1 / 0


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0)])
def test_the_wrapper_that_swallowed_an_error_is_named(order, make_trainer):
    wrappers = [Swallows(), Innocent("innocent"), Innocent("harmless")]
    trainer = make_trainer([*(wrappers[i] for i in order), Fails()])
    with pytest.raises(
        StageResultError, match=r"stage 'compute_loss' has no result: the wrapper of plugin 'swallows'"
    ) as caught:
        trainer.train()
    assert "innocent" not in str(caught.value)
    assert "harmless" not in str(caught.value)
    assert f"{__file__}:{Swallows.compute_loss.__code__.co_firstlineno}" in str(caught.value)


def test_an_error_that_is_passed_on_is_not_the_wrappers(make_trainer):
    trainer = make_trainer([Innocent("innocent"), Fails()])
    with pytest.raises(ZeroDivisionError) as caught:
        trainer.train()
    assert "raised in compute_loss() of plugin 'fails'" in caught.value.__notes__[0]


# --- Plugins that go while a hook is called ---


class Hears:
    name = "hears"

    def __init__(self):
        self.heard = []

    @hookimpl
    def configure(self):
        self.heard.append("configure")

    @hookimpl
    def setup(self):
        self.heard.append("setup")

    @hookimpl(wrapper=True)
    def train_step(self):
        self.heard.append("train_step")
        try:
            return (yield)
        finally:
            self.heard.append("after train_step")

    @hookimpl(wrapper=True)
    def before_step(self):
        self.heard.append("before_step")
        yield

    @hookimpl
    def after_step(self):
        self.heard.append("after_step")

    @hookimpl
    def after_train(self):
        self.heard.append("after_train")

    @hookimpl
    def on_exception(self):
        self.heard.append("on_exception")

    @hookimpl
    def teardown(self):
        self.heard.append("teardown")


STEP = ["before_step", "train_step", "after train_step"]


def removes(hook):
    def work(trainer):
        trainer.register(Hears(), "newcomer")  # so that the running call is not the one that is in force any more
        trainer.unregister("newcomer")
        trainer.unregister("hears")

    def wrapped(trainer):
        work(trainer)
        yield

    wrapper = hook == "before_step"
    return type("Removes", (), {hook: staticmethod(hookimpl(wrapped if wrapper else work, wrapper=wrapper))})()


@pytest.mark.parametrize(
    ("hook", "heard"),
    [
        ("configure", []),
        ("setup", ["configure"]),
        ("before_step", ["configure", "setup", "teardown"]),
        # what it wraps is undone
        ("compute_loss", ["configure", "setup", "before_step", "train_step", "teardown", "after train_step"]),
        ("after_step", ["configure", "setup", *STEP, "teardown"]),
        ("after_train", ["configure", "setup", *STEP, "after_step", "teardown"]),
        ("teardown", ["configure", "setup", *STEP, "after_step", "after_train", "teardown"]),
    ],
)
def test_a_plugin_that_was_taken_out_hears_nothing_more(hook, heard, make_trainer):
    hears = Hears()
    make_trainer([removes(hook), hears], max_steps=1).train()
    assert hears.heard == heard


def test_neither_does_it_of_the_exception(make_trainer):
    hears = Hears()
    with pytest.raises(ZeroDivisionError):
        make_trainer([removes("on_exception"), hears, Fails()], max_steps=1).train()
    assert hears.heard == ["configure", "setup", *STEP, "after_train", "teardown"]


def test_what_is_registered_in_a_teardown_is_torn_down(make_trainer):
    hears = Hears()
    plugin = type("Registers", (), {"teardown": staticmethod(hookimpl(lambda trainer: trainer.register(hears)))})()
    make_trainer([plugin], max_steps=1).train()
    assert hears.heard == ["configure", "setup", "teardown"]


def test_configure_is_called_once_though_that_of_another_plugin_failed(make_trainer):
    class FailsOnce:
        calls = 0

        @hookimpl
        def configure(self, trainer):
            self.calls += 1
            if self.calls == 1:
                raise ValueError("once")

    hears, fails = Hears(), FailsOnce()
    trainer = make_trainer([hears, fails], max_steps=1)
    with pytest.raises(ValueError, match="once"):
        trainer.train()
    trainer.train()
    assert (hears.heard.count("configure"), fails.calls) == (1, 2)


# --- Lost errors ---


class SwallowsEvent:
    def __init__(self, hook, error=Exception):
        @hookimpl(wrapper=True, specname=hook)
        def swallow():
            with contextlib.suppress(error):
                yield

        self.swallow = swallow


class PassesOn:
    def __init__(self, name):
        self.name = name

    @hookimpl(wrapper=True)
    def after_step(self):
        try:
            yield
        except ValueError:
            raise
        finally:
            self.done = True


class FailsEvent:
    def __init__(self, error):
        self.error = error

    @hookimpl
    def after_step(self):
        raise self.error("lost")


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0)])
def test_an_error_that_a_wrapper_of_an_event_swallows_is_not_lost(order, make_trainer):
    wrappers = [SwallowsEvent("after_step"), PassesOn("innocent"), PassesOn("harmless")]
    trainer = make_trainer([*(wrappers[i] for i in order), FailsEvent(ValueError)], max_steps=2)
    with pytest.raises(
        StageResultError, match=r"event 'after_step' has failed: the wrapper of plugin 'swallows_event'"
    ) as caught:
        trainer.train()
    assert f"{__file__}:{wrappers[0].swallow.__code__.co_firstlineno}, swallowed the error" in str(caught.value)
    assert "innocent" not in str(caught.value)
    assert "harmless" not in str(caught.value)
    assert str(caught.value.__cause__) == "lost"
    assert trainer.step == 0


def test_neither_is_that_of_an_event_within(make_trainer):
    class Saves:
        @hookimpl
        def after_step(self, trainer):
            trainer.log("x", 1.0)
            trainer.hooks.before_epoch(trainer=trainer, epoch=0)

    class FailsLater:
        epochs = 0

        @hookimpl
        def before_epoch(self):
            self.epochs += 1
            if self.epochs > 1:
                raise ValueError("lost")

    with pytest.raises(StageResultError, match="event 'before_epoch' has failed"):
        make_trainer([SwallowsEvent("before_epoch"), PassesOn("passes"), Saves(), FailsLater()]).train()


def test_a_wrapper_may_decide_upon_a_request(make_trainer):
    trainer = make_trainer([SwallowsEvent("after_step", SkipEpoch), FailsEvent(SkipEpoch)], max_steps=3)
    assert trainer.train().step == 3


def test_an_error_that_is_swallowed_keeps_no_trainer(make_trainer):
    trainer = make_trainer([SwallowsEvent("after_step"), FailsEvent(ValueError)])
    ended = weakref.ref(trainer)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(StageResultError):
            trainer.train()
        del trainer
        assert ended() is None
    finally:
        gc.enable()


# --- The policy "disable" ---


class Policy:
    """Fails in one hook at step 2, from a plain function or before or after a wrapper's yield."""

    on_error = "disable"
    name = "policy"

    def __init__(self, hook, place="plain"):
        self.calls, self.teardowns = [], 0

        def fail(trainer):
            self.calls.append(trainer.step)
            if trainer.step == 2 or hook == "setup":
                raise ValueError("it broke")

        def plain(trainer):
            fail(trainer)

        def before(trainer):
            fail(trainer)
            return (yield)

        def after(trainer):
            result = yield
            fail(trainer)
            return result

        self.failing = hookimpl(specname=hook, wrapper=place != "plain")(
            {"plain": plain, "before": before, "after": after}[place]
        )

    @hookimpl
    def teardown(self):
        self.teardowns += 1


@pytest.mark.parametrize("place", ["plain", "before", "after"])
@pytest.mark.parametrize("hook", ["before_step", "after_step", "train_step", "compute_loss", "prepare_batch"])
def test_a_failing_plugin_is_disabled_and_the_run_goes_on(hook, place, make_trainer, caplog):
    plugin = Policy(hook, place)
    trainer = make_trainer([plugin])
    with caplog.at_level(logging.WARNING, "trainhooks"):
        outcome = trainer.train()
    assert (outcome.status, outcome.step, trainer.model.w.item()) == ("completed", 10, -10.0)
    assert plugin.calls == [0, 1, 2]
    assert plugin.teardowns == 1
    warned = [record for record in caplog.records if "is disabled" in record.getMessage()]
    assert len(warned) == 1
    assert warned[0].exc_info[0] is ValueError
    assert "it broke" in caplog.text
    assert "plugin 'policy' (given to Trainer) failed" in warned[0].getMessage()
    assert trainer.manager.disabled == {"policy": "ValueError('it broke')"}
    assert "policy" not in trainer.plugins


def test_a_plugin_that_fails_in_setup_gets_no_teardown(make_trainer):
    plugin = Policy("setup")
    trainer = make_trainer([plugin])
    assert trainer.train().step == 10
    assert plugin.teardowns == 0
    assert list(trainer.manager.disabled) == ["policy"]


@pytest.mark.parametrize("hook", ["after_train", "configure"])
def test_a_failure_outside_of_the_loop(hook, make_trainer):
    plugin = Policy("setup")
    failing = hookimpl(specname=hook)(lambda: 1 / 0)
    plugin.failing = failing
    trainer = make_trainer([plugin])
    assert trainer.train().status == "completed"
    assert plugin.teardowns == (1 if hook == "after_train" else 0)
    assert list(trainer.manager.disabled) == ["policy"]


def test_a_failing_teardown_is_a_warning(make_trainer, messages):
    class Ends:
        on_error = "disable"

        @hookimpl
        def teardown(self):
            raise OSError("cannot close")

    trainer = make_trainer([Ends()])
    assert trainer.train().status == "completed"
    assert len([text for text in messages() if "'ends'" in text]) == 1


def test_a_reporter_that_fails_stays_and_is_torn_down_on_the_training_thread(make_trainer, messages, impatient):
    class Reports:
        on_error = "disable"

        def __init__(self):
            self.threads, self.teardowns = [], []

        @hookimpl
        def report_metrics(self):
            self.threads.append(threading.current_thread().name)
            raise ConnectionError("no server")

        @hookimpl
        def teardown(self):
            self.teardowns.append(threading.current_thread())

    plugin = Reports()
    trainer = make_trainer([plugin], log_every_steps=1)
    assert trainer.train().status == "completed"
    assert set(plugin.threads) == {"trainhooks-reporter-reports"}
    assert plugin.teardowns == [threading.main_thread()]
    assert [text.partition(": ")[2] for text in messages()][-1] == "10 of 10 records not sent"
    assert trainer.manager.disabled == {}


@pytest.mark.parametrize("place", ["plain", "before", "after"])
def test_a_request_to_the_loop_is_no_failure(place, make_trainer):
    class Filters:
        on_error = "disable"

        def __init__(self):
            def plain(trainer):
                if trainer.batch_index == 3:
                    raise SkipStep("not this one")

            def before(trainer):
                plain(trainer)
                return (yield)

            def after(trainer):
                result = yield
                plain(trainer)
                return result

            self.filter = hookimpl(specname="prepare_batch", wrapper=place != "plain")(locals()[place])

    trainer = make_trainer([Filters()])
    assert trainer.train().step == 9
    assert trainer.manager.disabled == {}


@pytest.mark.parametrize("error", [ValueError("inner"), KeyboardInterrupt(), StopIteration("inner"), SkipStep("inner")])
def test_what_comes_from_inside_passes_a_guarded_wrapper(error, make_trainer):
    class Surrounds:
        on_error = "disable"

        @hookimpl(wrapper=True)
        def compute_loss(self):
            return (yield)

    class Raises:
        phase = "reporting"

        @hookimpl
        def compute_loss(self, trainer):
            if trainer.batch_index == 2:
                raise error

    trainer = make_trainer([Surrounds(), Raises()])
    if isinstance(error, SkipStep):
        assert trainer.train().step == 9
    else:
        with pytest.raises(type(error)) as caught:
            trainer.train()
        assert caught.value is error
        assert "of plugin 'raises'" in error.__notes__[0]
    assert trainer.manager.disabled == {}
    assert "surrounds" in trainer.plugins


def test_a_guarded_wrapper_cannot_lose_what_is_inside(make_trainer):
    class Loses:
        on_error = "disable"

        @hookimpl(wrapper=True)
        def compute_loss(self, trainer):
            result = yield
            if trainer.step == 100:
                return result

    trainer = make_trainer([Loses()])
    assert trainer.train().step == 10
    assert trainer.model.w.item() == -10.0


@pytest.mark.parametrize("times", [0, 2])
def test_a_guarded_wrapper_that_does_not_yield_once_is_disabled(times, make_trainer):
    class Wrong:
        on_error = "disable"

        @hookimpl(wrapper=True)
        def compute_loss(self):
            result = None
            for _ in range(times):
                result = yield
            return result

    trainer = make_trainer([Wrong()])
    assert trainer.train().step == 10
    assert trainer.model.w.item() == -10.0
    assert "yield" in trainer.manager.disabled["wrong"]


def test_users_can_override_the_policy(make_trainer):
    strict = make_trainer([Policy("after_step")], options={"policy": {"on_error": "raise"}})
    with pytest.raises(ValueError, match="it broke"):
        strict.train()

    class Raising(Policy):
        on_error = "raise"

    lenient = make_trainer([Raising("after_step")], options={"policy": {"on_error": "disable"}})
    assert lenient.train().step == 10
    with pytest.raises(
        UsageError, match=r"'on_error' in Trainer\(options=\{'policy': ...\}\): must be 'raise' or 'disable', not 5"
    ):
        make_trainer([Policy("after_step")], options={"policy": {"on_error": 5}})


# --- Attribution ---


def test_instances_of_one_class_and_functions_of_one_closure_are_told_apart(make_trainer):
    class Twin:
        def __init__(self, name, fails):
            self.name, self.fails = name, fails

        @hookimpl
        def after_step(self):
            if self.fails:
                raise ValueError

    def closure(label, fails):
        class Holder:
            name = label

        @hookimpl(specname="after_step")
        def work(trainer):
            if fails:
                raise ValueError

        holder = Holder()
        holder.work = work
        return holder

    for make in (Twin, closure):
        for guilty in ("one", "two", "three"):
            trainer = make_trainer([make(name, name == guilty) for name in ("one", "two", "three")])
            with pytest.raises(ValueError) as caught:
                trainer.train()
            assert f"of plugin '{guilty}' " in caught.value.__notes__[0]


def test_modules_with_the_same_text_are_told_apart(fake_distribution, make_trainer):
    """Their code objects are equal; only their identity differs."""
    text = "from trainhooks import hookimpl\nimport sys\n@hookimpl\ndef after_step():\n    if __name__ in sys.guilty:\n        1 / 0\n"
    for name in ("alike_a", "alike_b"):
        fake_distribution(name.replace("_", "-"), {name: name}, {name: text})
    import sys

    for guilty in ("alike_a", "alike_b"):
        sys.guilty = {guilty}
        trainer = make_trainer(["alike_a", "alike_b"])
        with pytest.raises(ZeroDivisionError) as caught:
            trainer.train()
        assert f"of plugin '{guilty}' " in caught.value.__notes__[0]
    del sys.guilty


def test_a_teardown_that_fails_on_unregistering_is_the_plugins_own(make_trainer):
    class Ends:
        @hookimpl
        def teardown(self):
            raise OSError("cannot close")

    class Removes:
        @hookimpl
        def after_step(self, trainer):
            trainer.unregister("ends")

    trainer = make_trainer([Ends(), Removes()])
    with pytest.raises(OSError, match="cannot close") as caught:
        trainer.train()
    assert "raised in teardown() of plugin 'ends'" in caught.value.__notes__[0]


def test_a_removed_plugin_is_let_go(make_trainer):
    class Kept:
        @hookimpl
        def train_step(self): ...

    trainer = make_trainer([Kept()])
    trainer.train()
    kept = weakref.ref(trainer.plugins["kept"])
    trainer.unregister("kept")
    gc.collect()
    assert kept() is None


def test_a_finished_trainer_and_its_plugins_need_no_garbage_collector(make_trainer):
    class Kept:
        @hookimpl
        def after_step(self): ...

    plugin = Kept()
    trainer = make_trainer([plugin])
    trainer.train()
    kept, ended = weakref.ref(plugin), weakref.ref(trainer)
    gc.disable()
    try:
        del plugin, trainer
        assert ended() is None
        assert kept() is None
    finally:
        gc.enable()


# --- Names ---


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("EMA", "ema"),
        ("EarlyStopping", "early_stopping"),
        ("LRFinder", "lr_finder"),
        ("MetricsLog2", "metrics_log2"),
        ("a", "a"),
    ],
)
def test_snake_case(name, expected):
    assert snake_case(name) == expected


def test_names_of_plugins(make_trainer):
    class EarlyStopping:
        @hookimpl
        def after_step(self): ...

    class Named(EarlyStopping):
        name = "my-name"

    assert plugin_name(EarlyStopping()) == plugin_name(EarlyStopping) == "early_stopping"
    assert plugin_name(Named()) == "my-name"
    assert plugin_name(importlib.util) == "util"
    trainer = make_trainer([EarlyStopping(), EarlyStopping(), EarlyStopping])
    assert list(trainer.plugins) == ["early_stopping", "early_stopping@2", "early_stopping@3"]
    assert trainer.register(EarlyStopping()) == "early_stopping@4"
