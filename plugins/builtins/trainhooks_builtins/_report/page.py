"""The report as one page that needs nothing else: it makes no request, and nothing in a run can be markup or a script."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from trainhooks import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCRIPTS = ("1-data.js", "2-tables.js", "3-charts.js", "4-page.js")


def render(data: Mapping[str, Any], title: str, made: str) -> str:
    """Return the page.

    Args:
        data: What ``payload`` returned.
        title: Of the page.
        made: When it was made, in words.
    """
    uplot = f"/* {_resource('vendor', 'uPlot.LICENSE.txt')} */\n{_resource('vendor', 'uPlot.iife.min.js')}"
    script = '"use strict";\n(() => {\n' + "\n".join(_resource("web", name) for name in _SCRIPTS) + "\n})();\n"
    style = f"{_resource('vendor', 'uPlot.min.css')}\n{_resource('web', 'page.css')}"
    policy = (
        f"default-src 'none'; script-src {_digest(uplot)} {_digest(script)}; style-src {_digest(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": html.escape(_shown(title)),
        "made": html.escape(f"{made} by trainhooks {__version__}"),
        "style": style,
        "uplot": uplot,
        "script": script,
        "data": as_data(data),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _resource("web", "page.html"))


def as_data(data: Mapping[str, Any]) -> str:
    """Return JSON that can stand inside of a script element: no text of a run can end it, and every reader takes it."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _shown(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


@cache
def _resource(folder: str, name: str) -> str:
    """Return a file of this package, with line ends as a browser has them when it checks the digest."""
    return (files("trainhooks_builtins._report") / folder / name).read_text(encoding="utf-8").replace("\r\n", "\n")
