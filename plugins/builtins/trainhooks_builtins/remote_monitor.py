"""``remote_monitor``: metrics to a web server of one's own, as JSON."""

from __future__ import annotations

import http.client
import json
import math
import os
import string
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

from trainhooks import OptionError, hookimpl
from trainhooks.run_record import finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainhooks import Outcome, Record, RunInfo


class RemoteMonitor:
    """Posts each record of metrics to a URL as JSON, and the outcome at the end.

    The body is ``{"run": ..., "id": ..., "step": ..., "update": ..., "epoch": ..., "time": ..., "metrics": {...}}``, at the end
    ``{"run": ..., "id": ..., "outcome": {...}}``; NaN and infinity are ``null``. While the server is away, hangs or answers with
    anything but 2xx, the records wait, and are sent in order when it takes them; one that it goes on to refuse while it takes the
    next is given up. What was lost is said at the end. A server may see a record twice, if its answer was lost or the run
    was resumed from before it: with the same ``id``, ``step`` and values.

    Args:
        url: Where to, ``http://`` or ``https://``. Redirects are not followed. ``$NAME`` stands for that environment variable,
            ``$$`` for the character: options are stored with the run, secrets should not be.
        headers: More headers; ``$NAME`` in a value as in ``url``.
        field: Send a form with the JSON in this field, instead of JSON itself.
        batch_size: Records in one request; above 1 the body is a list of up to so many.
        timeout_s: Seconds to wait for the server, at each request.
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
    ) -> None:
        self.url = _checked(_filled("url", url))
        if batch_size < 1:
            message = f"batch_size = {batch_size}: must be at least 1"
            raise OptionError(message)
        if not 0 < timeout_s < math.inf:
            message = f"timeout_s = {timeout_s}: must be above 0 and finite"
            raise OptionError(message)
        self.field, self.batch_size, self.timeout_s = field, batch_size, timeout_s
        #: So that a call is a request: what is handed over again has not been taken.
        self.records_per_call = batch_size
        self._headers = {name: _filled(f"headers: {name}", value) for name, value in (headers or {}).items()}
        self._opener = urllib.request.build_opener(_NoRedirects)
        #: Records that were delivered.
        self.delivered = 0

    @hookimpl
    def report_metrics(self, run: RunInfo, records: Sequence[Record]) -> None:
        """Post the records in one request.

        Raises:
            OSError: The server does not take them now.
        """
        bodies = [_as_dict(run, record) for record in records]
        self._post(bodies if self.batch_size > 1 else bodies[0])
        self.delivered += len(records)

    @hookimpl
    def report_end(self, run: RunInfo, outcome: Outcome) -> None:
        """Post the outcome."""
        fields = {name: getattr(outcome, name) for name in ("status", "reason", "step", "update", "epoch")}
        self._post({"run": run.name, "id": run.id, "outcome": {**fields, "metrics": finite(dict(outcome.metrics))}})

    def _post(self, body: Any) -> None:
        """Send one request."""
        text = json.dumps(body, allow_nan=False)
        kind = "application/json"
        if self.field is not None:
            text, kind = urllib.parse.urlencode({self.field: text}), "application/x-www-form-urlencoded"
        headers = {"Content-Type": kind, "User-Agent": "trainhooks", **self._headers}
        request = urllib.request.Request(self.url, text.encode(), headers, method="POST")  # noqa: S310 - http or https
        shown = _shown(self.url)
        try:
            self._opener.open(request, timeout=self.timeout_s).close()
        except urllib.error.HTTPError as error:
            error.close()
            message = f"{shown} answered {error.code} {error.reason}"
            raise ConnectionError(message) from None
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)
            slow = f"no answer within {self.timeout_s:g} s" if isinstance(cause, TimeoutError) else ""
            message = f"{shown}: {slow or cause or type(cause).__name__}"
            raise ConnectionError(message) from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes a redirect for a failure: a POST would become a GET, and headers would go elsewhere."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None:
        """Follow nothing."""


def _as_dict(run: RunInfo, record: Record) -> dict[str, Any]:
    counters = {"step": record.step, "update": record.update, "epoch": record.epoch, "time": record.time}
    return {"run": run.name, "id": run.id, **counters, "metrics": finite(dict(record.values))}


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
