"""Coming from the filter pipeline with which hooks are often introduced: a hook decides whether an item goes on.

There an object with an `input_pipeline` has a slot for a filter function; an item that the filter wants out is not put into
the queue. Here the items are batches, and what they go on to is a training step.

| the filter pipeline                         | here                                                                  |
| ------------------------------------------- | --------------------------------------------------------------------- |
| `stash.register_input_filter_hook(filter)`  | `Trainer(plugins=[filter])`, or `pip install`, or `trainconf.py`      |
| one slot, which the next filter takes over  | any number of filters; `trainhooks hooks before_step` shows the order |
| the return value says whether to go on      | `raise SkipStep("why")` drops, returning goes on                      |
| `input_pipeline(content)`                   | `prepare_batch`, `before_step`, `train_step` for each batch           |
| `insert_queue(content)`                     | `train_step`                                                          |
| nobody knows what was dropped               | `after_skip(batch, reason)`                                           |

A filter in `before_step` sees the batch as the model will, on its device, and `after_skip` tells everybody. A filter around
`prepare_batch` saves the transfer too, and no other hook ever hears of the batch.
"""

from collections import Counter

import torch
from torch import nn

from trainhooks import SkipStep, Trainer, hookimpl


class Filter:
    """Drops batches for which a function is false.

    Args:
        reason: Why they are dropped, in words.
        keep: Takes a batch; false drops it.
    """

    def __init__(self, reason, keep):
        self.reason, self.keep = reason, keep

    @hookimpl
    def before_step(self, batch):
        if not self.keep(batch):
            raise SkipStep(self.reason)


class EarlyFilter:
    """The same in front of the transfer to the device; it must count for itself.

    An evaluation is left alone: its result is meant for all of its data.
    """

    def __init__(self, keep):
        self.keep = keep
        self.dropped = 0

    @hookimpl(wrapper=True)
    def prepare_batch(self, trainer, batch):
        if trainer.split == "train" and not self.keep(batch):
            self.dropped += 1
            raise SkipStep("early")
        return (yield)


class Dropped:
    """Counts what was dropped, by reason."""

    phase = "measurement"

    def __init__(self):
        self.reasons = Counter()

    @hookimpl
    def after_skip(self, reason):
        self.reasons[reason] += 1


def finite(batch):
    """Return whether all inputs of a batch are numbers."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in batch)


def labelled(batch):
    """Return whether a batch has a target that is not the one for "unknown", which is below 0."""
    return bool((batch[-1] >= 0).any())


class Slope(nn.Module):
    """One weight; its prediction is ``weight * x``."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        return self.weight * x


def main():
    """Train on six batches, three of which do not get through."""
    nan = float("nan")
    pairs = [([1.0], [2.0]), ([nan], [2.0]), ([1.0], [-1.0]), ([1.0], [2.0]), ([], []), ([1.0], [2.0])]
    batches = [tuple(torch.tensor(values, dtype=torch.float64) for values in pair) for pair in pairs]
    model, dropped = Slope(), Dropped()
    early = EarlyFilter(lambda batch: len(batch[0]) > 0)
    trainer = Trainer(
        model,
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.25),
        loaders={"train": batches},
        plugins=[Filter("not finite", finite), Filter("no label", labelled), early, dropped],
        max_epochs=1,
        autoload=False,
    )
    outcome = trainer.train()
    print(f"{outcome.step} of {len(batches)} batches went on; the weight is {model.weight.item()}")
    print(f"dropped: {dict(dropped.reasons)}, and {early.dropped} before anybody saw it")


if __name__ == "__main__":
    main()
