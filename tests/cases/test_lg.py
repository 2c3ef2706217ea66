"""Cases LG of loggers: status, order, errors, identity. LG-05 is in test_lg_files.py."""

import json
import os
import signal
import weakref

import pytest

from trainhooks import hookimpl
from trainhooks_builtins import Checkpoint, MetricsLog, Signals

pytestmark = pytest.mark.timeout(300)


class Tracker:
    """Keeps what a tracking server would; drops a step that is not above its last, as some do."""

    def __init__(self):
        self.events, self.steps, self.values = [], [], []

    @hookimpl
    def report_start(self, run):
        self.run = run
        self.events.append("start")

    @hookimpl
    def report_metrics(self, records):
        for record in records:
            self.events.append("record")
            self.values.append(dict(record.values))
            if not self.steps or record.step > self.steps[-1]:
                self.steps.append(record.step)

    @hookimpl
    def report_end(self, outcome):
        self.events.append(f"end {outcome.status}")


class Each:
    """Calls ``do(trainer)`` before the step of a number."""

    def __init__(self, step, do):
        self.step, self.do = step, do

    @hookimpl
    def before_step(self, trainer):
        if trainer.step == self.step:
            self.do(trainer)


def crash(trainer):
    message = "crash"
    raise RuntimeError(message)


class TestLG01:
    """Steps go backwards after a resume and data is dropped."""

    def test_lg_01_each_step_once_after_a_crash(self, make_trainer, tmp_path):
        """Checkpoint at 8, crash after 10, resume to 15: the file has 1..15 once each, 9 and 10 of the second run."""

        def train(resume=None, *plugins):
            return make_trainer(
                [Checkpoint(every_steps=8), MetricsLog(), *plugins],
                values=(1.0,) * 15,
                work_dir=tmp_path / "run",
                log_every_steps=1,
            ).train(resume=resume)

        with pytest.raises(RuntimeError, match="crash"):
            train(None, Each(10, crash))
        before = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
        assert [one["step"] for one in before] == list(range(1, 11))
        tracker = Tracker()
        train("auto", tracker)
        after = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
        assert [one["step"] for one in after] == list(range(1, 16))
        assert after[:8] == before[:8]
        assert [one["time"] != old["time"] for one, old in zip(after[8:10], before[8:10], strict=True)] == [True, True]
        assert tracker.steps == list(range(9, 16))
        assert tracker.run.resumed
        assert tracker.run.resumed_step == 8

    def test_lg_01_a_step_of_ones_own_is_refused(self, make_trainer):
        tracker = Tracker()

        def rogue(trainer):
            with pytest.raises(TypeError):
                trainer.log("x", 1.0, step=10**9)
            trainer.log("x", 1.0)

        make_trainer([tracker, Each(4, rogue)], log_every_steps=1).train()
        assert tracker.steps == list(range(1, 11))
        assert tracker.values[4]["x"] == 1.0


class Broken(Tracker):
    """Raises ``error`` at its start, end, or for records 3 to 5."""

    def __init__(self, where, error):
        super().__init__()
        self.where, self.error = where, error

    @hookimpl
    def report_start(self, run):
        if self.where == "start" or (self.where == "long" and max(map(len, map(str, run.hyperparameters.values()))) > 1000):
            raise self.error

    @hookimpl
    def report_metrics(self, records):
        if self.where == "records" and records[0].step in (3, 4, 5):
            raise self.error
        self.steps += [record.step for record in records]

    @hookimpl
    def report_end(self):
        if self.where == "end":
            raise self.error


class Says:
    @hookimpl
    def setup(self, trainer):
        trainer.log_hyperparameters({"text": "x" * 10_000})


