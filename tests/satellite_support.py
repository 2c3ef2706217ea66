"""What the tests of the satellites share. The satellite's ``conftest.py`` puts this folder on ``sys.path``.

``run`` trains a toy model in this process and logs everything that can be logged, ``kill_and_resume`` does it in processes that
are killed, ``Server`` is a server on the loopback that can go away, ``list_plugins`` tells what the command line imports.
"""

from __future__ import annotations

import subprocess
import sys

from satellite_killed import Segment, kill_and_resume
from satellite_run import (
    ARTIFACT,
    COLUMNS,
    HISTOGRAM,
    HYPERPARAMETERS,
    IMAGE,
    MEDIA_STEP,
    ODD_HYPERPARAMETERS,
    ODD_SCALARS,
    ROWS,
    TEXT,
    Does,
    Logs,
    Ran,
    Witness,
    make_trainer,
    run,
)
from satellite_server import Server

__all__ = [
    "ARTIFACT",
    "COLUMNS",
    "HISTOGRAM",
    "HYPERPARAMETERS",
    "IMAGE",
    "MEDIA_STEP",
    "ODD_HYPERPARAMETERS",
    "ODD_SCALARS",
    "ROWS",
    "TEXT",
    "Does",
    "Logs",
    "Ran",
    "Segment",
    "Server",
    "Witness",
    "kill_and_resume",
    "list_plugins",
    "make_trainer",
    "run",
]


def list_plugins(*modules):
    """Run ``trainhooks plugins`` in a new process; return its output and which of ``modules`` were imported."""
    script = (
        "import sys\nfrom trainhooks.cli import main\ntry:\n    main(['plugins'])\nexcept SystemExit as left:\n"
        f"    assert not left.code\nprint('IMPORTED', *[name for name in {modules!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    listing, _, imported = done.stdout.rpartition("IMPORTED")
    return listing, imported.split()
