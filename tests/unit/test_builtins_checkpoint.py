"""``checkpoint``: when, what is kept, whole or not at all, and what is refused."""

import collections
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from trainhooks import CheckpointError, DataError, OptionError, UsageError, hookimpl
from trainhooks_builtins import Checkpoint, Evaluation
from trainhooks_builtins import checkpoint as module
from trainhooks_builtins.checkpoint import list_checkpoints, read_checkpoint, write_checkpoint


def steps(work_dir):
    return [int(path.name.removeprefix("step-")) for path in list_checkpoints(work_dir / "checkpoints")]


def hidden(folder):
    return sorted(entry.name for entry in folder.iterdir() if entry.name.startswith("."))


class Saves:
    """Counts the writes."""

    def __init__(self):
        self.at = []

    @hookimpl
    def after_save(self, trainer, path, kind):
        self.at.append((trainer.step, kind))


class Measures:
    """An evaluation that gives these values in turn."""

    def __init__(self, *values, metric="score"):
        self.values, self.metric = list(values), metric

    @hookimpl
    def eval_step(self):
        return {self.metric: self.values.pop(0)}


class TestWhen:
    """CK-11: final save and duplicates."""

    @pytest.mark.parametrize(
        ("limit", "period", "expected"),
        [(10, 3, [3, 6, 9, 10]), (9, 3, [3, 6, 9]), (10, 100, [10]), (10, 1, list(range(1, 11)))],
    )
    @pytest.mark.parametrize("unit", ["every_steps", "every_updates"])
    def test_ck_11_writes(self, make_trainer, tmp_path, limit, period, expected, unit):
        saves = Saves()
        make_trainer([Checkpoint(**{unit: period}, keep=0), saves], max_steps=limit, work_dir=tmp_path / "run").train()
        assert [step for step, _ in saves.at] == expected == steps(tmp_path / "run")

    def test_ck_11_c_resumed_at_its_end(self, make_trainer, tmp_path):
        make_trainer([Checkpoint(every_steps=3)], max_steps=9, work_dir=tmp_path / "run").train()
        files = {path: path.read_bytes() for path in (tmp_path / "run" / "checkpoints").rglob("*") if path.is_file()}
        saves = Saves()
        outcome = make_trainer([Checkpoint(every_steps=3), saves], max_steps=9, work_dir=tmp_path / "run").train(resume="auto")
        assert (outcome.step, saves.at) == (9, [])
        assert {path: path.read_bytes() for path in files} == files

    def test_ck_11_e_keep_two(self, make_trainer, tmp_path):
        make_trainer([Checkpoint(every_steps=3, keep=2)], max_steps=10, work_dir=tmp_path / "run").train()
        assert steps(tmp_path / "run") == [9, 10]

    def test_by_epochs_the_default(self, make_trainer, tmp_path):
        saves = Saves()
        make_trainer([Checkpoint(keep=0), saves], values=(1.0,) * 4, max_steps=10, work_dir=tmp_path / "run").train()
        assert saves.at == [(4, "periodic"), (8, "periodic"), (10, "final")]

    def test_several_intervals_meet_in_one_step(self, make_trainer, tmp_path):
        saves = Saves()
        plugin = Checkpoint(every_epochs=1, every_steps=2, every_updates=4, keep=0)
        make_trainer([plugin, saves], values=(1.0,) * 4, max_epochs=2, work_dir=tmp_path / "run").train()
        assert [step for step, _ in saves.at] == [2, 4, 6, 8]

    def test_not_at_end(self, make_trainer, tmp_path):
        make_trainer([Checkpoint(every_steps=3, at_end=False)], max_steps=8, work_dir=tmp_path / "run").train()
        assert steps(tmp_path / "run") == [3, 6]

    def test_without_a_work_dir_nothing_is_written(self, make_trainer, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        make_trainer([Checkpoint(every_steps=1)], max_steps=3).train()
        assert list(tmp_path.iterdir()) == []

    def test_a_failed_run_has_no_final_one(self, make_trainer, tmp_path):
        class Fails:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 4:
                    raise ValueError

        with pytest.raises(ValueError):
            make_trainer([Checkpoint(every_steps=3), Fails()], work_dir=tmp_path / "run").train()
        assert steps(tmp_path / "run") == [3]

    @pytest.mark.parametrize("name", ["every_epochs", "every_steps", "every_updates", "keep"])
    def test_options(self, name):
        with pytest.raises(OptionError, match=f"{name} = -1: must be 0 \\(\\w+\\) or more"):
            Checkpoint(**{name: -1})


class TestRotation:
    """CK-07: by number, never by name or time; the newest and the best are never removed."""

    def at(self, make_trainer, tmp_path, plugin, *numbers, metrics=None, mtimes=None):
        """Save at these steps of a run that stands at step 8000 and more."""
        others = [Evaluation(every_epochs=0, at_end=False), Measures(*metrics)] if metrics else []
        trainer = make_trainer([plugin, *others], val=(1.0,), max_steps=1, work_dir=tmp_path / "run")

        class Jumps:
            @hookimpl
            def after_step(self, trainer):
                for number in numbers:
                    trainer.step = number
                    if metrics:
                        trainer.evaluate("val")
                    trainer.save_checkpoint(trainer.checkpoint_path())
                    for path in list_checkpoints(trainer.work_dir / "checkpoints"):
                        if mtimes is not None:
                            os.utime(path, (mtimes(path), mtimes(path)))
                trainer._checkpoint_request = None  # they are saved above, at the steps that this test jumps to
                trainer.stop("enough")

        trainer.register(Jumps())
        plugin.at_end = False
        trainer.train()
        return steps(tmp_path / "run")

    @pytest.mark.parametrize("mtimes", [None, lambda path: 1e9, lambda path: 2e9 - int(path.name[5:])])
    def test_ck_07_keep_one(self, make_trainer, tmp_path, mtimes):
        assert self.at(make_trainer, tmp_path, Checkpoint(every_epochs=0, keep=1), 9000, 10000, mtimes=mtimes) == [10000]

    @pytest.mark.parametrize("mtimes", [None, lambda path: 1e9, lambda path: 2e9 - int(path.name[5:])])
    def test_ck_07_the_best_beside_the_newest(self, make_trainer, tmp_path, mtimes):
        """The case's "keep 2" is one newest and the best: here ``keep`` counts the newest, the best is kept beside them."""
        plugin = Checkpoint(every_epochs=0, keep=1, best="val/score")
        kept = self.at(make_trainer, tmp_path, plugin, 9000, 10000, 11000, metrics=[0.9, 0.5, 0.6], mtimes=mtimes)
        assert kept == [9000, 11000]

    def test_beyond_eight_digits(self, make_trainer, tmp_path):
        assert self.at(make_trainer, tmp_path, Checkpoint(every_epochs=0, keep=1), 99_999_999, 100_000_000) == [100_000_000]

    def test_what_is_not_ours_is_never_removed(self, make_trainer, tmp_path):
        class Places:
            @hookimpl
            def before_step(self, trainer):
                if trainer.step == 3:
                    folder = trainer.work_dir / "checkpoints"
                    (folder / "step-1-my-favourite").mkdir()
                    (folder / "step-00000001.bak").write_text("")
                    (folder / "notes").write_text("")

        make_trainer([Checkpoint(every_steps=2, keep=1), Places()], max_steps=8, work_dir=tmp_path / "run").train()
        names = sorted(entry.name for entry in (tmp_path / "run" / "checkpoints").iterdir())
        assert names == ["notes", "step-00000001.bak", "step-00000008", "step-1-my-favourite"]

    def test_ck_18_one_that_cannot_be_removed(self, make_trainer, tmp_path, monkeypatch, messages):
        """One warning with the path for each try; the training goes on; the next rotation tries again."""
        removable = module._remove
        refused = []

        def refuse(path):
            if path.name == "step-00000002" and len(refused) < 2:
                refused.append(path)
                raise PermissionError(1, "Operation not permitted", str(path))
            removable(path)

        monkeypatch.setattr(module, "_remove", refuse)
        make_trainer([Checkpoint(every_steps=2, keep=1)], max_steps=10, work_dir=tmp_path / "run").train()
        warned = [text for text in messages() if "cannot remove the old checkpoint" in text]
        assert len(warned) == 2
        assert all("step-00000002" in text for text in warned)
        assert steps(tmp_path / "run") == [10]


class TestBest:
    def test_ck_09_the_file_knows_its_own_evaluation(self, make_trainer, tmp_path):
        """0.5, 0.7, 0.6 at its 1..3, a kill, then 0.65 and 0.8: best is 2 until 5; a better one was never forgotten."""

        def bests(plugin, *values, **arguments):
            seen = []

            class Watches:
                @hookimpl
                def after_save(self, trainer, path):
                    manifest = json.loads((path / "manifest.json").read_text())
                    state = torch.load(path / "state.pt", weights_only=True)["plugins/checkpoint"]["best"]
                    seen.append((trainer.step, manifest["metrics"]["val/score"], state["step"], state["value"]))

            parts = [Evaluation(every_steps=1), Measures(*values), plugin, Watches()]
            trainer = make_trainer(parts, val=(1.0,), work_dir=tmp_path / "run", **arguments)
            trainer.train(resume="auto")
            return seen

        assert bests(Checkpoint(every_steps=1, keep=1, best="val/score"), 0.5, 0.7, 0.6, max_steps=3) == [
            (1, 0.5, 1, 0.5),
            (2, 0.7, 2, 0.7),
            (3, 0.6, 2, 0.7),
        ]
        assert steps(tmp_path / "run") == [2, 3]
        assert bests(Checkpoint(every_steps=1, keep=1, best="val/score"), 0.65, 0.8, max_steps=5) == [
            (4, 0.65, 2, 0.7),
            (5, 0.8, 5, 0.8),
        ]
        assert steps(tmp_path / "run") == [5]  # newest and best are one

    @pytest.mark.parametrize(
        ("mode", "values", "expected"),
        [
            ("min", [float("nan"), 0.5, float("nan"), 0.4], [None, 2, 2, 4]),
            ("max", [float("nan"), 0.5, float("nan"), 0.4], [None, 2, 2, 2]),
            ("min", [float("-inf"), 0.5, float("inf"), 0.4], [None, 2, 2, 4]),
            ("max", [float("inf"), 0.5, float("-inf"), 0.4], [None, 2, 2, 2]),
        ],
    )
    def test_ck_16_nan_and_infinity(self, make_trainer, tmp_path, mode, values, expected):
        plugin = Checkpoint(every_steps=1, keep=0, best="val/score", mode=mode)
        seen = []

        class Watches:
            @hookimpl
            def after_save(self, trainer):
                seen.append(plugin.best.step)

        parts = [Evaluation(every_steps=1), Measures(*values), plugin, Watches()]
        make_trainer(parts, val=(1.0,), max_steps=4, work_dir=tmp_path / "run").train()
        assert seen == expected

    def test_ck_16_all_nan(self, make_trainer, tmp_path, messages):
        plugin = Checkpoint(every_steps=1, keep=1, best="val/score")
        parts = [Evaluation(every_steps=1), Measures(*[float("nan")] * 4), plugin]
        make_trainer(parts, val=(1.0,), max_steps=4, work_dir=tmp_path / "run").train()
        assert plugin.best.step is None
        assert steps(tmp_path / "run") == [4]
        warned = [text for text in messages() if "never measured as a finite number" in text]
        assert warned == ["checkpoint.best = 'val/score' was never measured as a finite number: it was nan"]
        text = (tmp_path / "run" / "checkpoints" / "step-00000004" / "manifest.json").read_text()
        assert json.loads(text, parse_constant=pytest.fail)["metrics"]["val/score"] is None  # NaN is no JSON

    def test_a_misspelt_metric_ends_the_run_at_its_first_evaluation(self, make_trainer, tmp_path):
        parts = [Evaluation(every_steps=1), Measures(1.0, 2.0), Checkpoint(best="val/scoer")]
        trainer = make_trainer(parts, val=(1.0,), max_steps=2, work_dir=tmp_path / "run")
        with pytest.raises(
            DataError, match=r"checkpoint.best = 'val/scoer' is not among the metrics; did you mean 'val/score'\?: val/score"
        ):
            trainer.train()
        assert steps(tmp_path / "run") == [1]  # what was trained is not lost

    def test_the_end_says_where_the_best_is(self, make_trainer, tmp_path, messages):
        plugin = Checkpoint(every_steps=1, keep=1, best="val/score")
        trainer = make_trainer(
            [Evaluation(every_steps=1), Measures(1.0, 3.0, 2.0), plugin], val=(1.0,), max_steps=3, work_dir=tmp_path / "run"
        )
        trainer.train()
        assert plugin.best_path(trainer) == tmp_path / "run/checkpoints/step-00000002"
        assert f"the checkpoint with the best val/score, 3, is {plugin.best_path(trainer)}" in messages()

    def test_the_first_is_saved_at_its_evaluation(self, make_trainer, tmp_path):
        saves = Saves()
        parts = [Evaluation(every_steps=2), Measures(0.9, 0.5, 0.6, 0.3), Checkpoint(keep=1, best="val/score"), saves]
        make_trainer(parts, val=(1.0,), max_steps=7, work_dir=tmp_path / "run").train()
        assert saves.at == [(2, "best"), (7, "final")]
        assert steps(tmp_path / "run") == [2, 7]

    def test_the_best_of_the_last_evaluation(self, make_trainer, tmp_path):
        saves = Saves()
        parts = [Evaluation(every_steps=2), Measures(0.1, 0.5), Checkpoint(best="val/score", at_end=False), saves]
        make_trainer(parts, val=(1.0,), max_steps=3, work_dir=tmp_path / "run").train()
        assert saves.at == [(2, "best"), (3, "final")]

    def test_an_evaluation_outside_of_a_training_asks_for_nothing(self, make_trainer, tmp_path):
        saves = Saves()
        parts = [Measures(0.1, 0.9), Checkpoint(every_epochs=0, best="val/score"), Evaluation(every_epochs=0), saves]
        trainer = make_trainer(parts, val=(1.0,), max_steps=3, work_dir=tmp_path / "run")
        trainer.evaluate("val")
        assert not (tmp_path / "run").exists()
        trainer.train()
        assert saves.at == [(3, "final")]


def state_of(value):
    return {"model": {"w": torch.tensor(float(value))}, "run": {"step": value}}


FACTS = {"step": 1, "metrics": {}}

OPERATIONS = [
    (torch, "save"),
    (os, "fsync"),
    (Path, "rename"),
    (Path, "mkdir"),
    (Path, "write_text"),
    (Path, "open"),
    (os, "open"),
    (json, "dumps"),
]


class Disturbed:
    """Raises at the n-th call of any of the operations on files; ``None`` for never."""

    def __init__(self, monkeypatch, at, error):
        self.count, self.at = 0, at
        for owner, name in OPERATIONS:
            self._wrap(monkeypatch, owner, name, error)

    def _wrap(self, monkeypatch, owner, name, error):
        original = getattr(owner, name)

        def call(*args, **kwargs):
            self.count += 1
            if self.count == self.at:
                raise error
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)


