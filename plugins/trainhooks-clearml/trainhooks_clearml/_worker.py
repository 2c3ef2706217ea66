"""The process that the SDK runs in: ``python -m trainhooks_clearml._worker``, started by ``Link``.

It answers each line of its input, and when the input ends without ``end``, the training was killed: it says so in the task.
"""

from __future__ import annotations

import base64
import json
import math
import os
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

#: What the SDK would attach itself to.
_FRAMEWORKS: Final = (
    "artifacts", "catboost", "fastai", "gradio", "hydra", "joblib", "jsonargparse", "lightgbm", "matplotlib", "megengine",
    "pytorch", "scikit", "tensorboard", "tensorflow", "tfdefines", "xgboost", "detect_repository",
)  # fmt: skip
#: Seconds to close the task when the training was killed.
_LAST_S: Final = 60


class Away(Exception):  # noqa: N818
    """The server does not answer."""


class Worker:
    """Holds the task; each public method is a command."""

    def __init__(self) -> None:
        self.task: Any = None
        self.logger: Any = None
        self._task_class: Any = None
        self.offline = False
        self._lock: Any = None
        self._temporary = tempfile.TemporaryDirectory(prefix="trainhooks-clearml-")

    def open(self, message: dict[str, Any]) -> dict[str, Any]:
        """Open the task, the one that is there or a new one."""
        self._hold(message["lock"], message["patience_s"])
        Task = self._task_class = import_module("clearml").Task  # noqa: N806

        Task._report_subprocess_enabled = False  # one process is enough
        note, task_id = None, message["task_id"]
        self.offline = message["mode"] == "offline" or not _has_credentials()
        if message["mode"] == "online":
            self.offline = False
        if not self.offline:
            try:
                _ping(message["patience_s"])
            except Away as error:
                if message["mode"] == "online":
                    raise
                then = (
                    "the run is reported offline" if message["folder"] else "nothing is reported, since the run has no work_dir"
                )
                note, self.offline = f"{error}; {then}", True
        if self.offline and not message["folder"]:
            return {"nothing": True, "note": note}
        if self.offline:
            Task.set_offline(offline_mode=True)
        if task_id is not None and task_id.startswith("offline-") != self.offline:
            note = f"{note or 'clearml'}; the part of the run before step {message['last_step']} is task {task_id}"
            task_id = None
        if task_id is not None and self.offline:
            from . import _session

            folder = Path(os.environ["CLEARML_CACHE_DIR"]) / "offline" / task_id
            if (folder / "task.json").exists():
                _session.cut(folder, message["last_step"])
            else:
                task_id = None
        self.task = Task.init(
            project_name=message["project"],
            task_name=message["name"],
            tags=message["tags"] or None,
            reuse_last_task_id=task_id or False,
            continue_last_task=0 if task_id else False,  # 0: of the number of its last iteration, which the SDK would add
            auto_connect_arg_parser=False,
            auto_connect_frameworks=dict.fromkeys(_FRAMEWORKS, False),
            auto_resource_monitoring=False,
            auto_connect_streams=False,
        )
        self.logger = self.task.get_logger()
        self._hyperparameters(message["hyperparameters"], message["changed"])
        self._properties(status="running")
        self._flush()
        place = self.task.get_offline_mode_folder() if self.offline else self.task.get_output_log_web_page()
        return {"task_id": self.task.id, "offline": self.offline, "place": str(place), "note": note}

    def metrics(self, message: dict[str, Any]) -> dict[str, Any]:
        """Report scalars; the SDK would report those that are not finite as 0, so they become lines of text."""
        for record in message["records"]:
            for name, value in record["values"].items():
                if math.isfinite(value):
                    title, series = _title(name)
                    self.logger.report_scalar(title, series, value, record["step"])
                else:
                    self.logger.report_text(f"{name} = {value} at step {record['step']}", print_console=False)
        self._flush()
        return {}

    def media(self, message: dict[str, Any]) -> dict[str, Any]:
        """Report images, text, histograms and tables."""
        for item in message["items"]:
            (title, series), step = _title(item["name"]), item["step"]
            if item["kind"] == "image":
                path = Path(self._temporary.name) / f"{abs(hash((item['name'], step)))}.png"
                path.write_bytes(base64.b64decode(item["png"]))
                _number_next_file(title, series, step)
                self.logger.report_image(title, series, step, local_path=str(path), max_image_history=-1)
            elif item["kind"] == "text":
                self.logger.report_text(f"[step {step}] {item['name']}: {item['text']}", print_console=False)
            elif item["kind"] == "histogram":
                edges = item["edges"]
                labels = [f"{low:.6g} to {high:.6g}" for low, high in pairwise(edges)]
                self.logger.report_histogram(
                    title, series, values=item["counts"], iteration=step, xlabels=labels, extra_layout={"bargap": 0}
                )
            else:
                self.logger.report_table(title, series, iteration=step, table_plot=[item["columns"], *item["rows"]])
        self._flush()
        return {}

    def artifact(self, message: dict[str, Any]) -> dict[str, Any]:
        """Upload a file, or a folder, which becomes a zip file."""
        metadata = {"kind": message["kind"]}
        if not self.task.upload_artifact(message["name"], message["path"], metadata=metadata, wait_on_upload=True):
            error = f"artifact {message['name']!r} of {message['path']} was not taken"
            raise RuntimeError(error)
        self._flush()
        return {}

    def end(self, message: dict[str, Any]) -> dict[str, Any]:
        """Close the task with how the run ended."""
        if self.task is None:
            return {}
        status, reason = message["status"], message["reason"]
        self._properties(status=status, outcome=message["outcome"], reason=reason, last_step=message["step"])
        self.task.flush(wait_for_uploads=True)
        self.task.close()  # which marks it as completed
        if not self.offline and status != "completed":
            task = self._task_class.get_task(task_id=self.task.id)
            if status == "failed":
                task.mark_failed(status_reason=reason, status_message=reason, force=True)
            else:
                task.mark_stopped(status_message=reason, force=True)
        return {}

    def killed(self) -> None:
        """Close the task of a training that is not there any more."""
        if self.task is not None:
            threading.Timer(_LAST_S, os._exit, (1,)).start()
            self.end({"status": "killed", "reason": "the process was killed", "outcome": "killed", "step": None})

    def _flush(self) -> None:
        self.task.flush(wait_for_uploads=True)

    def _properties(self, **values: Any) -> None:
        self.task.set_user_properties(**{name: str(value) for name, value in values.items() if value is not None})

    def _hyperparameters(self, values: dict[str, Any], changed: dict[str, str]) -> None:
        sections = {"General": values, "Changed on resume": changed}
        flat = {
            f"{section}/{name}": "None" if value is None else value  # ClearML would show nothing
            for section, those in sections.items()
            for name, value in those.items()
        }
        self.task.update_parameters(flat)  # of several calls of set_parameters only the last would stand

    def _hold(self, path: str | None, timeout_s: float) -> None:
        """Wait until the process of a killed training has closed the task."""
        if path is None or self._lock is not None:
            return
        try:
            import fcntl
        except ImportError:  # Windows
            return
        self._lock, deadline = Path(path).open("a"), time.monotonic() + timeout_s  # noqa: SIM115
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > deadline:
                    self._lock = None
                    error = f"another process still writes the task of this run ({path} is locked)"
                    raise Away(error) from None
                time.sleep(0.05)
            else:
                return


