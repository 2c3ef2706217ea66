"""The nearest of the names that exist, for messages about one that does not."""

from __future__ import annotations

from typing import Any, Final

#: Hooks by what stands in their place in Keras, Lightning, Hugging Face, MMCV, Detectron2, fastai and others.
_ELSEWHERE: Final = {
    "setup": "on_init_end set_model set_params",
    "make_model": "configure_model build_model",
    "make_optimizer": "configure_optimizers create_optimizer build_optimizer",
    "make_loader": "train_dataloader val_dataloader test_dataloader predict_dataloader get_train_dataloader get_eval_dataloader",
    "before_train": "on_train_begin on_train_start on_fit_start before_run before_fit fit_start",
    "after_train": "on_train_end on_fit_end after_run after_fit fit_end",
    "before_epoch": "on_epoch_begin on_epoch_start on_train_epoch_start before_train_epoch epoch_start",
    "after_epoch": "on_epoch_end on_train_epoch_end epoch_end",
    "prepare_batch": "transfer_batch_to_device on_after_batch_transfer after_dataloader",
    "before_step": "on_train_batch_begin on_train_batch_start on_batch_begin on_step_begin before_iter before_train_iter before_batch "
    "batch_start",
    "after_step": "on_train_batch_end on_batch_end on_step_end on_substep_end after_iter after_train_iter after_batch batch_end",
    "train_step": "run_step",
    "compute_loss": "training_step",
    "backward": "on_before_backward before_backward",
    "gradients_ready": "on_after_backward after_backward on_before_optimizer_step on_grad_computed",
    "clip_gradients": "configure_gradient_clipping",
    "optimizer_step": "on_pre_optimizer_step on_before_zero_grad",
    "after_update": "on_optimizer_step",
    "before_eval": "on_test_begin on_test_start on_test_epoch_start on_validation_start on_validation_epoch_start on_eval_start "
    "on_valid_begin before_val before_val_epoch before_test before_test_epoch before_validate eval_start",
    "eval_step": "validation_step test_step on_test_batch_begin on_test_batch_start on_validation_batch_start before_val_iter "
    "before_test_iter",
    "after_eval_step": "on_test_batch_end on_validation_batch_end on_prediction_step after_val_iter after_test_iter eval_batch_end",
    "after_eval": "on_test_end on_test_epoch_end on_validation_end on_validation_epoch_end on_eval_end on_valid_end on_evaluate "
    "after_val after_val_epoch after_test after_test_epoch after_validate eval_end",
    "before_predict": "on_predict_begin on_predict_start on_predict_epoch_start predict_start",
    "predict_step": "on_predict_batch_begin on_predict_batch_start",
    "after_predict_step": "on_predict_batch_end predict_batch_end",
    "after_predict": "on_predict_end on_predict_epoch_end on_predict predict_end",
    "on_load": "on_load_checkpoint after_load_checkpoint",
    "on_save": "on_save_checkpoint before_save_checkpoint",
    "report_metrics": "on_log",
}


def suggestion(name: str, known: Any) -> str:
    """Return ``; did you mean 'x'?`` for the nearest of ``known``, else the shortest that begins with ``name``, or nothing."""
    begun = [one for one in known if name and one.casefold().startswith(name.casefold())]
    near = _nearest(name, known) or min(begun, key=len, default=None)
    return f"; did you mean {near!r}?" if near is not None else ""


def hook_suggestion(name: str, hooks: Any) -> str:
    """Return what a hook of another framework is called here, else the nearest of ``hooks``, or nothing."""
    here = next((hook for hook, names in _ELSEWHERE.items() if name in names.split()), None)
    return f"; here that is {here!r}" if here in hooks else suggestion(name, hooks)


def may_be_of_a_plugin(hook: str, hooks: Any) -> bool:
    """Return whether a hook that is not there may be one that a plugin specifies, which would begin with its name."""
    prefix, _, rest = hook.partition("_")
    return (
        bool(rest)
        and not any(hook in names.split() for names in _ELSEWHERE.values())
        and (_nearest(prefix, {one.partition("_")[0] for one in hooks}) is None)
    )


def _nearest(name: str, known: Any) -> str | None:
    from difflib import get_close_matches  # most names are right

    by_text = {one.casefold(): one for one in known}  # that only the case differs is no difference
    near = get_close_matches(name.casefold(), list(by_text), n=1)
    return by_text[near[0]] if near else None
