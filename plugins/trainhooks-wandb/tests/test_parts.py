"""The parts, each by itself, and what the plugin is to the command line."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from read_back import config, files, records, rows
from satellite_support import list_plugins, run

from trainhooks import OptionError, hookimpl
from trainhooks.backlog import Artifact
from trainhooks.media import Histogram
from trainhooks_wandb import WandB
from trainhooks_wandb.journal import Journal
from trainhooks_wandb.media import artifact, as_wandb


def test_listing_plugins_imports_no_wandb():
    listing, imported = list_plugins("wandb", "trainhooks_wandb")
    assert imported == []
    (line,) = [line for line in listing.splitlines() if line.split()[:1] == ["wandb"]]
    assert "trainhooks-wandb" in line


def test_options_of_the_command_line(tmp_path):
    (tmp_path / "trainconf.py").write_text(
        "import torch\nfrom trainhooks import hookimpl\n\n@hookimpl\ndef make_model():\n    return torch.nn.Linear(1, 1)\n\n"
        "@hookimpl\ndef make_optimizer(trainer):\n    return torch.optim.SGD(trainer.model.parameters(), lr=0.1)\n\n"
        "@hookimpl\ndef make_loader():\n    return [torch.ones(2, 1)] * 4\n\n"
        "@hookimpl\ndef compute_loss(trainer, batch):\n    return trainer.model(batch).mean()\n"
    )
    command = [
        sys.executable,
        "-c",
        "from trainhooks.cli import main; main()",
        "train",
        str(tmp_path),
        "--set",
        "max_epochs=1",
        "--set",
        f"work_dir={tmp_path / 'run'}",
    ]
    options = {"mode": "offline", "project": "fromcli", "tags": '["a", "b"]', "settings": '{ host = "named" }'}
    for name, value in options.items():
        command += ["-o", f"wandb.{name}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = files(tmp_path / "run")
    made = next(record["run"] for record in records(file) if record["type"] == "run")
    assert (made["project"], made["tags"], made["host"]) == ("fromcli", ["a", "b"], "named")


def test_the_example_of_the_readme(tmp_path):
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    (file,) = files(tmp_path / "runs/script")
    made = next(record["run"] for record in records(file) if record["type"] == "run")
    assert (made["project"], made["tags"]) == ("first-steps", ["linear"])
    assert f"upload it with: wandb sync {file.parent}" in done.stderr


@pytest.mark.parametrize("options", [{"init_timeout": 0.0}, {"finish_timeout": float("inf")}, {"finish_timeout": float("nan")}])
def test_time_limits_are_limits(options):
    with pytest.raises(OptionError, match="must be above 0 and finite seconds"):
        WandB(**options)


def test_an_api_key_is_no_option():
    with pytest.raises(OptionError, match="set WANDB_API_KEY"):
        WandB(settings={"api_key": "a" * 40})


def test_records_that_are_given_again_are_logged_once(tmp_path):
    """wandb takes no lower step than the last one, so the first record must not end in the row of the second."""
    plugin = WandB(mode="offline")

    class Fails:
        """Makes the third record of a delivery fail, once."""

        calls = 0

        @hookimpl
        def before_step(self, trainer):
            if self.calls == 0 and plugin.run is not None:
                self.calls, log = 1, plugin.run.log

                def log_or_fail(values, step):
                    self.calls += 1
                    if self.calls == 4:
                        raise ConnectionError("away")
                    log(values, step=step)

                plugin.run.log = log_or_fail
            trainer.log(f"only/{trainer.step + 1}", 1.0)

    ran = run(tmp_path, plugin, steps=12, media=False, plugins=[Fails()])
    history = rows(records(files(ran.work_dir)[0]))
    assert [step for step, _ in history] == list(range(1, 13))
    for step, values in history:
        assert [name for name in values if name.startswith("only/")] == [f"only/{step}"]
    assert len([one for one in ran.warnings if "failed with ConnectionError" in one]) == 1


def test_names_that_are_no_text_are_made_valid(tmp_path):
    ran = run(
        tmp_path, WandB(mode="offline"), steps=3, media=False, scalars={"a\udc80": 1.0}, hyperparameters={"h\udc80": "\udc80"}
    )
    history = rows(records(files(ran.work_dir)[0]))
    assert [values["a?"] for _, values in history] == [1.0] * 3
    assert config(records(files(ran.work_dir)[0]))["h?"] == "?"
    assert ran.warnings[1:] == []  # the first says that the run is kept offline


def test_without_a_folder_nothing_is_written(tmp_path):
    from satellite_run import make_trainer

    assert make_trainer([WandB()], None, 3).train().status == "completed"
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == []


class Validates:
    """Gives what ``evaluate`` needs."""

    @hookimpl
    def make_loader(self, trainer, split):
        return [torch.ones(1, dtype=torch.float64)] * 2 if split == "val" else None


def test_what_is_logged_after_the_flush_of_a_step_is_in_its_row(tmp_path):
    ran = run(tmp_path, WandB(mode="offline"), steps=10, plugins=[Validates(), "evaluation"], media=False)
    history = rows(records(files(ran.work_dir)[0]))
    assert [step for step, _ in history] == list(range(1, 11))
    assert {step: values["val/loss"] for step, values in history if "val/loss" in values}.keys() >= {7}
    assert dict(history)[7]["val/loss"] == pytest.approx(-7)
    assert dict(history)[7]["probe/double"] == 14


def test_an_evaluation_that_a_resumed_run_still_owes_is_kept(tmp_path):
    """The row of the step that it belongs to is closed: wandb takes nothing for it any more."""
    ran = run(tmp_path, WandB(mode="offline"), steps=8, media=False)
    again = run(tmp_path, WandB(mode="offline"), steps=10, plugins=[Owes()], media=False, resume="auto")
    before, after = [rows(records(path)) for path in files(again.work_dir)]
    assert [step for step, _ in before + after] == list(range(1, 11))
    assert dict(after)[9]["owed"] == 3.0
    assert ran.warnings == []


class Owes:
    """Has something to say of the step that the run is resumed at."""

    @hookimpl
    def before_train(self, trainer):
        trainer.log("owed", 3.0)
        trainer.flush()


def test_the_journal_gives_back_what_a_kill_left(tmp_path):
    now = [0.0]
    journal = Journal(tmp_path / "deep" / "j.jsonl", clock=lambda: now[0])
    for step in range(5):
        journal.append(step, {"a": step, "n": float("nan")})
        now[0] += 16.0
    journal.append(4, {"b": 1.0})
    journal.close()
    path = tmp_path / "deep" / "j.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write("[5, {")  # killed here
    found = Journal(path).rows()
    assert [step for step, _ in found] == [2, 3, 4]  # older ones wandb has written long since
    assert {key: found[-1][1][key] for key in ("a", "b")} == {"a": 4, "b": 1.0}
    again = Journal(path)
    again.restart(found[1:])
    assert [step for step, _ in Journal(path).rows()] == [3, 4]
    again.append(6, {"a": 6})
    assert [step for step, _ in Journal(path).rows()] == [3, 4, 6]
    again.close(remove=True)
    assert list(path.parent.iterdir()) == []


def test_a_journal_that_cannot_be_written_is_said_once(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "j.jsonl")
    for step in range(3):
        journal.append(step, {"a": 1})
    assert [message for message in caplog.messages if "cannot write" in message] == caplog.messages
    assert len(caplog.messages) == 1


def test_a_histogram_with_more_bins_than_wandb_takes_is_folded():
    counts, edges = tuple(float(n % 7) for n in range(1500)), tuple(n / 10 for n in range(1501))
    made = as_wandb(Histogram("h", 1, 1, 0, 0.0, counts=counts, edges=edges))
    assert len(made.histogram) == 500
    assert made.histogram[1] == counts[3] + counts[4] + counts[5]
    assert made.bins[:3] == [0.0, 0.3, 0.6]
    assert made.bins[-1] == 150.0
    assert sum(made.histogram) == sum(counts)


def test_names_that_wandb_does_not_take_are_replaced(tmp_path):
    (tmp_path / "weights.pt").write_bytes(b"w")
    made = artifact(tmp_path / "weights.pt", "epoch 3/best: ünï", "checkpoint")
    assert (made.name, made.type) == ("epoch-3-best-n-", "model")
    assert json.dumps(sorted(made.manifest.entries)) == '["weights.pt"]'
    assert artifact(tmp_path / "weights.pt", "ü", "wandb-x").type == "x"


def test_an_artifact_that_is_gone_is_said(tmp_path):
    class Fleeting:
        @hookimpl
        def after_step(self, trainer):
            if trainer.step == 1:
                trainer.reporter.put(Artifact(tmp_path / "never", "gone", "file"))  # it was there when it was logged

    ran = run(tmp_path, WandB(mode="offline"), steps=3, plugins=[Fleeting()], media=False)
    assert [message for message in ran.warnings if "gone" in message] == ran.warnings
    assert len(ran.warnings) == 1
