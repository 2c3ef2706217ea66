"""Coming from MMCV or MMDetection: the ten stages, the intervals, hooks by name with options from configuration.

Run it with `trainhooks train mmcv.py`; `trainhooks.toml` beside it is the configuration.

| `mmcv.runner.Hook`, runner, config          | here                                                                  |
| ------------------------------------------- | --------------------------------------------------------------------- |
| `before_run`, `after_run`                   | `before_train`, `after_train`, the latter also after a failure        |
| `before_train_epoch`                        | `before_epoch`                                                        |
| `before_train_iter`, `after_train_iter`     | `before_step`, `after_step`                                           |
| `after_train_epoch`                         | `after_train_epoch`; `after_epoch` when it has been validated too     |
| `before_val_epoch`, `after_val_epoch`       | `before_eval`, `after_eval`                                           |
| `before_val_iter`, `after_val_iter`         | a wrapper of `eval_step`, before and after its `yield`                |
| `before_epoch`, `before_iter`, ... for both | two hooks, one for training and one for validation                    |
| `every_n_epochs(runner, n)`                 | `trainer.every_n_epochs(n)`, not at the end of an epoch cut short     |
| `every_n_iters(runner, n)`                  | `trainer.every_n_steps(n)`                                            |
| `every_n_inner_iters(runner, n)`            | `(trainer.batch_index + 1) % n == 0`                                  |
| `end_of_epoch(runner)`                      | `trainer.end_of_epoch`                                                |
| `is_last_epoch(runner)`, `is_last_iter`     | `trainer.is_last_epoch`, `trainer.is_last_step`                       |
| `get_triggered_stages()`                    | `trainhooks hooks after_step` for one stage; `triggered()` below      |
| `runner.iter`, `.inner_iter`, `.epoch`      | `trainer.step`, `.batch_index`, `.epoch`                              |
| `runner.max_iters`, `runner.max_epochs`     | `trainer.max_steps`, `trainer.max_epochs`                             |
| `runner.outputs`, `runner.data_batch`       | the arguments `output`, `batch`                                       |
| `runner.log_buffer.update({...})`           | `trainer.log_dict({...})`                                             |
| `runner.mode`                               | `trainer.split`                                                       |
| `@HOOKS.register_module()`                  | an entry point of your distribution, or `plugins = [...]` as below    |
| `custom_hooks=[dict(type=..., interval=2)]` | a table `[plugins.NAME]`; the keys are parameters of the class        |
| `custom_imports=dict(imports=[...])`        | `-p our_hooks:CheckInvalidLoss`; a file of settings names no code     |
| `priority="VERY_LOW"`                       | `phase = "reporting"`; `before = (...)`, `after = (...)` by name      |
| `workflow=[("train", 2), ("val", 1)]`       | `[plugins.evaluation]` with `every_epochs = 2`                        |
| `OptimizerHook(grad_clip=...)`              | the stages `backward`, `clip_gradients`, `optimizer_step`             |
| `LrUpdaterHook`, `EvalHook`                 | the built-in plugins `lr`, `evaluation`                               |
| `CheckpointHook`, `IterTimerHook`           | the built-in plugins `checkpoint`, `timer`                            |
| `TextLoggerHook`                            | the built-in plugins `progress`, `metrics_log`                        |

The priorities of mmcv's own hooks as phases, in call order: IterTimer LOW is `bookkeeping`, everything up to NORMAL is
`algorithm` (the default), Eval LOW is `measurement`, early stopping is `decision`, Checkpoint NORMAL is `persistence`, the
loggers VERY_LOW are `reporting`. What a distribution registers by name stands in its `pyproject.toml`:

    [project.entry-points."trainhooks.optional"]
    check_invalid_loss = "our_hooks:CheckInvalidLoss"
"""

from pathlib import Path

import torch
from torch import nn

from trainhooks import Trainer, hookimpl


class CheckInvalidLoss:
    """MMDetection's `CheckInvalidLossHook`.

    Args:
        interval: Checked every so many steps.
    """

    def __init__(self, interval: int = 50) -> None:
        self.interval = interval

    @hookimpl
    def after_step(self, trainer, output):
        if trainer.every_n_steps(self.interval) and not torch.isfinite(output["loss"]):
            message = f"the loss became {output['loss'].item()} in step {trainer.step}"
            raise FloatingPointError(message)


