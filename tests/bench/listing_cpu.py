"""Prints the CPU time of ``trainhooks plugins`` and ``trainhooks --help``, in whole processes, next to a bare Python's.

python tests/bench/listing_cpu.py
"""

import resource
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(sys.executable).with_name("trainhooks")


def cpu_ms(command, times=15):
    """Return the least and the middle CPU time of a command in milliseconds."""
    spent = []
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000)
    return min(spent), sorted(spent)[len(spent) // 2]


if __name__ == "__main__":
    print(f"{'CPU of a whole process':28}{'least':>9}{'middle':>9}")
    for name, command in {
        "python -c pass": [sys.executable, "-c", "pass"],
        "trainhooks --help": [SCRIPT, "--help"],
        "trainhooks plugins": [SCRIPT, "plugins"],
    }.items():
        least, middle = cpu_ms(command)
        print(f"{name:28}{least:6.0f} ms{middle:6.0f} ms")
