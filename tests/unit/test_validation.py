"""What is wrong with a plugin is said when it is registered: everything, with suggestions."""

import functools

import pytest
import torch

from trainhooks import PluginValidationError, Trainer, hookimpl
from trainhooks.validation import may_return_nothing, returns_nothing


def faults_of(plugin, **arguments):
    with pytest.raises(PluginValidationError) as caught:
        Trainer(plugins=[plugin], autoload=False, max_steps=1, **arguments)
    return caught.value.faults


def test_all_faults_at_once_with_a_suggestion_each():
    class Broken:
        phase = "reportng"
        on_error = "ignore"
        before = "checkpoint"
        after = (3,)
        requires = None

        @hookimpl
        def after_stepp(self):
            pass

        @hookimpl
        def before_step(self, trainer, bach):
            pass

        def after_epoch(self):
            pass

        @hookimpl
        def evaluate(self):
            yield

        @hookimpl
        def before_epoch(self, *, epoch):
            pass

        @hookimpl
        def after_update(self, trainer=None):
            pass

        @hookimpl
        def after_step(self, *args, **kwargs):
            pass

        @hookimpl(wrapper=True)
        def train_step(self):
            return {}

        @hookimpl(wrapper=True)
        def compute_loss(self):
            yield

        @hookimpl(wrapper=True)
        def setup(self):
            yield

        @hookimpl
        async def teardown(self):
            pass

        @hookimpl(hookwrapper=True)
        def backward(self):
            yield

        @hookimpl(specname="before_eval")
        def one(self):
            pass

        @hookimpl(specname="before_eval")
        def two(self):
            pass

    found = faults_of(Broken())
    expected = [
        ("phase = 'reportng'", "did you mean 'reporting'?"),
        ("on_error = 'ignore'", "must be 'raise' or 'disable'"),
        ("before = 'checkpoint'", "write ('checkpoint',)"),
        ("after = (3,)", "must be a tuple of plugin names"),
        ("requires = None", "must be a tuple of plugin names"),
        ("after_stepp()", "there is no such hook; did you mean 'after_step'?"),
        ("before_step()", "the hook has no argument 'bach'; it has trainer, batch; did you mean 'batch'?"),
        ("after_epoch()", "has a hook's name but no @hookimpl"),
        ("evaluate()", "yields but is not marked @hookimpl(wrapper=True)"),
        ("before_epoch()", "argument 'epoch' is keyword-only"),
        ("after_update()", "argument 'trainer' has a default"),
        ("after_step()", "takes *args; name the arguments"),
        ("after_step()", "takes *kwargs; name the arguments"),
        ("train_step()", "is marked wrapper=True but never yields"),
        ("compute_loss()", "never returns the stage's result"),
        ("setup()", "cannot be a wrapper"),
        ("teardown()", "is async"),
        ("backward()", "is an old-style wrapper"),
        ("before_eval()", "a second implementation of the same hook"),
    ]
    for words in expected:
        assert [fault for fault in found if all(word in fault for word in words)], words
    assert len(found) == len(expected)
    in_code = [fault for fault in found if "()" in fault]
    assert all(f"in {__file__}:" in fault for fault in in_code)


def test_faults_of_several_plugins_are_said_together():
    class One:
        @hookimpl
        def after_stepp(self): ...

    class Two:
        @hookimpl
        def befor_step(self): ...

    with pytest.raises(Exception, match="after_stepp") as caught:
        Trainer(plugins=[One(), Two()], autoload=False, max_steps=1)
    assert "befor_step" in str(caught.value)
    assert caught.value.exit_code == 3


def test_what_is_no_fault(make_trainer):
    class Base(torch.nn.Module):
        """Its ``train`` is a hook's name, but torch wrote it."""

    class Fine(Base):
        name = "fine"

        @property
        def after_step(self):
            raise AssertionError("properties are not run")

        @staticmethod
        @hookimpl
        def before_step(trainer):
            trainer.seen = [*getattr(trainer, "seen", []), "static"]

        @classmethod
        @hookimpl
        def before_epoch(cls, trainer):
            trainer.seen = [*getattr(trainer, "seen", []), cls.name]

        @torch.no_grad()
        @hookimpl
        def after_update(self, trainer):
            trainer.seen.append(torch.is_grad_enabled())

        @hookimpl(wrapper=True)
        def clip_gradients(self):
            yield

        @hookimpl(wrapper=True)
        def before_train(self):
            yield

    trainer = make_trainer([Fine()], values=(1.0,))
    trainer.train()
    assert trainer.seen == ["fine", "static", False]


@pytest.mark.parametrize(("has", "lacks"), [("state_dict", "load_state_dict"), ("load_state_dict", "state_dict")])
def test_one_half_of_a_state_would_never_be_saved(has, lacks):
    class Half:
        @hookimpl
        def after_step(self):
            pass

    setattr(Half, has, lambda self, *state: {})
    assert faults_of(Half()) == (f"has {has}() but no {lacks}(), so its state would never be saved; write both, or rename it",)


def test_a_forgotten_self():
    class NoSelf:
        @hookimpl
        def after_step(trainer):  # noqa: N805
            pass

    (fault,) = faults_of(NoSelf())
    assert fault.endswith("its first parameter, which gets the object itself, is 'trainer'; write self before it")


def test_a_wrapper_inside_of_a_decorator(make_trainer):
    """pluggy, which looks at the outer function, would fail when the plugin has been listed."""

    def timed(function):
        @functools.wraps(function)
        def inner(*arguments, **options):
            return function(*arguments, **options)

        return inner

    class Wraps:
        @hookimpl(wrapper=True)
        @timed
        def train_step(self):
            return (yield)

    trainer = make_trainer()
    with pytest.raises(PluginValidationError, match="yields inside of a decorator whose own function does not"):
        trainer.register(Wraps())
    assert list(trainer.plugins) == []