class WeightAverage:
    """MMCV's `EMAHook`: after the update and before the checkpoint, for which nobody needs a number.

    Args:
        momentum: Share of the new weights in each update.
    """

    phase = "algorithm"

    def __init__(self, momentum: float = 0.0002) -> None:
        self.momentum = momentum
        self.average = {}

    @hookimpl
    def before_train(self, trainer):
        for name, weight in trainer.model.named_parameters():
            self.average.setdefault(name, weight.detach().clone())

    @hookimpl
    def after_update(self, trainer):
        for name, weight in trainer.model.named_parameters():
            self.average[name].lerp_(weight.detach(), self.momentum)

    def state_dict(self):
        return {"average": self.average}

    def load_state_dict(self, state):
        self.average = dict(state["average"])


class TenStages:
    """Writes down each of the ten stages by its old name, with epoch and step."""

    phase = "reporting"

    def __init__(self):
        self.calls = []

    def _write(self, stage, trainer):
        self.calls.append((stage, trainer.epoch, trainer.step))

    @hookimpl
    def before_train(self, trainer):
        self._write("before_run", trainer)

    @hookimpl
    def before_epoch(self, trainer):
        self._write("before_train_epoch", trainer)

    @hookimpl
    def before_step(self, trainer):
        self._write("before_train_iter", trainer)

    @hookimpl
    def after_step(self, trainer):
        self._write("after_train_iter", trainer)

    @hookimpl
    def after_train_epoch(self, trainer):
        self._write("after_train_epoch", trainer)

    @hookimpl
    def before_eval(self, trainer):
        self._write("before_val_epoch", trainer)

    @hookimpl(wrapper=True)
    def eval_step(self, trainer):
        self._write("before_val_iter", trainer)
        output = yield
        self._write("after_val_iter", trainer)
        return output

    @hookimpl
    def after_eval(self, trainer):
        self._write("after_val_epoch", trainer)

    @hookimpl
    def after_train(self, trainer):
        self._write("after_run", trainer)


class Intervals:
    """Asks in each step what mmcv's hooks ask, by the old names."""

    def __init__(self):
        self.answers = []

    @hookimpl
    def after_step(self, trainer):
        self.answers.append(
            {
                "every_n_epochs": trainer.every_n_epochs(2),
                "every_n_inner_iters": (trainer.batch_index + 1) % 2 == 0,
                "every_n_iters": trainer.every_n_steps(4),
                "end_of_epoch": trainer.end_of_epoch,
                "is_last_epoch": trainer.is_last_epoch,
                "is_last_iter": trainer.is_last_step,
            }
        )


def triggered(trainer, name):
    """Return the hooks that a plugin implements, as `get_triggered_stages` did."""
    return sorted(trainer.manager.plugins[name].implementations)


# The project: what `plugins` lists is registered under its name in snake case and configured by trainhooks.toml.

plugins = [CheckInvalidLoss, WeightAverage, TenStages, Intervals]


@hookimpl
def make_model():
    return nn.Linear(1, 1)


@hookimpl
def make_optimizer(trainer):
    return torch.optim.SGD(trainer.model.parameters(), lr=0.1)


@hookimpl
def make_loader(split):
    x = torch.linspace(-1, 1, 30)[:, None]
    batches = list(zip(x.split(10), (2 * x + 1).split(10), strict=True))
    return batches if split == "train" else batches[:1]


@hookimpl
def compute_loss(trainer, batch):
    x, y = batch
    return nn.functional.mse_loss(trainer.model(x), y)


def main():
    """Train as the command line would, without a bar, and print the stages of the first two epochs."""
    trainer = Trainer(conf=__file__, config=Path(__file__).parent, plugins=["no:progress"])
    trainer.train()
    for stage, epoch, step in trainer.plugins["ten_stages"].calls:
        if epoch < 2:
            print(f"epoch {epoch} step {step}  {stage}")
    print("check_invalid_loss implements", *triggered(trainer, "check_invalid_loss"))


if __name__ == "__main__":
    main()
