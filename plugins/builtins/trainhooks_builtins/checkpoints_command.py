"""``trainhooks checkpoints``: what is on disk, whether it is whole, and the weights in it; the user's code is not needed."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from trainhooks import CheckpointError, UsageError
from trainhooks.cli.output import as_json, clean, pasted, table
from trainhooks.cli.run_table import time_of
from trainhooks.run_lock import RunLock, holder

from ._best_checkpoint import best_of, kept_by_prune, measured_names, reasons, recorded_best
from ._checkpoint_files import clean_up, is_pinned, remove_checkpoints, set_pinned
from ._run_checkpoints import Entry, Found, as_plain, find, only_one

if TYPE_CHECKING:
    from collections.abc import Sequence

_PATH: Final = click.Path(path_type=Path)
_WHERE: Final = "PATH is a checkpoint, a run folder, or a folder of runs, of which the newest is meant."
_SHOWN_METRICS: Final = 3
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


class _AsWritten(click.Group):
    """Lists its commands in the order of this file."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_AsWritten, context_settings={"help_option_names": ["-h", "--help"]})
def checkpoints() -> None:
    """List, verify, prune, pin and export the checkpoints of a run.

    They are read as they lie on disk: neither the project nor the plugins of the run are needed, and nothing in them is
    executed.
    """


# --- Looking ---


@checkpoints.command("list", epilog=_WHERE)
@click.argument("path", type=_PATH, required=False)
@click.option("--verify", "verify_wanted", is_flag=True, help="Compare digests too, which reads every file.")
@click.option("--json", "json_wanted", is_flag=True, help="Print JSON, with all metrics.")
def list_(path: Path | None, verify_wanted: bool, json_wanted: bool) -> None:
    """List the checkpoints of a run, by step.

    Without PATH: of the current directory if it is a run folder, else of the newest run below runs.
    """
    if path is None:
        path = Path() if Path("checkpoints").is_dir() else Path("runs")
        if not path.exists():
            message = f"{Path.cwd()} is no run folder and holds no folder runs: name a run, `trainhooks checkpoints list PATH`"
            raise UsageError(message)
    found = _find(path)
    entries = found.entries(verify=verify_wanted)
    why = reasons(entries) if found.folder is not None else {one.path: ["pinned"] * one.pinned for one in entries}
    if json_wanted:
        click.echo(as_json([as_plain(entry, why[entry.path]) for entry in entries], indent=1))
    elif not entries:
        click.echo(f"trainhooks: no checkpoints in {pasted(found.path)}", err=True)
    else:
        metrics = _metrics_to_show(entries)
        rows = [_row(entry, why[entry.path], metrics) for entry in entries]
        click.echo(table(("step", "epoch", "kind", "kept", *metrics, "size", "saved", "state", "path"), rows))
        for entry in entries:
            if entry.fault is not None:
                click.echo(f"trainhooks: {clean(entry.fault)}", err=True)


@checkpoints.command(epilog=_WHERE)
@click.argument("paths", type=_PATH, nargs=-1, required=True, metavar="PATH...")
@click.option("--json", "json_wanted", is_flag=True, help="Print JSON.")
def verify(paths: tuple[Path, ...], json_wanted: bool) -> None:
    """Read every file of checkpoints and compare it with its digests.

    Exits with 1 if one is broken, and says which file is damaged where.
    """
    entries = []
    for path in paths:
        found = _find(path)
        some = found.entries(verify=True)
        if not some:
            message = f"no checkpoints in {pasted(found.path)}"
            raise UsageError(message)
        entries += some
    if json_wanted:
        rows = [{"path": str(one.path), "step": one.step, "whole": one.fault is None, "fault": one.fault} for one in entries]
        click.echo(as_json(rows, indent=1))
    for entry in () if json_wanted else entries:
        click.echo(f"whole   {pasted(entry.path)}" if entry.fault is None else f"broken  {clean(entry.fault)}")
    if any(entry.fault is not None for entry in entries):
        sys.exit(1)


# --- What stays ---


