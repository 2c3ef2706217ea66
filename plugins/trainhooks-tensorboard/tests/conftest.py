"""Lets the tests use what the tests of all satellites share, and the reader beside this file."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[3] / "tests"), str(Path(__file__).parent)]
