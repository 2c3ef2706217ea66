"""The offline archives of a run: one for each process that trained it; each step is in one of them."""

from __future__ import annotations

import json
import shutil
import zipfile
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MESSAGES: Final = "messages.json"
META: Final = "experiment.json"


def new_folder(directory: Path, key: str) -> Path:
    """Return the folder that the next process of a run writes into: ``<key>-000``, ``<key>-001``, ..."""
    taken = [int(path.stem.rpartition("-")[2]) for path in of_run(directory, key) if path.stem.rpartition("-")[2].isdigit()]
    return directory / f"{key}-{max(taken, default=-1) + 1:03}"


def recover(directory: Path, key: str | None = None, last_step: int | None = None) -> list[Path]:
    """Pack what killed runs left behind, and drop what was logged after ``last_step``.

    Args:
        directory: Where the archives are.
        key: Of the run whose archives are meant, or ``None`` for those of all runs; the folder of a run that still goes on
            must not be among them.
        last_step: The step that the run is resumed from, or ``None`` to keep everything.

    Returns:
        The archives that were written.
    """
    written = []
    for path in sorted(of_run(directory, key)):
        if path.is_dir() and (path / MESSAGES).exists():
            _rewrite(path, lambda message: not _is_after(message, last_step), was_killed=True)
            written.append(_pack(path, path.with_suffix(".zip")))
            shutil.rmtree(path)
        elif path.suffix == ".zip" and any(_is_after(message, last_step) for message in _read_or_none(path)):
            folder = _unpack(path)
            _rewrite(folder, lambda message: not _is_after(message, last_step))
            written.append(_pack(folder, path))
            shutil.rmtree(folder)
    return written


def drop_confirmed(archive: Path, confirmed: int) -> None:
    """Drop the first messages of an archive, which the server has, and let the rest be added to the experiment there.

    The SDK means its own archives of lost connections for a new experiment only, and refuses them when there is one.
    """
    folder = _unpack(archive)
    _rewrite(folder, lambda message: int(message["payload"].get("message_id") or 0) > confirmed)
    meta = json.loads((folder / META).read_text(encoding="utf-8"))
    (folder / META).write_text(json.dumps({**meta, "resume_strategy": "get_or_create"}), encoding="utf-8")
    _pack(folder, archive)
    shutil.rmtree(folder)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the messages of an archive, or of the folder of one that is not packed yet."""
    if path.is_dir():
        text = (path / MESSAGES).read_text(encoding="utf-8")
    else:
        with zipfile.ZipFile(path) as archive:
            text = archive.read(MESSAGES).decode("utf-8")
    return list(_parsed(text))


def of_run(directory: Path, key: str | None) -> list[Path]:
    """Return the archives of a run, and the folders of those that are not packed, in no order."""
    return list(directory.glob(f"{key or 'trainhooks*'}-*")) if directory.is_dir() else []


def _parsed(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            message = json.loads(line)
        except ValueError:  # the last one, cut by a kill
            continue
        if isinstance(message, dict) and isinstance(message.get("payload"), dict):
            yield message


def _step(message: dict[str, Any]) -> int | None:
    payload = message["payload"]
    for part in ("metric", "param", "additional_params"):
        if isinstance(payload.get(part), dict) and payload[part].get("step") is not None:
            return int(payload[part]["step"])
    return None


def _is_after(message: dict[str, Any], last_step: int | None) -> bool:
    return last_step is not None and (_step(message) or 0) > last_step


def _read_or_none(archive: Path) -> list[dict[str, Any]]:
    try:
        return read(archive)
    except (OSError, KeyError, zipfile.BadZipFile):  # a file of somebody else's
        return []


def _unpack(archive: Path) -> Path:
    folder = archive.with_name(f".{archive.stem}.tmp")
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder)
    return folder


def _rewrite(folder: Path, keeps: Callable[[dict[str, Any]], bool], *, was_killed: bool = False) -> None:
    files, lines = set(), []
    for message in _parsed((folder / MESSAGES).read_text(encoding="utf-8")):
        if not keeps(message):
            continue
        payload = message["payload"]
        if was_killed and message.get("type") == "log_other" and payload.get("key") == "status":
            payload["value"] = "killed"
        files.add(payload.get("file_path"))
        lines.append(json.dumps(message) + "\n")
    for path in folder.iterdir():
        if path.name not in {MESSAGES, META, *files}:
            path.unlink()
    temporary = folder / f".{MESSAGES}.tmp"
    temporary.write_text("".join(lines), encoding="utf-8")
    temporary.replace(folder / MESSAGES)


def _pack(folder: Path, archive: Path) -> Path:
    temporary = archive.with_name(f".{archive.name}.tmp")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(folder.iterdir()):
            file.write(path, path.name)
    temporary.replace(archive)
    return archive
