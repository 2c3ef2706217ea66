"""Where a plugin writes in a training, which two of one class must not do with the same files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainhooks import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainhooks import Trainer
    from trainhooks.workdir import RunFolder


def folder_to_write(trainer: Trainer, plugin: object, files: Iterable[str]) -> RunFolder | None:
    """Return the run folder of a training that writes, ``None`` in any other run.

    Args:
        trainer: The run.
        plugin: That is set up.
        files: What it writes in the run folder, in its attribute ``files`` too.

    Raises:
        UsageError: An earlier plugin of its class writes one of them; with the name of that.
    """
    folder = trainer.run_folder
    if folder is None or not folder.is_open:
        return None
    for name, other in trainer.plugins.items():
        if other is plugin:
            break
        if type(other) is type(plugin) and (shared := sorted({*files} & {*getattr(other, "files", ())})):
            message = f"the plugin {name!r} of this run writes {' and '.join(shared)} already: take one of the two out"
            raise UsageError(message)
    return folder
