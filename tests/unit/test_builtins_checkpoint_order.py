"""``checkpoint``: which one is the newest when a run went back to an older one, and whose it is when runs share a folder."""

import errno
import json
import logging
import os
import re
import shutil
from pathlib import Path

import pytest

from trainhooks import CheckpointError, UsageError, hookimpl
from trainhooks_builtins import Checkpoint, MetricsLog
from trainhooks_builtins._checkpoint_files import list_checkpoints, newest_first, read_manifest
from trainhooks_builtins._checkpoint_manifest import Manifest


def at(run, step):
    return run / "checkpoints" / f"step-{step:08d}"


def steps(run):
    return [int(path.name.removeprefix("step-")) for path in list_checkpoints(run / "checkpoints")]


def damage(path, name="tensors.safetensors"):
    os.truncate(path / name, (path / name).stat().st_size - 1)


class Began:
    """Notes at which step a training began."""

    @hookimpl
    def before_train(self, trainer):
        self.step = trainer.step


@pytest.fixture
def train(make_trainer):
    """Return a function that trains and returns the trainer and the step at which it began."""

    def run(work_dir, max_steps, *plugins, resume=None, **options):
        began = Began()
        parts = [Checkpoint(**{"every_steps": 1, "keep": 0, **options}), began, *plugins]
        trainer = make_trainer(parts, values=(1.0,) * 20, max_steps=max_steps, max_epochs=9, work_dir=work_dir)
        trainer.train(resume=resume)
        return trainer, began.step

    return run


class TestARunThatWentBack:
    """Six steps; then the run goes on at step 2, which leaves 3 to 6."""

    @pytest.fixture
    def back(self, train, tmp_path):
        train(tmp_path / "run", 6)
        train(tmp_path / "run", 3, resume=at(tmp_path / "run", 2))
        return tmp_path / "run"

    def test_auto_goes_on_with_the_new_line(self, back, train):
        assert steps(back) == [1, 2, 3, 4, 5, 6]
        assert train(back, 5, resume="auto")[1] == 3
        assert train(back, 5, resume="auto")[1] == 5

    def test_so_do_a_path_and_the_commands(self, back, train, cli, monkeypatch):
        monkeypatch.chdir(back.parent)
        assert train(back, 3, resume=Path("run"))[1] == 3
        kept = {row["step"]: row["kept"] for row in json.loads(cli("checkpoints", "list", "run", "--json").out)}
        assert kept == {**dict.fromkeys((1, 2, 4, 5, 6), []), 3: ["last"]}
        assert cli("checkpoints", "pin", "run").out == "pinned: run/checkpoints/step-00000003\n"
        assert json.loads(cli("runs", "run", "--json").out)["checkpoint"] == str(at(back, 3))

    def test_of_a_broken_one_it_goes_back_along_the_line(self, back, train):
        damage(at(back, 3))
        assert train(back, 2, resume="auto")[1] == 2

    def test_before_it_has_saved_that_is_said(self, train, tmp_path, caplog):
        run = tmp_path / "run"
        train(run, 6)
        with caplog.at_level(logging.WARNING):
            train(run, 2, resume=at(run, 2))
        assert (
            f"the run goes on at step 2, though {at(run, 6)} was saved last; --resume auto would take that one until this run "
            "has saved"
        ) in caplog.text
        caplog.clear()
        train(run, 3, resume="auto")
        train(run, 4, resume=at(run, 6))  # there and back again: now it is complete, and has saved nothing
        assert "was saved last" not in caplog.text

    def test_rotation_takes_them_for_the_older_ones(self, train, tmp_path):
        """The new line is 1, 2, 4, 8, and 3, 5, 6 and 7 are left: with two to keep these are 8 and 4."""
        run = tmp_path / "run"
        train(run, 7)
        train(run, 8, resume=at(run, 2), every_steps=4, keep=2)
        assert steps(run) == [4, 8]

    def test_prune_keeps_the_newest_of_the_new_line(self, back, cli):
        cli("checkpoints", "prune", back, "--keep", "2")
        assert steps(back) == [2, 3]

    def test_the_number_goes_on_in_every_process(self, back, train):
        train(back, 5, resume="auto")
        serials = {step: read_manifest(at(back, step)).serial for step in steps(back)}
        assert serials == {1: 1, 2: 2, 3: 7, 4: 8, 5: 9, 6: 6}


