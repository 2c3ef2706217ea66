"""A training on a disk that is full, read-only or out of inodes, under limits of the system; run by test_limits.py.

    unshare -m python tests/reliability/limits.py '{"work_dir": ..., "size": "2m", ...}'

The mounts are those of this process's own namespace, so they vanish with it. The last line printed is a JSON object.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainhooks import Trainer, hookimpl
from trainhooks_builtins import Checkpoint

#: Parameters that make a checkpoint of 700 KiB.
WEIGHTS = 700 * 1024 // 4


class Big(nn.Module):
    """Loses 1 for each update; its weights are large."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(WEIGHTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean weight times the batch."""
        return self.w.sum() * x.mean() / WEIGHTS


def mount(*words: str | Path) -> None:
    """Call ``mount``."""
    subprocess.run(["mount", *words], check=True)


class Watch:
    """Notes what happens, and takes a resource away before a step, or gives it back.

    Args:
        given: What the program was given.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.limit: tuple[int, int] | None = None  # of open files, as it was
        self.seen: dict[str, Any] = {"acknowledged": [], "after_train": 0, "warnings": [], "warned_at": []}

    @hookimpl
    def before_step(self, trainer: Trainer) -> None:
        """Do what the test asks for."""
        work_dir = Path(self.given["work_dir"])
        if trainer.step == self.given.get("read_only_at"):
            mount("--bind", work_dir, work_dir)
            mount("-o", "remount,bind,ro", work_dir)
        if trainer.step == self.given.get("writable_at"):
            mount("-o", "remount,bind,rw", work_dir)
        if trainer.step == self.given.get("busy_at"):
            old = work_dir / self.given["busy"]
            mount("--bind", old, old)
        if trainer.step == self.given.get("free_at"):
            subprocess.run(["umount", work_dir / self.given["busy"]], check=True)
        if trainer.step == self.given.get("no_files_at"):
            free = os.open("/", os.O_RDONLY)
            os.close(free)
            self.limit = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, self.limit[1]))
        if trainer.step == self.given.get("files_at") and self.limit is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, self.limit)
        if trainer.step == self.given.get("room_at"):
            Path(self.given["filler"]).unlink()

    @hookimpl
    def after_save(self, path: Path) -> None:
        """Note it."""
        self.seen["acknowledged"].append(int(path.name.partition("-")[2]))

    @hookimpl
    def after_train(self) -> None:
        """Note it."""
        self.seen["after_train"] += 1


class Log(logging.Handler):
    """Notes warnings and the step at which they came."""

    def __init__(self, seen: dict[str, Any], trainer: Trainer) -> None:
        super().__init__(logging.WARNING)
        self.seen, self.trainer = seen, trainer

    def emit(self, record: logging.LogRecord) -> None:
        """Note one."""
        self.seen["warnings"].append(record.getMessage())
        self.seen["warned_at"].append(self.trainer.step)


def train(given: dict[str, Any]) -> dict[str, Any]:
    """Train and return what was seen."""
    work_dir = Path(given["work_dir"])
    model = Big()
    watch = Watch(given)
    trainer = Trainer(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        loaders={"train": [torch.ones(1)] * 10},
        max_steps=given["steps"],
        work_dir=work_dir,
        plugins=[Checkpoint(**given["options"]), watch],
        autoload=False,
    )
    logger = logging.getLogger("trainhooks")
    logger.addHandler(Log(watch.seen, trainer))
    try:
        trainer.train(resume="auto")
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        watch.seen |= {"error": kinds, "message": str(error), "exit_code": getattr(error, "exit_code", None)}
        watch.seen["errno"] = getattr(error.__cause__, "errno", None)
    if watch.limit is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, watch.limit)
    watch.seen |= {"step": trainer.step, "status": trainer.outcome.status if trainer.outcome else None}
    folder = work_dir / "checkpoints"
    watch.seen["names"] = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    watch.seen["loads"], watch.seen["bytes"] = [], []
    for path in (path for path in sorted(folder.glob("step-*")) if (path / "manifest.json").exists()):
        watch.seen["bytes"].append(sum(file.stat().st_size for file in path.iterdir()))
        state = trainer.hooks.load_checkpoint(trainer=trainer, path=path)
        watch.seen["loads"].append([state["run"]["step"], state["model"]["w"][0].item() * WEIGHTS])
    watch.seen["hidden"] = sorted(path.name for path in work_dir.rglob(".*"))
    return watch.seen


def main() -> None:
    """Set the limits, train, and print what was seen."""
    torch.set_num_threads(1)
    given = json.loads(sys.argv[1])
    if "tmpfs" in given:
        disk = Path(given.get("disk", given["work_dir"]))
        disk.mkdir()
        mount("-t", "tmpfs", "-o", given["tmpfs"], "tmpfs", disk)
    if "fill" in given:
        Path(given["filler"]).write_bytes(bytes(given["fill"]))
    if "file_size" in given:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (given["file_size"], resource.RLIM_INFINITY))
    print(json.dumps(train(given)))


if __name__ == "__main__":
    main()