def operations_of(write):
    """Count the operations of an undisturbed write."""
    with pytest.MonkeyPatch.context() as patch:
        disturbed = Disturbed(patch, None, None)
        write()
    return disturbed.count


class TestAtomic:
    @pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()])
    @pytest.mark.parametrize("same", [False, True])
    def test_an_error_at_any_operation_leaves_the_older_one_and_nothing_else(self, tmp_path, error, same):
        """Of another step, or of the same one, which steps aside for the new: it loads after every possible failure."""
        folder = tmp_path / "real"
        older, newer = folder / "step-00000001", folder / f"step-0000000{1 if same else 2}"
        write_checkpoint(older, state_of(1), FACTS)
        shutil.copytree(folder, tmp_path / "practice")
        practice = tmp_path / "practice" / newer.name
        total = operations_of(lambda: write_checkpoint(practice, state_of(2), FACTS))
        assert total >= 10
        for at in range(1, total + 1):
            with pytest.MonkeyPatch.context() as patch:
                Disturbed(patch, at, error)
                raised = None
                try:
                    write_checkpoint(newer, state_of(2), FACTS)
                except (CheckpointError, type(error)) as caught:
                    raised = caught
            values = [read_checkpoint(path)["model"]["w"].item() for path in list_checkpoints(folder)]
            if raised is None:  # only what it replaced could not be removed
                assert same
                assert values == [2.0]
            elif isinstance(error, OSError):
                assert isinstance(raised, CheckpointError)
                assert str(newer) in str(raised)
                assert "No space left on device" in str(raised)
            assert values in ([1.0], [2.0], [1.0, 2.0])  # the new one, where only the last sync failed
            assert not same or len(values) == 1
            assert [name for name in hidden(folder) if name.endswith(".tmp")] == []
            shutil.rmtree(newer, ignore_errors=True)
            write_checkpoint(older, state_of(1), FACTS)
            assert hidden(folder) == []

    def test_a_kill_between_the_two_renames(self, make_trainer, tmp_path):
        """The same step saved twice: the old one has stepped aside, the new one is not in its place yet."""
        make_trainer([Checkpoint()], max_steps=3, work_dir=tmp_path / "run").train()
        folder = tmp_path / "run" / "checkpoints"
        (folder / "step-00000003").rename(folder / ".step-00000003.old")
        (folder / ".step-00000003.tmp").mkdir()
        trainer = make_trainer([Checkpoint(keep=0)], max_steps=5, work_dir=tmp_path / "run")
        outcome = trainer.train(resume=tmp_path / "run")
        assert (outcome.step, trainer.model.w.item()) == (5, -5.0)
        assert steps(tmp_path / "run") == [3, 5]  # it is back in its place
        assert hidden(folder) == []

    def test_reading_changes_nothing(self, tmp_path):
        folder = tmp_path / "checkpoints"
        write_checkpoint(folder / "step-00000001", state_of(1), FACTS)
        (folder / "step-00000001").rename(folder / ".step-00000001.old")
        (folder / ".step-00000002.tmp").mkdir()
        assert Checkpoint().load_checkpoint(path=tmp_path)["model"]["w"] == 1
        assert hidden(folder) == [".step-00000001.old", ".step-00000002.tmp"]

    def test_saved_twice_the_second_counts(self, tmp_path):
        path = tmp_path / "step-00000001"
        write_checkpoint(path, state_of(1), FACTS)
        write_checkpoint(path, state_of(2), FACTS)
        assert read_checkpoint(path)["model"]["w"] == 2
        assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000001"]

    def test_synced_before_it_is_renamed(self, tmp_path, monkeypatch):
        """Each data file and their folder, then the rename, then the parent folder."""
        trace = []
        sync, rename = os.fsync, Path.rename
        monkeypatch.setattr(os, "fsync", lambda fd: (trace.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd)))
        monkeypatch.setattr(
            Path, "rename", lambda self, to: (trace.append(("rename", self.name, to.name)), rename(self, to))[1]
        )
        write_checkpoint(tmp_path / "step-00000001", state_of(1), FACTS)
        temporary = tmp_path / ".step-00000001.tmp"
        assert set(trace[:2]) == {str(temporary / "state.pt"), str(temporary / "manifest.json")}
        assert trace[2:] == [str(temporary), ("rename", ".step-00000001.tmp", "step-00000001"), str(tmp_path)]


