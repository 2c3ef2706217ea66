"""``remote_monitor``: metrics to a web server of one's own, as JSON."""

from __future__ import annotations

import http.client
import json
import logging
import math
import os
import string
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

from trainhooks import OptionError, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainhooks import Outcome, Record, RunInfo, Trainer

log = logging.getLogger("trainhooks")

#: Failures in a row after which it pauses.
_PATIENCE = 3


class RemoteMonitor:
    """Posts each record of metrics to a URL as JSON, and the outcome at the end.

    The body is ``{"run": ..., "step": ..., "update": ..., "epoch": ..., "time": ..., "metrics": {...}}``, at the end
    ``{"run": ..., "outcome": {...}}``; NaN and infinity are ``null``. It is sent by the reporter thread, so that a slow or
    dead server does not slow the training. What cannot be delivered is lost: each kind of failure is said once, the number at
    the end. After three failures in a row nothing is tried for ``pause_s`` seconds.

    Args:
        url: Where to, ``http://`` or ``https://``. Redirects are not followed. ``$NAME`` stands for that environment variable,
            ``$$`` for the character: options are stored with the run, secrets should not be.
        headers: More headers; ``$NAME`` in a value as in ``url``.
        field: Send a form with the JSON in this field, instead of JSON itself.
        batch_size: Records in one request; above 1 the body is a list of up to so many.
        timeout_s: Seconds to wait for the server, at each request.
        pause_s: Seconds of the pause.
        clock: Returns seconds; only differences are used.
    """

    phase = "reporting"
    on_error = "disable"

    def __init__(
        self,
        url: str = "",
        headers: dict[str, str] | None = None,
        field: str | None = None,
        batch_size: int = 1,
        timeout_s: float = 5.0,
        pause_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = _checked(_filled("url", url))
        if batch_size < 1:
            message = f"batch_size = {batch_size}: must be at least 1"
            raise OptionError(message)
        if not (0 < timeout_s < math.inf and pause_s >= 0):
            message = f"timeout_s = {timeout_s}, pause_s = {pause_s}: must be above 0, and 0 or more; timeout_s finite"
            raise OptionError(message)
        self.field, self.batch_size, self.timeout_s, self.pause_s = field, batch_size, timeout_s, pause_s
        self._headers = {name: _filled(f"headers: {name}", value) for name, value in (headers or {}).items()}
        self._clock = clock
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._said: set[str] = set()
        self._failures = 0
        self._paused_at: float | None = None
        self._trains = False
        #: Records that were delivered, and that were not.
        self.delivered = self.lost = 0

    @hookimpl
    def before_train(self) -> None:
        """Remember that there will be an outcome to send."""
        self._trains = True

    @hookimpl
    def report_metrics(self, run: RunInfo, records: Sequence[Record]) -> None:
        """Post the records."""
        bodies = [_as_dict(run.name, record) for record in records]
        for first in range(0, len(bodies), self.batch_size):
            part = bodies[first : first + self.batch_size]
            if self._paused() or not self._post(part if self.batch_size > 1 else part[0]):
                self.lost += len(part)
            else:
                self.delivered += len(part)

    @hookimpl
    def teardown(self, trainer: Trainer, outcome: Outcome) -> None:
        """Post the outcome, and say how much was lost."""
        if self._trains and trainer.is_main:
            metrics = _finite(outcome.metrics)
            fields = {name: getattr(outcome, name) for name in ("status", "reason", "step", "update", "epoch")}
            if not self._paused():
                self._post({"run": trainer.run_info().name, "outcome": {**fields, "metrics": metrics}})
        self._trains = False
        if self.lost:
            total = self.lost + self.delivered
            log.warning("remote_monitor: %d of %d records did not reach %s", self.lost, total, _shown(self.url))

    def _paused(self) -> bool:
        if self._paused_at is not None and self._clock() - self._paused_at >= self.pause_s:
            self._paused_at, self._failures = None, 0
        return self._paused_at is not None

    def _post(self, body: Any) -> bool:
        """Send one request; return whether the server took it."""
        text = json.dumps(body, allow_nan=False)
        kind = "application/json"
        if self.field is not None:
            text, kind = urllib.parse.urlencode({self.field: text}), "application/x-www-form-urlencoded"
        headers = {"Content-Type": kind, "User-Agent": "trainhooks", **self._headers}
        request = urllib.request.Request(self.url, text.encode(), headers, method="POST")  # noqa: S310 - http or https
        try:
            self._opener.open(request, timeout=self.timeout_s).close()
        except urllib.error.HTTPError as error:
            error.close()
            self._failed(f"HTTP {error.code}", f"{error.code} {error.reason}")
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)
            self._failed(type(cause).__name__, f"{type(cause).__name__}: {cause}")
        else:
            self._failures = 0
            return True
        return False

    def _failed(self, kind: str, text: str) -> None:
        self._failures += 1
        if self._failures >= _PATIENCE:
            self._paused_at = self._clock()
        if kind not in self._said:
            self._said.add(kind)
            log.warning("remote_monitor: %s did not take metrics (%s); the training goes on without", _shown(self.url), text)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes a redirect for a failure: a POST would become a GET, and headers would go elsewhere."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None:
        """Follow nothing."""


def _as_dict(name: str, record: Record) -> dict[str, Any]:
    counters = {"step": record.step, "update": record.update, "epoch": record.epoch, "time": record.time}
    return {"run": name, **counters, "metrics": _finite(record.values)}


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _checked(url: str) -> str:
    """Return the URL if it is one that can be posted to.

    Raises:
        OptionError: It is not.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        written = url.isascii() and not any(character.isspace() for character in url)  # else percent-encoded, or punycode
        good = written and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good, parts = False, urllib.parse.urlsplit("")
    if not good or parts.username is not None:
        where = _shown(url) if good else "the given one"
        message = f"url: must be an address such as https://example.org/metrics, without user and password; {where} is not"
        raise OptionError(message)
    return url


def _shown(url: str) -> str:
    """Return a URL without what may be secret in it: user, password and query."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _filled(name: str, value: str) -> str:
    """Put environment variables into a text.

    Raises:
        OptionError: There is no such variable, or the text has what no header can have.
    """
    try:
        text = string.Template(value).substitute(os.environ)
    except KeyError as error:
        message = f"{name} names the environment variable {error.args[0]}, which is not set"
        raise OptionError(message) from None
    except ValueError:
        message = f"{name} has a $ that names no environment variable; write $$ for the character"
        raise OptionError(message) from None
    if any(character in "\r\n" or ord(character) > 255 for character in name + text):  # noqa: PLR2004 - the end of Latin-1
        message = f"{name!r} must be one line of Latin-1 characters"
        raise OptionError(message)
    return text
