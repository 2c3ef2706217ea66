"""DVCLive's own class, without what it does unasked: DVC and Git are left alone, nothing is sent to DVC Studio."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from .folder import write


def open_live(folder: Path, *, resume: bool, use_dvc: bool, name: str | None) -> Any:
    """Return a ``Live`` that writes to a folder.

    Args:
        folder: Where to; what an earlier run has left there is removed unless ``resume``.
        resume: Go on with what is there.
        use_dvc: Let it use the DVC repository around the working directory, and save an experiment at its end.
        name: Of that experiment.
    """
    kind = _live_class()
    kind.uses_dvc = use_dvc
    return kind(
        str(folder),
        resume=resume,
        report=None,
        save_dvc_exp=use_dvc,
        dvcyaml=str(folder / "dvc.yaml"),
        exp_name=name,
        monitor_system=False,
    )


def in_dvc_repository() -> bool:
    """Return whether the working directory is in a DVC repository."""
    folder = Path.cwd()
    return any((one / ".dvc").is_dir() for one in (folder, *folder.parents))


def _live_class() -> Any:
    live: Any = import_module("dvclive").Live

    class QuietLive(live):  # type: ignore[misc]  # its type is not known where it is not installed
        uses_dvc = False

        def _init_dvc(self) -> None:
            """Look for no repository, unless asked: it would make one out of a Git repository that is none of DVC's."""
            if self.uses_dvc:
                super()._init_dvc()
            else:
                self._dvc_file = self._init_dvc_file()

        def _init_studio(self) -> None:
            self._studio_events_to_skip = {"start", "data", "done"}

        def post_data_to_studio(self) -> None:
            pass

        def make_summary(self) -> None:
            """Replace the summary as a whole: a kill must not leave half of it."""
            if self._step is not None:
                self.summary["step"] = self.step
            write(Path(self.metrics_file), json.dumps(self.summary, indent=4) + "\n")

        def make_dvcyaml(self) -> None:
            """Write it anew: an update would repeat what stands in it, since it is in the same folder."""
            Path(self.dvc_file).unlink(missing_ok=True)
            super().make_dvcyaml()

    return QuietLive
