"""``crash_report``: what is known of a failure, in the run folder."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
import traceback
from array import array
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from trainhooks import TrainhooksError, hookimpl, loop
from trainhooks.attribution import find_origin
from trainhooks.driver import Driver
from trainhooks.durable import replace_text
from trainhooks.errors import add_note, message_of
from trainhooks.run_record import finite, now, versions

if TYPE_CHECKING:
    from trainhooks import Trainer
    from trainhooks.types import StateDict

log = logging.getLogger("trainhooks")

FILE: Final = "crash.json"
_LONGEST_MESSAGE, _MOST_CAUSES = 500, 5
#: A frame in the text of an exception that came from a loader's worker.
_FRAME: Final = re.compile(r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)
#: What the loop calls between two batches.
_BETWEEN: Final = (Driver.pay_attention.__code__, Driver.close_epoch.__code__, None)


class CrashReport:
    """Writes ``crash.json`` into the run folder when a training fails: where, in which plugin, on which samples.

    It has the exception with the places in its traceback, the counters, the plugin and hook at fault, the dataset's indices
    of the running batch where the loader tells, the random state of the epoch's beginning, versions, plugins with their
    options, settings and the newest checkpoint. It has no values of variables, no tensors of the training and no batch.
    Of a message it has the first line. Interrupts are no failures. Without a ``work_dir`` nothing is written.
    """

    phase = "persistence"
    on_error = "disable"

    def __init__(self) -> None:
        self._trains = False
        self._split: str | None = None

    @hookimpl(tryfirst=True)
    def before_train(self) -> None:
        """Report from now on: what fails before is told by its message."""
        self._trains, self._split = True, None

    @hookimpl
    def before_eval(self, split: str) -> None:
        """Remember what is being evaluated."""
        self._split = split

    @hookimpl
    def after_eval(self) -> None:
        """Training goes on."""
        self._split = None

    @hookimpl
    def on_exception(self, trainer: Trainer, exception: BaseException) -> None:
        """Write the report; that it cannot be written is a warning beside the exception."""
        folder, outcome = trainer.run_folder, trainer.outcome
        failed = self._trains and isinstance(exception, Exception) and outcome is not None and outcome.status == "failed"
        if not failed or folder is None or not folder.is_open or not trainer.is_main:
            return
        report = self._report(trainer, exception)
        try:
            path = trainer.run_file(FILE)
            try:
                replace_text(path, json.dumps(report, indent=1, allow_nan=False))
            except OSError:  # a disk that is nearly full may take the half of it that matters most
                small = {key: value for key, value in report.items() if key not in ("random", "settings", "plugins")}
                replace_text(path, json.dumps(small, allow_nan=False))
        except (OSError, TrainhooksError) as error:
            log.warning("crash_report: cannot write %s: %s", folder.path / FILE, error)
        else:
            add_note(exception, f"crash report: {path}")

    @hookimpl
    def teardown(self) -> None:
        """Nothing that comes now belongs to a training."""
        self._trains, self._split = False, None

    def _report(self, trainer: Trainer, exception: BaseException) -> dict[str, Any]:
        indices = _indices(trainer) if self._split is None and _in_batch(exception) else None
        order = trainer.position.state_dict(None).get("order") or {}
        return {
            "format": 1,
            "time": now(),
            "exception": _described(exception),
            "plugin": _plugin_of(trainer, exception),
            "step": trainer.step,
            "update": trainer.update,
            "epoch": trainer.epoch,
            "batch_index": trainer.batch_index,
            "split": self._split or "train",
            "batch_indices": finite(indices),
            "checkpoint": trainer.run_folder.record.get("checkpoint") if trainer.run_folder is not None else None,
            "versions": versions(),
            "device": str(trainer.device),
            "settings": finite({name: value for name, value in trainer.run_info().settings.items() if name != "plugins"}),
            "plugins": finite(trainer.plugin_lock()),
            "random": {"now": _digests(trainer.rng.state_dict()), "epoch_start": _encoded(order.get("rng", {}))},
        }


def read_epoch_start(path: str | Path) -> StateDict:
    """Return the random state of the epoch's beginning from a report, as ``trainer.rng.load_state_dict`` takes it.

    Args:
        path: Of the report.
    """
    report = json.loads(Path(path).read_text(encoding="utf-8"))
    return {name: _decoded(value) for name, value in report["random"]["epoch_start"].items()}


def _described(exception: BaseException, depth: int = 0) -> dict[str, Any]:
    """Return an exception, the notes on it and what caused it, without a value of any variable."""
    text = message_of(exception)
    kind = type(exception)
    frames = [
        {"file": frame.filename, "line": frame.lineno, "function": frame.name}
        for frame in traceback.extract_tb(exception.__traceback__)
    ]
    found: dict[str, Any] = {
        "type": kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
        "message": _first_line(text),
        "notes": [_first_line(str(note)) for note in getattr(exception, "__notes__", ())],
        "traceback": frames,
    }
    if "Original Traceback" in text:  # torch puts that of a worker into the message
        found["worker_traceback"] = [{**one.groupdict(), "line": int(one["line"])} for one in _FRAME.finditer(text)]
    cause = exception.__cause__ or (None if exception.__suppress_context__ else exception.__context__)
    if cause is not None and depth < _MOST_CAUSES:
        found["cause"] = _described(cause, depth + 1)
    return found


def _in_batch(exception: BaseException) -> bool:
    """Return whether a batch was being fetched or trained, not an epoch closed, a metric flushed or a checkpoint saved."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(exception.__traceback__)]
    return any(above is loop.train_epoch.__code__ and below not in _BETWEEN for above, below in pairwise([*codes, None]))


def _indices(trainer: Trainer) -> list[Any] | None:
    try:
        return trainer.batch_indices()
    except Exception as error:  # a sampler is anybody's code, and may be what failed
        log.debug("crash_report: the indices of the batch are not known: %r", error)
        return None


def _plugin_of(trainer: Trainer, exception: BaseException) -> dict[str, Any] | None:
    found = find_origin(exception, trainer.manager)
    if found is None or found.plugin.source == "engine":
        return None
    plugin = found.plugin
    names = {"name": plugin.name, "distribution": plugin.distribution, "version": plugin.version}
    return {**names, "hook": found.hook, "source": plugin.source}


def _first_line(text: str) -> str:
    lines = text.splitlines()
    return lines[0][:_LONGEST_MESSAGE] if lines else ""


def _digests(states: StateDict) -> dict[str, str]:
    return {name: hashlib.sha256(json.dumps(_encoded_value(value)).encode()).hexdigest() for name, value in states.items()}


def _encoded(states: StateDict) -> dict[str, Any]:
    return {name: _encoded_value(value) for name, value in states.items()}


def _encoded_value(value: Any) -> Any:
    """Return a generator's state as JSON knows it: bytes and long lists of words in Base64."""
    if isinstance(value, Tensor):
        return {"bytes": base64.b64encode(bytes(value.cpu().tolist())).decode()}
    if isinstance(value, list | tuple):
        if value and all(type(item) is int and 0 <= item < 2**32 for item in value):
            return {"words": base64.b64encode(array("I", value).tobytes()).decode()}
        return [_encoded_value(item) for item in value]
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict) and "bytes" in value:
        return torch.tensor(list(base64.b64decode(value["bytes"])), dtype=torch.uint8)
    if isinstance(value, dict):
        return array("I", base64.b64decode(value["words"])).tolist()
    return [_decoded(item) for item in value] if isinstance(value, list) else value
