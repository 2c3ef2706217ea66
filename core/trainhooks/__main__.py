"""``python -m trainhooks``: the same as ``trainhooks``."""

from trainhooks.cli import main

main()
