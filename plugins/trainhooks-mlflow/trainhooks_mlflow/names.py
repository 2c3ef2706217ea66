"""Names and values within what MLflow takes: other characters are replaced, what is too long is cut, and both are noted."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Of parameters and of tags; a server may allow more.
MAX_PARAM: Final = 6000
MAX_TAG: Final = 5000

#: MLflow allows 250; the rest is left for the prefixes of tags.
_LONGEST: Final = 200
#: What is not allowed; a colon is, but not where client or server run on Windows.
_REFUSED: Final = re.compile(r"[^\w.\- /]")
_HEX: Final = 8


class Names:
    """Maps names to those that stand in MLflow, the same over all resumes, and never two to one.

    Args:
        prefix: Of the tags that say what a changed name was.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._originals: dict[str, str] = {}
        self._shown: dict[str, str] = {}
        #: Tags of changes that MLflow does not have yet.
        self.notes: dict[str, str] = {}

    def recall(self, shown: Iterable[str], tags: Mapping[str, str]) -> None:
        """Take over which names a run has already, with the tags that say what they were."""
        for name in shown:
            original = tags.get(self._prefix + name, name)
            self._originals[name] = original
            self._shown[original] = name

    def __getitem__(self, name: str) -> str:
        """Return the name in MLflow."""
        if name not in self._shown:
            shown = clean(name)
            if self._originals.get(shown, name) != name:
                shown = f"{shown[: _LONGEST - _HEX - 1]}-{_digest(name)}"
            self._shown[name] = shown
            self._originals[shown] = name
            if shown != name:
                self.notes[self._prefix + shown] = cut(name, MAX_TAG)
        return self._shown[name]


def clean(name: str) -> str:
    """Return a name that MLflow takes: also a path, relative and without ``.`` and ``..``."""
    parts = [part for part in _REFUSED.sub("_", name).split("/") if part not in ("", ".", "..")]
    text = "/".join(parts) or "_"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - _HEX - 1].rstrip('/')}-{_digest(name)}"


def ascii_only(name: str) -> str:
    """Return a name for an image, which may have fewer characters than others."""
    plain = clean(name).encode("ascii", "replace").decode().replace("?", "_")
    return plain if plain == name else f"{plain}-{_digest(name)}"


def cut(text: str, longest: int) -> str:
    """Return a text that is not too long, without what is no character, as names of files may have it."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HEX]
