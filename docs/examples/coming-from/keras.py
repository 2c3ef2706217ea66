"""Coming from Keras: callbacks with their old names and logs, unchanged, through one adapter.

| Keras callback                              | the hook that the adapter uses                                        |
| ------------------------------------------- | --------------------------------------------------------------------- |
| `set_params`, `set_model`                   | `setup`                                                               |
| `on_train_begin`, `on_train_end`            | `before_train`, `after_train` (not after a failure, as in Keras)      |
| `on_epoch_begin(epoch, logs)`               | `before_epoch`                                                        |
| `on_epoch_end(epoch, logs)`                 | `after_epoch`: `train/loss` is `loss`, `val/loss` is `val_loss`       |
| `on_train_batch_begin(batch, logs)`         | `before_step`                                                         |
| `on_train_batch_end(batch, logs)`           | `after_step`; the logs are running means of the epoch                 |
| `on_test_begin(logs)`, `on_test_end(logs)`  | `before_eval`, `after_eval`, also for the validation of each epoch    |
| `on_test_batch_begin`, `on_test_batch_end`  | a wrapper of `eval_step`                                              |
| `on_predict_begin`, `on_predict_end`        | `before_predict`, `after_predict`                                     |
| `on_predict_batch_begin`, `..._end`         | a wrapper of `predict_step`; the logs at its end have the `outputs`   |
| `self.model.stop_training = True`           | `trainer.stop("...")`                                                 |
| `model.fit(x, y, callbacks=[a, b])`         | `Trainer(model, plugins=[a, b], ...).train()`, called in this order   |
| `model.compile(optimizer, loss, metrics)`   | `optimizer=`, `loss=`; metrics are named values of `compute_loss`     |
| `validation_data=`                          | `loaders={"train": ..., "val": ...}` and the plugin `evaluation`      |
| `ModelCheckpoint`, `BackupAndRestore`       | the plugin `checkpoint`; `train(resume="auto")`                       |
| `LearningRateScheduler`, `CSVLogger`        | the plugins `lr`, `metrics_log`                                       |

The adapter has a hook only if the callback has a method for it, so what nobody implements costs nothing. When a callback
stops the training in the middle of an epoch, `on_epoch_end` still follows, but that epoch is not validated until the
training ends. New code is better written as a plugin at once: there the values of a step stay on their device.
"""

from types import MethodType

import torch
from torch import nn

from trainhooks import Trainer, hookimpl
from trainhooks.data import batch_size
from trainhooks_builtins import Evaluation


class KerasCallback:
    """A plugin made of a Keras callback.

    Args:
        callback: An instance with any of the methods of `keras.callbacks.Callback`, whose subclass it may be.
    """

    def __init__(self, callback):
        self.callback = callback
        self.name = type(callback).__name__
        self.logs = {}
        self.batch = 0  # index of the batch in the running evaluation or prediction
        self.means, self.eval_means = RunningMeans(), RunningMeans()
        for hook, methods in HOOKS.items():
            if not methods or any(implements(callback, method) for method in methods):
                setattr(self, hook.__name__, MethodType(hook, self))

    def call(self, trainer, method, *arguments):
        """Call a method, if the callback has it, and pass on that it wants to stop."""
        if implements(self.callback, method):
            getattr(self.callback, method)(*arguments)
            if vars(trainer.model).pop("stop_training", False):
                trainer.stop(f"{self.name} set stop_training in {method}")


class RunningMeans:
    """Means of named values, weighted by batch size."""

    def __init__(self):
        self.sums, self.samples = {}, 0

    def add(self, output, batch):
        size = batch_size(batch)
        self.samples += size
        for name, value in output.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value) * size
        return {name: total / self.samples for name, total in self.sums.items()}


def implements(callback, method):
    """Return whether a callback has a method other than the empty one of `keras.callbacks.Callback`."""
    function = getattr(callback, method, None)
    return function is not None and getattr(function, "__qualname__", "") != f"Callback.{method}"


def keras_logs(metrics):
    """Return metrics by their Keras names: `train/loss` as `loss`, `val/loss` as `val_loss`, `lr` as `learning_rate`."""
    prefixes = {"train": "", "val": "val_"}
    names = {"lr": "learning_rate"}
    for name in metrics:
        split, _, rest = name.partition("/")
        if rest and split in prefixes:
            names[name] = prefixes[split] + rest
    return {names[name]: value for name, value in metrics.items() if name in names}


@hookimpl
def setup(plugin, trainer):
    if hasattr(plugin.callback, "set_params"):
        plugin.callback.set_params({"epochs": trainer.max_epochs, "steps": trainer.epoch_length, "verbose": 0})
    if hasattr(plugin.callback, "set_model"):
        plugin.callback.set_model(trainer.model)


