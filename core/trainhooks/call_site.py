"""Where the code of users calls ours, as ``file:line``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import FrameType, TracebackType

_OURS: Final = __name__.partition(".")[0]
#: Packages whose code calls that of users.
_ASIDE: Final = (_OURS, "pluggy", "torch")


def calling_line() -> str:
    """Return the line of the call that the running function of ours serves: of the innermost frame that is not ours."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _package(frame) in _ASIDE:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def wrong_call(traceback: TracebackType | None) -> str | None:
    """Return the line of the call of ours that an error was raised in, or ``None`` if it was raised elsewhere."""
    line, last = None, ""
    while traceback is not None:
        last = _package(traceback.tb_frame)
        if last not in _ASIDE:
            line = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return line if last == _OURS else None


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
