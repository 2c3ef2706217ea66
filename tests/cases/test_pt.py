"""PT: paths and encodings."""

import json
import os
import subprocess

import pytest

from trainhooks import Trainer, UsageError, hookimpl
from trainhooks.cli import main
from trainhooks_builtins import Checkpoint, Evaluation, MetricsLog

NAMES = [
    "run[1]",
    "a*b",
    "q?",
    "{x}",
    "%d",
    "a b",
    "-x",
    " lead",
    "trail ",
    "a\nb",
    "~x",
    "$HOME",
    "é",
    "e\u0301",
    "🚂",
    "n" * 255,
    "step-00000099",
    ".hidden",
    "a=b",
    "--",
]


#: What a checkpoint consists of.
SAVED = ("", "/manifest.json", "/state.json", "/tensors.safetensors")


def checkpoints(work_dir):
    return sorted(entry.name for entry in (work_dir / "checkpoints").iterdir())


def command(*words):
    """Run the command line in this process; return its exit code."""
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    return caught.value.code


class First:
    """Notes the first step."""

    step = None

    @hookimpl
    def before_step(self, trainer):
        self.step = trainer.step if self.step is None else self.step


class Falls:
    """A loss that is best at step 4: |step - 4|."""

    @hookimpl
    def eval_step(self, trainer):
        return {"loss": float(abs(trainer.step - 4))}


def plugins():
    return [Evaluation(every_steps=2), Falls(), Checkpoint(every_steps=2, keep=1, best="val/loss"), MetricsLog()]


class TestPT01:
    """Glob characters in paths."""

    @pytest.mark.parametrize("name", NAMES)
    def test_pt_01_train_rotate_best_resume(self, make_trainer, tmp_path, name):
        """Steps 2, 4 (best), 6: keep 1 and the best. A neighbour that a pattern would match is left alone."""
        neighbour = tmp_path / "run1" / "checkpoints" / "step-00000002"
        neighbour.mkdir(parents=True)
        folder = tmp_path / name
        make_trainer(plugins(), val=(1.0,), max_steps=6, work_dir=folder).train()
        assert checkpoints(folder) == ["step-00000004", "step-00000006"]
        assert neighbour.is_dir()

        first = First()
        again = make_trainer([*plugins(), first], val=(1.0,), max_steps=10, work_dir=folder)
        assert again.train(resume="auto").step == 10
        assert first.step == 6  # never from scratch
        assert again.model.w.item() == -10.0
        assert checkpoints(folder) == ["step-00000004", "step-00000010"]
        assert {entry.name for entry in tmp_path.iterdir()} == {"run1", name}

    def test_pt_01_too_long_is_refused_at_the_start(self, make_trainer, tmp_path):
        trainer = make_trainer([Checkpoint()], work_dir=tmp_path / ("n" * 256))
        with pytest.raises(UsageError, match="has 256 bytes, at most 255"):
            trainer.train()
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("name", ["-x", "run[1]", "--", "a=b", "$HOME", " lead"])
    def test_pt_01_on_the_command_line(self, project, name, monkeypatch, capsys):
        assert command("train", project, f"--set=work_dir={project / name}") == 0
        assert checkpoints(project / name) == ["step-00000002", "step-00000004"]
        monkeypatch.chdir(project)
        capsys.readouterr()
        assert command("runs", "--json", "--", name) == 0
        assert json.loads(capsys.readouterr().out)["path"] == str(project / name)
        assert command("runs", "--json", ".") == 0
        assert [(row["run"], row["outcome"]) for row in json.loads(capsys.readouterr().out)] == [(name, "completed")]

    def test_pt_01_a_target_with_a_leading_dash(self, project, tmp_path, monkeypatch):
        (tmp_path / "-p").mkdir()
        (project / "trainconf.py").rename(tmp_path / "-p" / "trainconf.py")
        monkeypatch.chdir(tmp_path)
        assert command("train", "--set=work_dir=out", "--set=max_epochs=2", "--", "-p") == 0
        assert checkpoints(tmp_path / "out") == ["step-00000002", "step-00000004"]


PROJECT = """
import torch
from trainhooks import hookimpl

class Scalar(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        return (self.w * x).mean()

@hookimpl
def make_model():
    return Scalar()

@hookimpl
def make_optimizer(trainer):
    return torch.optim.SGD(trainer.model.parameters(), lr=1.0)

@hookimpl
def make_loader(split):
    return [torch.ones(1, dtype=torch.float64)] * 2
"""


