"""``profiler``: which steps are kept, what is in the files, and that nothing is left running."""

import gc
import gzip
import json
import logging
import re
import weakref

import pytest
import torch
from torch.profiler import ProfilerActivity

from trainhooks import OptionError, UsageError, hookimpl
from trainhooks_builtins import Evaluation, Profiler
from trainhooks_builtins._profile import pick_activities, top_rows


def files(folder):
    return sorted(path.name for path in (folder / "profiler").iterdir()) if (folder / "profiler").is_dir() else []


def events(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)["traceEvents"]


def names(path):
    return [event.get("name", "") for event in events(path)]


def running():
    return torch._C._autograd._profiler_type() != torch._C._profiler.ActiveProfilerType.NONE


def test_the_steps_of_the_schedule(make_trainer, tmp_path):
    """Of 20 steps 1 is skipped; cycles of 2 + 1 + 3: steps 4 to 6 and 10 to 12 are kept, counted from 1: 5 to 7, 11 to 13."""
    profiler = Profiler(wait=2, warmup=1, active=3, repeat=2, skip_first=1)
    make_trainer([profiler], values=(1.0,) * 20, work_dir=tmp_path / "run").train()
    assert files(tmp_path / "run") == [
        "step-00000007.pt.trace.json.gz",
        "step-00000007.txt",
        "step-00000013.pt.trace.json.gz",
        "step-00000013.txt",
    ]


def test_as_many_cycles_as_fit(make_trainer, tmp_path):
    """Cycles of 3 steps in 10: after 3, 6, 9; the last is cut off while it waits."""
    make_trainer([Profiler(1, 1, 1, repeat=0)], work_dir=tmp_path / "run").train()
    assert files(tmp_path / "run")[::2] == [f"step-0000000{n}.pt.trace.json.gz" for n in (3, 6, 9)]


def test_without_waiting_and_warmup(make_trainer, tmp_path):
    """Every step by itself; no empty trace at the end."""
    make_trainer([Profiler(0, 0, 1, repeat=0)], values=(1.0,) * 3, work_dir=tmp_path / "run").train()
    assert files(tmp_path / "run")[::2] == [f"step-0000000{n}.pt.trace.json.gz" for n in (1, 2, 3)]


def test_a_trace_that_viewers_open(make_trainer, tmp_path):
    """The format of chrome://tracing: complete events (ph X) with a name, a start and a duration in microseconds.

    Three steps are kept, so there are three of each stage, each inside its step.
    """
    make_trainer([Profiler(0, 1, 3)], work_dir=tmp_path / "run").train()
    found = events(tmp_path / "run" / "profiler" / "step-00000004.pt.trace.json.gz")
    complete = [event for event in found if event["ph"] == "X"]
    assert complete and all({"name", "ts", "dur", "pid", "tid"} <= event.keys() for event in complete)
    assert all(isinstance(event["ts"], int | float) and event["dur"] >= 0 for event in complete)
    for stage in ("train_step", "compute_loss", "backward", "optimizer_step"):
        assert len([event for event in complete if event["name"] == stage]) == 3, stage
    steps = [event for event in complete if event["name"] == "train_step"]
    losses = [event for event in complete if event["name"] == "compute_loss"]
    for step, loss in zip(steps, losses):
        assert step["ts"] <= loss["ts"] and loss["ts"] + loss["dur"] <= step["ts"] + step["dur"]
    assert [event for event in complete if event["name"] == "aten::mul"]


def test_without_labels(make_trainer, tmp_path):
    trainer = make_trainer([Profiler(0, 1, 1, stages=False)], work_dir=tmp_path / "run")
    assert not trainer.manager.has("train_step") and not trainer.manager.has("compute_loss")
    trainer.train()
    found = names(tmp_path / "run" / "profiler" / "step-00000002.pt.trace.json.gz")
    assert "aten::mul" in found and "train_step" not in found


def test_the_table_and_its_top_rows(make_trainer, tmp_path, messages):
    make_trainer([Profiler(0, 1, 3, top=2)], work_dir=tmp_path / "run").train()
    table = (tmp_path / "run" / "profiler" / "step-00000004.txt").read_text()
    assert "aten::mul" in table and "Self CPU" in table
    (said,) = [text for text in messages() if text.startswith("profiler")]
    trace = tmp_path / "run" / "profiler" / "step-00000004.pt.trace.json.gz"
    first, *rows = said.splitlines()
    assert first == f"profiler: 3 steps up to step 4; trace: {trace}"
    assert len(rows) == 2 and all(re.search(r"ms of host time of its own +\d+\.\d% +\d+ calls$", row) for row in rows)


