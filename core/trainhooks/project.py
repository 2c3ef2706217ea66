"""The project file: one ``trainconf.py`` in the directory of the run, loaded from its path under a private module name."""

from __future__ import annotations

import hashlib
import importlib
import linecache
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Final

import importlib_metadata

from .errors import PluginImportError, UsageError

PROJECT_FILE: Final = "trainconf.py"
_PREFIX: Final = "_trainhooks_project_"


def load_project(path: Path) -> ModuleType:
    """Run a project file as a module of its own; neither ``sys.path`` nor the name of the file matters.

    Raises:
        UsageError: There is no such file.
        PluginImportError: It cannot be read or run; the message has path, line and the user's own frames only.
    """
    path = path.absolute()
    if not path.exists():
        message = f"no project file at {path}"
        raise UsageError(message)
    module = ModuleType(f"{_PREFIX}{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}")
    module.__file__ = str(path)
    try:
        source = path.read_bytes()
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror}"
        raise PluginImportError(message) from None
    former = sys.modules.get(module.__name__)
    try:
        code = compile(source, str(path), "exec", dont_inherit=True)
        linecache.checkcache(str(path))
        sys.modules[module.__name__] = module
        exec(code, vars(module))  # noqa: S102 - the project file is code that the user asked to run
    except BaseException as error:
        sys.modules.pop(module.__name__, None)
        if former is not None:
            sys.modules[module.__name__] = former
        if isinstance(error, Exception | SystemExit):
            raise PluginImportError(_describe(path, error)) from error
        raise
    return module


def loaded_projects() -> dict[str, Path]:
    """Return the files of the project modules that are loaded and still there, by the names of the modules."""
    found = {name: Path(str(module.__file__)) for name, module in list(sys.modules.items()) if name.startswith(_PREFIX)}
    return {name: path for name, path in found.items() if path.is_file()}


def _describe(path: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename or path}:{error.lineno or 1}: {type(error).__name__}: {error.msg}"  # it may be in a module beside it
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _ours(frame.filename)]
    line = next((frame.lineno for frame in reversed(frames) if frame.filename == str(path)), 1)
    shown = format_frames(error)
    return f"{path}:{line}: {type(error).__name__}: {error}" + (f"\n{shown}" if shown else "")


def format_frames(error: BaseException) -> str:
    """Return the frames of an error from the first one on that is neither the engine's nor of the import system."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _ours(frame.filename)]
    machinery = ("<frozen", importlib.__file__, importlib_metadata.__file__)
    return "".join(traceback.format_list([frame for frame in frames if not frame.filename.startswith(machinery)])).rstrip()


def _ours(filename: str) -> bool:
    return Path(filename).parent == Path(__file__).parent
