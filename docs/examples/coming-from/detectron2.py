"""Coming from Detectron2 or fastreid: the same four hooks around a step of your own.

| Detectron2, fastreid                        | here                                                                  |
| ------------------------------------------- | --------------------------------------------------------------------- |
| subclass of `HookBase`                      | any object; its hooks are marked `@hookimpl`                          |
| `before_train`, `before_step`, `after_step` | the same names                                                        |
| `after_train`, also after a failure         | the same; `trainer.outcome.status` says how it ended                  |
| `before_epoch`, `after_epoch` (fastreid)    | the same names                                                        |
| `after_backward`                            | `gradients_ready`                                                     |
| `self.trainer`, a weak proxy                | the argument `trainer`; nothing is stored on the hook                 |
| `trainer.register_hooks([a, b])`            | `Trainer(plugins=[a, b])`, called in this order within a phase        |
| `TrainerBase.run_step`                      | the stage `train_step`: a plugin that implements it replaces ours     |
| `SimpleTrainer(model, loader, optimizer)`   | `Trainer(model, optimizer=..., loaders=...)`, no `train_step` needed  |
| `train(start_iter, max_iter)`               | `Trainer(max_steps=...)`, `train(resume=...)`                         |
| `trainer.iter`, `trainer.max_iter`          | `trainer.step`, `trainer.max_steps`                                   |
| `trainer.storage.put_scalar(name, value)`   | `trainer.log(name, value)`, or a value in what `train_step` returns   |
| an exception to end the training            | `trainer.stop("why")`                                                 |
| `IterationTimer`, `LRScheduler`, `EvalHook` | the built-in plugins `timer`, `lr`, `evaluation`                      |
| `PeriodicCheckpointer`, `BestCheckpointer`  | the built-in plugin `checkpoint`, with `best = "val/..."`             |
| `CommonMetricPrinter`, `JSONWriter`         | the built-in plugins `progress`, `metrics_log`                        |

As in Detectron2, `after_train` is called once `before_train` was reached, whatever happens; unlike in old fastreid the
exception then leaves `train()`.
"""

import torch
from torch import nn

from trainhooks import Trainer, hookimpl


class Calls:
    """A hook as in Detectron2; it writes down when it was called."""

    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    @hookimpl
    def before_train(self, trainer):
        self.calls.append((self.name, "before_train", trainer.step))

    @hookimpl
    def before_step(self, trainer):
        self.calls.append((self.name, "before_step", trainer.step))

    @hookimpl
    def after_step(self, trainer):
        self.calls.append((self.name, "after_step", trainer.step))

    @hookimpl
    def after_train(self, trainer):
        self.calls.append((self.name, "after_train", trainer.step, trainer.outcome.status))


class EpochCalls(Calls):
    """A hook as in fastreid, which knows epochs too."""

    @hookimpl
    def before_epoch(self, trainer, epoch):
        self.calls.append((self.name, "before_epoch", epoch))

    @hookimpl
    def after_epoch(self, trainer, epoch):
        self.calls.append((self.name, "after_epoch", epoch))


class SquareRoot:
    """A `run_step` that knows no loader, model or optimizer: one step of Heron's method towards the root of ``number``."""

    name = "run_step"

    def __init__(self, number, start=1):
        self.number, self.value = number, start

    @hookimpl
    def train_step(self):
        self.value = (self.value + self.number / self.value) / 2
        return {"error": float(abs(self.value**2 - self.number))}


class RunStep:
    """The `run_step` of Detectron2's `SimpleTrainer`, for a model that returns a dictionary of losses."""

    name = "run_step"

    @hookimpl
    def train_step(self, trainer, batch):
        losses = trainer.model(batch)
        loss = sum(losses.values())
        trainer.optimizer.zero_grad()
        loss.backward()
        trainer.optimizer.step()
        return {**losses, "loss": loss}


class ModelLosses:
    """All that is needed of it here: the engine sums the losses and does the rest.

    Not even this is needed for a model that is called as `model(*batch)`, or `model(**batch)` where a batch is a mapping.
    """

    @hookimpl
    def compute_loss(self, trainer, batch):
        return trainer.model(batch)


class EvalHook:
    """Detectron2's `EvalHook`: after every ``period`` steps but the last, and at the end of a training that did not fail.

    In Detectron2 a failure in the very last step still evaluated, since a hook could only guess from `iter` how it ended.
    """

    def __init__(self, period, function):
        self.period, self.function = period, function
        self.results = []

    @hookimpl
    def after_step(self, trainer):
        if trainer.every_n_steps(self.period) and not trainer.is_last_step:
            self.results.append((trainer.step, self.function()))

    @hookimpl
    def after_train(self, trainer):
        if trainer.outcome.status == "completed":
            self.results.append((trainer.step, self.function()))


class TwoTargets(nn.Module):
    """One weight that is drawn to two targets, with a loss for each, as a detector has several."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, batch):
        return {f"loss_{name}": (self.weight - target) ** 2 for name, target in batch.items()}


def endless(batches):
    """Yield batches for ever, as Detectron2's loaders do; there are no epochs, `max_steps` ends the training."""
    while True:
        yield from batches


def main():
    """Run both kinds of training and print what happened."""
    calls = []
    root = SquareRoot(2)
    Trainer(max_steps=3, plugins=[Calls("first", calls), root, Calls("second", calls)], autoload=False).train()
    print("\n".join(" ".join(map(str, call)) for call in calls))
    print(f"the root of 2: {root.value}")

    model = TwoTargets()
    evaluation = EvalHook(2, model.weight.item)
    trainer = Trainer(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.125),
        loaders={"train": endless([{"box": 2.0, "class": 4.0}])},
        plugins=[RunStep(), evaluation],
        max_steps=4,
        autoload=False,
    )
    print(trainer.train())
    print(f"the weight after steps {evaluation.results}")


if __name__ == "__main__":
    main()
