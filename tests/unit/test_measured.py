"""What ``evaluate`` gives, by whoever wraps or replaces it: numbers by name, or an error before a checkpoint holds it."""

import json
from fractions import Fraction

import numpy as np
import pytest
import torch

from trainhooks import CheckpointError, StageResultError, hookimpl
from trainhooks_builtins import Checkpoint, Evaluation, MetricsLog


class Measures:
    """Adds a value to what is measured, as a plugin with a metric of its own may."""

    def __init__(self, value, name="val/score"):
        self.value, self.its_name = value, name

    @hookimpl(wrapper=True)
    def evaluate(self):
        return {**(yield), self.its_name: self.value}


@pytest.mark.parametrize("value", [torch.tensor(0.5, requires_grad=True), np.float32(0.5), np.array([0.5]), Fraction(1, 2)])
def test_what_an_evaluation_gives_becomes_a_number_that_is_logged_saved_and_restored(make_trainer, tmp_path, value):
    for max_steps, resume in ((2, None), (4, "auto")):
        plugins = [Measures(value), Evaluation(every_steps=1), Checkpoint(every_steps=1), MetricsLog()]
        trainer = make_trainer(plugins, work_dir=tmp_path / "run", val=(1.0,), max_epochs=None, max_steps=max_steps)
        trainer.train(resume=resume)
        assert type(trainer.metrics["val/score"]) is float
    logged = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["val/score"] for row in logged if "val/score" in row] == [0.5] * 4


@pytest.mark.parametrize(
    ("value", "name", "what"),
    [
        (None, "val/score", "None as 'val/score'"),
        ("good", "val/score", "'good' as 'val/score'"),
        (torch.zeros(2), "val/score", r"tensor\(\[0., 0.\]\) as 'val/score'"),
        (0.5, 1, "0.5 as 1"),
    ],
)
def test_what_is_no_metric_fails_before_it_is_saved(make_trainer, tmp_path, value, name, what):
    trainer = make_trainer(
        [Measures(value, name), Evaluation(every_steps=1), Checkpoint()], work_dir=tmp_path / "run", val=(1.0,)
    )
    with pytest.raises(StageResultError, match=f"evaluate returned {what}: a metric is a number"):
        trainer.train()


def test_an_evaluation_that_gives_no_mapping(make_trainer):
    class Replaces:
        @hookimpl
        def evaluate(self):
            return 0.5

    with pytest.raises(StageResultError, match="evaluate must return a mapping of metrics such as .*, not float"):
        make_trainer([Replaces(), Evaluation(every_steps=1)], val=(1.0,)).evaluate("val")


def test_a_state_that_could_not_be_resumed_from_is_not_saved(make_trainer, tmp_path):
    class Spoils:
        @hookimpl
        def on_save(self, state):
            state["evaluated"]["val/score"] = "good"

    trainer = make_trainer([Spoils(), Checkpoint()], work_dir=tmp_path / "run")
    with pytest.raises(CheckpointError, match="state of 'evaluated' does not fit: they are no numbers by name"):
        trainer.train()
