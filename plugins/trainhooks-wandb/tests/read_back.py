"""Reads what wandb has written with wandb's own reader, and holds what that must show of a run of ``satellite_support``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def files(folder):
    """The files of a run, oldest first."""
    return sorted(Path(folder).glob("wandb/*run-*/run-*.wandb"), key=lambda path: path.parent.name.split("run-")[1])


def records(path):
    """All records of one file."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=120, env={**os.environ, "WANDB_MODE": "offline"}
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def of_kind(found, kind):
    return [record[kind] for record in found if record["type"] == kind]


def rows(found):
    """The history: (step, values) in the order of the file."""
    return [(row["item"]["_step"], row["item"]) for row in of_kind(found, "history")]


def exit_codes(found):
    return [item.get("exit_code", 0) for item in of_kind(found, "exit")]


def config(found):
    values = {}
    for record in of_kind(found, "config"):
        values |= record.get("update", {})
    return values


def sync(*folders):
    """``wandb sync``, which must succeed."""
    command = [sys.executable, "-m", "wandb", "sync", *map(str, folders)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PYTHONWARNINGS": "ignore"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
