"""Where a run goes that was given no ``work_dir``: ``runs/<time>-<name>``."""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainhooks.run_record import RECORD, is_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from trainhooks.config import Config


_RUNS: Final = Path("runs")


@contextmanager
def run_folder(config: Config, directory: Path, resume: str | None) -> Iterator[Path | None]:
    """Give the folder of a run for which none was set: a fresh one, made at once so that no other run gets it, or the one that goes on."""
    former = None if "work_dir" in config.settings else _former(config, directory, resume)
    if "work_dir" in config.settings or former is not None:
        yield former
        return
    for path in _fresh(_name(config, directory)):
        missing = _missing(path)
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:  # who opens it says why
            missing = []
        with _removed_if_unused(missing):
            yield path
        return


def _former(config: Config, directory: Path, resume: str | None) -> Path | None:
    """Return the folder of the run that is resumed, as far as it is known without opening it."""
    if resume not in (None, "auto"):
        path = Path(str(resume)).absolute()
        above = (path, *path.parents)
        recorded = (folder for folder in above if (folder / RECORD).is_file())
        return next(recorded, None) or next((folder for folder in above[:3] if is_run(folder)), None)
    name = _name(config, directory)
    former = [path for path in _RUNS.iterdir() if _stamp(path.name, name) and is_run(path)] if resume and _RUNS.is_dir() else []
    return max(former, key=lambda path: _stamp(path.name, name), default=None)


def _fresh(name: str) -> Iterator[Path]:
    """Give names of folders, the first ones first, which others may have already."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    yield _RUNS / f"{stamp}-{name}"
    for number in count(2):
        yield _RUNS / f"{stamp}.{number}-{name}"


def sought(config: Config, directory: Path) -> str:
    """Say where ``--resume auto`` looks for a run for which no folder was set."""
    return f"of {_name(config, directory)!r} below {_RUNS.absolute()}"


def _name(config: Config, directory: Path) -> str:
    given = config.settings.get("name")
    return _file_name(str(given.value) if given is not None else directory.absolute().name)


def removed_if_unused(folder: Path | None) -> AbstractContextManager[None]:
    """Remove a run folder that is made inside and in which nothing was done, since what was to be resumed cannot be read."""
    return _removed_if_unused(_missing(folder) if folder is not None else [])


def _missing(folder: Path) -> list[Path]:
    return [one for one in (folder, *folder.parents) if not one.exists()]


@contextmanager
def _removed_if_unused(made: Sequence[Path]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if made and made[0].is_dir() and {path.name for path in made[0].iterdir()} <= {RECORD}:
            (made[0] / RECORD).unlink(missing_ok=True)
            for one in made:
                with suppress(OSError):  # somebody else's run may be there by now
                    one.rmdir()
        raise


def _file_name(name: str) -> str:
    """Return ``name`` as one part of a path that no file system finds too long."""
    flat = re.sub(r"[/\\\x00-\x1f]", "_", name)
    return os.fsencode(flat)[:200].decode(sys.getfilesystemencoding(), errors="ignore") or "run"


def _stamp(folder: str, name: str) -> tuple[str, int] | tuple[()]:
    """Return what sorts the folders of a run by age; nothing if the folder is of another run."""
    match = re.fullmatch(r"(\d{8}-\d{6})(?:\.(\d+))?-(.*)", folder, re.DOTALL)
    return (match[1], int(match[2] or 1)) if match and match[3] == name else ()
