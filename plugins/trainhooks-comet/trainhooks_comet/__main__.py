"""``python -m trainhooks_comet RUN``: pack what killed runs left below a folder, so that ``comet upload`` takes it."""

from __future__ import annotations

import sys
from pathlib import Path

from ._archives import recover


def main() -> int:
    """Pack the archives below each folder that was named."""
    if len(sys.argv) == 1 or sys.argv[1].startswith("-"):
        print("usage: python -m trainhooks_comet RUN_FOLDER ...  (of runs that do not go on any more)", file=sys.stderr)  # noqa: T201
        return 2
    for given in map(Path, sys.argv[1:]):
        for directory in (given, given / "comet"):
            for archive in recover(directory):
                print(archive)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
