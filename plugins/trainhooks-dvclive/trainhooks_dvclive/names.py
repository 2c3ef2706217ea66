"""Names of metrics as names of files that are valid everywhere, and that DVCLive can keep in one summary."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_INVALID: Final = re.compile(r'[\\:*?"<>|\x00-\x1f\x7f]')
#: Columns that DVCLive has in the file of each metric, next to one that is called like the last part of its name.
_COLUMNS: Final = ("step", "timestamp")
_LONGEST: Final = 200  # bytes of one part: there is room for a suffix below the 255 that file systems take


def safe(name: str) -> str:
    """Return a relative path, with ``/`` between its parts, that stays in its folder."""
    parts = [_safe_part(part) for part in name.split("/") if part]
    return "/".join(parts) or "_"


def valid(value: Any) -> Any:
    """Return a text without what is no character, as names of files may have it, and other values as they are."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value


class Names:
    """Gives each metric a path of its own, such that no path is the beginning of another: the summary is a tree.

    Args:
        known: Paths by names that were given before.
        taken: All paths that a former process has used; those not in ``known`` are the metrics' own names.
    """

    def __init__(self, known: Mapping[str, str], taken: Iterable[str] = ()) -> None:
        self._paths = dict(known)
        self._former = {*taken} - {*known.values()}
        self._taken = {*taken, *known.values(), "step", "run/status", "run/reason"}

    def __getitem__(self, name: str) -> str:
        path = self._paths.get(name)
        if path is None:
            path = self._paths[name] = self._new(name)
            self._taken.add(path)
        return path

    def __contains__(self, name: str) -> bool:
        return name in self._paths

    @property
    def changed(self) -> dict[str, str]:
        """Paths of the metrics whose name could not stay as it is."""
        return {name: path for name, path in self._paths.items() if name != path}

    def _new(self, name: str) -> str:
        path = safe(name)
        above, slash, last = path.rpartition("/")
        if last in _COLUMNS:
            path = f"{above}{slash}{last}_value"
        if path == name and path in self._former:
            return path
        parts = path.split("/")
        for index in range(len(parts)):
            while "/".join(parts[: index + 1]) in self._taken:
                parts[index] += "_"
        while any(one.startswith("/".join(parts) + "/") for one in self._taken):
            parts[-1] += "_"
        return "/".join(parts)


def _safe_part(part: str) -> str:
    part = _INVALID.sub("_", part).rstrip(". ") or "_"
    return part.encode("utf-8", "replace")[:_LONGEST].decode("utf-8", "ignore")
