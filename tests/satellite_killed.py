"""A run that is killed and resumed; see ``satellite_support``."""

from __future__ import annotations

import inspect
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from satellite_run import Does, Kept, Logs, Opened, Witness, make_trainer

from trainhooks import hookimpl


@dataclass
class Segment:
    """One process of a run: its exit code, what ``report_start`` was told, and, unless it was killed, how it ended."""

    returncode: int
    id: str | None
    resumed_step: int | None
    output: str
    status: str | None = None
    warnings: list[str] = field(default_factory=list)


def kill_and_resume(
    tmp_path, expression, imports="", *, kill_after=(10,), steps=15, arrived=None, env=None, timeout_s=240, media=True
):
    """Run a script until it is killed, once for each of ``kill_after``, then to its end; there is a checkpoint at step 8.

    Each is killed by SIGKILL from its own training thread when ``report_metrics`` of the plugin has returned for the record of that
    step, and ``arrived()``, which is asked in this process, is true if it is given. ``expression`` makes the plugin, and may use ``WORK``
    (the run folder) and ``INDEX`` (of the segment). The scripts run in ``tmp_path/cwd``. Returns a ``Segment`` for each process.
    """
    tmp_path, segments = Path(tmp_path), []
    (tmp_path / "cwd").mkdir(exist_ok=True)
    for index, kill in enumerate([*kill_after, None]):
        told, output, may_die = (tmp_path / f"{name}-{index}" for name in ("told.json", "output.txt", "may-die"))
        body = f"segment({expression}, WORK, Path({str(told)!r}), {kill!r}, {steps!r}, Path({str(may_die)!r}), {media!r})"
        lines = ["import sys", f"sys.path.insert(0, {str(Path(__file__).parent)!r})", "from pathlib import Path"]
        lines += ["from satellite_killed import segment", imports, 'if __name__ == "__main__":']
        lines += [f"    WORK, INDEX = Path({str(tmp_path / 'run')!r}), {index}", f"    {body}"]
        script = tmp_path / f"segment-{index}.py"
        script.write_text("\n".join(lines) + "\n", encoding="utf-8")
        with output.open("wb") as file:  # not a pipe: what the SDK leaves behind would keep it open
            process = subprocess.Popen(
                [sys.executable, str(script)], cwd=tmp_path / "cwd", env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                _wait(process, may_die, arrived, time.monotonic() + timeout_s)
            finally:
                process.kill()
                process.wait()
        text = output.read_text(encoding="utf-8", errors="replace")
        assert process.returncode == (0 if kill is None else -signal.SIGKILL), text
        found = json.loads(told.read_text()) if told.exists() else {"id": None, "resumed_step": None}
        segments.append(Segment(process.returncode, output=text, **found))
    return segments


def _wait(process, may_die, arrived, deadline):
    """Wait for the end of a process, which may be killed when what it has reported has arrived."""
    while process.poll() is None:
        if not may_die.exists() and (arrived is None or arrived()):
            may_die.touch()
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired(process.args, deadline)
        time.sleep(0.02)


def segment(plugin, work_dir, told, kill, steps, may_die, media):
    """The script of ``kill_and_resume``."""
    delivered, witness, kept = threading.Event(), Witness(told), Kept()
    logging.getLogger("trainhooks").addHandler(kept)
    report = plugin.report_metrics

    @hookimpl(specname="report_metrics")
    def report_and_tell(run, records):
        given = {"run": run, "records": records}
        report(**{name: given[name] for name in inspect.signature(report).parameters})
        if kill is not None and records[-1].step >= kill:
            delivered.set()

    plugin.report_metrics = report_and_tell

    def dies():
        if not delivered.wait(120):
            raise TimeoutError(f"the record of step {kill} was not delivered")
        while not may_die.exists():  # until the process is killed from outside
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)

    killer = Does(-1 if kill is None else kill, dies)
    plugins = [plugin, witness, Opened(), Logs(work_dir.parent, media=media), "checkpoint", killer]
    outcome = make_trainer(plugins, work_dir, steps, options={"checkpoint": {"every_steps": 8}}).train(resume="auto")
    told.write_text(json.dumps({**json.loads(told.read_text()), "status": outcome.status, "warnings": kept.messages}))
