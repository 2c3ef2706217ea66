"""``closure``: functions by the name of their hook."""

import functools
import inspect
import sys

import pytest

from trainhooks import OptionError, PluginValidationError, hookimpl, hookspec, hookspecs
from trainhooks_builtins import Closure
from trainhooks_builtins.closure import HOOKS


def test_functions_are_called_with_the_arguments_that_they_name(make_trainer):
    calls = []
    closure = Closure(
        before_epoch=lambda epoch: calls.append(("epoch", epoch)),
        after_step=lambda trainer, output: calls.append((trainer.step, output["loss"].item())),
        teardown=lambda: calls.append("end"),
    )
    make_trainer([closure], max_steps=2, start=3.0).train()
    assert calls == [("epoch", 0), (0, 3.0), (1, 2.0), "end"]


def test_a_stage_is_replaced_or_declined(make_trainer):
    trainer = make_trainer([Closure(compute_loss=lambda trainer: trainer.model.w * 5)], max_steps=2)
    trainer.train()
    assert trainer.model.w.item() == -10
    trainer = make_trainer([Closure(update_due=lambda: None)], max_steps=2)
    trainer.train()
    assert trainer.model.w.item() == -2


def test_a_generator_function_wraps(make_trainer):
    def scaled():
        return 4 * (yield)

    class Scaled:
        def __call__(self):
            return 4 * (yield)

    for function in (scaled, Scaled(), functools.partial(scaled)):
        trainer = make_trainer([Closure(scale_loss=function)], max_steps=2)
        trainer.train()
        assert trainer.model.w.item() == -8


def test_kinds_of_functions(make_trainer):
    calls = []

    class Counter:
        secret = "not copied"

        def __call__(self, trainer):
            calls.append(("object", trainer.step))

        def method(self, epoch):
            calls.append(("method", epoch))

    def partly(what, trainer):
        calls.append((what, trainer.step))

    counter = Counter()
    closure = Closure(after_step=counter, before_epoch=counter.method, after_update=functools.partial(partly, "partial"))
    make_trainer([closure], max_steps=1).train()
    assert calls == [("method", 0), ("partial", 0), ("object", 0)]
    assert not hasattr(closure.after_step, "secret")


def test_the_function_itself_is_not_touched_and_may_serve_two_hooks(make_trainer):
    calls = []

    def note(trainer):
        calls.append(trainer.step)

    make_trainer([Closure(before_step=note, after_step=note)], max_steps=1).train()
    assert calls == [0, 0]
    assert vars(note) == {}


def test_marks_of_hookimpl_stay_in_force(make_trainer):
    calls = []

    @hookimpl(trylast=True)
    def late():
        calls.append("late")

    make_trainer([Closure(after_step=late), Closure(after_step=lambda: calls.append("usual"))], max_steps=1).train()
    assert calls == ["usual", "late"]


def test_several_closures_and_functions_that_are_switched_off(make_trainer):
    calls = []
    plugins = [Closure(after_step=lambda: calls.append(1), before_step=None), Closure(after_step=lambda: calls.append(2))]
    trainer = make_trainer(plugins, max_steps=1)
    trainer.train()
    assert calls == [1, 2]
    assert list(trainer.plugins) == ["closure", "closure@2"]
    assert not trainer.manager.has("before_step")


def test_hooks_of_a_plugin_package(make_trainer):
    class Specs:
        @staticmethod
        @hookspec
        def pack_ping(number):
            """Hear of a number."""

    class Pack:
        hookspecs = Specs

        @hookimpl
        def after_step(self, trainer):
            trainer.hooks.pack_ping(number=trainer.step)

    calls = []
    make_trainer([Closure(pack_ping=lambda number: calls.append(number)), Pack()], max_steps=2).train()
    assert calls == [0, 1]


class TestFaults:
    @pytest.mark.parametrize(
        ("hooks", "text"),
        [
            ({"after_stp": lambda: None}, r"there is no such hook.*after_step"),
            ({"after_step": lambda bacth: None}, r"the hook has no argument 'bacth'.*did you mean 'batch'"),
            ({"after_step": lambda *arguments: None}, r"takes \*arguments; name the arguments"),
            ({"after_step": lambda trainer=None: None}, "has a default"),
        ],
    )
    def test_the_manager_finds_them(self, make_trainer, hooks, text):
        with pytest.raises(PluginValidationError, match=text):
            make_trainer([Closure(**hooks)])

    @pytest.mark.parametrize(
        ("hooks", "text"),
        [
            ({}, "name at least one hook"),
            ({"after_step": None}, "name at least one hook"),
            ({"after_step": 3}, "after_step = 3: must be a function"),
            ({"after_step": "no_such_module:f"}, r"after_step: 'no_such_module:f' cannot be imported: ModuleNotFoundError"),
            ({"after_step": "math:no_such"}, "after_step: 'math:no_such' cannot be imported: AttributeError"),
            ({"after_step": "math:pi"}, "after_step = 'math:pi': it is a float, no function"),
            ({"after_step": "math"}, "it is a module, no function"),
        ],
    )
    def test_what_is_no_function(self, hooks, text):
        with pytest.raises(OptionError, match=text):
            Closure(**hooks)

    def test_an_error_in_a_function_names_the_plugin_and_the_hook(self, make_trainer):
        def broken():
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as left:
            make_trainer([Closure(after_step=broken)]).train()
        assert left.value.__notes__[0].startswith("raised in after_step() of plugin 'closure'")