@checkpoints.command(epilog=_WHERE)
@click.argument("run", type=_PATH, metavar="PATH")
@click.option("--keep", type=click.IntRange(min=1), required=True, metavar="N", help="How many of the newest whole ones stay.")
@click.option(
    "--keep-best",
    multiple=True,
    metavar="METRIC",
    help="The best by this metric stays as well (min:NAME, max:NAME); repeatable.",
)
@click.option("--broken", "broken_too", is_flag=True, help="Remove broken ones too.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed.")
def prune(run: Path, keep: int, keep_best: tuple[str, ...], broken_too: bool, dry_run: bool) -> None:
    """Remove the checkpoints of a run that are not wanted.

    The newest N that are whole stay (they are read and verified first), what the run recorded as its best, all of keep_best,
    pinned ones, and those that another run wrote. Broken ones stay without --broken: another release may be able to read them.
    Nothing is removed while the run is running, and nothing that trainhooks has not made.
    """
    found = _find(run)
    if found.folder is None:
        message = f"{pasted(run)} is a single checkpoint: name the run folder"
        raise UsageError(message)
    if found.folder.is_symlink():
        message = f"{pasted(found.folder)} is a link, and nothing is removed through links: name where it leads"
        raise UsageError(message)
    with nullcontext() if dry_run else _locked(found.folder):
        if not dry_run and found.folder.is_dir():
            clean_up(found.folder)
        entries, kept = kept_by_prune(found, keep, keep_best)
        broken = [one for one in entries if one.fault is not None and one.path not in kept]
        unwanted = [one for one in entries if one.path not in kept and (one.fault is None or broken_too)]
        if unwanted and not any(one.fault is None for one in entries if one.path in kept and not one.foreign):
            message = f"no whole checkpoint in {pasted(found.path)} would be left: nothing is removed"
            raise CheckpointError(message)
        sizes = {one.path: _bytes_of(one.path) for one in unwanted}
        errors = {} if dry_run else remove_checkpoints(sizes)
    removed = [path for path in sizes if path not in errors]
    for path in removed:
        click.echo(f"{'would remove' if dry_run else 'removed'}  {pasted(path)}")
    for path, why in kept.items():
        click.echo(f"{'would keep' if dry_run else 'kept'}  {pasted(path)}  ({clean(', '.join(why))})")
    if broken and not broken_too:
        names = ", ".join(pasted(one.path) for one in broken)
        click.echo(f"trainhooks: broken, and left there without --broken: {names}", err=True)
    freed = _size(sum(sizes[path] for path in removed))
    click.echo(f"{len(removed)} {'would be removed, freeing' if dry_run else 'removed, freed'} {freed}")
    if errors:
        raise next(iter(errors.values()))


@checkpoints.command(epilog=_WHERE)
@click.argument("path", type=_PATH)
def pin(path: Path) -> None:
    """Keep a checkpoint whatever its age; of a run the newest."""
    _pin(path, True, ("pinned", "was pinned already"))


@checkpoints.command(epilog=_WHERE)
@click.argument("path", type=_PATH)
def unpin(path: Path) -> None:
    """Let a pinned checkpoint be removed when its turn comes."""
    _pin(path, False, ("unpinned", "was not pinned"))


def _pin(path: Path, pinned: bool, words: tuple[str, str]) -> None:
    """Set or take the pin, and say one of two words: that this was done, or that it was so."""
    entry = only_one(_find(path))
    was = is_pinned(entry.path)
    set_pinned(entry.path, pinned)
    click.echo(f"{words[was == pinned]}: {pasted(entry.path)}")


# --- Taking out ---


@checkpoints.command(epilog=_WHERE)
@click.argument("path", type=_PATH)
@click.option("-o", "--output", type=_PATH, metavar="FILE", help="Without it a name is made of those of the run and the step.")
@click.option("--best", is_flag=True, help="Of a run the best, by what the run recorded (checkpoint.best), not the newest.")
@click.option("--best-by", metavar="METRIC", help="The best by this metric as of each checkpoint (min:NAME, max:NAME).")
@click.option("--average", metavar="NAME", help="With the average of a plugin, such as swa, in place of the weights.")
@click.option("--ema", is_flag=True, help="The same as --average ema.")
@click.option("--pt", "pickled", is_flag=True, help="Write a file for torch.load(FILE, weights_only=True) instead.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def export(
    path: Path,
    output: Path | None,
    best: bool,
    best_by: str | None,
    average: str | None,
    ema: bool,
    pickled: bool,
    force: bool,
) -> None:
    """Write the weights of the model to a file of their own.

    The file is a safetensors file with the names of the model's state_dict; nothing of trainhooks is needed to read it. Of a
    run folder it is the newest checkpoint.
    """
    if ema and average not in (None, "ema"):
        message = f"--ema and --average {average}: give one of them"
        raise UsageError(message)
    average = "ema" if ema else average
    found = _find(path)
    entry = only_one(found)
    if best or best_by is not None:
        entry, why = best_of(found, found.entries(), best_by)
        click.echo(f"trainhooks: the best checkpoint is {pasted(entry.path)}: {clean(why)}", err=True)
    pickled = pickled or (output is not None and output.suffix in (".pt", ".pth"))
    output = output if output is not None else _export_name(entry, average, ".pt" if pickled else ".safetensors")
    _check_output(output, pickled=pickled, force=force)

    from . import _exported_weights as weights

    try:
        tensors = weights.read_weights(entry.path, average)
    except UsageError as error:
        message = f"{pasted(entry.path)}: {error}"
        raise UsageError(message) from None
    facts = {"step": str(entry.step), "weights": average or "model", "source": _source(entry)}
    weights.write_weights(output, tensors, facts, pickled=pickled)
    what = f"the average of {average}" if average else "the weights"
    click.echo(f"{pasted(output)}: {what} at step {entry.step}, {len(tensors)} tensors, {_size(output.stat().st_size)}")


