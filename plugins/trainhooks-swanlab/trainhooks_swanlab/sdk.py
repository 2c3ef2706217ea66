"""SwanLab itself: opened without its hooks into the process, flushed, closed within a time, its files read."""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: What SwanLab collects about the machine and the code by itself.
_PROBES = ("hardware", "runtime", "requirements", "conda", "git", "swanlab", "monitor")

#: Threads that close runs whose server does not take what they have.
_closing: set[threading.Thread] = set()


class Earlier(NamedTuple):
    """What the files of former processes of a run have."""

    folders: list[Path]
    logged: set[tuple[int, str]]
    config: dict[str, Any]


def settings(swanlab: Any, *, api_host: str | None, console: bool, monitor: bool, environment: bool) -> Any:
    """Return settings that ask nothing, and collect only what is wanted."""
    probe = {name: monitor if name == "monitor" else environment for name in _PROBES}
    given: dict[str, Any] = {"interactive": False, "probe": probe, "terminal": {"proxy_type": "all" if console else "none"}}
    if api_host is not None:
        given["api_host"] = api_host
    return swanlab.Settings(**given)


def check_server(url: str, timeout_s: float) -> None:
    """See whether there is a server: SwanLab itself would try for more than a minute.

    Raises:
        OSError: There is none.
    """
    answer = import_module("requests").get(url, timeout=timeout_s)
    if answer.status_code >= 500:  # noqa: PLR2004 - errors of the server
        message = f"{url} answers {answer.status_code} {answer.reason}"
        raise ConnectionError(message)


def wait_for_former(timeout_s: float) -> None:
    """Wait until a former run of this process is closed: at its end SwanLab takes the connection away, also from the next one.

    Raises:
        TimeoutError: It still is not.
    """
    for thread in list(_closing):
        thread.join(timeout_s)
        if thread.is_alive():
            message = "a former run of this process is still being sent"
            raise TimeoutError(message)
        _closing.discard(thread)


def start(swanlab: Any, **arguments: Any) -> Any:
    """Open a run; nothing of it stays in ``sys.excepthook``, ``atexit`` or signals, whose business is the engine's.

    Each request for that is made once: SwanLab would make it again for more than a minute, while the run waits.
    """
    hook = sys.excepthook
    retries = import_module("swanlab.sdk.internal.pkg.client.session").request_retries_ctx  # of this thread
    token = retries.set(0)
    try:
        run = swanlab.init(**arguments)
    finally:
        retries.reset(token)
        sys.excepthook = hook
    handler = getattr(run, "_handle_atexit", None)
    if handler is not None:
        atexit.unregister(handler)
    return run


def finish(run: Any, state: str, error: str | None, timeout_s: float) -> bool:
    """Close a run; return whether it took all that it had within the time. What it did not is in its files."""
    hook = sys.excepthook

    def close() -> None:
        try:
            run.finish(state=state, error=error)
        finally:
            sys.excepthook = hook  # it puts back the one that it found, which may be outdated

    thread = threading.Thread(target=close, name="trainhooks-swanlab-finish", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        _closing.add(thread)
        return False
    return True


def flush(run: Any) -> None:
    """Have what SwanLab has put into its file written out; to be called where nothing else writes to it at the time."""
    store = getattr(getattr(run, "_core", None), "_store", None)
    if store is not None:
        store.ensure_flushed()


def flushed(swanlab: Any) -> Any:
    """Return a callback of SwanLab that has its file written out whenever it got something, and tells what.

    By itself the file is flushed at the end of the run, and a kill loses what the buffer has.
    """

    class Flushed(swanlab.Callback):  # type: ignore[misc]
        name = "trainhooks"
        run: Any = None

        def __init__(self) -> None:
            self._pending: set[tuple[int, str]] = set()
            self._changed = threading.Condition()

        def expect(self, logged: Iterable[tuple[int, str]]) -> None:
            with self._changed:
                self._pending.update(logged)

        def wait(self, timeout_s: float) -> bool:
            with self._changed:
                done = self._changed.wait_for(lambda: not self._pending, timeout_s)
                self._pending.clear()  # what SwanLab refused does not come
                return done

        def on_scalar_flush(self, scalar_records: Any, *_: Any, **__: Any) -> None:
            flush(self.run)
            with self._changed:
                self._pending.difference_update((int(record.step), str(record.key)) for record in scalar_records)
                self._changed.notify_all()

        on_media_flush = on_scalar_flush

    return Flushed()


def earlier(log_dir: Path, run_id: str, after_step: int) -> Earlier:
    """Read the files of a run's former processes: where they are, what was logged after a step, and the configuration."""
    found = Earlier([], set(), {})
    for file in sorted(log_dir.glob(f"run-*-{run_id}/run-{run_id}.swanlab")):
        found.folders.append(file.parent)
        found.logged.update(pair for pair in _logged(file) if pair[0] > after_step)
        with contextlib.suppress(OSError):
            found.config.update(_config(file.parent / "files" / "config.yaml"))
    return found


def _logged(file: Path) -> Iterable[tuple[int, str]]:
    new_record = import_module("swanlab.proto.swanlab.record.v1.record_pb2").Record
    store = import_module("swanlab.sdk.internal.core_python.store")
    reader = store.DataStoreReader()
    try:
        reader.open(file)
    except (AssertionError, store.DataStoreError, OSError):  # killed before anything was written, or of another version
        return
    try:
        for data in reader:  # ends at what a kill has cut
            record = new_record()
            record.ParseFromString(data)
            for kind in ("scalar", "media"):
                if record.HasField(kind):
                    logged = getattr(record, kind)
                    yield int(logged.step), str(logged.key)
    finally:
        reader.close()


def _config(file: Path) -> dict[str, Any]:
    found = import_module("yaml").safe_load(file.read_text(encoding="utf-8"))
    return {key: entry.get("value") for key, entry in found.items()} if isinstance(found, dict) else {}
