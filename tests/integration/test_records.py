"""Where what is logged stands: at which step, in which epoch, and apart from what evaluations log.

Batches of the toy model hold ones unless said otherwise, so the loss of the step with index n is -n.
"""

import json
from pathlib import Path

import pytest
import torch

from trainhooks import hookimpl
from trainhooks_builtins import Accumulate, Checkpoint, Evaluation, MetricsLog, Timer


class Takes:
    """Keeps what a reporter gets."""

    def __init__(self):
        self.records, self.media = [], []

    @hookimpl
    def report_metrics(self, records):
        self.records += records

    @hookimpl
    def report_media(self, items):
        self.media += items

    def of(self, name):
        return [(one.step, one.update, one.epoch, one.values[name]) for one in self.records if name in one.values]


class Crash(Exception):
    pass


class TestAfterEpoch:
    class Logs:
        def __init__(self):
            self.seen = []

        @hookimpl
        def after_epoch(self, trainer, epoch, metrics):
            self.seen.append(metrics.get("fid"))
            trainer.log("fid", epoch + 1.0)
            trainer.log_text("note", str(epoch))

    def test_what_it_logs_belongs_to_the_epoch_that_ends(self, make_trainer):
        logs, takes = self.Logs(), Takes()
        make_trainer([logs, takes], values=(1.0, 1.0), max_epochs=3).train()
        assert takes.of("fid") == [(2, 2, 0, 1.0), (4, 4, 1, 2.0), (6, 6, 2, 3.0)]
        assert [(one.step, one.epoch, one.text) for one in takes.media] == [(2, 0, "0"), (4, 1, "1"), (6, 2, "2")]
        assert logs.seen == [None] * 3

    def test_an_epoch_of_which_nothing_is_logged_then_has_no_record_more(self, make_trainer):
        takes = Takes()
        make_trainer([takes], values=(1.0, 1.0), max_epochs=2).train()
        assert [one.step for one in takes.records] == [2, 4]

    def test_a_resume_moves_and_repeats_nothing(self, make_trainer, tmp_path):
        class Crashes:
            @hookimpl
            def before_step(self, trainer):
                if trainer.step == 5:
                    raise Crash

        def trainer(*more):
            plugins = [self.Logs(), MetricsLog(), Checkpoint(every_epochs=1, at_end=False), *more]
            return make_trainer(plugins, values=(1.0, 1.0), max_epochs=4, work_dir=tmp_path / "run", log_every_steps=1)

        with pytest.raises(Crash):
            trainer(Crashes()).train()
        trainer().train(resume="auto")
        rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
        assert [(row["step"], row["epoch"], row["fid"]) for row in rows if "fid" in row] == [
            (2, 0, 1.0),
            (4, 1, 2.0),
            (6, 2, 3.0),
            (8, 3, 4.0),
        ]
        assert [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row] == [(n + 1, -n) for n in range(8)]


