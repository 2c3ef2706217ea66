"""What a manifest says of a checkpoint (step, metrics, pinned) is what was written, or it is refused: every bit of it, flipped."""

import pytest
from workload import Config, make

from trainhooks import CheckpointError
from trainhooks_builtins._checkpoint_files import read_manifest, verify_checkpoint


@pytest.fixture
def path(tmp_path):
    """Return a checkpoint whose manifest has metrics."""
    make(Config(evaluate=3), tmp_path / "run", max_steps=3).train()
    return tmp_path / "run/checkpoints/step-00000003"


@pytest.mark.slow
def test_every_flipped_bit_is_refused_or_means_the_same(path):
    file = path / "manifest.json"
    data, wanted = file.read_bytes(), verify_checkpoint(path)
    assert wanted.step == 3
    assert "val/loss" in wanted.metrics
    refused, changed = 0, []
    for place in range(len(data)):
        for bit in range(8):
            file.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
            try:
                if read_manifest(path) != wanted:
                    changed.append((place, bit))
            except CheckpointError as error:
                refused += 1
                assert str(file) in str(error)
    assert changed == []
    assert refused > 8 * len(data) * 0.95  # the others are white space