def _export_name(entry: Entry, average: str | None, suffix: str) -> Path:
    home = entry.path.absolute()
    run = home.parent.parent.name if home.parent.name == "checkpoints" else ""
    run = os.fsencode(run).decode(errors="replace")  # what reads safetensors files wants Unicode
    name = "-".join(filter(None, [run[:80], f"step-{entry.step:08d}", average]))
    return Path(f"{name}{suffix}")


def _source(entry: Entry) -> str:
    """Return where weights come from, without the folders above the run, which are nobody's business."""
    return os.fsencode("/".join(entry.path.absolute().parts[-3:])).decode(errors="replace")


def _check_output(output: Path, *, pickled: bool, force: bool) -> None:
    if pickled and output.suffix == ".safetensors":
        message = f"-o {pasted(output)} --pt: a file for torch.load must not be called .safetensors"
        raise UsageError(message)
    if not output.absolute().parent.is_dir():
        message = f"-o {pasted(output)}: there is no folder {pasted(output.absolute().parent)}"
        raise UsageError(message)
    if output.is_dir():
        message = f"-o {pasted(output)} is a folder: name a file"
        raise UsageError(message)
    if output.exists() and not force:
        message = f"{pasted(output)} exists: --force replaces it, -o names another file"
        raise UsageError(message)


# --- In words ---


def _find(path: Path) -> Found:
    found = find(path)
    if found.path != path and found.folder is not None:
        click.echo(f"trainhooks: the newest run below {pasted(path)} is {pasted(found.path)}", err=True)
    return found


def _metrics_to_show(entries: Sequence[Entry]) -> list[str]:
    """Return the metrics that the table has columns for: what is watched, then those of evaluations, then the loss."""
    measured = measured_names(entries)
    watched = [best.metric for best in recorded_best(entries) if best.metric in measured]
    loss = ["train/loss"] if any(one.value("train/loss") is not None for one in entries) else []
    return list(dict.fromkeys([*watched, *measured[: _SHOWN_METRICS - len(loss)], *loss]))


def _row(entry: Entry, why: list[str], metrics: list[str]) -> dict[str, str]:
    manifest = entry.manifest
    row = {"step": str(entry.step), "kept": clean(", ".join(why)), "path": pasted(entry.path), "state": "broken"}
    if manifest is None:
        return row
    values = {name: entry.value(name) for name in metrics}
    began = time_of(manifest.time)
    return {
        **row,
        "state": "whole",
        "epoch": str(manifest.epoch),
        "kind": clean(manifest.kind),
        "size": _size(manifest.size_bytes),
        "saved": began.astimezone().strftime("%Y-%m-%d %H:%M:%S") if began is not None else "",
        **{name: f"{value:.4g}" for name, value in values.items() if value is not None},
    }


def _size(size_bytes: int) -> str:
    value, unit = float(size_bytes), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:  # noqa: PLR2004 - what would be shown as 1000
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {_UNITS[unit]}"


def _bytes_of(path: Path) -> int:
    try:
        return sum(one.lstat().st_size for one in path.iterdir())
    except OSError:
        return 0


def _locked(folder: Path) -> RunLock:
    """Return the lock of the run that a folder of checkpoints belongs to.

    Raises:
        UsageError: The run is running.
    """
    real = folder.resolve()
    run = real.parent if real.name == "checkpoints" else real
    if (who := holder(run) or holder(real)) is not None:  # the second where a run reaches it through a link
        message = f"{pasted(folder)} is in use by {who}: while it runs, its own options decide what is kept"
        raise UsageError(message)
    return RunLock(run)