@pytest.mark.parametrize(
    ("serials", "expected"),
    [
        ({1: 0, 2: 0, 3: 0}, [3, 2, 1]),  # of an earlier release
        ({1: 0, 2: 0, 3: 1}, [3, 2, 1]),
        ({3: 0, 2: 1}, [2, 3]),
        ({1: 1, 2: 2, 3: 3}, [3, 2, 1]),
        ({1: 1, 2: 4, 3: 3}, [2, 1, 3]),
        ({}, []),
    ],
)
def test_the_order(serials, expected):
    paths = {step: Path(f"step-{step:08d}") for step in serials}
    found = {paths[step]: Manifest(step=step, serial=serial) for step, serial in serials.items()}
    assert newest_first(found) == [paths[step] for step in expected]


def test_those_of_the_run_come_first():
    found = {
        Path(f"step-0000000{step}"): Manifest(step=step, serial=serial, run=run)
        for step, serial, run in [(1, 9, "other"), (2, 1, "own"), (3, 5, "own"), (4, 4, "own"), (5, 8, "other")]
    }
    assert [int(path.name[5:]) for path in newest_first(found, "own")] == [3, 2, 4, 1, 5]


def test_a_second_instance_does_not_hide_whose_checkpoint_it_was(train, tmp_path):
    one, _ = train(tmp_path / "one", 2)
    fork, _ = train(tmp_path / "fork", 3, Checkpoint(keep=1), resume=tmp_path / "one")
    assert fork.parent_id == one.run_id


