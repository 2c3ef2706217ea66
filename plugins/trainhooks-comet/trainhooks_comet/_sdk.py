"""Imports the SDK and opens experiments, with everything off that the SDK does to a process by itself."""

from __future__ import annotations

import io
import os
import sys
import time
import urllib.error
import urllib.request
import zipfile
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

#: What the user has not set: no patching of other libraries, no error reports to third parties, no announcements.
_QUIET: Final = {
    "COMET_DISABLE_AUTO_LOGGING": "1",
    "COMET_ERROR_TRACKING_ENABLE": "false",
    "COMET_DISABLE_ANNOUNCEMENT": "true",
    "COMET_LOGGING_CONSOLE": "CRITICAL",  # it prints tracebacks while the server is away; what is lost is said at the end
}

#: Arguments of an experiment that switch off what it collects by itself.
_NOTHING_BY_ITSELF: Final = {
    "log_code": False,
    "log_graph": False,
    "log_git_metadata": False,
    "log_git_patch": False,
    "log_env_details": False,
    "log_env_gpu": False,
    "log_env_cpu": False,
    "log_env_host": False,
    "log_env_network": False,
    "log_env_disk": False,
    "auto_param_logging": False,
    "auto_metric_logging": False,
    "auto_output_logging": False,
    "auto_log_co2": False,
    "parse_args": False,
    "display_summary_level": 0,
}

#: Variables that were set here, and to what: those that the user has set stay as they are.
_given: dict[str, str] = {}


def load(url: str | None, timeout_s: float) -> Any:
    """Import ``comet_ml`` without its patches; the hook for uncaught exceptions that it replaces is put back."""
    seconds = str(max(round(timeout_s), 1))
    limits = {
        "COMET_TIMEOUT_HTTP": seconds,
        "COMET_TIMEOUT_API": seconds,
        "COMET_TIMEOUT_CLEANING": seconds,  # waits at the end
        "COMET_TIMEOUT_UPLOAD": seconds,
        "COMET_HTTP_SESSION_RETRY_TOTAL": "1",
        "COMET_GET_OR_ADD_EXPERIMENT_RETRY_TOTAL": "1",
        "COMET_GET_OR_ADD_EXPERIMENT_RETRY_CONNECT": "1",
        "COMET_GET_OR_ADD_EXPERIMENT_RETRY_READ": "1",
        "COMET_GET_OR_ADD_EXPERIMENT_RETRY_STATUS": "1",
    }
    for name, value in {**_QUIET, **limits}.items():
        if os.environ.get(name) in (None, _given.get(name)):  # not set, or by a run before with limits of its own
            os.environ[name] = _given[name] = value
    if url is not None:
        os.environ["COMET_URL_OVERRIDE"] = url
    hook = sys.excepthook
    comet_ml = import_module("comet_ml")
    sys.excepthook = hook
    return comet_ml


def check_server(timeout_s: float) -> None:
    """Ask the server whether it is there; the SDK itself would take half a minute and then drop everything silently.

    Raises:
        ConnectionError: It is not, or does not answer in time.
    """
    config: Any = import_module("comet_ml.config")
    address = str(config.get_backend_address(config.get_config()))
    url = address.rstrip("/") + "/isAlive/ping"
    try:
        urllib.request.urlopen(url, timeout=timeout_s).close()  # noqa: S310 - the user's own server
    except urllib.error.HTTPError as error:
        error.close()  # it answers
        if error.code >= 500:  # noqa: PLR2004
            message = f"comet: the server at {address} answers {error.code} {error.reason}"
            raise ConnectionError(message) from None
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", error)
        message = f"comet: no answer from {address} within {timeout_s:g} s ({cause})"
        raise ConnectionError(message) from None