class TestWithinAStep:
    def test_an_evaluation_after_a_step_stands_at_that_step(self, make_trainer):
        """With the fourth loss, -3, and the text that is logged beside it; the weight is -4 then, and so is the loss of the 1."""

        class Evaluates:
            @hookimpl
            def after_step(self, trainer):
                if trainer.every_n_steps(4):
                    trainer.evaluate("val")
                    trainer.log_text("note", "evaluated")

        takes = Takes()
        make_trainer([Evaluates(), takes], values=(1.0,) * 5, val=(1.0,), log_every_steps=1).train()
        assert takes.of("val/loss") == [(4, 4, 0, -4.0)]
        assert [place[:2] for place in takes.of("train/loss")] == [(n, n) for n in range(1, 6)]
        assert [one.step for one in takes.media] == [4]

    def test_one_that_has_not_trained_the_step_stands_at_the_last(self, make_trainer):
        class Evaluates:
            @hookimpl
            def before_step(self, trainer):
                if trainer.step == 3:
                    trainer.evaluate("val")

        takes = Takes()
        make_trainer([Evaluates(), takes], values=(1.0,) * 5, val=(1.0,)).train()
        assert takes.of("val/loss") == [(3, 3, 0, -3.0)]
        assert takes.of("train/loss") == [(3, 3, 0, -1.0), (5, 5, 0, -3.5)]

    @pytest.mark.parametrize(("steps", "update"), [(1, 1), (2, 0)])
    def test_a_failure_after_the_first_step_was_trained(self, make_trainer, steps, update):
        class Fails:
            @hookimpl
            def after_step(self):
                raise Crash

        takes = Takes()
        with pytest.raises(Crash):
            make_trainer([Fails(), takes, Accumulate(steps=steps)]).train()
        assert takes.of("train/loss") == [(1, update, 0, 0.0)]

    @pytest.mark.parametrize(("step", "found"), [(0, []), (2, [(2, 2, 0, -0.5)])])
    def test_a_failure_before_it_was(self, make_trainer, step, found):
        """The losses of the steps before it are 0 and -1."""

        class Fails:
            @hookimpl
            def compute_loss(self, trainer):
                if trainer.step == step:
                    raise Crash

        takes = Takes()
        with pytest.raises(Crash):
            make_trainer([Fails(), takes]).train()
        assert takes.of("train/loss") == found

    def test_a_training_that_goes_on_after_a_failure_has_each_step_once(self, make_trainer):
        class Fails:
            failed = False

            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 2 and not self.failed:
                    self.failed = True
                    raise Crash

        takes = Takes()
        trainer = make_trainer([Fails(), takes], values=(1.0,) * 5, log_every_steps=1)
        with pytest.raises(Crash):
            trainer.train()
        trainer.train()
        assert takes.of("train/loss") == [(n + 1, n + 1, 0, -n) for n in range(5)]


class LogsBatch:
    """Logs the mean of each batch where the loss is computed: in training and in evaluations."""

    def __init__(self, reduce="mean"):
        self.reduce, self.epochs = reduce, []

    @hookimpl
    def compute_loss(self, trainer, batch):
        trainer.log("input", batch.mean(), reduce=self.reduce)
        return trainer.model(batch)

    @hookimpl
    def after_epoch(self, metrics):
        self.epochs.append({name: value for name, value in metrics.items() if "input" in name})