class TestALinkedFolder:
    """The folders of checkpoints of two runs are links to the same folder."""

    @pytest.fixture
    def shared(self, tmp_path):
        place = tmp_path / "large disk"
        place.mkdir()
        runs = tmp_path / "one", tmp_path / "two"
        for run in runs:
            run.mkdir()
            (run / "checkpoints").symlink_to(place)
        return runs

    def test_one_run_has_it_as_its_own(self, shared, train):
        run, _ = shared
        assert train(run, 3, resume="auto", keep=2)[1] == 0
        assert steps(run) == [2, 3]
        assert train(run, 5, resume="auto", keep=2)[1] == 3
        assert steps(run) == [4, 5]
        assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000004", "step-00000005"]

    def test_rotation_removes_none_of_the_other_run(self, shared, train):
        """The second run begins with what the first one has saved; with one to keep that is its own newest."""
        one, two = shared
        first, _ = train(one, 4, resume="auto")
        second, began = train(two, 7, resume="auto", keep=1)
        assert (began, second.parent_id) == (4, first.run_id)
        assert steps(one) == [1, 2, 3, 4, 7]
        assert train(one, 4, resume="auto")[1] == 4  # not that of step 7
        assert train(two, 8, resume="auto", keep=1)[1] == 7
        assert steps(one) == [1, 2, 3, 4, 8]

    def test_none_of_the_other_run_is_replaced(self, shared, train):
        one, two = shared
        first, _ = train(one, 4, resume="auto")
        with pytest.raises(
            CheckpointError,
            match=f"step-00000003: the one that is there is of another run, {first.run_id}; move it away, or name another work_dir",
        ):
            train(two, 7, resume=at(one, 2))
        assert read_manifest(at(one, 3)).run == first.run_id

    def test_one_that_cannot_be_read_now_is_not_replaced(self, train, tmp_path, monkeypatch):
        """It may be another run's: a disk that gives an error does not say."""
        run = tmp_path / "run"
        train(run, 4)
        before = (at(run, 3) / "tensors.safetensors").read_bytes()
        real = os.open

        def opens(path, *arguments, **options):
            if str(path) == str(at(run, 3) / "manifest.json"):
                raise OSError(errno.EIO, "Input/output error", str(path))
            return real(path, *arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", opens)
            with pytest.raises(CheckpointError, match=r"step-00000003/manifest.json cannot be read: Input/output error"):
                train(run, 4, resume=at(run, 2))
        assert (at(run, 3) / "tensors.safetensors").read_bytes() == before

    def test_prune_leaves_those_of_the_other_run(self, train, tmp_path, cli):
        train(tmp_path / "other", 2)
        train(tmp_path / "run", 6, every_steps=3)
        shutil.copytree(at(tmp_path / "other", 2), at(tmp_path / "run", 2))
        said = cli("checkpoints", "prune", tmp_path / "run", "--keep", 1).out
        assert "(of another run)" in said
        assert steps(tmp_path / "run") == [2, 6]

    def test_two_at_once_are_refused(self, shared, train, make_trainer):
        one, two = shared
        refused = []

        class StartsAnother:
            @hookimpl
            def before_step(self, trainer):
                if trainer.step == 2:
                    with pytest.raises(UsageError) as raised:
                        make_trainer([Checkpoint()], max_steps=1, work_dir=two).train(resume="auto")
                    refused.append(str(raised.value))

        train(one, 3, StartsAnother(), resume="auto")
        place = (one / "checkpoints").resolve()
        assert refused[0].startswith(f"{two / 'checkpoints'} is a link to {place}, which is in use by another Trainer")
        assert refused[0].endswith(": link it to a folder of its own")
        assert train(two, 4, resume="auto")[1] == 3

    @pytest.mark.parametrize("target", ["checkpoints", "."])
    def test_a_link_into_the_folder_of_another_run(self, train, make_trainer, tmp_path, target):
        (tmp_path / "two").mkdir()
        (tmp_path / "two/checkpoints").symlink_to(tmp_path / "one" / target)
        refused = []

        class StartsAnother:
            @hookimpl
            def before_step(self, trainer):
                if trainer.step == 2:
                    with pytest.raises(UsageError, match="is a link to .*one, which is in use by another Trainer"):
                        make_trainer([Checkpoint()], max_steps=1, work_dir=tmp_path / "two").train(resume="auto")
                    refused.append(trainer.step)

        train(tmp_path / "one", 3, StartsAnother())
        assert refused == [2]

    def test_a_link_to_the_run_folder_itself(self, train, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run/checkpoints").symlink_to(".")
        train(tmp_path / "run", 2)
        assert steps(tmp_path / "run") == [1, 2]

    def test_prune_waits_for_a_run_that_reaches_the_folder_through_a_link(self, shared, train, cli):
        one, _ = shared
        said = []

        class Prunes:
            @hookimpl
            def before_step(self, trainer):
                if trainer.step == 2:
                    said.append(cli("checkpoints", "prune", (one / "checkpoints").resolve(), "--keep", 1, expect=2).err)

        train(one, 3, Prunes(), resume="auto")
        assert "is in use by" in said[0]
        assert steps(one) == [1, 2, 3]


@pytest.mark.parametrize("resume", ["auto", "the path"])
def test_what_has_no_manifest_stays_and_is_named(train, tmp_path, caplog, resume):
    """It says who wrote it and when; without it rotation could remove the checkpoint of another run."""
    run = tmp_path / "run"
    train(run, 3)
    damage(at(run, 2), "manifest.json")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        train(run, 6, resume=at(run, 3) if resume == "the path" else resume, keep=1)
    assert steps(run) == [2, 6]
    warned = [text for text in caplog.messages if "stays, since it is not known whether this run wrote it" in text]
    assert len(warned) == 1
    assert str(at(run, 2) / "manifest.json") in warned[0]
    skipped = [text for text in caplog.messages if text.startswith(f"skipped a broken checkpoint: {at(run, 2)}")]
    assert len(skipped) == (resume == "auto")


class TestAwayFromItsDisk:
    """PT-01: a run whose checkpoints are not there is not trained anew, and its logs stay."""

    def parts(self):
        return [Checkpoint(), MetricsLog()]

    def ran(self, make_trainer, run, **arguments):
        return make_trainer(self.parts(), values=(1.0,) * 2, work_dir=run, **arguments)

    def test_a_link_that_leads_nowhere(self, make_trainer, tmp_path, cli):
        disk, run = tmp_path / "disk", tmp_path / "run"
        disk.mkdir()
        run.mkdir()
        (run / "checkpoints").symlink_to(disk)
        self.ran(make_trainer, run, max_epochs=1).train()
        before = (run / "metrics.jsonl").read_text()
        disk.rename(tmp_path / "away")
        wanted = f"{run / 'checkpoints'} is a link to {disk}, where no folder is: mount or make it, or remove the link"
        with pytest.raises(UsageError, match=re.escape(wanted)):
            self.ran(make_trainer, run, max_epochs=2).train(resume="auto")
        assert wanted in cli("checkpoints", "list", run, expect=2).err
        assert (run / "metrics.jsonl").read_text() == before
        (tmp_path / "away").rename(disk)
        trainer = self.ran(make_trainer, run, max_epochs=2)
        trainer.train(resume="auto")
        assert trainer.model.w.item() == -4.0

    def test_an_empty_folder_in_its_place(self, make_trainer, tmp_path):
        run = tmp_path / "run"
        self.ran(make_trainer, run, max_epochs=1).train()
        before = {name: (run / name).read_text() for name in ("run.json", "metrics.jsonl")}
        (run / "checkpoints").rename(tmp_path / "away")
        (run / "checkpoints").mkdir()
        with pytest.raises(
            UsageError, match="has saved checkpoints/step-00000002, but there is no checkpoint in .*bring it back"
        ):
            self.ran(make_trainer, run, max_epochs=2).train(resume="auto")
        assert json.loads(before["run.json"])["status"] == json.loads((run / "run.json").read_text())["status"] == "completed"
        assert (run / "metrics.jsonl").read_text() == before["metrics.jsonl"]
        trainer = self.ran(make_trainer, run, max_epochs=2, overwrite=True)
        trainer.train(resume="auto")
        assert trainer.model.w.item() == -4.0  # anew, as was asked for