def test_a_plugin_that_does_nothing_is_refused(make_trainer):
    class Callback:
        """As another library has them."""

        def on_epoch_end(self, logs): ...

    assert "implements no hook and has no state" in faults_of(Callback())[0]
    trainer = make_trainer()
    with pytest.raises(PluginValidationError):
        trainer.register(Callback())
    assert list(trainer.plugins) == []


def test_state_alone_is_enough(make_trainer):
    class Kept:
        def state_dict(self):
            return {}

        def load_state_dict(self, state): ...

    assert "plugins/kept" in make_trainer([Kept()]).stateful


def returns(kind):
    def nothing():
        yield

    def result():
        return (yield)

    def sometimes(trainer=None):
        found = yield
        if trainer:
            return found

    def swallows():
        try:
            return (yield)
        except ValueError:
            pass

    def undoes():
        try:
            return (yield)
        finally:
            print()

    def early():
        yield

    def constant():
        yield
        return 3

    return locals()[kind]


@pytest.mark.parametrize(
    ("kind", "always", "may"),
    [
        ("nothing", True, True),
        ("result", False, False),
        ("sometimes", False, True),
        ("swallows", False, True),
        ("undoes", False, False),
        ("early", True, True),
        ("constant", False, False),
    ],
)
def test_what_can_be_told_of_a_wrappers_result(kind, always, may):
    assert returns_nothing(returns(kind)) is always
    assert may_return_nothing(returns(kind)) is may


class TestOwnHooks:
    """A package that brings hookspecs of its own."""

    class Specs:
        from trainhooks import hookspec

        @staticmethod
        @hookspec
        def rl_rollout(trainer, episode): ...

    def test_they_are_called_and_checked_in_either_order(self, make_trainer):
        log = []

        class RL:
            name = "rl"
            hookspecs = self.Specs

            @hookimpl
            def before_step(self, trainer):
                trainer.hooks.rl_rollout(trainer=trainer, episode=trainer.step)

        class Listens:
            @hookimpl
            def rl_rollout(self, episode):
                log.append(episode)

        for plugins in ([RL(), Listens()], [Listens(), RL()]):
            make_trainer(plugins, values=(1.0, 1.0)).train()
        assert log == [0, 1, 0, 1]

    def test_a_wrong_argument_of_theirs_is_a_fault(self):
        class RL:
            name = "rl"
            hookspecs = self.Specs

            @hookimpl
            def rl_rollout(self, episod): ...

        assert "did you mean 'episode'?" in faults_of(RL())[0]

    def test_they_must_bear_the_plugins_name(self):
        class Other:
            name = "other"
            hookspecs = self.Specs

        assert faults_of(Other()) == ("hookspec 'rl_rollout' must begin with 'other_'",)


def test_a_scheduler_of_torch_is_no_plugin(make_trainer):
    """It has state, but nothing of it would ever be called; ``lr`` takes it."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    with pytest.raises(PluginValidationError, match="implements no hook"):
        make_trainer([torch.optim.lr_scheduler.StepLR(optimizer, 1)])


def hook_named(name, **mark):
    return type("Named", (), {name: hookimpl(**mark)(lambda self: None)})()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("on_epoch_end", "after_epoch"),  # Keras, Hugging Face
        ("on_train_begin", "before_train"),
        ("on_train_batch_end", "after_step"),
        ("on_test_batch_end", "after_eval_step"),
        ("on_validation_end", "after_eval"),  # Lightning
        ("configure_optimizers", "make_optimizer"),
        ("train_dataloader", "make_loader"),
        ("on_before_optimizer_step", "gradients_ready"),
        ("on_save_checkpoint", "on_save"),
        ("on_log", "report_metrics"),  # Hugging Face
        ("on_optimizer_step", "after_update"),
        ("after_train_iter", "after_step"),  # MMCV
        ("before_val_epoch", "before_eval"),
        ("after_backward", "gradients_ready"),  # Detectron2
        ("run_step", "train_step"),
        ("before_validate", "before_eval"),  # fastai
    ],
)
def test_a_hook_of_another_framework(theirs, ours):
    (fault,) = faults_of(hook_named(theirs))
    assert fault.endswith(f": there is no such hook; here that is {ours!r}")


def test_the_names_of_other_frameworks_lead_to_hooks_and_are_none():
    from trainhooks import hookspecs
    from trainhooks.suggest import _ELSEWHERE

    hooks = {name for name, one in vars(hookspecs).items() if hasattr(one, "trainhooks_spec")}
    theirs = [name for names in _ELSEWHERE.values() for name in names.split()]
    assert _ELSEWHERE.keys() <= hooks
    assert not hooks.intersection(theirs)
    assert len(theirs) == len(set(theirs))


def test_a_hook_of_a_plugin_that_is_out():
    optional = "; mark it @hookimpl(optionalhook=True) if a plugin that may be out specifies it"
    (fault,) = faults_of(hook_named("hello_greeting"))
    assert fault.endswith(f": there is no such hook{optional}")
    (fault,) = faults_of(hook_named("hello_train_step"))
    assert fault.endswith(f": there is no such hook; did you mean 'train_step'?{optional}")
    for typo in ("after_stepp", "aftr_step", "befor_epoch", "on_foo", "setupp"):  # of this engine's own, as it begins
        (fault,) = faults_of(hook_named(typo))
        assert "optionalhook" not in fault
    trainer = Trainer(plugins=[hook_named("hello_greeting", optionalhook=True)], autoload=False, max_steps=1)
    assert list(trainer.plugins) == ["named"]