class TestEvaluations:
    @pytest.mark.parametrize("reduce", ["mean", "max", "last", "median"])
    def test_what_the_training_logs_too_is_kept_apart(self, make_trainer, reduce):
        """Training sees 1, evaluations see 100 in one split and 7 in the other."""
        logs, takes = LogsBatch(reduce), Takes()
        evaluation = Evaluation(every_steps=3, splits=("val", "test"))
        trainer = make_trainer([logs, takes, evaluation], values=(1.0,) * 6, val=(100.0, 100.0), log_every_steps=4)
        trainer.loaders["test"] = [torch.tensor([7.0], dtype=torch.float64)]
        trainer.train()
        assert [place[::3] for place in takes.of("input")] == [(3, 1.0), (4, 1.0), (6, 1.0)]
        assert [place[::3] for place in takes.of("val/input")] == [(3, 100.0), (6, 100.0)]
        assert [place[::3] for place in takes.of("test/input")] == [(3, 7.0), (6, 7.0)]
        assert logs.epochs == [{"input": 1.0, "val/input": 100.0, "test/input": 7.0}]

    def test_nor_does_one_within_a_step_of_an_interval(self, make_trainer):
        """Of the interval 1 to 6 the mean is 3.5, with an evaluation in its middle or not; it is recorded in two parts."""

        class Evaluates:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 3:
                    trainer.evaluate("val")

        logs, takes = LogsBatch(), Takes()
        values = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
        make_trainer([logs, takes, Evaluates()], values=values, lr=0.0, val=(100.0,)).train()
        assert [place[::3] for place in takes.of("input")] == [(4, 2.5), (6, 5.5)]
        assert logs.epochs == [{"input": 3.5, "val/input": 100.0}]

    def test_a_resumed_run_knows_what_the_training_logs(self, make_trainer, tmp_path):
        """It begins with an evaluation."""
        for max_steps, resume in ((3, None), (6, "auto")):
            takes = Takes()
            plugins = [LogsBatch(), takes, Evaluation(every_epochs=1), Checkpoint()]

            class First:
                @hookimpl
                def before_train(self, trainer):
                    trainer.evaluate("val")

            trainer = make_trainer(
                [*plugins, *([First()] if resume else [])], val=(100.0,), max_steps=max_steps, work_dir=tmp_path / "run"
            )
            trainer.train(resume=resume)
        assert takes.of("val/input")[0][::3] == (3, 100.0)
        assert {place[3] for place in takes.of("input")} == {1.0}

    def test_what_is_logged_in_evaluations_alone_keeps_its_name(self, make_trainer):
        class Logs:
            @hookimpl
            def after_eval(self, trainer):
                trainer.log("score", 0.5)

            @hookimpl
            def after_epoch(self, metrics):
                assert metrics["score"] == 0.5

        takes = Takes()
        make_trainer([Logs(), takes, Evaluation(), Timer()], values=(1.0,) * 2, val=(1.0,)).train()
        assert takes.of("score") == [(2, 2, 0, 0.5)]
        names = {name for one in takes.records for name in one.values}
        assert names == {"score", "time/step", "time/data", "time/evaluate", "train/loss", "val/loss", "best/val/loss"}

    def test_one_within_another(self, make_trainer):
        class Nests:
            @hookimpl
            def after_eval(self, trainer, split):
                if split == "val":
                    trainer.evaluate("test")

        takes = Takes()
        trainer = make_trainer([LogsBatch(), Nests(), takes, Evaluation()], values=(1.0,) * 2, val=(100.0,))
        trainer.loaders["test"] = [torch.tensor([7.0], dtype=torch.float64)]
        trainer.train()
        found = [takes.of(name) for name in ("input", "val/input", "test/input")]
        assert found == [[(2, 2, 0, 1.0)], [(2, 2, 0, 100.0)], [(2, 2, 0, 7.0)]]

    def test_one_that_fails_leaves_what_was_pending(self, make_trainer):
        class Fails:
            @hookimpl
            def after_eval(self):
                raise Crash

        class Evaluates:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 1:
                    with pytest.raises(Crash):
                        trainer.evaluate("val")

        takes = Takes()
        make_trainer([LogsBatch(), Fails(), Evaluates(), takes], values=(1.0, 3.0, 5.0), lr=0.0, val=(100.0,)).train()
        assert takes.of("input") == [(3, 3, 0, 3.0)]
        assert takes.of("val/input") == []

    def test_a_checkpoint_within_one_holds_what_the_training_has_pending(self, make_trainer):
        states = []

        class Saves:
            @hookimpl
            def after_eval(self, trainer):
                states.append(trainer.state_dict()["metrics"]["series"]["input"])

        trainer = make_trainer([LogsBatch(), Saves(), Takes(), Evaluation()], values=(1.0, 3.0), lr=0.0, val=(100.0,))
        trainer.train()
        assert (states[0]["values"], states[0]["folded"]) == ([1.0, 3.0], None)


