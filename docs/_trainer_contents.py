"""What stands on ``docs/reference/trainer.md`` in which order, and the texts that no docstring has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Names without an underscore that are not public, by what they are for. The rule: modules of the engine and the built-in plugins share
#: them, no page of the documentation names them, and only whoever drives a run, keeps its records or writes its checkpoints has a use for
#: them. Every other name has its place in ``SECTIONS``.
INTERNAL: Final = {
    "making and describing a run": "as_trainer build forget_plugin given_settings keep_parts make_outcome manager plugin_records session "
    "take_optimizer",
    "what the loop calls": "batch_indices between_steps close_epoch count_failed_step done drop_batch end_epoch ended gradients_spent "
    "limit_reached limited measures open_epoch pay_attention position restore_random rewind_epoch rng run_evaluation serve_owed "
    "serve_requests",
    "interruptions, which a hook only asks for": "hurried interruption leave_evaluation leave_if_interrupted lose_patience",
    "how checkpoints are written": "acknowledge_saves checkpoint_path load_counters load_log_state loaded_run_id log_state pending_saves "
    "plugin_lock run_folder run_info save_counters saves saving settle_saves",
    "the way of what is logged to the reporters": "add_reporter bus clock close_reporter drain_reporter flush flush_evaluation forget_undelivered "
    "open_reporter own_hyperparameters peek plan_attention plan_flush records reporter step_marks",
}


@dataclass(frozen=True)
class Section:
    """A part of the page: attributes in a table, then methods, each in this order.

    Args:
        title: The heading.
        text: Below it.
        names: Of attributes and methods of ``Trainer``.
    """

    title: str
    text: str
    names: str


SECTIONS: Final = (
    Section(
        "Running",
        "Each may be called again and again. `evaluate` and `predict` may also be called by a hook, inside of a run.",
        "train evaluate predict",
    ),
    Section(
        "Where a run is",
        "Counters are indices of what is running, from 0, and become counts when it is done: `trainer.step` is 0 in the hooks of the first\n"
        "step, and 100 when 100 steps have been trained. See [counters](../the-loop.md#counters).",
        "step update epoch batch_index dropped dropped_reason split end_of_epoch is_last_step is_last_epoch "
        "every_n_steps every_n_updates every_n_epochs",
    ),
    Section(
        "How long it goes on",
        "The three limits may be set, also while the run goes on; `None` is no limit. See [limits](../the-loop.md#limits).",
        "max_epochs max_steps max_updates steps_per_epoch epoch_length total_steps total_updates updates_until",
    ),
    Section(
        "What is trained",
        "In a training all of it is there from `setup` on.",
        "model loss optimizer optimizers loaders device loader find_loader",
    ),
    Section(
        "The run",
        "",
        "settings metrics outcome stop_reason work_dir run_id parent_id is_main rank world_size smoothed run_file",
    ),
    Section(
        "What hooks ask for",
        "To drop a batch or to end an epoch a hook raises [`SkipStep` or `SkipEpoch`](#exceptions). See "
        "[skip and stop](../the-loop.md#skip-and-stop).",
        "stop request_eval request_checkpoint interrupt save_checkpoint",
    ),
    Section(
        "Logging",
        "[Reporting](../reporters.md) says when what is logged is reported, and to whom.",
        "log log_dict log_image log_text log_histogram log_table log_artifact log_hyperparameters",
    ),
    Section(
        "Plugins",
        "",
        "plugins hooks register unregister using call_others update_parameters mark_steps",
    ),
    Section(
        "State",
        "Checkpoints are made of it; see [checkpoints and resume](../checkpoints-and-resume.md).",
        "stateful state_dict load_state_dict",
    ),
)

#: What the source has no ``#:`` comment for, since the name says it there, or one that stands above several.
PLAIN: Final = {
    "step": "Steps: one `train_step`, one batch from the loader.",
    "update": "Updates of the parameters; with gradient accumulation several steps make one.",
    "epoch": "Epochs.",
    "steps_per_epoch": "Batches in an epoch, where that was set.",
    "model": "What is trained. Before `make_model` was asked it is `None`.",
    "loss": "What `Trainer` was given, or `None`.",
    "optimizers": "The optimizers by name; a single one is called `optimizer`.",
    "loaders": "Loaders by split, as far as they were given or made.",
    "device": "Where the model and the batches are.",
    "settings": "What was set for this run: `seed`, `name`, `log_every_steps` and [the others](../configuration.md#settings-of-a-run).",
    **dict.fromkeys(("rank", "world_size"), "Number of this process among those of a distributed run, and how many there are."),
    "run_id": "The same over all resumes of a run; it is in `run.json` and in every checkpoint.",
    "parent_id": "The `run_id` of the run whose checkpoint this one began with in another folder, or `None`.",
    "hooks": "The calls of the hooks, with keyword arguments: a plugin calls those that "
    "[it specifies](../writing-a-plugin.md#hooks-of-its-own).",
    "stateful": "What a checkpoint holds, by name: objects with `state_dict()` and `load_state_dict()`, restored in place. The model, the "
    "optimizers and the plugins that have a state are there; a hook may add others, in `setup`.",
}

INTRODUCTION: Final = """\
# Reference of `Trainer`

<!-- Written by docs/generate_reference.py from the docstrings in core/trainhooks. Do not edit: change them there. -->

A run is one `Trainer`. A script makes it and calls it; hooks get it as their argument `trainer`. This page has all of it that is
public, and what else `trainhooks` exports. The hooks themselves stand in [their reference](hooks.md).

```python
from trainhooks import Trainer, hookimpl
```
"""

NOT_GIVEN: Final = """\
The default of a setting holds if the argument is `None` and no file that `config` names sets it either; see
[configuration](../configuration.md#settings-of-a-run). `trainer.train()` needs a limit, and what is not passed of the model, the
optimizer and the loaders is asked of the hooks `make_model`, `make_optimizer` and `make_loader`.
"""

MARKERS: Final = """\
## Markers

`@hookimpl` marks a function or method as the implementation of the hook that has its name. It takes

| argument | meaning |
| --- | --- |
| `wrapper=True` | it is a generator that wraps the hook: it yields once, and returns the result ([stages](../the-loop.md#stages-and-events)) |
| `tryfirst=True`, `trylast=True` | it is called before, or after, those of all other plugins ([order](../using-plugins.md#order)) |
| `optionalhook=True` | it is no error if nobody specifies such a hook ([hooks of other plugins](../writing-a-plugin.md#hooks-of-its-own)) |
| `specname="NAME"` | the hook's name, where the function has another one |

`@hookspec` marks a function as the specification of a hook, for plugins that bring [hooks of their own](../writing-a-plugin.md#hooks-of-its-own);
with `firstresult=True` it is a stage, whose first result that is not `None` counts.

Both are [pluggy's](https://pluggy.readthedocs.io) markers.
"""
