"""The process that the SDK runs in, and how it is spoken to: one line of JSON each way, with a time limit for the answer.

In the training process the SDK would patch ``multiprocessing``, ``sys.exit`` and the handlers of signals, set the seeds of random
generators anew, and repeat a request that fails for ever.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path


class LinkError(RuntimeError):
    """The SDK refused something."""


class Link:
    """A process of the SDK.

    Args:
        log: File that what it prints is appended to, or ``None`` to drop that.
        environment: Variables for it, besides those of this process.
    """

    def __init__(self, log: Path | None, environment: dict[str, str]) -> None:
        with open(os.devnull if log is None else log, "ab") as output:  # noqa: PTH123
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trainhooks_clearml._worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, "PYTHONSAFEPATH": "1", **environment},
                start_new_session=True,  # a Ctrl-C is for the training, which then closes this
            )
        self._answers: queue.Queue[bytes] = queue.Queue()
        assert self._process.stdin is not None  # noqa: S101
        assert self._process.stdout is not None  # noqa: S101
        self._input: BinaryIO = self._process.stdin  # type: ignore[assignment]
        threading.Thread(
            target=_read, args=(self._process.stdout, self._answers), name="trainhooks-clearml-answers", daemon=True
        ).start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def ask(self, command: str, timeout_s: float, **arguments: Any) -> dict[str, Any]:
        """Have a command done and return its answer.

        Raises:
            TimeoutError: There was none in time; the process has been killed.
            ConnectionError: The process ended, or the server is away.
            LinkError: The SDK raised an error.
        """
        writer = threading.Thread(target=self._write, args=({"do": command, **arguments},), daemon=True)
        writer.start()  # a process that hangs does not empty the pipe either
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            self.kill()
            message = f"clearml: no answer to {command!r} within {timeout_s:g} s"
            raise TimeoutError(message) from None
        if not line:
            self.kill()
            message = f"clearml: the process of the SDK ended with exit code {self._process.returncode}"
            raise ConnectionError(message)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise (ConnectionError if answer.get("away") else LinkError)(f"clearml: {answer['error']}")
        return answer

    def close(self, timeout_s: float) -> None:
        """Wait for the end of a process that was told to end; one that does not is killed."""
        with contextlib.suppress(OSError):
            self._input.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):  # what it did not read is flushed in vain
            self._input.close()

    def _write(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError, ValueError):  # it has ended, which reading the answer tells
            self._input.write(json.dumps(message).encode() + b"\n")
            self._input.flush()


def _read(stream: Any, answers: queue.Queue[bytes]) -> None:
    with stream:
        for line in stream:
            answers.put(line)
    answers.put(b"")
