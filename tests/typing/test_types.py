"""What must type-check does, what must not does not: mypy reads the files beside this one as a user's own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ACCEPTED, REJECTED = (sorted((HERE / name).glob("*.py")) for name in ("accepted", "rejected"))


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """Return (file, line, code) of every error; one run of mypy, without the project's own settings, finds the installed types."""
    place = tmp_path_factory.mktemp("mypy")
    (place / "mypy.ini").write_text("[mypy]\nstrict = true\n")
    found = []
    for files in (ACCEPTED, REJECTED):  # by turns, since the names of their modules are the same
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--config-file", place / "mypy.ini", "--cache-dir", place / "cache", *files],
            cwd=place,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (0, 1), done.stdout + done.stderr
        for line in done.stdout.splitlines():
            if match := re.fullmatch(r"(.+?):(\d+): error: .*\[([\w-]+)\]", line):
                found.append(((place / match[1]).resolve(), int(match[2]), match[3]))
            else:
                assert ": note: " in line or line.startswith(("Found ", "Success: ")), line
    return found


@pytest.mark.parametrize("file", ACCEPTED, ids=lambda file: file.stem)
def test_accepted(errors, file):
    assert [error for error in errors if error[0] == file] == []


@pytest.mark.parametrize("file", REJECTED, ids=lambda file: file.stem)
def test_rejected(errors, file):
    lines = enumerate(file.read_text().splitlines(), 1)
    marks = [(number, match[1]) for number, line in lines if (match := re.search(r"# E: ([\w, -]+)$", line))]
    expected = [(number, code) for number, codes in marks for code in codes.split(", ")]
    assert expected
    assert [error[1:] for error in errors if error[0] == file] == expected