class TestLG02:
    """Backend error kills the training."""

    @pytest.mark.parametrize("error", [ConnectionError("down"), ValueError("refused")])
    @pytest.mark.parametrize(("where", "lost"), [("records", 3), ("start", 10), ("end", 0), ("long", 10)])
    def test_lg_02_the_training_finishes(self, make_trainer, tmp_path, messages, impatient, where, lost, error):
        broken, other = Broken(where, error), Tracker()
        plugins = [broken, other, Says(), Checkpoint(every_steps=5)]
        outcome = make_trainer(plugins, work_dir=tmp_path / "run", log_every_steps=1).train()
        assert (outcome.status, outcome.step) == ("completed", 10)
        assert {path.name for path in (tmp_path / "run/checkpoints").iterdir()} >= {"step-00000010"}
        assert other.steps == list(range(1, 11))
        assert len([one for one in messages() if "failed with" in one]) == 1
        assert [one for one in messages() if "not sent" in one] == (
            [f"plugin 'broken' (given to Trainer): {lost} of 10 records not sent"] if lost else []
        )

    def test_lg_02_strict_makes_it_fatal_with_the_original_error(self, make_trainer):
        broken = Broken("records", ConnectionError("down"))
        broken.on_error = "raise"
        with pytest.raises(ConnectionError) as raised:
            make_trainer([broken], log_every_steps=1).train()
        assert raised.value is broken.error

    def test_lg_02_a_changed_parameter_on_resume_is_noted(self, make_trainer, tmp_path):
        def train(resume=None, **more):
            tracker = Tracker()
            plugins = [tracker, Checkpoint(every_steps=5)]
            make_trainer(plugins, work_dir=tmp_path / "run", **more).train(resume=resume)
            return tracker

        train(max_steps=5, lr=1.0)
        tracker = train("auto", max_steps=10, lr=0.5)
        assert tracker.run.hyperparameters["optimizer/lr"] == 0.5
        record = json.loads((tmp_path / "run/run.json").read_text())
        assert record["resumed"][0]["changed"] == {"max_steps": [5, 10], "optimizer/lr": [1.0, 0.5]}


class TestLG04:
    """Run status wrong after failure."""

    @pytest.mark.parametrize(
        ("do", "error", "status"),
        [
            (None, None, "completed"),
            (lambda trainer: trainer.stop("enough"), None, "stopped"),
            (crash, RuntimeError, "failed"),
            (lambda trainer: os.kill(os.getpid(), signal.SIGTERM), SystemExit, "interrupted"),
            (lambda trainer: os.kill(os.getpid(), signal.SIGINT), KeyboardInterrupt, "interrupted"),
            (lambda trainer: (_ for _ in ()).throw(SystemExit(0)), SystemExit, "failed"),
        ],
        ids=["success", "early stop", "exception", "SIGTERM", "SIGINT", "SystemExit"],
    )
    def test_lg_04_each_ends_once_with_its_status(self, make_trainer, do, error, status):
        trackers = Tracker(), Tracker()
        plugins = [*trackers, Signals(), *([Each(3, do)] if do else [])]
        trainer = make_trainer(plugins)
        if error is None:
            trainer.train()
        else:
            with pytest.raises(error):
                trainer.train()
        for tracker in trackers:
            assert [one for one in tracker.events if one.startswith(("start", "end"))] == ["start", f"end {status}"]


class TestLG06:
    """Logged tensor keeps the graph alive."""

    def test_lg_06_what_reporters_get_are_floats_and_no_graph_survives(self, make_trainer):
        tracker, graphs = Tracker(), []

        class Logs:
            @hookimpl(wrapper=True)
            def compute_loss(self, trainer):
                loss = yield
                trainer.log("own/loss", loss)
                trainer.log_dict({"own/other": loss * 2}, reduce="last")
                graphs.append(weakref.ref(loss))
                return loss

        trainer = make_trainer([Logs(), tracker], values=(1.0,) * 100, log_every_steps=10)
        trainer.train()
        assert {type(value) for values in tracker.values for value in values.values()} == {float}
        assert len(graphs) == 100
        assert [graph for graph in graphs if graph() is not None and graph().grad_fn is not None] == []
        assert trainer.outcome.metrics.keys() >= {"own/loss", "own/other"}

    def test_lg_06_what_the_bus_keeps_does_not_grow(self, make_trainer):
        """After 2,000 steps it holds as much as after 200."""
        sizes = {}

        class Logs:
            @hookimpl
            def after_step(self, trainer, output):
                trainer.log("own/loss", output["loss"])
                if trainer.step in (199, 1999):
                    series = trainer.bus.series("own/loss")
                    sizes[trainer.step] = len(series.values), len(trainer._recent.get("own/loss", ()))

        make_trainer([Logs(), Tracker()], values=(1.0,) * 2000, log_every_steps=10).train()
        assert sizes[199] == (10, 19)
        assert sizes[1999] == (10, 20)