def test_top_rows_in_order():
    """60, 30 and 10 of 100 us; torch's own mark of a step is no operator."""

    class Row:
        def __init__(self, key, own, count):
            self.key, self.self_cpu_time_total, self.count = key, own, count

    rows = [Row("b", 30.0, 2), Row("ProfilerStep*", 900.0, 3), Row("a", 60.0, 1), Row("c", 10.0, 5)]
    found = [" ".join(line.split()) for line in top_rows(rows, "self_cpu_time_total", 2)]
    assert found == [
        "a 0.060 ms of host time of its own 60.0% 1 calls",
        "b 0.030 ms of host time of its own 30.0% 2 calls",
    ]
    assert top_rows([], "self_cpu_time_total", 2) == []


def test_each_file_is_an_artifact(make_trainer, tmp_path):
    artifacts = []

    class Reports:
        @hookimpl
        def report_artifact(self, name, kind):
            artifacts.append((name, kind))

    make_trainer([Profiler(0, 1, 1), Reports()], work_dir=tmp_path / "run").train()
    assert artifacts == [("step-00000002.pt.trace.json.gz", "profile"), ("step-00000002.txt", "profile")]


def test_options_of_torch_reach_it(make_trainer, tmp_path):
    plugin = Profiler(0, 1, 1, record_shapes=True, profile_memory=True, with_stack=True, activities=("cpu",))
    make_trainer([plugin], work_dir=tmp_path / "run").train()
    found = events(tmp_path / "run" / "profiler" / "step-00000002.pt.trace.json.gz")
    assert any("Input Dims" in event.get("args", {}) for event in found)
    assert any(event.get("name") == "[memory]" for event in found)
    assert any(".py(" in event.get("name", "") for event in found)


def test_a_cycle_that_the_end_cuts_short(make_trainer, tmp_path, messages):
    """Warmup in step 9 of 10, then one of 5 steps."""
    make_trainer([Profiler(8, 1, 5)], work_dir=tmp_path / "run").train()
    assert files(tmp_path / "run")[0] == "step-00000010.pt.trace.json.gz"
    assert any(text.startswith("profiler: 1 steps up to step 10") for text in messages())
    assert not running()


def test_a_training_that_is_too_short_is_said(make_trainer, tmp_path, messages):
    make_trainer([Profiler(5, 6, 3)], work_dir=tmp_path / "run").train()
    assert "profiler: nothing was recorded in 10 steps, recording begins after 11" in messages()
    assert files(tmp_path / "run") == [] and not running()


class Fails:
    phase = "reporting"

    def __init__(self, step):
        self.step = step

    @hookimpl
    def after_step(self, trainer):
        if trainer.step == self.step:
            raise ValueError("it failed")


@pytest.mark.parametrize(("step", "kept"), [(0, False), (1, False), (2, True), (3, True), (6, True)])
def test_a_failing_training_leaves_nothing_running(make_trainer, tmp_path, step, kept):
    """One step of waiting, one of warmup, then 3: it fails while it waits, warms up, records or is done."""
    profiler = Profiler(1, 1, 3)
    trainer = make_trainer([profiler, Fails(step)], work_dir=tmp_path / "run")
    with pytest.raises(ValueError, match="it failed"):
        trainer.train()
    assert not running()
    assert profiler._profile is None
    assert bool(files(tmp_path / "run")) is kept
    make_trainer([Profiler(0, 1, 1)], work_dir=tmp_path / "next").train()  # torch allows but one at a time
    assert len(files(tmp_path / "next")) == 2


def test_the_error_of_the_training_is_what_is_raised(make_trainer, tmp_path, messages, monkeypatch):
    """Writing fails as well: a warning."""

    def fails(*args):
        raise OSError("disk full")

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", fails)
    with pytest.raises(ValueError, match="it failed"):
        make_trainer([Profiler(1, 1, 3), Fails(3)], work_dir=tmp_path / "run").train()
    assert any("could not be written: OSError('disk full')" in text for text in messages())


