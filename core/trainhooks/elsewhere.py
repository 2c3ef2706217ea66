"""What stands here in the place of arguments and methods that trainers of other frameworks have."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from .given import described
from .suggest import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")

#: Arguments of theirs by what is written here; ``...`` is the value, where that is a number or text.
_ARGUMENTS: Final = {
    "max_epochs=...": "epochs epoch max_epoch n_epochs num_epochs num_train_epochs nb_epochs total_epochs",
    "max_steps=...": "steps max_iters max_iter total_steps num_train_steps",
    "loss=...": "loss_fn loss_function loss_func criterion compute_loss",
    "optimizer=...": "optimizers optim",
    "loaders={'train': ..., 'val': ...}": "loader train_loader val_loader train_dataloader train_dataloaders val_dataloader val_dataloaders "
    "eval_dataloader test_dataloader dataloader dataloaders train_dataset eval_dataset datamodule data",
    "plugins=[...]": "callbacks callback hooks default_hooks custom_hooks cbs",
    "plugins=['lr'], options={'lr': {'schedule': 'cosine'}}": "scheduler schedulers lr_scheduler lr_schedulers",
    "plugins=['tensorboard'] or another reporter": "logger loggers log_with report_to",
    "device='auto'": "accelerator accelerators devices gpus",
    "work_dir=...": "default_root_dir output_dir save_dir save_folder logdir log_dir",
}


class Elsewhere:
    """A method that trainers elsewhere have and this one has not: who asks for it is told what to call.

    Args:
        instead: The call.
    """

    def __init__(self, instead: str) -> None:
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._message = f"{owner.__name__!r} object has no attribute {name!r}; here that is {self._instead}"

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(self._message)


def known_arguments(init: Callable[P, None]) -> Callable[P, None]:
    """Have a constructor say what to write in the place of an argument that it does not have."""
    known = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        for name, value in kwargs.items():
            if name not in known:
                hint = _argument_of_elsewhere(name, value) or suggestion(name, known)
                message = f"{init.__qualname__}() got an unexpected keyword argument {name!r}{hint}"
                raise TypeError(message)
        init(*args, **kwargs)

    return checked


def _argument_of_elsewhere(name: str, value: Any) -> str:
    here = next((argument for argument, names in _ARGUMENTS.items() if name in names.split()), "")
    if here.endswith("=...") and isinstance(value, int | str):
        here = here.replace("...", described(value))
    return here and f"; here that is {here}"
