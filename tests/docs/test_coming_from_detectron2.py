"""docs/examples/coming-from/detectron2.py: hooks around a run_step of one's own."""

import gc
import weakref
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from trainhooks import Trainer, hookimpl
from trainhooks.project import load_project

d2 = load_project(Path(__file__).parents[2] / "docs" / "examples" / "coming-from" / "detectron2.py")


def run(*plugins, max_steps=3):
    """Train without loader, model and optimizer."""
    trainer = Trainer(max_steps=max_steps, plugins=plugins, autoload=False)
    return trainer, trainer.train()


def three_steps(first, second):
    """The calls of two hooks in a training of three steps, as Detectron2 makes them."""
    calls = [(first, "before_train", 0), (second, "before_train", 0)]
    for step in range(3):
        for hook in ("before_step", "after_step"):
            calls += [(first, hook, step), (second, hook, step)]
    return [*calls, (first, "after_train", 3, "completed"), (second, "after_train", 3, "completed")]


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
def test_hooks_are_called_in_the_order_of_registration(first, second):
    calls = []
    run(d2.Calls(first, calls), d2.Calls(second, calls), d2.SquareRoot(2))
    assert calls == three_steps(first, second)


def test_epochs_as_in_fastreid():
    calls = []
    plugins = [d2.EpochCalls("a", calls), d2.SquareRoot(2)]
    Trainer(max_epochs=2, steps_per_epoch=2, plugins=plugins, autoload=False).train()
    assert [call[1:3] for call in calls] == [
        ("before_train", 0),
        *(
            ("before_epoch", 0),
            ("before_step", 0),
            ("after_step", 0),
            ("before_step", 1),
            ("after_step", 1),
            ("after_epoch", 0),
        ),
        *(
            ("before_epoch", 1),
            ("before_step", 2),
            ("after_step", 2),
            ("before_step", 3),
            ("after_step", 3),
            ("after_epoch", 1),
        ),
        ("after_train", 4),
    ]


def test_a_training_needs_neither_loader_nor_model_nor_optimizer():
    # Heron's method from 1 towards the root of 2: 1, 3/2, 17/12, 577/408; the square of the last is 2 + 1/408²
    root = d2.SquareRoot(Fraction(2), start=Fraction(1))
    trainer, outcome = run(root)
    assert root.value == Fraction(577, 408)
    assert (outcome.status, outcome.step, outcome.update) == ("completed", 3, 3)
    assert trainer.model is None
    assert trainer.optimizers == {}


def test_what_run_step_returns_is_logged():
    # as above: the error of the third value
    _, outcome = run(d2.SquareRoot(Fraction(2), start=Fraction(1)))
    assert outcome.metrics == {"train/error": 1 / 408**2}


class FailsAt:
    """Raises in a hook of the step it is given."""

    def __init__(self, hook, step, error):
        @hookimpl(specname=hook)
        def fail(trainer):
            if trainer.step == step:
                raise error

        self.fail = fail


@pytest.mark.parametrize(("error", "status"), [(RuntimeError("no"), "failed"), (KeyboardInterrupt(), "interrupted")])
@pytest.mark.parametrize("hook", ["before_step", "train_step", "after_step"])
def test_after_train_runs_on_failure_and_the_exception_leaves(error, status, hook):
    calls = []
    plugins = [d2.Calls("a", calls), FailsAt(hook, 1, error), d2.SquareRoot(2), d2.Calls("b", calls)]
    with pytest.raises(type(error)) as caught:
        run(*plugins)
    assert caught.value is error
    assert calls[-2:] == [("a", "after_train", 1, status), ("b", "after_train", 1, status)]
    assert [call[1] for call in calls].count("after_train") == 2


def test_after_train_runs_when_before_train_fails():
    calls = []
    with pytest.raises(ZeroDivisionError):
        run(d2.Calls("a", calls), FailsAt("before_train", 0, ZeroDivisionError()), d2.SquareRoot(2), d2.Calls("b", calls))
    assert calls == [("a", "before_train", 0), ("a", "after_train", 0, "failed"), ("b", "after_train", 0, "failed")]


def test_hooks_do_not_own_the_trainer():
    calls, root = d2.Calls("a", []), d2.SquareRoot(2)
    gc.collect()
    gc.disable()
    try:
        trainer, _ = run(calls, root)
        alive = weakref.ref(trainer)
        del trainer
        assert alive() is None
    finally:
        gc.enable()
    assert len(calls.calls) == 2 + 2 * 3


def detector(step, *plugins, max_steps=4):
    """A trainer on the detector with two losses, whose batches are (2, 4): the weight goes half of the way to 3 each step."""
    model = d2.TwoTargets()
    trainer = Trainer(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.125),
        loaders={"train": d2.endless([{"box": 2.0, "class": 4.0}])},
        plugins=[step, *plugins],
        max_steps=max_steps,
        autoload=False,
    )
    return trainer, model.weight


@pytest.mark.parametrize("step", ["RunStep", "ModelLosses"])
def test_own_run_step_and_the_engines_give_the_same_weights(step):
    # (w - 2)² + (w - 4)² has the gradient 4 (w - 3), so with rate 1/8 the weight after n steps is 3 (1 - 2^-n)
    weights, outputs = [], []

    class Watch:
        @hookimpl
        def after_step(self, trainer, output):
            weights.append(trainer.model.weight.item())
            outputs.append({name: value.item() for name, value in output.items()})

    trainer, _ = detector(getattr(d2, step)(), Watch())
    trainer.train()
    assert weights == [3 * (1 - 2**-n) for n in (1, 2, 3, 4)]
    before = [0.0, *weights[:-1]]
    assert outputs == [
        {"loss_box": (w - 2) ** 2, "loss_class": (w - 4) ** 2, "loss": (w - 2) ** 2 + (w - 4) ** 2} for w in before
    ]


def test_eval_hook_evaluates_every_period_and_once_at_the_end():
    model_step = d2.RunStep()
    trainer, weight = detector(model_step)
    evaluation = d2.EvalHook(2, weight.item)
    trainer.register(evaluation)
    trainer.train()
    assert evaluation.results == [(1, 2.25), (4, 2.8125)]  # not after step 3, the last one: the end does it


def test_eval_hook_does_not_take_a_failure_in_the_last_step_for_success():
    trainer, weight = detector(d2.RunStep(), FailsAt("after_step", 3, RuntimeError("in the last step")))
    evaluation = d2.EvalHook(2, weight.item)
    trainer.register(evaluation)
    with pytest.raises(RuntimeError, match="in the last step"):
        trainer.train()
    assert evaluation.results == [(1, 2.25)]


def test_main_shows_it(capsys):
    d2.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:16] == [" ".join(map(str, call)) for call in three_steps("first", "second")]
    assert lines[-1] == "the weight after steps [(1, 2.25), (4, 2.8125)]"
