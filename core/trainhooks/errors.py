"""The errors of trainhooks.

Exception
├── TrainhooksError                 everything below is raised on purpose, with the value, its origin and the remedy
│   ├── UsageError                  wrong usage or configuration                                      exit code 2
│   │   ├── OptionError             an option of a plugin or a setting of the run
│   │   ├── PluginNotFoundError     a name that matches no plugin
│   │   └── MissingPartError        a model, an optimizer or a loader that nobody gave
│   ├── PluginError                 a plugin or the project file is broken                            exit code 3
│   │   ├── PluginImportError       it cannot be imported or built
│   │   └── PluginValidationError   it can be imported, but its hooks are wrong; all faults at once
│   └── TrainingError               the run itself cannot go on                                       exit code 1
│       ├── StageResultError        a stage that must have a result has none
│       ├── DataError               a loader gives no batches
│       └── CheckpointError         a checkpoint cannot be written or read
└── ControlFlow                     raised by hooks to steer the loop; never reaches the user
    ├── SkipStep                    drop this batch
    └── SkipEpoch                   end this epoch
SystemExit
└── Terminated                      a signal other than Ctrl-C has ended the run              exit code 128 + its number
"""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class TrainhooksError(Exception):
    """Base of all errors that trainhooks raises itself."""

    exit_code: ClassVar[int] = 1


class UsageError(TrainhooksError):
    """Wrong usage or configuration; reaches the terminal as one message, without a traceback."""

    exit_code = 2


class OptionError(UsageError):
    """An option that does not exist, is missing, or has a value of the wrong type."""


class PluginNotFoundError(UsageError):
    """A plugin name that matches nothing."""


class MissingPartError(UsageError):
    """A model, an optimizer or a loader that was not passed and that no plugin makes."""


class PluginError(TrainhooksError):
    """A plugin or the project file is broken."""

    exit_code = 3


class PluginImportError(PluginError):
    """A plugin that cannot be imported or built."""


class PluginValidationError(PluginError):
    """A plugin whose hooks are wrong.

    Args:
        plugin: How the plugin is named in messages.
        faults: One sentence for each fault, with a suggestion.
    """

    def __init__(self, plugin: str, faults: Sequence[str]) -> None:
        self.plugin = plugin
        self.faults = tuple(faults)
        super().__init__(f"{plugin}: " + "\n  ".join(("", *faults) if len(faults) > 1 else faults))


class TrainingError(TrainhooksError):
    """The run cannot go on."""


class StageResultError(TrainingError):
    """A stage that must have a result has none."""


class DataError(TrainingError):
    """A loader gives no batches."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be written or read."""


class ControlFlow(Exception):  # noqa: N818 - a request, not an error
    """Base of what hooks raise to steer the loop.

    Args:
        reason: Why, in words that a log line can show.
    """

    #: Where it may be raised, in words.
    place: ClassVar[str] = "in a step"

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason)


class SkipStep(ControlFlow):
    """Raised in ``prepare_batch``, ``before_step`` or a part of ``train_step``: drop this batch."""

    place = "in prepare_batch, before_step or a part of train_step"


class SkipEpoch(ControlFlow):
    """Raised in ``before_epoch`` or a hook of a step: end this epoch and go on with the next."""

    place = "in before_epoch or a hook of a step"


class Terminated(SystemExit):
    """A signal has ended the run, after a checkpoint; left alone it ends the program with the exit code 128 + n.

    Ctrl-C (SIGINT) raises ``KeyboardInterrupt`` instead.

    Args:
        signum: The signal's number.
    """

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(128 + signum)

    def __str__(self) -> str:
        """Return the signal's name."""
        try:
            return signal.Signals(self.signum).name
        except ValueError:
            return f"signal {self.signum}"


def add_note(exception: BaseException, note: str) -> None:
    """Attach ``note`` to ``exception``, on Python 3.10 as well, which keeps but does not print it.

    An exception that takes none, since its class has a way of its own, is left without: a note must not stand in its place.
    """
    with suppress(Exception):
        if sys.version_info >= (3, 11):
            exception.add_note(note)
        else:
            vars(exception)["__notes__"] = [*getattr(exception, "__notes__", ()), note]


def message_of(exception: BaseException) -> str:
    """Return the message of anybody's exception, whose ``__str__`` may fail itself."""
    try:
        return str(exception)
    except Exception as error:
        return f"(its __str__ fails with {type(error).__name__})"


@contextmanager
def no_stray_requests() -> Iterator[None]:
    """Turn a request to skip a step or an epoch, raised where there is none to skip, into an error.

    Raises:
        UsageError: There was one.
    """
    try:
        yield
    except ControlFlow as request:
        kind = type(request)
        message = f"{kind.__name__}({request.reason!r}) was raised where there is nothing to skip: raise it {kind.place}"
        error = UsageError(message)
        for note in getattr(request, "__notes__", ()):
            add_note(error, note)
        raise error from request
