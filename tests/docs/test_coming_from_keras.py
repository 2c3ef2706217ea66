"""docs/examples/coming-from/keras.py: callbacks with their old names, in the old order, with the old logs."""

from pathlib import Path

import pytest
import torch
from torch import nn

from trainhooks import Trainer, hookimpl
from trainhooks.project import load_project
from trainhooks_builtins import Evaluation

example = load_project(Path(__file__).parents[2] / "docs" / "examples" / "coming-from" / "keras.py")

METHODS = [
    *("on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_epoch_end", "on_train_end"),
    *("on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end"),
    *("on_predict_begin", "on_predict_batch_begin", "on_predict_batch_end", "on_predict_end"),
]


class Callback:
    """As keras.callbacks.Callback: every method is there and does nothing."""


def _nothing(method):
    def nothing(self, *arguments):
        pass

    nothing.__qualname__ = f"Callback.{method}"
    return nothing


for _method in METHODS:
    setattr(Callback, _method, _nothing(_method))


def recording(base, methods, calls):
    """A callback that writes down the calls of some methods, with the logs as a dictionary of its own."""

    def make(method):
        def record(self, *arguments):
            calls.append((method, *arguments[:-1], dict(arguments[-1])))

        return record

    return type("Recording", (base,), {method: make(method) for method in methods})()