def test_an_error_of_its_own_is_raised(make_trainer, tmp_path, monkeypatch):
    def fails(*args):
        raise OSError("disk full")

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", fails)
    with pytest.raises(OSError, match="disk full"):
        make_trainer([Profiler(1, 1, 1)], work_dir=tmp_path / "run").train()
    assert not running()


def test_without_a_run_folder_the_table_is_logged(make_trainer, messages, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_trainer([Profiler(0, 1, 3)]).train()
    assert "profiler: this run has no work_dir, so no trace is written; only the table is logged" in messages()
    assert any(text.startswith("profiler: 3 steps up to step 4\n") for text in messages())
    assert list(tmp_path.iterdir()) == []


def test_other_ranks_do_nothing(make_trainer, tmp_path, messages):
    trainer = make_trainer([Profiler(0, 1, 1)], work_dir=tmp_path / "run")
    trainer.rank, trainer.world_size = 1, 2
    trainer.train()
    assert files(tmp_path / "run") == [] and messages() == []


def test_a_second_training_is_profiled_anew(make_trainer, tmp_path):
    trainer = make_trainer([Profiler(0, 1, 1)], values=(1.0,) * 3, work_dir=tmp_path / "run")
    trainer.train()
    trainer.train(max_epochs=2)
    assert files(tmp_path / "run")[::2] == ["step-00000002.pt.trace.json.gz", "step-00000005.pt.trace.json.gz"]


def test_one_that_is_taken_out_leaves_nothing_running(make_trainer, tmp_path):
    class Leaves:
        @hookimpl
        def before_step(self, trainer):
            if trainer.step == 3:
                trainer.unregister("profiler")

    make_trainer([Profiler(1, 1, 5), Leaves()], work_dir=tmp_path / "run").train()
    assert not running() and files(tmp_path / "run") == []


def test_one_that_comes_later(make_trainer, tmp_path):
    """Registered in step 3, counted from 0: that step is waited for, steps 4 and 5 are kept."""

    class Registers:
        @hookimpl
        def before_step(self, trainer):
            if trainer.step == 3:
                trainer.register(Profiler(1, 0, 2))

    make_trainer([Registers()], work_dir=tmp_path / "run").train()
    assert files(tmp_path / "run")[0] == "step-00000006.pt.trace.json.gz"


def test_an_evaluation_at_the_end_is_not_in_the_trace(make_trainer, tmp_path):
    """The cycle is not over when the training is; ``eval_step`` would be the eleventh ``compute_loss``."""
    make_trainer([Profiler(0, 0, 20), Evaluation(every_epochs=5)], val=(1.0,), work_dir=tmp_path / "run").train()
    assert names(tmp_path / "run" / "profiler" / "step-00000010.pt.trace.json.gz").count("compute_loss") == 10


def test_the_trainer_is_freed(make_trainer, tmp_path):
    gc.collect()
    gc.disable()
    try:
        trainer = make_trainer([Profiler(1, 1, 3)], work_dir=tmp_path / "run")
        trainer.train()
        gone = weakref.ref(trainer.model)
        del trainer
        assert gone() is None
    finally:
        gc.enable()


def test_the_weights_are_those_without_it(make_trainer, tmp_path):
    trainer = make_trainer([Profiler(1, 1, 3)], work_dir=tmp_path / "run")
    trainer.train()
    assert trainer.model.w.item() == -10.0


def test_activities():
    assert ProfilerActivity.CPU in pick_activities(None)
    assert pick_activities(("cpu",)) == [ProfilerActivity.CPU]
    with pytest.raises(UsageError, match="'tpu' cannot be recorded here; there are cpu"):
        pick_activities(("cpu", "tpu"))


@pytest.mark.parametrize("name", ["wait", "warmup", "repeat", "skip_first", "top"])
def test_counts_below_zero(name):
    with pytest.raises(OptionError, match=f"{name} = -1: must be 0 or more"):
        Profiler(**{name: -1})


def test_no_active_step():
    with pytest.raises(OptionError, match="active = 0: at least one step"):
        Profiler(active=0)


def test_logging_is_left_alone(make_trainer):
    before = list(logging.getLogger("trainhooks").handlers)
    make_trainer([Profiler(0, 1, 1)]).train()
    assert logging.getLogger("trainhooks").handlers == before
