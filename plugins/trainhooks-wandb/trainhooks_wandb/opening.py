"""Opens wandb's run: online where that is possible, offline where it is not."""

from __future__ import annotations

import contextlib
import logging
import netrc
import os
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .former import Former

log = logging.getLogger("trainhooks")

Mode: TypeAlias = Literal["auto", "online", "offline", "disabled"]

_PROBE_S: Final = 10.0
_HTTP_ERROR: Final = 500

#: What wandb does on its own in a process, and collects there: all of it off. ``settings`` of the user may turn it on.
_QUIET: Final = {
    "console": "off",
    "silent": True,
    "save_code": False,
    "disable_code": True,
    "disable_git": True,
    "label_disable": True,
    "host": "",
    "program": "",
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
    "x_transaction_log_flush_interval": 0.5,  # of 15: that much of the file may be missing after a kill
    "finish_timeout_raises": True,
}


@dataclass(frozen=True)
class Wanted:
    """What ``wandb.init`` gets."""

    identity: dict[str, Any]
    settings: dict[str, Any]
    init_timeout: float


def mode_of(wanted: Mode, former: Former) -> tuple[str, str | None]:
    """Return ``online``, ``offline`` or ``disabled``, and why it is not online where that was to be expected."""
    import wandb

    settings = wandb.setup().settings
    if wanted == "auto" and settings.mode != "online":  # WANDB_MODE, or `wandb offline`
        return ("offline" if settings.mode == "dryrun" else settings.mode), None
    if wanted not in ("auto", "online"):
        return wanted, None
    if not _has_key(settings):
        return "offline", f"there is no API key for {settings.base_url} (set WANDB_API_KEY, or call `wandb login`)"
    parts = " ".join(map(str, former.unsynced))
    if parts and wanted == "auto":
        log.info("wandb: the run goes on offline, as it was begun; to have it go on online, first: wandb sync %s", parts)
        return "offline", None
    if parts:
        log.warning("wandb: parts of this run are not uploaded, and cannot be once it is further on: wandb sync %s", parts)
    return "online", None


def open_run(wanted: Wanted, mode: str) -> tuple[Any, str | None]:
    """Return wandb's run; what cannot be opened online is opened offline, and the reason is returned, too."""
    import wandb
    from wandb.errors import Error, UsageError

    if mode != "online":
        return _init(wanted, mode), None
    settings = wandb.setup().settings
    base_url, proxied = settings.base_url, settings.http_proxy or settings.https_proxy
    why = None if proxied else _unreachable(base_url, min(wanted.init_timeout, _PROBE_S))
    if why is None:
        try:
            return _init(wanted, mode), None
        except (Error, OSError) as error:
            if isinstance(error, UsageError) or wandb.setup().most_recent_active_run is not None:
                raise  # offline would be as wrong; or runs of the user's would be ended by what follows
            why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            wandb.teardown(1)  # otherwise wandb-core takes the id for one in use
    return _init(wanted, "offline"), f"{base_url} cannot be used ({why})"


def folder_of(run: Any) -> Path:
    """Return the folder of a run, which ``wandb sync`` takes."""
    return Path(run.dir).parent


def _init(wanted: Wanted, mode: str) -> Any:
    import wandb

    settings = wandb.Settings(**{**_QUIET, "init_timeout": wanted.init_timeout, **wanted.settings})
    return wandb.init(**wanted.identity, mode=mode, resume="allow", reinit="create_new", settings=settings)


@contextlib.contextmanager
def process_left_alone() -> Iterator[None]:
    """Put back what wandb puts its own in place of when it starts its service: the exit code of the script is no concern here."""
    kept = {name: getattr(sys, name) for name in ("exit", "excepthook")}
    try:
        yield
    finally:
        for name, before in kept.items():
            if type(getattr(getattr(sys, name), "__self__", None)).__module__.startswith("wandb."):
                setattr(sys, name, before)


def _has_key(settings: Any) -> bool:
    """Return whether wandb would find credentials without asking for them."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE") or settings.api_key:
        return True
    host = urllib.parse.urlsplit(settings.base_url).netloc  # with the port, as wandb does
    named = os.environ.get("NETRC")
    for path in [Path(named)] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]:
        try:
            if netrc.netrc(str(path.expanduser())).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


def _unreachable(url: str, timeout_s: float) -> str | None:
    """Return why nothing can be sent there, sooner than ``wandb.init`` would find out; only what is certain counts."""
    try:
        urllib.request.urlopen(url, timeout=timeout_s).close()  # noqa: S310 - wandb has checked the scheme
    except urllib.error.HTTPError as error:
        error.close()
        return f"HTTP {error.code}" if error.code >= _HTTP_ERROR else None
    except urllib.error.URLError as error:
        return None if isinstance(error.reason, ssl.SSLError) else str(error.reason)
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except OSError as error:
        return str(error)
    return None