Point = collections.namedtuple("Point", "x")


class Odd:
    """A plugin whose state is what it is given."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"x": self.value}

    def load_state_dict(self, state):
        self.value = state["x"]


class TestWhatCanBeIn:
    @pytest.mark.parametrize(
        "value",
        [np.float64(1), np.arange(3), Path("x"), Point(1), frozenset({1}), range(3), lambda: 0, iter([])],
        ids=lambda value: type(value).__name__,
    )
    def test_what_safe_loading_refuses_is_refused_at_the_save(self, make_trainer, tmp_path, value):
        """It would otherwise be noticed after days, when the run is to be resumed."""
        trainer = make_trainer([Odd(value), Checkpoint()], max_steps=2, work_dir=tmp_path / "run")
        with pytest.raises(CheckpointError, match=r"the state of 'plugins/odd' cannot be in a checkpoint .*plain values"):
            trainer.train()
        assert list((tmp_path / "run" / "checkpoints").iterdir()) == []

    def test_what_it_takes_comes_back_equal(self, make_trainer, tmp_path):
        value = {
            "nested": [1, 2.5, "text", None, True, (3, 4), {5, 6}],
            7: b"bytes",
            "ordered": collections.OrderedDict(b=1, a=2),
            "nan": float("inf"),
            "tensor": torch.arange(3),
        }
        make_trainer([Odd(value), Checkpoint()], max_steps=1, work_dir=tmp_path / "run").train()
        odd = Odd(None)
        make_trainer([odd, Checkpoint()], max_steps=1, work_dir=tmp_path / "run").train(resume="auto")
        tensor, expected = odd.value.pop("tensor"), value.pop("tensor")
        assert torch.equal(tensor, expected)
        assert odd.value == value


def damage(path, how):
    state, manifest = path / "state.pt", path / "manifest.json"
    data = bytearray(state.read_bytes())
    if how == "bit":
        data[len(data) // 2] ^= 1
        state.write_bytes(data)
    elif how == "cut":
        state.write_bytes(data[: len(data) // 2])
    elif how == "longer":
        state.write_bytes(data + b"x")
    elif how == "empty":
        state.write_bytes(b"")
    elif how == "no state":
        state.unlink()
    elif how == "manifest empty":
        manifest.write_text("")
    elif how == "manifest cut":
        manifest.write_text(manifest.read_text()[:20])
    elif how == "manifest of a later format":
        manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 99'))


DAMAGES = ["bit", "cut", "longer", "empty", "no state", "manifest empty", "manifest cut", "manifest of a later format"]


class TestDamage:
    @pytest.mark.parametrize("how", DAMAGES)
    def test_is_named_never_loaded_and_the_older_one_is_taken(self, make_trainer, tmp_path, messages, how):
        run = tmp_path / "run"
        make_trainer([Checkpoint(every_steps=2, keep=0)], max_steps=4, work_dir=run).train()
        newest = run / "checkpoints" / "step-00000004"
        damage(newest, how)
        with pytest.raises(CheckpointError, match="step-00000004"):
            make_trainer([Checkpoint()], max_steps=6).train(resume=newest)

        class First:
            step = None

            @hookimpl
            def before_step(self, trainer):
                self.step = trainer.step if self.step is None else self.step

        first = First()
        trainer = make_trainer([Checkpoint(every_steps=2, keep=0), first], max_steps=6, work_dir=run)
        trainer.train(resume="auto")
        assert (first.step, trainer.model.w.item()) == (2, -6.0)
        warned = [text for text in messages() if "broken checkpoint" in text]
        assert len(warned) == 1
        assert "step-00000004" in warned[0]
        assert read_checkpoint(newest)["run"]["step"] == 4  # it was saved again when the run came there
        assert steps(run) == [2, 4, 6]

    def test_no_whole_one_is_an_error_not_a_new_start(self, make_trainer, tmp_path):
        make_trainer([Checkpoint()], max_steps=2, work_dir=tmp_path / "run").train()
        damage(tmp_path / "run" / "checkpoints" / "step-00000002", "bit")
        with pytest.raises(CheckpointError, match="no whole checkpoint in"):
            make_trainer([Checkpoint()], max_steps=6, work_dir=tmp_path / "run").train(resume="auto")

    def test_code_in_it_is_not_executed(self, tmp_path):
        """A pickle that would make a file when it is loaded, with a digest that is right."""
        path = tmp_path / "step-00000001"
        write_checkpoint(path, state_of(1), FACTS)

        class Bomb:
            def __reduce__(self):
                return (os.mkdir, (str(tmp_path / "executed"),))

        torch.save({"model": Bomb()}, path / "state.pt")
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["files"]["state.pt"]["sha256"] = module._digest(path / "state.pt")
        (path / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(CheckpointError, match="cannot read the checkpoint"):
            read_checkpoint(path)
        assert not (tmp_path / "executed").exists()

    def test_a_path_that_is_not_there(self, make_trainer, tmp_path):
        with pytest.raises(UsageError, match="no checkpoint at"):
            make_trainer([Checkpoint()], max_steps=1).train(resume=tmp_path / "step-00000009")

    def test_nothing_to_resume_starts_anew(self, make_trainer, tmp_path, messages):
        trainer = make_trainer([Checkpoint()], max_steps=1, work_dir=tmp_path / "run")
        assert trainer.train(resume="auto").step == 1
        assert any("nothing to resume" in text for text in messages())
