"""Project files in loader workers that are no forks of the main process: classes of a trainconf.py are known there too.

A worker that is spawned is sent its dataset, whose class may be of the project file, by the name of a module that nothing can
import. So the file is sent ahead of it, and is run as Python runs the main script for such a worker.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .project import load_project, loaded_projects

if TYPE_CHECKING:
    from pathlib import Path


class WithProject(Iterable[Any]):
    """Reads a loader that starts workers which have to be told of the project file.

    Args:
        loader: As the user made it; left so.
        reader: What reads it.
    """

    def __init__(self, loader: Any, reader: Iterable[Any]) -> None:
        self.loader, self.reader = loader, reader

    def __iter__(self) -> Iterator[Any]:
        """Send the project file ahead of the dataset."""
        own = vars(self.loader)["dataset"]
        vars(self.loader)["dataset"] = _Accompanied(_Projects(loaded_projects()), own)
        try:
            return iter(self.reader)
        finally:
            vars(self.loader)["dataset"] = own


def needs_project(loader: Any) -> bool:
    """Return whether a loader starts workers that are no forks, while a project file is loaded."""
    return "dataset" in getattr(loader, "__dict__", {}) and start_method(loader) != "fork" and bool(loaded_projects())


def as_given(dataset: Any) -> Any:
    """Return a dataset as the user gave it to the loader."""
    return dataset.dataset if isinstance(dataset, _Accompanied) else dataset


def start_method(loader: Any) -> str | None:
    """Return how a loader starts its workers."""
    context = getattr(loader, "multiprocessing_context", None)
    return str(context.get_start_method()) if context is not None else multiprocessing.get_start_method()


class _Projects:
    """Project files; what is unpickled is that they have been loaded."""

    def __init__(self, files: dict[str, Path]) -> None:
        self.files = files

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[dict[str, Path]]]:
        return _load, (self.files,)


class _Accompanied:
    """A dataset that arrives after the project files."""

    def __init__(self, projects: _Projects, dataset: Any) -> None:
        self.projects, self.dataset = projects, dataset

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[_Projects, Any]]:
        return _arrive, (self.projects, self.dataset)


def _load(files: dict[str, Path]) -> None:
    method = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(None, force=True)  # a project file may set it, which Python allows once in a process
    try:
        for name, path in files.items():
            if name not in sys.modules:
                load_project(path)
    finally:
        multiprocessing.set_start_method(method, force=True)


def _arrive(projects: None, dataset: Any) -> Any:
    return dataset
