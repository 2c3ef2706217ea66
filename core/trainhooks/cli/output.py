"""How results are written for people and for machines."""

from __future__ import annotations

import json
import math
import os
import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def as_json(value: Any, indent: int | None = None) -> str:
    """Return JSON that every reader takes: what is not finite is ``null``, what is no plain value is text."""

    def plain(one: Any) -> Any:
        if hasattr(one, "tolist"):
            one = one.tolist()
        if isinstance(one, dict):
            return {str(key): plain(item) for key, item in one.items()}
        if isinstance(one, list | tuple):
            return [plain(item) for item in one]
        if isinstance(one, float) and not math.isfinite(one):
            return None
        return one

    return json.dumps(plain(value), indent=indent, default=str, allow_nan=False)


def table(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    """Return aligned columns, the last of them as long as it likes."""
    cells = [[clean(str(row.get(column, "")).replace("\n", " ")) for column in columns] for row in rows]
    lines = [[clean(column) for column in columns], *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def clean(text: str) -> str:
    """Return text that no file can move the cursor with."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def clean_lines(text: str) -> str:
    """Return text of several lines that no file can move the cursor with."""
    return "\n".join("\t".join(map(clean, line.split("\t"))) for line in text.split("\n"))


def pasted(path: Path | str) -> str:
    """Return a path on one line, as a shell takes it back: quoted where it must be, never to be read as an option."""
    text = str(path)
    if text.startswith("-"):
        text = f"./{text}"
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_escaped, text)) + "'"


def _escaped(character: str) -> str:
    """Return a character inside of ``$'...'``."""
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\{byte:03o}" for byte in os.fsencode(character))  # a byte that is no text is a surrogate here
