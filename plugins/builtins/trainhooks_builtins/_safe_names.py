"""One path component for any name: whatever is in it, and on any file system."""

from __future__ import annotations

import hashlib
import re
from typing import Final

_PLAIN: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_-])?")
_DEVICES: Final = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?")
_LONGEST: Final = 80


def safe_name(name: str) -> str:
    """Return a file name for ``name``: itself if it is plain, else what is left of it and eight digits of its SHA-256.

    Plain is what has no more than small letters, digits and ``_.-``, so names that differ in case only get different files also
    where the file system does not tell them apart.
    """
    if len(name) <= _LONGEST and _PLAIN.fullmatch(name) and not _DEVICES.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    end = re.search(r"(?<=.)\.[a-z0-9]{1,8}$", name.lower())
    suffix = end[0] if end is not None else ""
    stem = re.sub(r"[^a-z0-9_.-]+", "_", name.lower().removesuffix(suffix))[: _LONGEST - 20].strip("._-")
    return f"{stem}-{digest}{suffix}" if stem else f"{digest}{suffix}"