class TestOptions:
    @pytest.fixture
    def functions(self, tmp_path, monkeypatch):
        (tmp_path / "my_functions.py").write_text("calls = []\ndef note(trainer):\n    calls.append(trainer.step)\n")
        monkeypatch.syspath_prepend(tmp_path)
        yield lambda: sys.modules["my_functions"].calls
        sys.modules.pop("my_functions", None)

    def test_from_a_file(self, make_trainer, functions, tmp_path):
        text = '[train]\nmax_steps = 2\n[plugins.closure]\nafter_step = "my_functions:note"\n'
        (tmp_path / "trainhooks.toml").write_text(text)
        make_trainer(config=tmp_path / "trainhooks.toml").train()
        assert functions() == [0, 1]

    def test_a_misspelt_hook_has_a_suggestion(self, make_trainer, functions):
        with pytest.raises(OptionError, match="unknown option 'after_stp' in .*did you mean 'after_step'"):
            make_trainer(options={"closure": {"after_stp": "my_functions:note"}})

    def test_every_hook_is_an_option(self):
        specs = [name for name, one in vars(hookspecs).items() if hasattr(one, "trainhooks_spec")]
        assert list(inspect.signature(Closure).parameters) == list(HOOKS) == specs
        assert {"configure", "train_step", "report_artifact"} <= set(HOOKS)


def test_it_keeps_no_trainer(make_trainer):
    import gc
    import weakref

    trainer = make_trainer([Closure(after_step=lambda trainer: None)], max_steps=1)
    trainer.train()
    reference = weakref.ref(trainer)
    gc.disable()
    try:
        del trainer
        assert reference() is None
    finally:
        gc.enable()


class TestPartialFunctions:
    def test_arguments_that_are_bound_by_name(self, make_trainer):
        """Also one in the middle, after which Python takes the others by name only."""
        calls = []

        def note(trainer, scale, output, *, unit):
            calls.append((trainer.step, scale * output["loss"].item(), unit))

        make_trainer([Closure(after_step=functools.partial(note, scale=2, unit="m"))], max_steps=1, start=3.0).train()
        assert calls == [(0, 6.0, "m")]

    def test_as_a_stage_among_wrappers(self, make_trainer):
        """What calls it then is pluggy, which looks at the code of a function for the names of its arguments."""

        class Wraps:
            @hookimpl(wrapper=True)
            def compute_loss(self):
                return (yield)

        def compute(scale, trainer):
            return trainer.model.w * scale

        trainer = make_trainer([Wraps(), Closure(compute_loss=functools.partial(compute, 5))], max_steps=2)
        trainer.train()
        assert trainer.model.w.item() == -10

    @pytest.mark.parametrize("bound", [{"args": (4,)}, {"keywords": {"factor": 4}}], ids=["by place", "by name"])
    def test_as_a_wrapper(self, make_trainer, bound):
        def scaled(factor, batch):
            assert batch.item() == 1.0
            return factor * (yield)

        function = functools.partial(scaled, *bound.get("args", ()), **bound.get("keywords", {}))
        trainer = make_trainer([Closure(compute_loss=function)], max_steps=2)
        trainer.train()
        assert trainer.model.w.item() == -8

    def test_a_message_has_the_place_of_the_function(self, make_trainer):
        def note(scale, batches):
            raise AssertionError

        line = note.__code__.co_firstlineno
        with pytest.raises(
            PluginValidationError, match=rf"test_builtins_closure.py:{line}: the hook has no argument 'batches'"
        ):
            make_trainer([Closure(after_step=functools.partial(note, 1))])

    def test_a_coroutine_is_refused_as_any_is(self, make_trainer):
        async def note(trainer):
            raise AssertionError

        with pytest.raises(PluginValidationError, match="is async; hooks are plain functions"):
            make_trainer([Closure(after_step=functools.partial(note))])


@pytest.mark.parametrize("function", [dict, int])
def test_what_has_no_signature(function):
    with pytest.raises(OptionError, match=rf"after_step = {function}: nobody can tell its arguments"):
        Closure(after_step=function)
