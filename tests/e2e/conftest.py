"""What the tests of whole runs share."""

import pytest


@pytest.fixture
def tree(tmp_path):
    """Return a function that gives every path below the test's own folder, but for caches of byte code."""
    return lambda: sorted(str(path) for path in tmp_path.rglob("*") if "__pycache__" not in path.parts)