class TestLG09:
    """Loggers start too late and close too early."""

    @pytest.mark.parametrize("fails", [False, True])
    def test_lg_09_the_first_and_the_last_value_arrive(self, make_trainer, fails):
        order = []

        class First:
            phase = "bookkeeping"

            @hookimpl
            def before_train(self, trainer):
                order.append("first")
                trainer.log("first", 1.0)

        class Fails:
            @hookimpl
            def after_train(self):
                if fails:
                    raise RuntimeError("late")

        class Last:
            phase = "reporting"

            @hookimpl(trylast=True)
            def after_train(self, trainer):
                trainer.log("last", 2.0)

            @hookimpl
            def teardown(self, trainer):
                order.append("last")
                trainer.log("after all", 3.0)

        class Notes(Tracker):
            @hookimpl
            def report_start(self):
                order.append("start")

            @hookimpl
            def report_end(self, outcome):
                order.append(f"end {outcome.status}")

        loggers = Notes(), Notes()
        trainer = make_trainer([First(), Fails(), *loggers, Last()])
        if fails:
            with pytest.raises(RuntimeError, match="late"):
                trainer.train()
        else:
            trainer.train()
        end = "end failed" if fails else "end completed"
        assert order == ["start", "start", "first", "last", end, end]
        for logger in loggers:
            values = {name: value for one in logger.values for name, value in one.items()}
            assert {name: values[name] for name in ("first", "last", "after all")} == {"first": 1, "last": 2, "after all": 3}


class TestLG10:
    """Resume makes a new run in the tracker."""

    def test_lg_10_one_id_for_all_segments_and_a_new_one_for_a_fork(self, make_trainer, tmp_path, messages):
        def segment(work_dir, resume=None, stop=None, **more):
            tracker = Tracker()
            plugins = [tracker, Checkpoint(every_steps=2, keep=10), *([Each(stop, crash)] if stop else [])]
            trainer = make_trainer(plugins, work_dir=work_dir, **more)
            if stop:
                with pytest.raises(RuntimeError, match="crash"):
                    trainer.train(resume=resume)
            else:
                trainer.train(resume=resume)
            return tracker.run

        runs = [segment(tmp_path / "run", "auto", stop) for stop in (3, 5)]
        runs.append(segment(tmp_path / "run", "auto", 7, lr=0.5))
        runs.append(segment(tmp_path / "run", tmp_path / "run/checkpoints/step-00000006"))
        assert len({run.id for run in runs}) == 1
        assert [run.resumed_step for run in runs] == [0, 2, 4, 6]
        assert {run.parent for run in runs} == {None}
        record = json.loads((tmp_path / "run/run.json").read_text())
        assert record["id"] == runs[0].id
        assert [one.get("changed") for one in record["resumed"]] == [
            None,
            {"optimizer/lr": [1.0, 0.5]},
            {"optimizer/lr": [0.5, 1.0]},
        ]
        fork = segment(tmp_path / "fork", tmp_path / "run/checkpoints/step-00000006")
        assert fork.id != runs[0].id
        assert (fork.parent, fork.resumed_step) == (runs[0].id, 6)
        again = segment(tmp_path / "fork", "auto", max_steps=12)
        assert (again.id, again.parent) == (fork.id, runs[0].id)

    def test_lg_10_without_a_folder_the_checkpoint_says_whose_it_is(self, make_trainer, tmp_path):
        first, second = Tracker(), Tracker()
        trainer = make_trainer([first, Checkpoint()], max_steps=3)
        trainer.train()
        trainer.session = None
        path = trainer.save_checkpoint(tmp_path / "step-00000003")
        make_trainer([second, Checkpoint()], max_steps=5).train(resume=path)
        assert second.run.id == first.run.id

    def test_lg_10_replacing_a_run_makes_another(self, make_trainer, tmp_path):
        ids = []
        for _ in range(2):
            tracker = Tracker()
            make_trainer([tracker, Checkpoint()], work_dir=tmp_path / "run", overwrite=True).train()
            ids.append(tracker.run.id)
        assert ids[0] != ids[1]