@pytest.fixture
def project(tmp_path):
    """A folder with a trainconf.py of two epochs with two batches each."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "trainconf.py").write_text(PROJECT)
    (folder / "trainhooks.toml").write_text('[train]\nmax_epochs = 2\ndevice = "cpu"\n')
    return folder


METRICS = ["acc", "top/1", "..", "a/../../b", "nul\0", "line\nbreak", "x" * 300, "é=1", "epoch", "%s"]


class TestPT02:
    """ "/" and "=" in generated names."""

    @pytest.mark.parametrize("metric", METRICS)
    def test_pt_02_no_metric_is_part_of_a_path(self, make_trainer, tmp_path, metric):
        """The metric is recorded in the manifest and in the logs; paths hold the step only."""

        class Measures:
            @hookimpl
            def eval_step(self, trainer):
                return {metric: 1.0 / trainer.step}

        name = f"val/{metric}"
        folder = tmp_path / "run"
        parts = [Evaluation(every_steps=2), Measures(), Checkpoint(every_steps=2, best=name, mode="min"), MetricsLog()]
        make_trainer(parts, val=(1.0,), max_steps=4, work_dir=folder).train()
        found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
        saved = {f"run/checkpoints/step-0000000{step}{file}" for step in (2, 4) for file in SAVED}
        assert found == {"run", "run/checkpoints", "run/run.json", "run/metrics.csv", "run/metrics.jsonl", *saved}
        manifest = json.loads((folder / "checkpoints" / "step-00000004" / "manifest.json").read_text(encoding="utf-8"))
        assert manifest["metrics"][name] == 0.25
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        assert [json.loads(line)[name] for line in lines if name in json.loads(line)] == [0.5, 0.25]

    def test_pt_02_the_command_line_takes_what_it_printed(self, project):
        folder = project / "val=1.0,a b[2]"
        assert command("train", project, "--set", f"work_dir={folder}") == 0
        for path in (folder, *(folder / "checkpoints").iterdir()):
            assert command("evaluate", project, "--checkpoint", path) == 0

    @pytest.mark.parametrize("name", ["val=1.0,a b[2]", "a/b=c", "x'y", "line\nbreak", "$HOME"])
    def test_pt_02_a_shell_takes_what_the_list_of_runs_printed(self, project, name, capsys, monkeypatch):
        monkeypatch.chdir(project)
        assert command("train", f"--set=work_dir={json.dumps(f'runs/{name}')}") == 0
        capsys.readouterr()
        assert command("runs") == 0
        line = capsys.readouterr().out.splitlines()[1]
        typed = line[: line.index("  completed")]
        shell = ["bash", "-c", f"printf %s runs/{typed}"]
        path = subprocess.run(shell, capture_output=True, check=True, text=True).stdout
        assert path == f"runs/{name}"
        assert command("evaluate", "--checkpoint", path) == 0

    @pytest.mark.parametrize("metric", METRICS)
    def test_pt_02_the_record_of_the_run_has_the_metric_as_it_is(self, make_trainer, tmp_path, metric):
        class Measures:
            @hookimpl
            def eval_step(self, trainer):
                return {metric: 1.0 / trainer.step}

        name = f"val/{metric}"
        parts = [Evaluation(every_steps=2), Measures(), Checkpoint(every_steps=2, best=name, mode="min")]
        make_trainer(parts, val=(1.0,), max_steps=4, work_dir=tmp_path / "run").train()
        record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
        assert record["best"][name] == {"value": 0.25, "mode": "min", "step": 4}
        assert record["metrics"][name] == 0.25


class TestPT04:
    """Relative paths and changing directory."""

    def run(self, tmp_path, monkeypatch, make_trainer, extra):
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path)

        class Moves:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step + 1 == 3:
                    monkeypatch.chdir(tmp_path / "elsewhere")

        make_trainer([Moves(), *extra, Checkpoint(every_steps=2, keep=1), MetricsLog()], max_steps=6, work_dir="out").train()
        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_pt_04_everything_stays_in_its_place(self, tmp_path, monkeypatch, make_trainer):
        self.run(tmp_path, monkeypatch, make_trainer, [])
        assert checkpoints(tmp_path / "out") == ["step-00000006"]
        assert (tmp_path / "out" / "metrics.csv").is_file()

    def test_pt_04_a_folder_that_somebody_removed_is_made_anew_with_a_warning(
        self, tmp_path, monkeypatch, make_trainer, messages
    ):
        class Removes:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step + 1 == 5:
                    for root, folders, files in os.walk(trainer.work_dir, topdown=False):
                        for name in files:
                            os.unlink(os.path.join(root, name))
                        for name in folders:
                            os.rmdir(os.path.join(root, name))
                    trainer.work_dir.rmdir()

        self.run(tmp_path, monkeypatch, make_trainer, [Removes()])
        assert checkpoints(tmp_path / "out") == ["step-00000006"]
        assert [text for text in messages() if "was removed" in text and "run folder" in text] == [
            f"the run folder {tmp_path / 'out'} was removed; it is made anew"
        ]
        record = json.loads((tmp_path / "out" / "run.json").read_text())
        assert (record["status"], record["step"], record["checkpoint"]) == ("completed", 6, "checkpoints/step-00000006")
        assert not (tmp_path / "out" / "run.lock").exists()

    def test_pt_04_a_relative_checkpoint_to_resume_from(self, tmp_path, monkeypatch, make_trainer):
        monkeypatch.chdir(tmp_path)
        make_trainer([Checkpoint()], max_steps=2, work_dir="out").train()
        trainer = make_trainer([Checkpoint()], max_steps=3)
        assert isinstance(trainer, Trainer)
        assert trainer.train(resume=os.path.join("out", "checkpoints", "step-00000002")).step == 3
        assert trainer.model.w.item() == -3.0