def open_online(comet_ml: Any, key: str, project: str | None, workspace: str | None, folder: Path | None) -> Any:
    """Open the experiment of a run at the server, the one that is there or a new one.

    Raises:
        ConnectionError: The SDK gave an experiment that drops everything.
    """
    config = comet_ml.ExperimentConfig(**_NOTHING_BY_ITSELF, offline_directory=str(folder) if folder else None)
    experiment = comet_ml.start(
        workspace=workspace,
        project_name=project,
        experiment_key=key,
        mode="get_or_create",
        online=True,
        experiment_config=config,
    )
    if not experiment.alive:
        message = f"comet: the server did not accept the experiment {key}"
        raise ConnectionError(message)
    return experiment


def open_offline(comet_ml: Any, key: str, project: str | None, workspace: str | None, folder: Path) -> Any:
    """Open an experiment that writes into ``folder`` as it goes, and next to it ``folder``.zip at its end.

    The SDK writes into a temporary folder that nobody finds again after a kill.
    """

    class Offline(comet_ml.OfflineExperiment):  # type: ignore[misc]
        """An offline experiment whose data lies where it is looked for when the run was killed."""

        tmpdir: str

        def _setup_streamer(self) -> bool:
            os.rmdir(self.tmpdir)  # noqa: PTH106
            self.tmpdir = str(folder)
            return bool(super()._setup_streamer())

        def _get_offline_archive_file_name(self) -> str:
            return f"{folder.name}.zip"

        def _create_offline_archive(self, fallback_to_temp: bool = True) -> tuple[zipfile.ZipFile, str]:
            return zipfile.ZipFile(io.BytesIO(), "w"), str(folder.parent)  # no empty file that an upload would trip over

    folder.mkdir(parents=True)
    experiment = Offline(
        workspace=workspace,
        project_name=project,
        experiment_key=key,
        offline_directory=str(folder.parent),
        _resume_strategy="get_or_create",
        **_NOTHING_BY_ITSELF,
    )
    experiment._write_experiment_meta_file()
    return experiment


def wait_until_written(experiment: Any, timeout_s: float) -> None:
    """Wait until what an offline experiment was given is in its folder; it writes on a thread of its own."""
    deadline = time.monotonic() + timeout_s
    while not experiment.streamer.messages.empty() and time.monotonic() < deadline:
        time.sleep(0.005)


def settled(experiment: Any, timeout_s: float) -> int | None:
    """Have the server take what an online experiment was given; return how many messages it has, or ``None`` if not in time.

    The SDK counts a message when a thread of its own takes it, which may be after a flush that did not wait for it: the second
    flush is of all that the first one has counted.
    """
    streamer = experiment.streamer
    if not experiment.flush(timeout=timeout_s):
        return None
    counted = int(streamer._counter)
    return counted if experiment.flush(timeout=timeout_s) and streamer.has_connection_to_server() else None


def end_online(experiment: Any, *, keep: bool) -> bool:
    """End an online experiment; return whether the server took everything. With ``keep`` there is an archive in any case.

    The SDK itself says that all is well where there is an archive, and thinks at times that failed requests were none.
    """
    finished: list[bool] = []
    online = getattr(experiment.streamer, "online_streamer", experiment.streamer)  # of the one that also writes an archive
    wait = online.wait_for_finish

    def waits(**arguments: Any) -> bool:
        finished.append(bool(wait(**arguments)))
        return finished[-1]

    online.wait_for_finish = waits
    experiment.streamer.keep_offline_zip = keep
    experiment.end()
    return finished == [True] and bool(experiment.streamer.has_connection_to_server())


def last_steps(comet_ml: Any, key: str) -> dict[str, int]:
    """Ask the server for the last step of each metric of an experiment; of one that it does not know there are none.

    Raises:
        ConnectionError: It does not say.
    """
    try:
        experiment = comet_ml.API(cache=False).get_experiment_by_key(key)
        summary = [] if experiment is None else experiment.get_metrics_summary()
        return {str(one["name"]): int(float(one["stepCurrent"])) for one in summary if one.get("stepCurrent") is not None}
    except Exception as error:
        message = f"comet: the server did not say which steps it has of {key} ({type(error).__name__}: {error})"
        raise ConnectionError(message) from error