class TestNamesInCommon:
    def said(self, messages, name):
        return [text for text in messages() if f"gives {name!r}" in text]

    def test_an_evaluation_of_a_split_that_is_named_train(self, make_trainer, messages):
        takes = Takes()
        trainer = make_trainer([takes, Evaluation(every_steps=2, splits=("train",))], values=(1.0,) * 4)
        trainer.train()
        assert takes.of("train/loss") == [(2, 2, 0, -2.0), (4, 4, 0, -4.0)]
        (text,) = self.said(messages, "train/loss")
        assert "loaders={'train_eval': ...}" in text

    def test_a_value_that_is_logged_under_the_name_of_a_metric(self, make_trainer, messages):
        class Logs:
            @hookimpl
            def after_eval(self, trainer):
                trainer.log("val/loss", 123.0)

        takes = Takes()
        make_trainer([Logs(), takes, Evaluation(every_steps=2)], values=(1.0,) * 4, val=(1.0,)).train()
        assert takes.of("val/loss") == [(2, 2, 0, -2.0), (4, 4, 0, -4.0)]
        (text,) = self.said(messages, "val/loss")
        assert "log it under another name" in text

    @pytest.mark.parametrize("reduce", ["mean", "last"])
    @pytest.mark.parametrize("hook", ["after_step", "compute_loss"])
    def test_the_loss_is_logged_by_a_hook_as_well(self, make_trainer, messages, reduce, hook):
        def log(trainer):
            trainer.log("train/loss", 100.0, reduce=reduce)  # here

        class Logs:
            pass

        setattr(Logs, hook, hookimpl(specname=hook)(lambda self, trainer: log(trainer)))
        takes = Takes()
        make_trainer([Logs(), takes], values=(1.0,) * 100, max_epochs=2).train()
        assert takes.of("train/loss") == [(50 * n, 50 * n, (n - 1) // 2, -50 * n + 25.5) for n in range(1, 5)]
        (text,) = [text for text in messages() if "log('train/loss')" in text]
        source = Path(__file__).read_text(encoding="utf-8").splitlines()
        line = next(number for number, code in enumerate(source, 1) if code.endswith("# here"))
        assert text.endswith(f"log it under another name ({__file__}:{line})")

    def test_a_loss_that_train_step_does_not_return_is_the_hooks_own(self, make_trainer, messages):
        class Own:
            @hookimpl
            def train_step(self, trainer):
                trainer.log("train/loss", 5.0, reduce="last")
                return {"other": 1.0}

        takes = Takes()
        make_trainer([Own(), takes], values=(1.0,) * 3).train()
        assert takes.of("train/loss") == [(3, 3, 0, 5.0)]
        assert [text for text in messages() if "train/loss" in text] == []


@pytest.mark.parametrize("evaluate", [False, True])
def test_what_is_logged_before_the_training_is_reported_whatever_is_called_in_between(make_trainer, evaluate):
    takes = Takes()
    trainer = make_trainer([takes], values=(1.0,) * 2, val=(1.0,))
    trainer.log("before", 1.0)
    if evaluate:
        assert trainer.evaluate("val") == {"val/loss": 0.0}
        assert trainer.metrics == {"before": 1.0, "val/loss": 0.0}
    trainer.log("before", 4.0)
    trainer.train()
    assert takes.of("before") == [(2, 2, 0, 2.5)]


class TestAnotherReduction:
    class Logs:
        def __init__(self, reduce):
            self.reduce, self.epochs = reduce, []

        @hookimpl
        def after_step(self, trainer):
            trainer.log("x", trainer.step + 1.0, reduce=self.reduce)

        @hookimpl
        def after_epoch(self, metrics):
            self.epochs.append(metrics["x"])

    @pytest.mark.parametrize("every", [2, 50])
    def test_after_a_resume_the_name_begins_anew_and_that_is_said_once(self, make_trainer, tmp_path, messages, every):
        """Flushed before the checkpoint or not: of the steps 4 to 6 the highest is 6, their lowest 4."""
        takes, logs = Takes(), self.Logs("min")
        for own, max_steps, resume in ((self.Logs("mean"), 3, None), (logs, 6, "auto")):
            plugins = [own, takes, Checkpoint(every_steps=3)]
            arguments = {"values": (1.0,) * 6, "work_dir": tmp_path / "run", "max_steps": max_steps}
            make_trainer(plugins, log_every_steps=every, **arguments).train(resume=resume)
        assert logs.epochs == [4.0]
        assert takes.of("x")[-1][3] == {2: 5.0, 50: 4.0}[every]
        (text,) = [text for text in messages() if text.startswith("log('x'")]
        assert "reduce='min'): the checkpoint has values of it with reduce='mean'" in text
