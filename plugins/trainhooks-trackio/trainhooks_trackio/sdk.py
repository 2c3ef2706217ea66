"""Trackio itself: imported late, asked what it has of a run, and made to write what it was given."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from importlib import import_module
from pathlib import Path
from typing import Any

from trainhooks import OptionError

log = logging.getLogger("trainhooks")


def load(folder: Path | None) -> Any:
    """Import Trackio with its data in ``folder``, or where it has them by itself.

    Raises:
        OptionError: It was imported before, with another folder; Trackio reads that only once.
    """
    before = os.environ.get("TRACKIO_DIR")
    if folder is not None and "trackio" not in sys.modules:
        os.environ["TRACKIO_DIR"] = str(folder)
    try:
        trackio = import_module("trackio")
    finally:
        if before is None:
            os.environ.pop("TRACKIO_DIR", None)
        else:
            os.environ["TRACKIO_DIR"] = before
    used = Path(trackio.utils.TRACKIO_DIR)
    if folder is not None and used.absolute() != folder.absolute():
        message = f"dir = {str(folder)!r}: trackio was imported before, with {str(used)!r}; set TRACKIO_DIR before that import"
        raise OptionError(message)
    return trackio


def server_of(trackio: Any, space_id: str | None, server_url: str | None) -> str | None:
    """Return the address of the server that a run goes to, or ``None`` if it stays on this machine or goes to a Space."""
    space_id, server_url = trackio.utils.resolve_space_id_and_server_url(space_id, server_url)
    return None if space_id or not server_url else str(trackio.utils.parse_trackio_server_url(server_url)[0])


def check_server(url: str, timeout_s: float) -> None:
    """See whether there is a server: Trackio would go on without one.

    Raises:
        ConnectionError: There is none.
    """
    try:
        urllib.request.urlopen(f"{url.rstrip('/')}/version", timeout=timeout_s).close()  # noqa: S310 - http or https, Trackio checks
    except urllib.error.HTTPError as error:
        error.close()
        if error.code >= 500:  # noqa: PLR2004 - errors of the server
            message = f"{url} answers {error.code} {error.reason}"
            raise ConnectionError(message) from None
    except OSError as error:
        message = f"{url} cannot be reached: {getattr(error, 'reason', error)}"
        raise ConnectionError(message) from None


def check_resumed(run: Any, timeout_s: float) -> None:
    """See whether a run at a server goes on with what there is of it: where Trackio could not ask, it begins another of that name.

    Raises:
        ConnectionError: It could not ask, or it still cannot be asked.
    """
    url, about = run._server_base_url, {"project": run.project}
    try:
        client = import_module("trackio.remote_client").RemoteClient(
            url, hf_token=None, write_token=run._write_token, httpx_kwargs={"timeout": timeout_s}
        )
        there = [one for one in client.predict(**about, api_name="/get_runs_for_project") if one["name"] == run.name]
        if not there:
            return
        summary = client.predict(**about, run_id=run.id, api_name="/get_run_summary")
    except Exception as error:
        message = f"{url} did not say what it has of the run {run.name!r}: {error}"
        raise ConnectionError(message) from error
    if run.id not in [one["id"] for one in there] or (summary.get("last_step") or 0) >= max(run._next_step, 1):
        message = f"{url} did not say what it has of the run {run.name!r} when it was opened"
        raise ConnectionError(message)


def finish(trackio: Any, run: Any) -> None:
    """Close the current run; what could not be sent is tried again twice a second, while the process lives.

    Trackio would do that without a pause: its wait is for what has happened already.
    """
    trackio.finish()
    run._stop_flag = _Happened()


class _Happened(threading.Event):
    """An event that has happened, and that takes its time to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the whole time."""
        time.sleep(timeout or 0)
        return True


def config_of(trackio: Any, project: str, run: Any) -> dict[str, Any]:
    """Return the configuration that the local database has of a run."""
    return dict(trackio.SQLiteStorage.get_run_config(project, run.name, run_id=run.id) or {})


def logged_after(trackio: Any, project: str, run: Any, step: int) -> set[tuple[int, str]]:
    """Return what the local database has of a run after ``step``: pairs of step and name."""
    which = str(run.id).replace("'", "''")
    query = f"SELECT step, metrics FROM metrics WHERE run_id = '{which}' AND step > {int(step)}"  # noqa: S608 - both are checked
    found = trackio.SQLiteStorage.query_project(project, query, max_rows=10_000_000)
    return {(row["step"], name) for row in found["rows"] for name in json.loads(row["metrics"])}


def flush(run: Any) -> None:
    """Have what was logged written now; by itself Trackio does so every half second, and a kill loses what waits for that."""
    lock, write = getattr(run, "_client_lock", None), getattr(run, "_flush_queues_inline", None)
    if lock is not None and write is not None:
        with lock:
            write()
