"""``summary`` of models whose parameters are counted by hand."""

import warnings

import pytest
import torch
from torch import nn

from trainhooks import OptionError, Trainer, hookimpl
from trainhooks_builtins import Freeze, Summary
from trainhooks_builtins.summary import table_of


def rows(model, depth=2):
    """Return the lines with runs of spaces as one."""
    return [" ".join(line.split()) for line in table_of(model, depth).splitlines()]


def net():
    """Linear 4 to 8: 4 * 8 + 8 = 40; batch norm of 8: 16, buffers 8 + 8 + 1; Linear 8 to 2: 18. Together 74 and 17."""
    return nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), nn.Linear(8, 2))


def test_counts():
    """74 float32 parameters are 296 bytes, 16 float32 buffers 64, one int64 8: 368 bytes."""
    assert rows(net()) == [
        "module class parameters trainable",
        "0 Sequential 56 56",
        "0.0 Linear 40 40",
        "0.1 BatchNorm1d 16 16",
        "1 Linear 18 18",
        "parameters: 74 (74 trainable, 0 frozen)",
        "buffers: 17 values",
        "size: 0.000 MiB (float32 360 bytes, int64 8 bytes)",
    ]


def test_depth():
    assert [line.split()[0] for line in rows(net(), 1)[:3]] == ["module", "0", "1"]
    assert rows(net(), 0)[0] == "parameters: 74 (74 trainable, 0 frozen)"


def test_size_in_mib():
    """512 * 512 + 512 float64 are 2101248 bytes, which is 2.00390625 MiB; bfloat16 a quarter."""
    assert "size: 2.004 MiB (float64 2,101,248 bytes)" in rows(nn.Linear(512, 512, dtype=torch.float64))
    assert "size: 0.501 MiB (bfloat16 525,312 bytes)" in rows(nn.Linear(512, 512, dtype=torch.bfloat16))


def test_frozen_modules_are_marked():
    model = net()
    model[0][1].requires_grad_(False)
    assert rows(model)[1:5] == [
        "0 Sequential 56 40 partly frozen",
        "0.0 Linear 40 40",
        "0.1 BatchNorm1d 16 0 frozen",
        "1 Linear 18 18",
    ]
    assert "parameters: 74 (58 trainable, 16 frozen)" in rows(model)


def test_shared_parameters_count_once():
    """An embedding of 10 by 4 and a head that has the same weights: 40 in each row and in the totals."""
    model = nn.ModuleDict({"embed": nn.Embedding(10, 4), "head": nn.Linear(4, 10, bias=False), "other": nn.Linear(4, 1)})
    model["head"].weight = model["embed"].weight
    assert rows(model) == [
        "module class parameters trainable",
        "embed Embedding 40 40 shared",
        "head Linear 40 40 shared",
        "other Linear 5 5",
        "parameters: 45 (45 trainable, 0 frozen)",
        "buffers: 0 values",
        "size: 0.000 MiB (float32 180 bytes)",
    ]


def test_a_module_that_stands_twice_is_one_row():
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer, layer)
    assert rows(model)[1:3] == ["0 Linear 6 6 shared", "parameters: 6 (6 trainable, 0 frozen)"]


def test_lazy_parameters_are_said():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that lazy modules are new
        model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))
    assert rows(model)[1:] == [
        "0 LazyLinear 0 0 2 lazy, not counted yet",
        "1 Linear 4 4",
        "parameters: 4 (4 trainable, 0 frozen)",
        "buffers: 0 values",
        "size: 0.000 MiB (float32 16 bytes)",
        "not counted: 2 lazy parameters or buffers, whose shape the first batch decides",
    ]


def test_a_model_without_parameters():
    assert rows(nn.Sequential(nn.ReLU()))[1:] == [
        "0 ReLU 0 0",
        "parameters: 0 (0 trainable, 0 frozen)",
        "buffers: 0 values",
        "size: 0.000 MiB",
    ]


def make(plugins, **arguments):
    model = net()
    return Trainer(
        model,
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        loaders={"train": [(torch.ones(5, 4), torch.ones(5, 2))] * 3},
        plugins=plugins,
        autoload=False,
        max_epochs=1,
        **arguments,
    )


def test_log_file_and_artifact(tmp_path, messages):
    artifacts = []

    class Reports:
        @hookimpl
        def report_artifact(self, path, name):
            artifacts.append((path, name))

    make([Summary(depth=1), Reports()], work_dir=tmp_path / "run").train()
    text = (tmp_path / "run" / "summary.txt").read_text()
    assert text == table_of(net(), 1) + "\n"
    assert messages() == ["summary: the model\n" + text.rstrip("\n")]
    assert artifacts == [(tmp_path / "run" / "summary.txt", "summary.txt")]


def test_without_a_run_folder_only_the_log(messages):
    make([Summary()]).train()
    assert messages()[0].startswith("summary: the model\n")


def test_operations_of_one_step(tmp_path, messages):
    """Batch of 5. Forward: 2 * 5 * 4 * 8 = 320 and 2 * 5 * 8 * 2 = 160. Backward: gradients of both weights, 480, and of the
    input of the second layer, 160 (the first one's input needs none). Batch norm and the loss are not counted: 1120.
    """
    plugin = Summary(flops=True)
    make([plugin], work_dir=tmp_path / "run").train()
    assert plugin.flops == 1120
    line = "one training step: 1,120 floating-point operations (of matrix products, convolutions and attention)"
    assert f"summary: {line}" in messages()
    assert (tmp_path / "run" / "summary.txt").read_text().splitlines()[-1] == line


def test_counting_changes_nothing_and_ends_after_a_step(make_trainer):
    class Modes:
        phase = "reporting"

        def __init__(self):
            self.seen = []

        @hookimpl
        def compute_loss(self):
            self.seen.append(len(torch.utils._python_dispatch._get_current_dispatch_mode_stack()))

    modes = Modes()
    trainer = make_trainer([Summary(flops=True), modes])
    trainer.train()
    assert modes.seen == [1] + [0] * 9
    assert trainer.model.w.item() == -10.0


def test_a_failing_first_step_leaves_no_mode_behind(make_trainer):
    class Fails:
        @hookimpl
        def compute_loss(self):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        make_trainer([Summary(flops=True), Fails()]).train()
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []


def test_off_means_no_wrapper(make_trainer):
    trainer = make_trainer([Summary()])
    assert not trainer.manager.has("train_step")


def test_no_model_is_no_error(messages):
    class Steps:
        @hookimpl
        def train_step(self):
            return {"loss": 0.0}

    Trainer(plugins=[Summary(), Steps()], max_steps=1, autoload=False).train()
    assert messages() == []


def test_wrong_options():
    with pytest.raises(OptionError, match="depth = -1"):
        Summary(depth=-1)


def test_what_freeze_freezes_is_frozen_here(messages):
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    trainer = Trainer(
        model,
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loaders={"train": [(torch.ones(1, 2), torch.ones(1, 1))]},
        max_epochs=1,
        plugins=[Summary(), Freeze(("0.*",))],
        autoload=False,
    )
    trainer.train()
    assert any("13 (4 trainable, 9 frozen)" in text for text in messages())
