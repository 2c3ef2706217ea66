"""Settings of a run: what they are, and what some of them mean."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from .config import PYTHON, Config
from .errors import OptionError, UsageError
from .options import validated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .options import Given


@dataclass(frozen=True)
class Settings:
    """Settings of a run, as ``[tool.trainhooks.train]``, ``--set`` and ``Trainer(...)`` give them."""

    max_epochs: int | None = None
    max_steps: int | None = None
    max_updates: int | None = None
    steps_per_epoch: int | None = None
    device: str = "auto"
    seed: int | None = None
    work_dir: Path | None = None
    name: str | None = None
    log_every_steps: int = 50
    report_timeout_s: float = 60.0


_LEAST: Final = {"log_every_steps": 1, "report_timeout_s": 0}


def make_settings(given: Mapping[str, Given]) -> Settings:
    """Return settings from what was given.

    Raises:
        OptionError: A name is unknown, or a value is of a wrong type or too small.
    """
    settings = Settings(**validated(Settings, given, "settings of the run"))
    for name, least in _LEAST.items():
        value = getattr(settings, name)
        if value < least:
            message = f"settings of the run: option {name!r} in {given[name].origin}: must be {least} or more, not {value:g}"
            raise OptionError(message)
    if settings.seed is not None and not 0 <= settings.seed < 2**64:
        message = f"settings of the run: option 'seed' in {given['seed'].origin}: must be 0 or more and below 2**64, not {settings.seed}"
        raise OptionError(message)
    return settings


def pick_device(name: str) -> torch.device:
    """Return the device of that name, with its index; ``"auto"`` is an accelerator where there is one, else the CPU.

    Raises:
        UsageError: torch knows no such device.
    """
    if name == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        name = found.type if found is not None else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:  # which lists all that any build of torch may have
        message = f"device {name!r}: must be one such as cpu, cuda, cuda:0 or mps, or auto"
        raise UsageError(message) from None
    try:
        if device.type != "cpu":
            device = torch.empty(0, device=device).device  # with its index, if it is there at all
    except (AssertionError, RuntimeError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0]  # torch goes on with a list of all backends
        message = f"device {name!r}: {reason}; --set device=cpu runs everywhere"
        raise UsageError(message) from None
    return device


def seed_everything(seed: int) -> None:
    """Seed torch, Python and, where it is loaded, NumPy."""
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)


def complete_config(
    config: str | Path | Config | None,
    settings: Mapping[str, Any],
    options: Mapping[str, Mapping[str, Any]],
    words: list[str],
    *,
    autoload: bool | list[str],
) -> Config:
    """Layer the arguments over a file; a ``Config`` from the command line is complete but for them."""
    if isinstance(config, Config):
        merged = Config()
        merged.add_python(settings, options, autoload=autoload)
        merged.choose(words, "Trainer(plugins=[...])", PYTHON)
        return merged.under(config)
    complete = Config.read(Path(config)) if config is not None else Config()
    complete.add_python(settings, options, autoload=autoload)
    complete.choose(words, "Trainer(plugins=[...])", PYTHON)
    complete.add_environment()
    return complete
