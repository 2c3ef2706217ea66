"""docs/examples/coming-from/mmcv.py: the ten stages, the intervals, hooks by name with options, priorities."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from trainhooks import OptionError, Trainer, hookimpl
from trainhooks.project import load_project
from trainhooks_builtins.checkpoint import read_checkpoint

FOLDER = Path(__file__).parents[2] / "docs" / "examples" / "coming-from"
FILE = FOLDER / "mmcv.py"

mmcv = load_project(FILE)


@pytest.fixture
def trainer():
    """The example as the command line would train it, without the built-ins that it does not configure."""
    return Trainer(conf=FILE, config=FOLDER, autoload=False)


def epoch_stages(epoch, validated):
    """The stages of an epoch of three batches, as EpochBasedRunner calls them; mmcv counts the epoch after its stages."""
    start, end = 3 * epoch, 3 * epoch + 3
    stages = [("before_train_epoch", epoch, start)]
    for step in range(start, end):
        stages += [("before_train_iter", epoch, step), ("after_train_iter", epoch, step)]
    stages.append(("after_train_epoch", epoch, end))
    names = ["before_val_epoch", "before_val_iter", "after_val_iter", "after_val_epoch"] if validated else []
    return stages + [(name, epoch, end) for name in names]


def test_the_ten_stages_with_a_validation_after_every_second_epoch(trainer):
    trainer.train()
    stages = trainer.plugins["ten_stages"].calls
    assert stages == [
        ("before_run", 0, 0),
        *epoch_stages(0, validated=False),
        *epoch_stages(1, validated=True),
        *epoch_stages(2, validated=False),
        *epoch_stages(3, validated=True),
        ("after_run", 4, 12),
    ]
    assert len({stage for stage, _, _ in stages}) == 10


def test_intervals_answer_as_in_mmcv(trainer):
    # the formulas of mmcv's Hook, with iter, inner_iter and epoch of 4 epochs of 3 batches
    trainer.train()
    assert trainer.plugins["intervals"].answers == [
        {
            "every_n_epochs": (step // 3 + 1) % 2 == 0,
            "every_n_inner_iters": (step % 3 + 1) % 2 == 0,
            "every_n_iters": (step + 1) % 4 == 0,
            "end_of_epoch": step % 3 + 1 == 3,
            "is_last_epoch": step // 3 + 1 == 4,
            "is_last_iter": step + 1 == 12,
        }
        for step in range(12)
    ]


@pytest.mark.parametrize("n", [0, -1])
def test_intervals_below_1_are_never(trainer, n):
    assert not (trainer.every_n_epochs(n) or trainer.every_n_steps(n) or trainer.every_n_updates(n))


def test_triggered_stages(trainer):
    assert mmcv.triggered(trainer, "check_invalid_loss") == ["after_step"]
    assert mmcv.triggered(trainer, "weight_average") == ["after_update", "before_train"]
    assert mmcv.triggered(trainer, "ten_stages") == [
        *("after_eval", "after_step", "after_train", "after_train_epoch"),
        *("before_epoch", "before_eval", "before_step", "before_train", "eval_step"),
    ]


def test_options_come_from_the_configuration(trainer):
    assert trainer.plugins["check_invalid_loss"].interval == 2
    assert trainer.plugins["weight_average"].momentum == 0.1
    assert trainer.plugins["evaluation"].interval.epochs == 2
    assert trainer.max_epochs == 4


def test_an_option_that_does_not_exist_is_refused_with_the_right_one(tmp_path):
    (tmp_path / "trainhooks.toml").write_text("[plugins.check_invalid_loss]\nintervall = 2\n")
    with pytest.raises(OptionError) as caught:
        Trainer(conf=FILE, config=tmp_path, autoload=False)
    assert "unknown option 'intervall'" in str(caught.value)
    assert "trainhooks.toml:2" in str(caught.value)
    assert "did you mean 'interval'?" in str(caught.value)


@pytest.mark.parametrize(("interval", "step"), [(1, 2), (2, 3), (3, 2), (5, 4)])
def test_the_loss_is_checked_every_n_steps(make_trainer, interval, step):
    # the third batch is no number, so w and every later loss is none; the next multiple of the interval finds it
    values = (1.0, 1.0, math.nan, 1.0, 1.0, 1.0)
    trainer = make_trainer([mmcv.CheckInvalidLoss(interval)], values=values)
    with pytest.raises(FloatingPointError) as caught:
        trainer.train()
    assert str(caught.value) == f"the loss became nan in step {step}"
    assert trainer.step == step


def test_weight_average_after_each_update(make_trainer):
    # w is 0, -1, -2, -3; with momentum 1/2 the average is 0, -1/2, (-1/2 - 2)/2 = -5/4, (-5/4 - 3)/2 = -17/8
    average = mmcv.WeightAverage(momentum=0.5)
    make_trainer([average], max_steps=3).train()
    assert average.average["w"].item() == -17 / 8


def test_the_checkpoint_has_the_average_of_its_step(make_trainer, tmp_path):
    # the order that HK-01 of mmcv#689 lost: update, average, checkpoint; the plugins are named the other way round
    average = mmcv.WeightAverage(momentum=0.5)
    make_trainer(["checkpoint", average], max_steps=3, work_dir=tmp_path / "run").train()
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    state = read_checkpoint(saved)
    assert state["plugins/weight_average"]["average"]["w"].item() == -17 / 8


class Phased:
    def __init__(self, phase, order):
        self.phase, self.order = phase, order

    @hookimpl
    def after_step(self):
        self.order.append(self.phase)


def test_phases_stand_for_priorities(trainer):
    # IterTimer LOW, Optimizer to NORMAL, Eval LOW, early stopping, Checkpoint NORMAL, loggers VERY_LOW
    order = []
    for phase in ("reporting", "persistence", "decision", "measurement", "algorithm", "bookkeeping"):
        trainer.register(Phased(phase, order))
    trainer.max_steps = 1
    trainer.train()
    assert order == ["bookkeeping", "algorithm", "measurement", "decision", "persistence", "reporting"]


def test_a_distribution_registers_a_hook_by_name(fake_distribution, make_trainer):
    fake_distribution(
        "our-hooks",
        {"check_invalid_loss": "our_hooks:CheckInvalidLoss"},
        {"our_hooks": FILE.read_text(encoding="utf-8")},
        group="trainhooks.optional",
    )
    trainer = make_trainer(options={"check_invalid_loss": {"interval": 2}}, values=(math.nan, 1.0, 1.0))
    assert trainer.plugins["check_invalid_loss"].interval == 2
    with pytest.raises(FloatingPointError) as caught:
        trainer.train()
    assert str(caught.value) == "the loss became nan in step 1"
    assert "plugin 'check_invalid_loss' (our-hooks 1.0)" in caught.value.__notes__[0]
    assert list(make_trainer().plugins) == []  # not named, so not there


def test_a_hook_of_a_module_is_named_like_custom_imports(fake_distribution, make_trainer, tmp_path):
    fake_distribution("unregistered", {}, {"our_hooks": FILE.read_text(encoding="utf-8")})
    config = tmp_path / "trainhooks.toml"
    config.write_text('[plugins."our_hooks:CheckInvalidLoss"]\ninterval = 3\n')
    trainer = make_trainer(["our_hooks:CheckInvalidLoss"], config=config, max_epochs=1)
    assert list(trainer.plugins) == ["check_invalid_loss"]
    assert trainer.plugins["check_invalid_loss"].interval == 3


def test_the_command_line_shows_who_hooks_into_a_stage():
    command = [sys.executable, "-c", "from trainhooks.cli import main; main()", "hooks", "after_step", "--json"]
    done = subprocess.run([*command, "-C", FOLDER, "--conf", FILE], capture_output=True, text=True, check=True)
    rows = [(row["plugin"], row["source"], row["phase"]) for row in json.loads(done.stdout)["implementations"]]
    assert [row for row in rows if row[1] == "project"] == [
        ("check_invalid_loss", "project", "algorithm"),
        ("intervals", "project", "algorithm"),
        ("ten_stages", "project", "reporting"),
    ]


def test_main_shows_it(capsys):
    mmcv.main()
    lines = capsys.readouterr().out.splitlines()
    shown = [("before_run", 0, 0), *epoch_stages(0, validated=False), *epoch_stages(1, validated=True)]
    assert lines == [
        *(f"epoch {epoch} step {step}  {stage}" for stage, epoch, step in shown),
        "check_invalid_loss implements after_step",
    ]
