"""The example of the README runs."""

import re
import subprocess
import sys
from pathlib import Path

from swanlab_files import Files

README = Path(__file__).resolve().parents[1] / "README.md"


def test_example_runs(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Files(tmp_path / "runs" / "script" / "swanlab").ends() == [("FINISHED", "")]