@hookimpl
def before_train(plugin, trainer):
    plugin.call(trainer, "on_train_begin", {})


@hookimpl
def before_epoch(plugin, trainer, epoch):
    plugin.means = RunningMeans()
    plugin.call(trainer, "on_epoch_begin", epoch, {})


@hookimpl
def before_step(plugin, trainer):
    plugin.call(trainer, "on_train_batch_begin", trainer.batch_index, {})


@hookimpl
def after_step(plugin, trainer, batch, output):
    plugin.call(trainer, "on_train_batch_end", trainer.batch_index, plugin.means.add(output, batch))


@hookimpl
def after_epoch(plugin, trainer, epoch, metrics):
    plugin.logs = keras_logs(metrics)
    plugin.call(trainer, "on_epoch_end", epoch, plugin.logs)


@hookimpl
def after_train(plugin, trainer):
    if trainer.outcome.status in ("completed", "stopped"):
        plugin.call(trainer, "on_train_end", plugin.logs)


@hookimpl
def before_eval(plugin, trainer):
    plugin.batch, plugin.eval_means = 0, RunningMeans()
    plugin.call(trainer, "on_test_begin", {})


@hookimpl(wrapper=True)
def eval_step(plugin, trainer, batch):
    plugin.call(trainer, "on_test_batch_begin", plugin.batch, {})
    output = yield
    plugin.call(trainer, "on_test_batch_end", plugin.batch, plugin.eval_means.add(output, batch))
    plugin.batch += 1
    return output


@hookimpl
def after_eval(plugin, trainer, split, metrics):
    plugin.call(trainer, "on_test_end", {name.removeprefix(f"{split}/"): value for name, value in metrics.items()})


@hookimpl
def before_predict(plugin, trainer):
    plugin.batch = 0
    plugin.call(trainer, "on_predict_begin", {})


@hookimpl(wrapper=True)
def predict_step(plugin, trainer):
    plugin.call(trainer, "on_predict_batch_begin", plugin.batch, {})
    output = yield
    plugin.call(trainer, "on_predict_batch_end", plugin.batch, {"outputs": output})
    plugin.batch += 1
    return output


@hookimpl
def after_predict(plugin, trainer):
    plugin.call(trainer, "on_predict_end", {})


#: Each hook of the adapter with the methods that need it.
HOOKS = {
    setup: (),
    before_train: ("on_train_begin",),
    before_epoch: ("on_epoch_begin", "on_train_batch_end"),
    before_step: ("on_train_batch_begin",),
    after_step: ("on_train_batch_end",),
    after_epoch: ("on_epoch_end", "on_train_end"),
    after_train: ("on_train_end",),
    before_eval: ("on_test_begin", "on_test_batch_begin", "on_test_batch_end"),
    eval_step: ("on_test_batch_begin", "on_test_batch_end"),
    after_eval: ("on_test_end",),
    before_predict: ("on_predict_begin", "on_predict_batch_begin", "on_predict_batch_end"),
    predict_step: ("on_predict_batch_begin", "on_predict_batch_end"),
    after_predict: ("on_predict_end",),
}


class History:
    """A callback as it stood in a Keras project: the logs of each epoch."""

    def on_train_begin(self, logs=None):
        self.history = {}

    def on_epoch_end(self, epoch, logs=None):
        for name, value in logs.items():
            self.history.setdefault(name, []).append(value)


class StopWhenGood:
    """Another one, which ends the training."""

    def __init__(self, goal):
        self.goal = goal

    def set_model(self, model):
        self.model = model

    def on_epoch_end(self, epoch, logs=None):
        if logs["val_accuracy"] >= self.goal:
            self.model.stop_training = True


class Accuracy:
    """What `model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])` was."""

    @hookimpl
    def compute_loss(self, trainer, batch):
        points, labels = batch
        logits = trainer.model(points)
        return {"loss": nn.functional.cross_entropy(logits, labels), "accuracy": (logits.argmax(1) == labels).float().mean()}


def disc(count, seed):
    """Make batches of points; those inside a circle have label 1."""
    points = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    labels = (points.norm(dim=1) < 1).long()
    return list(zip(points.split(32), labels.split(32), strict=True))


def main():
    """Train with both callbacks and print the history."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    history = History()
    trainer = Trainer(
        model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.02),
        loaders={"train": disc(1000, seed=1), "val": disc(200, seed=2)},
        plugins=[KerasCallback(history), KerasCallback(StopWhenGood(0.95)), Accuracy(), Evaluation()],
        max_epochs=20,
        autoload=False,
    )
    outcome = trainer.train()
    for name, values in history.history.items():
        print(f"{name:<14}", *(f"{value:.3f}" for value in values))
    print(f"{outcome.status}: {outcome.reason}")


if __name__ == "__main__":
    main()
