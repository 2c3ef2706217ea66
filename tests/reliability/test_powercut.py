"""States after a power cut: the model by hand, the check against unsafe protocols, and a part of the states of a real training."""

import powercut
import pytest
from diskmodel import Disk, materialise
from shim import EMPTIED, NEW, Operation


def operation(kind, path="", target="", inode=0, flags=0, offset=0, size=0, data=b""):
    return Operation(kind, flags, str(path), str(target), inode, offset, size, data)


def left(disk, most=64):
    """Return every state as a set of (path, content) sets."""
    return {frozenset(tree.items()) for tree in disk.states(most, seed=0)}


class TestModel:
    """What may be there, worked out by hand from the rules in diskmodel.py."""

    @pytest.fixture
    def disk(self, tmp_path):
        (tmp_path / "old").write_bytes(b"old")
        return Disk(tmp_path)

    def do(self, disk, *operations):
        for one in operations:
            disk.do(one)
        return left(disk)

    def test_what_was_there_is_durable(self, disk):
        assert left(disk) == {frozenset({("old", b"old")})}

    def test_a_new_file_is_there_or_not_with_all_half_none_or_zeros(self, disk):
        a = disk.root / "a"
        states = self.do(disk, operation("create", a, inode=7, flags=NEW), operation("write", inode=7, data=b"1234"))
        kept = ("old", b"old")
        assert states == {frozenset({kept}), *(frozenset({kept, ("a", data)}) for data in (b"1234", b"12", b"", b"\0\0\0\0"))}

    def test_a_synced_file_without_its_folder_may_have_no_name(self, disk):
        a = disk.root / "a"
        states = self.do(
            disk,
            operation("create", a, inode=7, flags=NEW),
            operation("write", inode=7, data=b"1234"),
            operation("fsync", a, inode=7),
        )
        assert states == {frozenset({("old", b"old")}), frozenset({("old", b"old"), ("a", b"1234")})}

    def test_synced_and_renamed_over_is_the_old_or_the_new(self, disk):
        a, old = disk.root / "a", disk.root / "old"
        made = [
            operation("create", a, inode=7, flags=NEW),
            operation("write", inode=7, data=b"new"),
            operation("fsync", a, inode=7),
        ]
        states = self.do(disk, *made, operation("rename", a, old, inode=7))
        assert states == {
            frozenset({("old", b"old")}),  # neither
            frozenset({("old", b"old"), ("a", b"new")}),  # made, not renamed
            frozenset({("old", b"new")}),  # renamed
        }
        root = disk.root.stat().st_ino
        assert self.do(disk, operation("fsync", disk.root, inode=root)) == {frozenset({("old", b"new")})}

    def test_renamed_over_without_sync_may_be_empty(self, disk):
        a, old = disk.root / "a", disk.root / "old"
        made = [operation("create", a, inode=7, flags=NEW), operation("write", inode=7, data=b"new")]
        states = self.do(disk, *made, operation("rename", a, old, inode=7))
        assert frozenset({("old", b"")}) in states

    def test_a_cut_file_may_be_as_it_was(self, disk):
        old = disk.root / "old"
        states = self.do(disk, operation("create", old, inode=old.stat().st_ino, flags=EMPTIED))
        assert states == {frozenset({("old", b"old")}), frozenset({("old", b"")})}

    def test_folders_have_changes_of_their_own(self, disk):
        """A folder with a synced file, whose own name is not durable, is there with or without that file, or not at all."""
        folder, a = disk.root / "f", disk.root / "f" / "a"
        states = self.do(
            disk,
            operation("mkdir", folder, inode=8),
            operation("create", a, inode=9, flags=NEW),
            operation("fsync", a, inode=9),
        )
        kept, there = ("old", b"old"), ("f", None)
        assert states == {frozenset({kept}), frozenset({kept, there}), frozenset({kept, there, ("f/a", b"")})}
        states = self.do(disk, operation("fsync", folder, inode=8))
        assert states == {frozenset({kept}), frozenset({kept, there, ("f/a", b"")})}

    def test_removals_in_a_folder_that_is_durably_gone_do_not_multiply(self, disk):
        folder = disk.root / "f"
        names = [folder / f"{number}" for number in range(12)]
        self.do(
            disk,
            operation("mkdir", folder, inode=8),
            *(operation("create", name, inode=20 + i, flags=NEW) for i, name in enumerate(names)),
        )
        for inode, path in ((8, folder), (disk.root.stat().st_ino, disk.root)):
            disk.do(operation("fsync", path, inode=inode))
        for name in names:
            disk.do(operation("unlink", name))
        disk.do(operation("rmdir", folder))
        disk.do(operation("fsync", disk.root, inode=disk.root.stat().st_ino))
        assert left(disk) == {frozenset({("old", b"old")})}

    def test_a_state_on_disk_is_what_the_model_says(self, tmp_path):
        tree = {"f": None, "f/g": None, "f/a": b"1", "f/g/b": b""}
        (tmp_path / "new").mkdir()
        materialise(tree, tmp_path / "new")
        assert Disk(tmp_path / "new").tree() == tree


@pytest.mark.slow
def test_no_state_of_saving_and_resuming_loses_what_was_acknowledged():
    counts = powercut.run(scale=0.2, only=("first-save", "resume"))
    assert counts["states"] >= 100
    assert (counts["lost"], counts["corrupt"]) == (0, 0)


@pytest.mark.slow
def test_protocols_that_are_not_safe_are_found():
    """The same code without any sync, without syncing folders, and a file overwritten in place: ``run`` fails if one is not."""
    assert powercut.run(only=("unsafe",))["unsafe"] == 3
