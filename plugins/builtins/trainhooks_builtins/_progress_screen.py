"""The part of a terminal that is drawn again and again, at its bottom, by a thread of its own; no plugin.

What is printed or logged meanwhile goes above it.
"""

from __future__ import annotations

import logging
import mmap
import os
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType

_SHARE = 100  # it sleeps so many times as long as it computed, during which the training could not
_SLOWEST_S = 2.0


class Screen:
    """Draws what ``render`` gives, from ``start`` to ``close``.

    Args:
        render: Called on the thread that draws with the console; ``None`` leaves what is there, while somebody types.
        notebook: Whether it is a cell of a notebook, whose output needs no help to stay above.
        every_s: How long it sleeps at least.
    """

    def __init__(self, render: Callable[[Console], RenderableType | None], *, notebook: bool, every_s: float) -> None:
        self._render = render
        self._notebook = notebook
        self._every_s = every_s
        out: Any = Printable(sys.stdout)
        if notebook:
            self.console = Console(file=out, force_jupyter=True)
        else:
            self.console = Console(
                file=out,
                force_terminal=True,
                force_interactive=True,
                force_jupyter=False,
                width=_unless_zero("COLUMNS", 80),
                height=_unless_zero("LINES", 24),
            )
        self._live = Live(console=self.console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._proxies: list[Above] = []
        self._height = mmap.mmap(-1, 1)  # in lines, 0 when nothing is drawn; processes that are forked see it change
        #: What went wrong on the thread, which draws no more then.
        self.error: Exception | None = None

    def start(self) -> None:
        """Draw it, and go on drawing."""
        self._update()
        self._live.start(refresh=True)
        if not self._notebook:
            self._divert()
        self._thread = threading.Thread(target=self._work, name="trainhooks-progress", daemon=True)
        self._thread.start()

    def print(self, line: str) -> None:
        """Print a line above it."""
        self.console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=not self._notebook)

    def close(self) -> None:
        """Draw it a last time, leave it there, and leave the streams as they were found."""
        self._done.set()
        try:
            if self._thread is not None:
                self._thread.join()
            if self.error is None:
                self._update()
                if self._notebook:
                    self._live.refresh()
        finally:
            try:
                self._live.stop()
            finally:
                self._restore()

    def _work(self) -> None:
        pause = self._every_s
        while not self._done.wait(pause):
            began = time.thread_time()
            try:
                if self._update():
                    self._live.refresh()
            except Exception as error:
                self.error = error
                with suppress(Exception):
                    self._live.stop()
                self._restore()
                return
            pause = min(max((time.thread_time() - began) * _SHARE, self._every_s), _SLOWEST_S)

    def _update(self) -> bool:
        renderable = self._render(self.console)
        if renderable is not None:
            self._live.update(renderable)
            self._height[0] = min(_lines_of(renderable), self.console.height, 255)
        return renderable is not None

    # --- What others print ---

    def _divert(self) -> None:
        """Have what is written to the same terminal, by logging handlers too, go above."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is not None and _is_terminal(stream):
                proxy = Above(stream, self.console, self._height)
                self._proxies.append(proxy)
                setattr(sys, name, proxy)
        for handler in _stream_handlers():
            for proxy in self._proxies:
                if handler.stream is proxy.stream:
                    handler.setStream(proxy)

    def _restore(self) -> None:
        self._height[0] = 0
        for proxy in self._proxies:
            for name in ("stdout", "stderr"):
                if getattr(sys, name) is proxy:
                    setattr(sys, name, proxy.stream)
            for handler in _stream_handlers():
                if handler.stream is proxy:
                    handler.setStream(proxy.stream)
            proxy.end()
        self._proxies = []


def _lines_of(renderable: RenderableType) -> int:
    """Return how many lines something is high that is drawn here: a panel around a text, or a line."""
    inside = renderable.renderable if isinstance(renderable, Panel) else None
    return inside.plain.count("\n") + 3 if isinstance(inside, Text) else 1


def _unless_zero(variable: str, usual: int) -> int | None:
    """Return the usual size where a variable says 0, as some do that do not know it, and leave the rest to rich."""
    return usual if os.environ.get(variable, "").strip() == "0" else None


def _is_terminal(stream: Any) -> bool:
    with suppress(Exception):  # closed, or something that is no stream
        return bool(stream.isatty())
    return False


def _stream_handlers() -> Iterator[Any]:
    loggers = [logging.root, *list(logging.root.manager.loggerDict.values())]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):  # a placeholder has none
            if isinstance(handler, logging.StreamHandler):
                yield handler


class Printable:
    """A stream that takes every character: those that its encoding does not have are written as escapes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding, "replace"))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Above:
    """Stands for a stream of the terminal; whole lines that are written to it appear above what is drawn.

    Args:
        stream: The one that it stands for.
        console: What draws.
        height: One byte, the number of lines that are drawn now, in memory that is shared with forked processes.
    """

    def __init__(self, stream: Any, console: Console, height: mmap.mmap) -> None:
        self.stream = stream
        self._console = console
        self._height = height
        self._process = self._writer = os.getpid()
        self._lock = threading.RLock()
        self._begun = ""  # a line that has no end yet
        self._ended = False
        self._decoder = AnsiDecoder()

    def write(self, text: str) -> int:
        """Print the lines that are complete."""
        if self._ended:
            self.stream.write(text)
            return len(text)
        with self._own_lock():
            lines, newline, self._begun = (self._begun + text).rpartition("\n")
            if newline:
                self._print(lines)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Print a line that has no end yet, a prompt perhaps, but for one that is written over, as bars are."""
        if self._ended:
            self.stream.flush()
            return
        with self._own_lock():
            if self._begun and "\r" not in self._begun:
                begun, self._begun = self._begun, ""
                self._print(begun)

    def end(self) -> None:
        """Pass on whatever is still written, and what was not."""
        begun, self._begun = self._begun, ""
        self._ended = True
        if begun:
            self.stream.write(begun)

    def _own_lock(self) -> threading.RLock:
        """Return the lock; a process that was forked while somebody had it gets a new one, and begins with an empty line."""
        if os.getpid() != self._writer:
            self._writer, self._lock, self._begun = os.getpid(), threading.RLock(), ""
        return self._lock

    def _print(self, lines: str) -> None:
        if self._writer != self._process:  # whose console's lock may be held by a thread that there is not here
            self._print_over(lines)
            return
        for line in lines.split("\n"):
            seen = line.rstrip("\r").rpartition("\r")[2]
            self._console.print(self._decoder.decode_line(seen), soft_wrap=True)

    def _print_over(self, lines: str) -> None:
        self.stream.write(self.in_place(lines))
        self.stream.flush()

    def in_place(self, lines: str) -> str:
        """Return what takes the place of what is drawn, which will be drawn again below: for those who write past all locks."""
        height = self._height[0]
        erase = "\r\x1b[2K" + "\x1b[1A\x1b[2K" * (height - 1) if height else ""
        return f"{erase}{lines}\n" + "\n" * (height - 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