def _title(name: str) -> tuple[str, str]:
    """Return title and series: ``train/loss`` and ``val/loss`` are two curves in the plot ``loss``."""
    series, slash, title = name.partition("/")
    return (title, series) if slash and title and series else (name, name)


def _number_next_file(title: str, series: str, step: int) -> None:
    """Have the file of the next image named after its step: the SDK counts from 0 in each process, and overwrites the former's."""
    import_module("clearml.backend_interface.metrics.events").UploadEvent._metric_counters[f"{title}_{series}"] = step - 1


def _has_credentials() -> bool:
    environment: Any = import_module("clearml.backend_api.session.defs")
    if environment.ENV_AUTH_TOKEN.get() or (environment.ENV_ACCESS_KEY.get() and environment.ENV_SECRET_KEY.get()):
        return True
    file = import_module("clearml.config").config_obj
    return bool(file.get("api.credentials.access_key", None) and file.get("api.credentials.secret_key", None))


def _ping(timeout_s: float) -> None:
    """Ask the server whether it is there; the SDK itself would ask for ever."""
    host = import_module("clearml.backend_api").Session.get_api_server_host()
    try:
        urllib.request.urlopen(f"{host.rstrip('/')}/debug.ping", timeout=timeout_s).close()  # noqa: S310 - the user's own server
    except urllib.error.HTTPError as error:
        error.close()
        if error.code >= 500:  # noqa: PLR2004
            message = f"clearml: the server at {host} answers {error.code}"
            raise Away(message) from None
    except (OSError, ValueError) as error:
        message = f"clearml: no answer from {host} within {timeout_s:g} s ({getattr(error, 'reason', error)})"
        raise Away(message) from None


def main() -> None:
    """Answer each line of the input, until the end of the run or of the training process."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what the SDK prints is no answer
    worker, busy = Worker(), threading.Lock()
    threading.Thread(target=_watch_parent, args=(worker, busy, os.getppid()), daemon=True).start()
    for line in sys.stdin.buffer:
        message = json.loads(line)
        with busy:
            answer = _answer(worker, message)
        answers.write(json.dumps(answer).encode() + b"\n")
        if message["do"] == "end" and "error" not in answer:
            break  # loader workers may hold the other end of the input open
    else:
        with busy:
            worker.killed()
    sys.stderr.flush()
    os._exit(0)  # threads of the SDK would be waited for


def _answer(worker: Worker, message: dict[str, Any]) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = getattr(worker, message["do"])(message)
    except Away as error:
        return {"error": str(error).removeprefix("clearml: "), "away": True}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    return answer


def _watch_parent(worker: Worker, busy: threading.Lock, parent: int) -> None:
    """Close the task when the training process is gone, though processes that it forked hold the input open."""
    while os.getppid() == parent:
        time.sleep(0.5)
    with busy:
        worker.killed()
        os._exit(0)


if __name__ == "__main__":
    main()