class Weight(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        return self.w * x


class Loss:
    """The loss is the mean of w * x, so SGD with rate 1 takes the mean of x from w; accurate is what lies below -3."""

    @hookimpl
    def compute_loss(self, trainer, batch):
        values = trainer.model(*batch)
        return {"loss": values.mean(), "accuracy": (values < -3).double().mean()}


def batches(*lists):
    return [(torch.tensor(values, dtype=torch.float64),) for values in lists]


def make(*callbacks, max_epochs=2, evaluation=True, plugins=()):
    """A trainer on two batches of 2 and 1 values; one of 1 and one of 3 values to evaluate.

    w before each step and after the last: 0, -1, -5, -6, -10. The values of the steps: 0 and 0; -4; -5 and -5; -24.
    """
    model = Weight()
    return Trainer(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        loaders={"train": batches([1, 1], [4]), "val": batches([1], [2, 0, 4]), "test": batches([1, 2])},
        plugins=[
            *(example.KerasCallback(callback) for callback in callbacks),
            Loss(),
            *([Evaluation()] if evaluation else []),
            *plugins,
        ],
        max_epochs=max_epochs,
        autoload=False,
    )


#: The evaluation with w = -5: values -5; -10, 0, -20. With w = -10: -10; -20, 0, -40. Weighted by 1 and 3 samples.
def evaluation_calls(w):
    first, last = {"loss": w, "accuracy": 1.0}, {"loss": (w + 2 * w + 0 + 4 * w) / 4, "accuracy": 3 / 4}
    return [
        ("on_test_begin", {}),
        ("on_test_batch_begin", 0, {}),
        ("on_test_batch_end", 0, first),
        ("on_test_batch_begin", 1, {}),
        ("on_test_batch_end", 1, last),
        ("on_test_end", last),
    ]


def epoch_calls(epoch, first, last, w):
    val = evaluation_calls(w)[-1][1]
    end = {**last, "val_loss": val["loss"], "val_accuracy": val["accuracy"]}
    return [
        ("on_epoch_begin", epoch, {}),
        ("on_train_batch_begin", 0, {}),
        ("on_train_batch_end", 0, first),
        ("on_train_batch_begin", 1, {}),
        ("on_train_batch_end", 1, last),
        *evaluation_calls(w),
        ("on_epoch_end", epoch, end),
    ]


@pytest.mark.parametrize("base", [object, Callback])
def test_fit_calls_everything_in_the_order_of_keras_with_its_logs(base):
    calls = []
    make(recording(base, METHODS, calls)).train()
    # running means over 2 and 1 samples: (2 * 0 - 4) / 3, (2 * -5 - 24) / 3; accurate 0 and 0, 1; 1 and 1, 1
    first = epoch_calls(0, {"loss": 0.0, "accuracy": 0.0}, {"loss": -4 / 3, "accuracy": 1 / 3}, w=-5.0)
    second = epoch_calls(1, {"loss": -5.0, "accuracy": 1.0}, {"loss": -34 / 3, "accuracy": 1.0}, w=-10.0)
    assert calls == [("on_train_begin", {}), *first, *second, ("on_train_end", second[-1][2])]
    assert sorted(second[-1][2]) == ["accuracy", "loss", "val_accuracy", "val_loss"]


def test_evaluate_and_predict_alone():
    calls = []
    trainer = make(recording(Callback, METHODS, calls))
    with torch.no_grad():
        trainer.model.w.fill_(-5.0)
    trainer.evaluate("val")
    assert calls == evaluation_calls(-5.0)
    calls.clear()
    trainer.predict("test")
    assert [(call[0], *call[1:-1]) for call in calls] == [
        ("on_predict_begin",),
        ("on_predict_batch_begin", 0),
        ("on_predict_batch_end", 0),
        ("on_predict_end",),
    ]
    assert calls[2][-1]["outputs"].tolist() == [-5.0, -10.0]


def test_callbacks_are_called_in_list_order():
    calls = []

    class First:
        def on_train_batch_end(self, batch, logs=None):
            calls.append(("first", batch))

    class Second:
        def on_train_batch_end(self, batch, logs=None):
            calls.append(("second", batch))

    make(Second(), First(), max_epochs=1, evaluation=False).train()
    assert calls == [("second", 0), ("first", 0), ("second", 1), ("first", 1)]


def test_what_nobody_implements_costs_nothing():
    calls = []
    trainer = make(recording(Callback, ["on_epoch_end"], calls), evaluation=False)
    for hook in ("before_train", "before_epoch", "before_step", "after_step", "after_update", "before_eval", "after_eval"):
        assert getattr(trainer.hooks, hook) is None, hook
    assert not trainer.manager.has("eval_step")
    assert not trainer.manager.has("predict_step")
    trainer.train()
    assert [call[:2] for call in calls] == [("on_epoch_end", 0), ("on_epoch_end", 1)]


def test_params_and_model_are_set():
    class Looks:
        def set_params(self, params):
            self.params = params

        def set_model(self, model):
            self.model = model

    callback = Looks()
    trainer = make(callback)
    trainer.train()
    assert callback.params == {"epochs": 2, "steps": 2, "verbose": 0}
    assert callback.model is trainer.model


def test_stop_training_in_a_batch_ends_epoch_and_training():
    calls = []

    class Stops:
        def set_model(self, model):
            self.model = model

        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

    outcome = make(Stops(), recording(Callback, METHODS, calls), evaluation=False).train()
    assert (outcome.status, outcome.step) == ("stopped", 1)
    assert outcome.reason == "Stops set stop_training in on_train_batch_end"
    assert [call[0] for call in calls][-3:] == ["on_train_batch_end", "on_epoch_end", "on_train_end"]
    assert calls[-1] == ("on_train_end", {"loss": 0.0, "accuracy": 0.0})


def test_stop_training_at_the_end_of_an_epoch():
    callback = example.StopWhenGood(0.75)  # the accuracy of every evaluation above
    history = example.History()
    outcome = make(callback, history).train()
    assert (outcome.status, outcome.epoch, outcome.step) == ("stopped", 1, 2)
    assert history.history == {"loss": [-4 / 3], "accuracy": [1 / 3], "val_loss": [-8.75], "val_accuracy": [0.75]}


def test_after_a_failure_neither_on_epoch_end_nor_on_train_end_follow():
    calls = []
    error = RuntimeError("no")

    class Fails:
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 1:
                raise error

    with pytest.raises(RuntimeError) as caught:
        make(recording(Callback, METHODS, calls), Fails()).train()
    assert caught.value is error
    assert [call[0] for call in calls] == [
        *("on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_train_batch_begin"),
    ]


def test_the_learning_rate_has_its_keras_name():
    class Rate:
        @hookimpl
        def after_update(self, trainer):
            trainer.log("lr", trainer.optimizer.param_groups[0]["lr"], reduce="last")
            trainer.log("time/step", 1.0)

    history = example.History()
    make(history, max_epochs=1, evaluation=False, plugins=[Rate()]).train()
    assert history.history == {"loss": [-4 / 3], "accuracy": [1 / 3], "learning_rate": [1.0]}


def test_main_shows_it(capsys):
    example.main()
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: [float(value) for value in line.split()[1:]] for line in lines[:-1]}
    assert sorted(rows) == ["accuracy", "loss", "val_accuracy", "val_loss"]
    assert rows["val_accuracy"][-1] >= 0.95 > max(rows["val_accuracy"][:-1])
    assert lines[-1] == "stopped: StopWhenGood set stop_training in on_epoch_end"
