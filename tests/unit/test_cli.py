"""The command line: exit codes, messages of one line, output that machines can read, and nothing made when anything is wrong."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import importlib_metadata
import pytest
import torch

from trainhooks.cli.run_folder import run_folder
from trainhooks.cli.target import read_config

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests/data/projects/tiny"
SCRIPT = str(Path(sys.executable).with_name("trainhooks"))
COMMANDS = ("plugins", "hooks", "train", "evaluate", "predict", "trace", "runs", "init", "checkpoints", "report")


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts)


def outcome(run):
    return json.loads(run.out.splitlines()[-1])


def refused(run):
    """Return the one message of a usage error."""
    lines = run.err.splitlines()
    assert lines[0].startswith("trainhooks: ")
    assert "Traceback" not in run.err
    return run.err


def code_of(folder, text):
    """Append code to the project file."""
    file = folder / "trainconf.py"
    file.write_text(file.read_text() + text)


# Help, versions, unknown words


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_everywhere(cli, empty, command, flag):
    shown = cli(command, flag).out
    assert shown.startswith(f"Usage: trainhooks {command} ")
    assert "-h, --help" in shown


def test_help_lists_every_command_and_version_is_the_distributions(cli, empty):
    shown = cli("-h").out
    assert [line.split()[0] for line in shown.partition("Commands:\n")[2].splitlines()] == list(COMMANDS)
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert cli("--version").out == f"trainhooks {version[1]}\n"


def test_help_names_every_setting(cli, empty):
    from trainhooks.settings import Settings

    shown = " ".join(cli("train", "-h").out.split())
    assert f"A setting of the run: {', '.join(field.name for field in dataclasses.fields(Settings))}." in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "trainhooks: No such command 'trian'; did you mean 'train'? (see `trainhooks -h`)\n"),
        (["zzz"], "trainhooks: No such command 'zzz' (see `trainhooks -h`)\n"),
        (["train", "a", "b"], "trainhooks: Got unexpected extra argument (b) (see `trainhooks train -h`)\n"),
        (["evaluate"], "trainhooks: Missing option '--checkpoint' (see `trainhooks evaluate -h`)\n"),
        (
            ["trace", "--steps", "0"],
            "trainhooks: Invalid value for '--steps': 0 is not in the range x>=1 (see `trainhooks trace -h`)\n",
        ),
        (
            ["train", "p", "--resume"],
            "trainhooks: Option '--resume' requires an argument; write auto for the newest one (see `trainhooks train -h`)\n",
        ),
        (["train", "--set"], "trainhooks: Option '--set' requires an argument (see `trainhooks train -h`)\n"),
        (
            ["evaluate", "--checkpoint"],
            "trainhooks: Option '--checkpoint' requires an argument (see `trainhooks evaluate -h`)\n",
        ),
        (["trace", "--json=3"], "trainhooks: Option '--json' does not take a value (see `trainhooks trace -h`)\n"),
        (
            ["checkpoints", "list", "--json=3"],
            "trainhooks: Option '--json' does not take a value (see `trainhooks checkpoints list -h`)\n",
        ),
        (["--version=3"], "trainhooks: Option '--version' does not take a value (see `trainhooks -h`)\n"),
        (["hooks", "on_epoch_end"], "trainhooks: there is no hook 'on_epoch_end'; here that is 'after_epoch'\n"),
        (["hooks", "aftr_step"], "trainhooks: there is no hook 'aftr_step'; did you mean 'after_step'?\n"),
        (
            ["plugins", "--options", "chekpoint"],
            "trainhooks: no plugin is named 'chekpoint'; did you mean 'checkpoint'?; `trainhooks plugins` lists all that are installed\n",
        ),
    ],
)
def test_bad_words_give_one_line(cli, empty, words, message):
    assert cli(*words, expect=2).err == message
    assert tree(empty) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-epochs=2"], "No such option '--max-epochs'; did you mean --set max_epochs=2?"),
        (["--max_epochs", "2"], "No such option '--max_epochs'; did you mean --set max_epochs=2?"),
        (["--epochs", "2"], "No such option '--epochs'; did you mean --set max_epochs=2?"),
        (["--name=a b"], "No such option '--name'; did you mean --set 'name=a b'?"),
        (["--seed"], "No such option '--seed'; did you mean --set seed=VALUE?"),
        (["max_epochs=2"], "Got unexpected extra argument (max_epochs=2); did you mean --set max_epochs=2?"),
        ([".", "seed=1", "lr.base=3"], "Got unexpected extra arguments (seed=1 lr.base=3); did you mean --set seed=1?"),
        ([".", "lr.base=3"], "Got unexpected extra argument (lr.base=3); did you mean -o lr.base=3?"),
        (["--lr.warmup-updates", "3"], "No such option '--lr.warmup-updates'; did you mean -o lr.warmup_updates=3?"),
        (
            ["--lr", "3"],
            "No such option '--lr'; a setting is written --set KEY=VALUE, an option of a plugin -o PLUGIN.KEY=VALUE",
        ),
        (["--skip-fail"], "No such option '--skip-fail'; did you mean '--skip-failed'?"),
    ],
)
@pytest.mark.parametrize("command", ["train", "trace"])
def test_settings_and_options_in_the_place_of_others(cli, empty, command, words, said):
    assert cli(command, *words, expect=2).err == f"trainhooks: {said} (see `trainhooks {command} -h`)\n"


def test_a_folder_may_have_an_equals_sign(cli, project):
    shutil.copytree(project, "seed=1")
    assert outcome(cli("train", "seed=1", "--json"))["status"] == "completed"


def test_an_unknown_option_is_named(cli, empty):
    assert "'--bogus'" in refused(cli("train", "--bogus", expect=2))


# Light and readable lists


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["plugins"], ["plugins", "--json"], ["train", "-h"], ["hooks"]])
def test_lists_import_neither_torch_nor_plugins(words):
    code = (
        "import sys\n"
        "from trainhooks.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as left:\n    assert not left.code, left.code\n"
        "heavy = ('torch', 'numpy', 'pydantic', 'rich', 'trainhooks_builtins')\n"
        "print('heavy:', *sorted({name.partition('.')[0] for name in sys.modules} & set(heavy)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert done.stderr == "heavy:\n"
    assert done.stdout


def test_a_run_imports_the_built_ins_that_take_part_and_no_other(project):
    code = (
        "import sys\n"
        "from trainhooks.cli import main\n"
        "for named in ((), ('-pema', '-pclip')):\n"
        "    try:\n        main([*sys.argv[1:], *named])\n"
        "    except SystemExit as left:\n        assert not left.code, left.code\n"
        "    own = [name.partition('.')[2] for name in sys.modules if name.startswith('trainhooks_builtins.')]\n"
        "    print('imported:', *sorted(name for name in own if name[0] != '_'))\n"
    )
    words = ["train", "--set", "work_dir=out", "--overwrite"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    active = {"checkpoint", "crash_report", "evaluation", "metrics_log", "progress", "run_store", "signals", "timer"}
    assert [line for line in done.stdout.splitlines() if line.startswith("imported:")] == [
        f"imported: {' '.join(sorted(names))}" for names in (active, active | {"ema", "clip"})
    ]


def test_the_list_has_every_built_in(cli, empty):
    rows = json.loads(cli("plugins", "--json").out)
    states = {row["name"]: row["state"] for row in rows if row["distribution"] == "trainhooks"}
    optional = importlib_metadata.distribution("trainhooks").entry_points.select(group="trainhooks.optional")
    assert {name for name, state in states.items() if state == "available"} == {point.name for point in optional}
    active = [name for name, state in states.items() if state == "active"]
    assert active == ["checkpoint", "crash_report", "evaluation", "metrics_log", "progress", "run_store", "signals", "timer"]
    assert [row["name"] for row in rows][: len(active)] == active  # what takes part comes first


def test_lists_do_not_run_the_project(cli, project):
    """SE-06: neither help nor lists import code of the folder, even where its configuration names it."""
    (project / "trainconf.py").write_text("raise SystemExit('must not run')")
    (project / "pyproject.toml").write_text('[tool.trainhooks]\nenable = ["somewhere:Plugin"]\n')
    (project / "somewhere.py").write_text("raise SystemExit('must not run')")
    for words in (["--help"], ["plugins"], ["plugins", "--check"], ["hooks"], ["plugins", "--options", "timer"]):
        cli(*words)


def test_plugins_as_json(cli, empty):
    rows = {row["name"]: row for row in json.loads(cli("plugins", "--json").out)}
    assert rows["checkpoint"]["state"] == "active"
    assert rows["lr"] == {**rows["lr"], "state": "available", "distribution": "trainhooks", "reason": "not named"}
    rows = {row["name"]: row for row in json.loads(cli("plugins", "--json", "-p", "lr", "-p", "no:timer").out)}
    assert (rows["lr"]["state"], rows["lr"]["reason"]) == ("active", "-p lr")
    assert (rows["timer"]["state"], rows["timer"]["reason"]) == ("disabled", "-p no:timer")


def test_plugins_as_a_table(cli, empty):
    header, *lines = cli("plugins").out.splitlines()
    assert header.split() == ["name", "state", "distribution", "version", "reason"]
    at = header.index("distribution")
    assert {line[at:].split()[0] for line in lines} >= {"trainhooks"}
    assert [line.split()[:2] for line in lines if line.startswith("lr ")] == [["lr", "available"]]


def test_check_imports_times_and_validates(cli, empty):
    rows = {row["name"]: row for row in json.loads(cli("plugins", "--check", "--json").out)}
    assert "save_checkpoint" in rows["checkpoint"]["hooks"].split()
    assert isinstance(rows["checkpoint"]["import_ms"], int)
    assert "after_update" in rows["lr"]["hooks"].split()  # available ones are checked too


def test_options_of_a_plugin(cli, empty):
    shown = cli("plugins", "--options", "checkpoint").out.splitlines()
    assert shown[0].split() == ["option", "type", "default"]
    assert ["keep", "int", "2"] in [line.split() for line in shown]
    assert any(line.startswith("    keep: ") for line in shown)  # the description, with the indentation of the class gone
    rows = {row["option"]: row for row in json.loads(cli("plugins", "--options", "checkpoint", "--json").out)}
    assert rows["mode"]["type"] == "Literal['auto', 'min', 'max']"
    assert rows["best"] == {"option": "best", "type": "str | None", "default": "None"}


def test_hooks_as_json(cli, empty):
    facts = json.loads(cli("hooks", "--json").out)
    assert facts["train_step"]["kind"] == "stage"
    assert facts["train_step"]["arguments"] == ["trainer", "batch", "update_due"]
    assert facts["after_step"]["kind"] == "event"
    one = json.loads(cli("hooks", "train_step", "--json").out)
    assert [(i["plugin"], i["phase"]) for i in one["implementations"]] == [("engine", "last")]


def test_hooks_shows_documentation_and_the_project_file_first(cli, project):
    shown = cli("hooks", "make_model").out
    assert shown.startswith("make_model(trainer)\n\n")
    lines = shown.partition("Called in this order:\n")[2].splitlines()
    assert lines[0].startswith("  trainconf  (project, algorithm)  ")
    source = (project / "trainconf.py").read_text().splitlines()
    assert lines[0].endswith(f"trainconf.py:{source.index('def make_model():')}")  # the line of its decorator, from 1
    assert lines[1].startswith("  engine  (engine, last")
    assert "Nobody implements it." in cli("hooks", "gradients_ready").out


def test_hooks_works_beside_a_broken_project_file(cli, project):
    (project / "trainconf.py").write_text("import nothing_of_that_name\n")
    shown = cli("hooks", "after_step")
    assert f"not shown: {project}/trainconf.py:1: ModuleNotFoundError" in shown.err
    assert "progress  (trainhooks " in shown.out


THEIR_HOOKS = """
from trainhooks import hookimpl, hookspec

class Specs:
    @staticmethod
    @hookspec(firstresult=True)
    def rollout_collect(trainer, length):
        \"\"\"Collect a rollout.\"\"\"

class Rollout:
    hookspecs = Specs

    @hookimpl
    def rollout_collect(self, length):
        return [0] * length
"""


def test_hooks_shows_what_plugins_specify(cli, empty, fake_distribution):
    fake_distribution("trainhooks-rollout", {"rollout": "rollout_plugin:Rollout"}, {"rollout_plugin": THEIR_HOOKS})
    facts = json.loads(cli("hooks", "rollout_collect", "--json").out)
    assert facts["arguments"] == ["trainer", "length"]
    assert facts["summary"] == "Collect a rollout."
    assert [(one["plugin"], one["distribution"]) for one in facts["implementations"]] == [("rollout", "trainhooks-rollout")]
    assert "did you mean 'rollout_collect'?" in refused(cli("hooks", "rollout_colect", expect=2))


# init


def test_init_writes_what_trains_at_once(cli, empty):
    said = cli("init", "a new/folder").out
    assert said == "wrote a new/folder/trainconf.py\nnow run: trainhooks train 'a new/folder'\n"
    (command,) = [line.removeprefix("now run: ") for line in said.splitlines() if line.startswith("now run: ")]
    done = outcome(cli(*shlex.split(command)[1:], "--set", "max_steps=3", "--json"))
    assert (done["status"], done["step"]) == ("completed", 3)


def test_the_starter_has_three_sets_and_no_others(cli, empty):
    cli("init")
    cli("train", "--set", "max_steps=1", "--set", "work_dir=out")
    val, test = (cli("evaluate", "--checkpoint", "out", "--split", split).out for split in ("val", "test"))
    assert val.replace("val/", "") != test.replace("test/", "")
    assert "trainhooks: predicted 'test' at step 1: 8 batches, 500 samples\n" in cli("predict", "--checkpoint", "out").err
    for command in ("evaluate", "predict"):
        said = refused(cli(command, "--checkpoint", "out", "--split", "tets", expect=2))
        assert said.startswith("trainhooks: no loader for split 'tets' ")


def test_the_starter_learns(cli, empty):
    """Two spirals that lie apart: half is chance, and what has learned them is close to all."""
    cli("init")
    metrics = outcome(cli("train", "--set", "seed=0", "--json"))["metrics"]
    assert metrics["val/accuracy"] > 0.95


def test_init_leaves_what_is_there(cli, empty):
    (empty / "trainconf.py").write_text("# mine")
    assert "trainconf.py exists and is left as it is" in refused(cli("init", expect=2))
    (empty / "trainconf.py").unlink()
    (empty / "trainconf.py").symlink_to(empty / "elsewhere.py")
    refused(cli("init", expect=2))
    assert not (empty / "elsewhere.py").exists()
    (empty / "file").write_text("")
    refused(cli("init", "file", expect=2))
    assert tree(empty) == ["file", "trainconf.py"]


# train: what TARGET may be


def test_train_here(cli, project):
    run = cli("train")
    assert [line for line in run.out.splitlines() if line.startswith("step")][-1].startswith("step 3/3")
    (folder,) = (project / "runs").iterdir()
    assert run.out.splitlines()[-2] == f"run folder: {folder}"
    assert run.out.splitlines()[-1] == f"checkpoint: {folder}/checkpoints/step-00000003"


def test_train_tells_a_machine(cli, project):
    done = outcome(cli("train", "--json"))
    assert (done["status"], done["reason"], done["step"], done["update"]) == ("completed", "max_steps=3 reached", 3, 3)
    assert done["metrics"]["val/loss"] == -6.0  # w = -3, x = 2
    assert Path(done["checkpoint"]).parent.parent == Path(done["work_dir"])


def test_json_is_valid_whatever_the_metrics(cli, project):
    code_of(
        project,
        "\n@hookimpl\ndef after_step(trainer):\n    trainer.log('odd', float('nan'))\n    trainer.log('big', float('inf'))\n",
    )

    def not_json(word):
        raise AssertionError(word)

    line = cli("train", "--json").out.splitlines()[-1]
    metrics = json.loads(line, parse_constant=not_json)["metrics"]
    assert metrics["odd"] is None
    assert metrics["big"] is None


def test_train_a_directory_a_file_or_a_named_one(cli, project, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    shutil.copy(project / "trainconf.py", project / "other.py")
    for words in (
        ["project"],
        [project],
        ["project/trainconf.py"],
        ["project/other.py"],
        ["project", "--conf", "project/other.py"],
    ):
        done = outcome(cli("train", *words, "--json", "--set", "name=same"))
        assert done["step"] == 3
        assert Path(done["work_dir"]).parent == tmp_path / "runs"
    assert len(tree(tmp_path / "runs")) > 0
    assert len(list((tmp_path / "runs").iterdir())) == 5  # five runs, even within one second


def test_modules_beside_the_project_are_found_but_shadow_nothing(cli, project, monkeypatch, tmp_path):
    (project / "beside_it.py").write_text("STEPS = 2\n")
    (project / "json.py").write_text("raise SystemExit('shadowed the library')\n")
    code_of(
        project,
        "\nimport json\nimport beside_it\n\n@hookimpl\ndef before_train(trainer):\n    trainer.max_steps = beside_it.STEPS\n",
    )
    monkeypatch.chdir(tmp_path)
    assert outcome(cli("train", "project", "--json"))["step"] == 2
    sys.modules.pop("beside_it")


TRAINER = """
import torch
from torch import nn
from trainhooks import Trainer

class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))
    def forward(self, x):
        return self.w * x.mean()

def make():
    model = Scalar()
    return Trainer(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), max_steps=3, work_dir="out",
                   loaders={"train": [torch.ones(1)] * 3, "val": [torch.ones(1)]})

def needs(model): ...
trainer = make()
number = 3
"""


@pytest.fixture
def code(empty):
    """Return a module beside the working directory that makes trainers."""
    (empty / "my_code.py").write_text(TRAINER)
    yield "my_code"
    sys.modules.pop("my_code", None)


@pytest.mark.parametrize("attribute", ["trainer", "make"])
def test_train_a_trainer_of_ones_own_code(cli, code, empty, attribute):
    done = outcome(cli("train", f"{code}:{attribute}", "--json"))
    assert (done["step"], done["work_dir"]) == (3, str(empty / "out"))
    assert "holds a former run" in refused(cli("train", f"{code}:make", expect=2))
    cli("train", f"{code}:make", "--overwrite")
    assert "-3" in cli("evaluate", f"{code}:make", "--checkpoint", "out").out


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("my_code:number", "TARGET 'my_code:number' gives int, it must be a Trainer or a function that returns one"),
        ("my_code:needs", "TARGET 'my_code:needs' cannot be called without arguments, it needs model"),
        ("my_code:trainr", "TARGET 'my_code:trainr': module 'my_code' has no 'trainr'; did you mean 'trainer'?"),
        ("mycode:trainer", "TARGET 'mycode:trainer': there is no module 'mycode' here or among what is installed"),
        (":trainer", "TARGET ':trainer': the name of the module is missing; write module:attribute"),
        ("nonsense", "TARGET 'nonsense' is neither a directory with a trainconf.py, nor a project file, nor module:attribute"),
        ("", "TARGET '' is neither a directory with a trainconf.py, nor a project file, nor module:attribute"),
    ],
)
def test_targets_that_are_none(cli, code, empty, target, message):
    before = tree(empty)
    assert refused(cli("train", target, expect=2)) == f"trainhooks: {message}\n"
    assert tree(empty) == before


@pytest.mark.parametrize(
    "words", [["-p", "no:timer"], ["-o", "timer.x=1"], ["--set", "seed=1"], ["--conf", "x.py"], ["--skip-failed"]]
)
def test_a_trainer_is_configured_where_it_is_made(cli, code, words):
    assert f"so {words[0]} has no effect on it" in refused(cli("train", f"{code}:make", *words, expect=2))


def test_a_target_module_that_fails_is_broken_not_wrongly_named(cli, empty):
    (empty / "my_code.py").write_text("import nothing_of_that_name\n")
    err = cli("train", "my_code:trainer", expect=3).err
    assert f'File "{empty}/my_code.py", line 1' in err
    assert "No module named 'nothing_of_that_name'" in err


def test_no_project_file(cli, empty):
    err = refused(cli("train", expect=2))
    assert err == f"trainhooks: no trainconf.py in {empty}: `trainhooks init` writes one, --conf FILE names another\n"
    (empty / "a b").mkdir()
    assert "`trainhooks init 'a b'` writes one" in refused(cli("train", "a b", expect=2))
    assert f"no project file at {empty}/nope.py" in refused(cli("train", "--conf", "nope.py", expect=2))
    assert tree(empty) == ["a b"]


# train: nothing is made when anything is wrong

FILE_FAULTS = {
    "syntax": ("def f(:\n    pass\n", "trainconf.py:1: SyntaxError"),
    "import": (
        "\nimport nothing_of_that_name\n",
        "trainconf.py:2: ModuleNotFoundError: No module named 'nothing_of_that_name'",
    ),
    "name": ("x = y\n", "trainconf.py:1: NameError: name 'y' is not defined"),
    "exit": ("import sys\nsys.exit(0)\n", "trainconf.py:2: SystemExit: 0"),
    "hook": (
        "from trainhooks import hookimpl\n\n@hookimpl\ndef make_modl():\n    pass\n",
        "there is no such hook; did you mean 'make_model'?",
    ),
    "unmarked": ("def make_model():\n    pass\n", "has a hook's name but no @hookimpl"),
}


@pytest.mark.parametrize("fault", FILE_FAULTS)
def test_a_broken_project_file_is_exit_3(cli, project, fault):
    source, message = FILE_FAULTS[fault]
    (project / "trainconf.py").write_text(source)
    err = cli("train", expect=3).err
    assert message in err
    assert "trainhooks/project.py" not in err
    assert tree(project) == ["trainconf.py"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "max_stepss=1"], "unknown option 'max_stepss' in --set max_stepss=1; did you mean 'max_steps'?"),
        (["--set", "max_steps=many"], "option 'max_steps' in --set max_steps=many: "),
        (["--set", "max_steps"], "--set max_steps: write it as KEY=VALUE"),
        (["-o", "checkpoint.kep=1"], "unknown option 'kep' in -o checkpoint.kep=1; did you mean 'keep'?"),
        (["-o", "checkpoint.keep=-1"], "keep = -1"),
        (["-o", "keep=1"], "-o keep=1: write it as PLUGIN.KEY=VALUE"),
        (["-o", "chekpoint.keep=1"], "no plugin is named 'chekpoint', in -o chekpoint.keep=1; did you mean 'checkpoint'?"),
        (["-p", "chekpoint"], "no plugin is named 'chekpoint', in -p chekpoint; did you mean 'checkpoint'?"),
        (
            ["-p", "no:checkpoint", "-o", "checkpoint.keep=1"],
            "-p no:checkpoint takes plugin 'checkpoint' out, but -o checkpoint.keep=1",
        ),
        (["-p", "no:checkpoint", "--resume", "auto"], "-p no:checkpoint"),
        (["-p", "no:evaluation", "-o", "checkpoint.best=val/loss"], "-p no:evaluation"),
        (["--set", "device=nonsense"], "device 'nonsense'"),
        (["--resume", "nope"], "--resume nope: there is no checkpoint at "),
        (["--resume", ""], "--resume '': there is no checkpoint at ''; write auto for the newest one"),
        (["--resume", "auto", "--overwrite"], "--resume auto goes on with a run and --overwrite replaces it; drop one"),
        (["--set", "work_dir=trainconf.py"], "is a file"),
    ],
)
def test_wrong_words_make_nothing(cli, project, words, message):
    assert message in refused(cli("train", *words, expect=2))
    assert tree(project) == ["trainconf.py"]


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (
            "[tool.trainhooks.train]\nmax_stepss = 1\n",
            "unknown option 'max_stepss' in [tool.trainhooks.train] of pyproject.toml:2",
        ),
        (
            "[tool.trainhooks.plugins.checkpoint]\n\nkep = 1\n",
            "unknown option 'kep' in [tool.trainhooks.plugins.checkpoint] of pyproject.toml:3",
        ),
        (
            "[tool.trainhooks]\nenabled = []\n",
            "unknown key 'enabled' in [tool.trainhooks] of pyproject.toml:2; did you mean 'enable'?",
        ),
        ("[tool.trainhooks\n", "pyproject.toml:1: not valid TOML"),
    ],
)
def test_wrong_files_make_nothing(cli, project, toml, message):
    (project / "pyproject.toml").write_text(toml)
    assert message in refused(cli("train", expect=2))
    assert tree(project) == ["pyproject.toml", "trainconf.py"]


def test_no_limit_makes_nothing(cli, project):
    text = (project / "trainconf.py").read_text()
    (project / "trainconf.py").write_text(text.replace("trainer.max_steps = 3", "pass"))
    assert "no limit" in refused(cli("train", expect=2))
    assert tree(project) == ["trainconf.py"]


# train: what happens when the training fails


def test_a_failing_hook_is_exit_1_with_its_own_traceback_and_a_way_out(cli, project):
    code_of(project, "\n@hookimpl\ndef after_step(trainer):\n    if trainer.step == 1:\n        raise ValueError('of mine')\n")
    err = cli("train", expect=1).err
    assert err.startswith("Traceback (most recent call last):\n")
    assert "click/core.py" not in err
    assert "trainhooks/cli" not in err
    assert "ValueError: of mine\nraised in after_step() of plugin 'trainconf' (project file) at step 1\n" in err


@pytest.mark.parametrize("error", ["EOFError('of mine')", "BrokenPipeError(32, 'of mine')", "OSError(28, 'of mine')"])
def test_errors_that_click_would_hide_are_shown(cli, project, error):
    """A loader's EOFError is no Ctrl-D, and a worker's broken pipe is no closed terminal."""
    code_of(project, f"\n@hookimpl\ndef after_step():\n    raise {error}\n")
    err = cli("train", expect=1).err
    assert error.partition("(")[0] in err.splitlines()[-3]  # two notes follow: the hook, the crash report
    assert "of mine" in err


def test_an_error_of_the_training_itself_is_exit_1_without_traceback(cli, project):
    code_of(
        project, "\n@hookimpl(wrapper=True)\ndef train_step():\n    if (yield):\n        return {}['x'] if False else ...\n"
    )
    (project / "trainconf.py").write_text((project / "trainconf.py").read_text().replace("[1.0, 1.0, 1.0]", "[]"))
    err = cli("train", expect=1).err
    assert err.startswith("trainhooks: ")
    assert "Traceback" not in err


INTERRUPTED = """

@hookimpl
def before_step(trainer):
    import time
    print("running", flush=True)
    until = time.monotonic() + 60
    while trainer.step == 1 and trainer.interruption is None and time.monotonic() < until:
        time.sleep(0.01)
"""


def test_interrupted_is_130(project):
    code_of(project, INTERRUPTED)
    code_of(project, "\n@hookimpl\ndef teardown(outcome):\n    print('outcome', outcome.status, flush=True)\n")
    command = [SCRIPT, "train", "-p", "no:progress", "-o", "checkpoint.every_steps=1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=project)
    for line in process.stdout:
        if line == "running\n" and process.stdout.readline() == "running\n":
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert out == "outcome interrupted\n"
    assert "trainhooks: interrupted" in err.splitlines()
    way_back = r"run folder: \S+/runs/\S+-project; --resume auto goes on from its newest checkpoint, step-00000002"
    assert re.fullmatch(way_back, err.splitlines()[-1])
    assert "Traceback" not in err


def test_a_reader_that_goes_away_is_no_traceback():
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([SCRIPT, "hooks"], stdout=write, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


# Resume and overwrite


def test_resume_auto_starts_and_goes_on(cli, project):
    first = cli("train", "--resume", "auto", "--json")
    (folder,) = (project / "runs").iterdir()
    said = f"trainhooks: no earlier run of 'project' below {project}/runs: starting a new one in {folder}\n"
    assert said in first.err
    assert "nothing to resume" not in first.err
    assert outcome(first)["step"] == 3
    second = cli("train", "--resume", "auto", "--json", "--set", "max_steps=5")
    assert outcome(second)["work_dir"] == outcome(first)["work_dir"]
    assert (outcome(second)["step"], outcome(second)["metrics"]["val/loss"]) == (5, -10.0)  # w = -5, x = 2
    assert "at step 3" in second.err
    assert len(list((project / "runs").iterdir())) == 1


def test_resume_auto_in_a_folder_of_ones_own(cli, project):
    """One command line for the first start and every restart, as a cluster's queue runs it."""
    words = ("train", "--resume", "auto", "--json", "--set", "work_dir=out")
    done = [cli(*words, "--set", f"max_steps={steps}") for steps in (2, 5, 5)]
    assert [outcome(one)["step"] for one in done] == [2, 5, 5]
    nothing = (
        "trainhooks: nothing is left to train: max_steps=5 is reached; give more to train on, such as --set max_steps=10\n"
    )
    assert [nothing in one.err for one in done] == [False, False, True]
    assert f"trainhooks: nothing to resume in {project}/out: starting anew\n" in done[0].err
    assert not (project / "runs").exists()
    rows = (project / "out/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(row)["step"] for row in rows]
    assert steps == sorted(steps)


def test_resume_auto_takes_the_newest_run_of_this_name(cli, project):
    made = [Path(outcome(cli("train", "--json"))["work_dir"]) for _ in range(3)]
    other = Path(outcome(cli("train", "--json", "--set", "name=2-project"))["work_dir"])
    assert len({*made, other}) == 4
    again = outcome(cli("train", "--resume", "auto", "--json", "--set", "max_steps=4"))
    assert again["work_dir"] == str(made[-1])
    assert again["step"] == 4


@pytest.mark.parametrize("what", ["folder", "checkpoints", "checkpoint"])
def test_resume_from_every_path_that_was_printed(cli, project, what):
    done = outcome(cli("train", "--json"))
    path = {"folder": done["work_dir"], "checkpoint": done["checkpoint"], "checkpoints": f"{done['work_dir']}/checkpoints"}[
        what
    ]
    again = outcome(cli("train", "--resume", path, "--json", "--set", "max_steps=5"))
    assert (again["step"], again["work_dir"]) == (5, done["work_dir"])
    assert len(list((project / "runs").iterdir())) == 1


def test_resume_from_a_checkpoint_that_was_copied_elsewhere(cli, project, tmp_path):
    done = outcome(cli("train", "--json"))
    shutil.copytree(done["checkpoint"], tmp_path / "kept")
    again = outcome(cli("train", "--resume", tmp_path / "kept", "--json", "--set", "max_steps=5"))
    assert again["step"] == 5
    assert again["work_dir"] != done["work_dir"]  # the former run's own folder is left alone
    assert [path.name for path in (tmp_path / "kept").iterdir() if path.suffix not in (".json", ".safetensors")] == []


def test_what_cannot_be_resumed_leaves_nothing_behind(cli, project, tmp_path):
    done = outcome(cli("train", "--json"))
    damaged = tmp_path / "damaged"
    shutil.move(done["checkpoint"], damaged)
    (damaged / "state.json").write_bytes(b"damaged")
    (tmp_path / "empty").mkdir()
    shutil.rmtree(project / "runs")
    for path, code, message in (
        (damaged, 1, f"trainhooks: {damaged}/state.json has 7 bytes, manifest.json says "),
        (tmp_path / "empty", 2, f"trainhooks: {tmp_path}/empty holds no checkpoint: name one, or a run that has saved one\n"),
        (project / "trainconf.py", 2, f"{project}/trainconf.py"),
    ):
        err = cli("train", "--resume", path, expect=code).err
        assert message in err
        assert "Traceback" not in err
        assert "no:checkpoint" not in err  # going on without what reads checkpoints is no way to resume
        assert tree(project) == ["trainconf.py"]


def test_a_checkpoint_that_does_not_fit_is_not_named_as_the_way_on(cli, project):
    cli("train", "--set", "work_dir=out")
    file = project / "trainconf.py"
    file.write_text(file.read_text().replace("torch.zeros(())", "torch.zeros(2)"))
    err = cli("train", "--set", "work_dir=out", "--set", "max_steps=4", "--resume", "auto", expect=1).err
    assert "state of 'model' does not fit" in err
    assert "goes on from" not in err


def test_runs_that_start_at_once_get_a_folder_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = read_config(tmp_path, (), (), ())
    with (
        run_folder(config, tmp_path, None) as first,
        run_folder(config, tmp_path, None) as second,
        pytest.raises(ZeroDivisionError),
    ):
        assert first != second
        with run_folder(config, tmp_path, "auto") as third:
            assert len({path for path in (first, second, third) if path.is_dir()}) == 3
            raise ZeroDivisionError
    assert sorted((tmp_path / "runs").iterdir()) == sorted(map(Path.absolute, (first, second)))  # nothing was done in the third


@pytest.mark.parametrize("words", [["evaluate", "--checkpoint"], ["predict", "--checkpoint"], ["train", "--resume"]])
def test_a_folder_of_runs_is_no_checkpoint(cli, project, words):
    for name in ("first", "second"):
        cli("train", "--set", f"work_dir=runs/{name}")
    before = tree(project)
    runs = project / "runs"
    said = refused(cli(*words, "runs", expect=2))
    assert said == f"trainhooks: {runs} is a folder of runs: name one, the newest is {runs}/second\n"
    assert tree(project) == before
    shutil.rmtree(runs / "second/checkpoints")  # it has nothing to name any more
    assert f"the newest is {runs}/first\n" in refused(cli(*words, "runs", expect=2))
    said = refused(cli(*words, "runs/second", expect=2))
    assert said == f"trainhooks: {runs}/second holds no checkpoint: name one, or a run that has saved one\n"


def test_relative_paths(cli, project, monkeypatch, tmp_path):
    done = outcome(cli("train", "--json", "--set", "work_dir=out"))
    assert done["work_dir"] == str(project / "out")
    monkeypatch.chdir(tmp_path)
    assert outcome(cli("train", "project", "--json", "--resume", "project/out", "--set", "max_steps=4"))["step"] == 4
    assert "val/loss  -8" in cli("evaluate", "project", "--checkpoint", "project/out/checkpoints").out


def test_a_former_run_is_only_overwritten_on_request(cli, project):
    cli("train", "--set", "work_dir=out")
    (project / "out/mine.txt").write_text("mine")
    before = tree(project)
    assert "holds a former run" in refused(cli("train", "--set", "work_dir=out", expect=2))
    assert tree(project) == before
    done = outcome(cli("train", "--set", "work_dir=out", "--set", "max_steps=2", "--overwrite", "--json"))
    assert done["step"] == 2
    assert [path.name for path in (project / "out/checkpoints").iterdir()] == ["step-00000002"]
    assert (project / "out/mine.txt").read_text() == "mine"


def test_strict_plugins_refuses_others(cli, project):
    done = outcome(cli("train", "--json"))
    loose = cli("train", "--resume", done["checkpoint"], "-p", "no:timer", "--set", "max_steps=4")
    assert "'timer' was active, now it is not" in loose.err
    strict = cli(
        "train", "--resume", done["checkpoint"], "-p", "no:timer", "--strict-plugins", "--set", "max_steps=5", expect=2
    )
    assert "'timer' was active, now it is not" in strict.err


# Names of folders


@pytest.mark.parametrize(
    "name",
    [
        "run[1]",
        "a*b",
        "q?",
        "{x}",
        "%d",
        "a b",
        " lead",
        "trail ",
        "a\nb",
        "~x",
        "$HOME",
        "é",
        "e\u0301",
        "🙂",
        "-x",
        "a:b",
        "no:x",
        "k=v",
    ],
)
def test_any_name_of_a_folder(cli, project, monkeypatch, tmp_path, name):
    """PT-01: train, resume, evaluate, with a run folder beside and named after the project's folder."""
    project.rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    done = outcome(cli("train", "--json", "--", name))
    folder = Path(done["work_dir"])
    assert folder.parent == tmp_path / "runs"
    assert folder.name[16:] == name.replace("\n", "_")
    again = outcome(cli("train", "--json", "--resume", "auto", "--set", "max_steps=4", "--", name))
    assert (again["step"], again["work_dir"]) == (4, str(folder))
    assert json.loads(cli("evaluate", "--json", "--checkpoint", again["checkpoint"], "--", name).out) == {"val/loss": -8.0}
    own = outcome(cli("train", "--json", "--set", f"work_dir={json.dumps(f'out/{name}', ensure_ascii=False)}", "--", name))
    assert own["work_dir"] == str(tmp_path / "out" / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({name, "out", "runs"})


@pytest.mark.slow
@pytest.mark.parametrize(("encoding", "printed"), [("utf-8", b"/o-\xff-\xc3\xa9"), ("latin-1", b"/o-\\udcff-\xe9")])
def test_a_name_that_the_terminal_cannot_show_does_not_fail_the_run(project, encoding, printed):
    """A byte that is no UTF-8 is printed as it is, so that what was printed can be typed; other encodings show an escape."""
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "NO_COLOR": "1"}
    done = subprocess.run(
        [SCRIPT.encode(), b"train", b"-p", b"no:progress", b"--set", b"work_dir=o-\xff-\xc3\xa9"],
        env=environment,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert done.stdout.splitlines()[1] == b"run folder: " + bytes(project) + printed


def test_a_folder_with_the_longest_name(cli, project, monkeypatch, tmp_path):
    name = "é" * 127 + "x"  # 255 bytes
    project.rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    folder = Path(outcome(cli("train", "--json", name))["work_dir"])
    assert folder.name[16:] == "é" * 100
    assert outcome(cli("train", "--json", "--resume", "auto", "--set", "max_steps=4", name))["work_dir"] == str(folder)


@pytest.mark.parametrize(("name", "part"), [("a/b", "a_b"), ("../up", ".._up"), ("x\ny", "x_y")])
def test_a_name_with_slashes_is_one_part_of_a_path(cli, project, name, part):
    folder = Path(outcome(cli("train", "--json", "--set", f"name={json.dumps(name)}"))["work_dir"])
    assert (folder.parent, folder.name[16:]) == (project / "runs", part)


# evaluate, predict, trace


@pytest.fixture
def trained(cli, project):
    """Return what a run of three steps printed: its weight is -3."""
    return outcome(cli("train", "--json"))


def test_evaluate_a_checkpoint(cli, project, trained):
    before = tree(project)
    for path in (trained["checkpoint"], trained["work_dir"]):
        assert json.loads(cli("evaluate", "--checkpoint", path, "--json").out) == {"val/loss": -6.0}
    said = cli("evaluate", "--checkpoint", trained["work_dir"])
    assert said.out.splitlines()[-1] == "val/loss  -6"
    assert said.err == "trainhooks: evaluated 'val' at step 3: 1 batch, 1 sample\n"
    # -3 * 1 and -3 * 2, a batch each
    assert json.loads(cli("evaluate", "--checkpoint", trained["work_dir"], "--split", "test", "--json").out) == {
        "test/loss": -4.5
    }
    assert tree(project) == before


def test_predict_with_a_checkpoint(cli, project, trained):
    before = tree(project)
    lines = cli("predict", "--checkpoint", trained["work_dir"], "--json").out.splitlines()
    assert [json.loads(line) for line in lines] == [-3.0, -6.0]
    printed = cli("predict", "--checkpoint", trained["work_dir"])
    assert "tensor(-3.)" in printed.out
    assert printed.err == "trainhooks: predicted 'test' at step 3: 2 batches, 2 samples\n"
    assert tree(project) == before
    said = cli("predict", "--checkpoint", trained["work_dir"], "--output", "out.pt").out
    assert said == "predicted 'test' at step 3: 2 batches, 2 samples, saved to out.pt\n"
    assert [one.item() for one in torch.load("out.pt", weights_only=True)] == [-3.0, -6.0]


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_no_checkpoint_is_a_usage_error(cli, project, command):
    err = refused(cli(command, "--checkpoint", "nope", expect=2))
    assert err == f"trainhooks: --checkpoint nope: there is no checkpoint at {project}/nope\n"
    assert tree(project) == ["trainconf.py"]


def test_predict_into_a_folder_that_is_not_there_fails_at_once(cli, project, trained):
    assert "--output no/out.pt: there is no folder" in refused(
        cli("predict", "--checkpoint", trained["work_dir"], "--output", "no/out.pt", expect=2)
    )


def flat(node, depth=0):
    yield depth, node["hook"], node["plugin"]
    for child in node["children"]:
        yield from flat(child, depth + 1)


def test_trace_has_every_hook_in_order_and_writes_nothing(cli, project):
    """The order is the one of design section 3; the project file listens to each, so that each is called."""
    listens = (
        "before_train",
        "before_epoch",
        "before_step",
        "gradients_ready",
        "after_update",
        "after_step",
        "after_train_epoch",
    )
    ends = ("after_epoch", "after_train", "setup", "teardown", "before_eval", "after_eval", "after_eval_step")
    code_of(project, "".join(f"\n@hookimpl\ndef {name}():\n    pass\n" for name in (*listens, *ends)))
    root = json.loads(cli("trace", "--steps", "3", "--json", "--set", "work_dir=out", "-p", "no:timer").out)
    calls = [hook for _, hook, plugin in flat(root) if plugin == "trainconf" and not hook.startswith("make_")]
    step = ["before_step", "gradients_ready", "after_update", "after_step"]
    evaluation = ["before_eval", "after_eval_step", "after_eval"]  # due since the epoch of three batches is complete
    assert calls == [
        *("configure", "setup", "before_train", "before_epoch", *step, *step, *step, "after_train_epoch"),
        *(*evaluation, "after_epoch", "after_train", "teardown"),
    ]
    engine = [hook for _, hook, plugin in flat(root) if plugin == "engine"]
    stages = ["prepare_batch", "update_due", "train_step", "compute_loss", "scale_loss", "backward", "optimizer_step"]
    assert engine == ["train", "train_epoch", *stages * 3, "evaluate", "prepare_batch", "eval_step", "compute_loss"]
    depth = {hook: level for level, hook, plugin in flat(root) if plugin == "engine"}
    assert depth["optimizer_step"] > depth["train_step"] > depth["train_epoch"] > depth["train"]
    assert tree(project) == ["trainconf.py"]


def test_trace_names_wrappers_and_adds_up_each_plugin(cli, project):
    code_of(project, "\n@hookimpl(wrapper=True)\ndef compute_loss():\n    return (yield)\n")
    shown = cli("trace", "--steps", "3").out
    assert shown.count("· trainconf (wraps)") >= 3
    totals = shown.partition("host time of each plugin")[2].partition("\n\n")[0].splitlines()[1:]
    assert any(line.split()[0] == "trainconf" for line in totals)
    assert not any(line.split()[0] in ("engine", "progress") for line in totals)


def test_trace_is_silent_about_what_it_does_itself(cli, project):
    """It trains a few steps and has no folder; of a run that plugins warn. What the engine says, and errors, are shown."""
    code_of(
        project,
        "\n@hookimpl\ndef before_train(trainer):\n    import logging\n    log = logging.getLogger('trainhooks')\n"
        "    log.warning('too short')\n    log.error('too bad')\n    trainer.log('a', 1.0, reduce='last')\n",
    )
    code_of(project, "\n@hookimpl\ndef report_metrics():\n    raise RuntimeError('no report')\n")
    words = ("-o", "lr.warmup_updates=11", "-o", "lr.warmup=linear")
    run = cli("trace", "--steps", "1", "--set", "log_every_steps=1", *words)
    assert "too bad" in run.err
    assert "report_metrics() failed with RuntimeError: no report" in run.err
    assert not [word for word in ("too short", "warmup", "best val/loss") if word in run.err]
    assert run.out.endswith("\n\nleft out: progress; -p progress shows it, too\n")
    run = cli("trace", "--steps", "1", "-p", "progress")
    assert "left out" not in run.out
    assert "· progress" in run.out
    said = cli("train", "--set", "max_steps=1", *words).err
    assert all(word in said for word in ("too short", "warmup", "best val/loss"))


def test_trace_folds_a_long_evaluation(cli, project):
    (project / "trainconf.py").write_text((project / "trainconf.py").read_text().replace('"val": [2.0]', '"val": [2.0] * 100'))
    shown = cli("trace", "--steps", "1").out
    assert shown.count("eval_step") == 2
    assert "eval_step, 99 more" in shown


def test_a_report_on_the_other_thread_does_not_tear_the_trace(cli, project):
    """The reporter's thread calls hooks while a step runs; its calls stand beside the tree and not in somebody's step."""
    code_of(project, "\n@hookimpl\ndef report_metrics():\n    pass\n")
    root = json.loads(cli("trace", "--json", "--set", "log_every_steps=1").out)
    places = {depth for depth, hook, plugin in flat(root) if hook == "report_metrics" and plugin == "trainconf"}
    assert places
    for child in root["children"]:
        if child["hook"] != "report_metrics":
            assert "report_metrics" not in [hook for _, hook, _ in flat(child)]


# Commands of plugins


@pytest.fixture
def command_of_a_plugin(fake_distribution):
    def make(source, value="their_command:command"):
        return fake_distribution("trainhooks-extra", {"extra": value}, {"their_command": source}, group="trainhooks.commands")

    return make


def test_a_plugin_brings_a_command(cli, empty, command_of_a_plugin):
    command_of_a_plugin("import click\n\n@click.command()\ndef command():\n    click.echo('theirs')\n    return 7\n")
    assert "extra" in cli("-h").out
    assert "their_command" not in sys.modules  # help lists it without importing it
    assert cli("extra").out == "theirs\n"  # what a command returns is not an exit code


@pytest.mark.parametrize("source", ["import nothing_of_that_name", "command = 3", ""])
def test_a_broken_command_does_not_hide_the_others(cli, empty, command_of_a_plugin, source):
    command_of_a_plugin(source)
    cli("-h")
    cli("plugins")
    assert "trainhooks: command 'extra' (trainhooks-extra 1.0): " in cli("extra", expect=3).err


def test_evaluate_says_what_the_checkpoint_has_and_nobody_uses(cli, project):
    done = outcome(cli("train", "--json", "-p", "ema"))
    plain = cli("evaluate", "--checkpoint", done["checkpoint"])
    assert "the checkpoint has the state of plugins that are not active: ema; -p NAME lets one take part" in plain.err
    assert "not active" not in cli("evaluate", "-p", "ema", "--checkpoint", done["checkpoint"]).err


def test_a_key_inside_of_an_option(cli, project):
    for words in (
        ["-o", "lr.args.gamma=0.5", "-o", "lr.args.milestones=[2]"],
        ["-o", 'lr.args={"gamma": 0.5, "milestones": [2]}'],
    ):
        done = outcome(cli("train", "--json", "-o", "lr.schedule=multi_step", *words))
        record = json.loads((Path(done["work_dir"]) / "run.json").read_text())
        options = next(one["options"] for one in record["plugins"] if one["name"] == "lr")
        assert options["args"] == "{'gamma': 0.5, 'milestones': [2]}"


def test_a_run_that_is_asked_to_write_nothing(cli, project):
    done = outcome(cli("train", "--json", "--set", "work_dir=none"))
    assert (done["status"], done["work_dir"]) == ("completed", None)
    assert not (project / "runs").exists()


def test_there_is_no_run_without_the_project_file(cli, project):
    """So nobody is told to go on without it; without a class that it lists a run may go on."""
    file = project / "trainconf.py"
    text = file.read_text()
    file.write_text(f"{text}\n\n@hookimpl\ndef after_stepp(trainer):\n    pass\n")
    err = cli("train", expect=3).err
    assert "there is no such hook; did you mean 'after_step'?\n" in err
    assert "-p no:" not in err
    file.write_text(
        f"{text}\n\nclass Fragile:\n    @hookimpl\n    def after_stepp(self):\n        pass\n\n\nplugins = [Fragile]\n"
    )
    assert "  rerun with -p no:fragile to go on without it\n" in cli("train", expect=3).err


def test_torch_without_numpy_is_no_reason_to_warn(project):
    program = "import sys; sys.modules['numpy'] = None; from trainhooks.cli import main; main()"
    for words, said in ((["train"], "trainhooks: best val/loss (min): -6 at step 3\n"), (["hooks", "train_step"], "")):
        done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
        assert done.stderr == said


def test_as_a_module_it_is_the_same(project):
    said = [
        subprocess.run([*command, "trian"], capture_output=True, text=True)
        for command in ([SCRIPT], [sys.executable, "-m", "trainhooks"])
    ]
    assert (said[0].returncode, said[0].stderr) == (said[1].returncode, said[1].stderr)
    assert said[1].stderr == "trainhooks: No such command 'trian'; did you mean 'train'? (see `trainhooks -h`)\n"


def test_on_a_terminal_the_list_of_plugins_says_how_to_learn_more(cli, empty, monkeypatch):
    hint = "`trainhooks plugins --options NAME` says what one does and which options it has; -p NAME uses it.\n"
    assert hint not in cli("plugins").out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli("plugins").out.endswith(f"\n\n{hint}")
    json.loads(cli("plugins", "--json").out)


def test_who_lists_the_options_of_a_class_of_the_project(cli, project):
    """Not ``plugins --options``, which may know an installed plugin of that name."""
    file = project / "trainconf.py"
    source = "class WeightDecay:\n    def __init__(self, rate: float = 1.0, times: int = 2): ...\n    @hookimpl\n    def after_step(self): ...\n"
    file.write_text(f"{file.read_text()}\n\n{source}\n\nplugins = [WeightDecay]\n")
    err = refused(cli("train", "-o", "weight_decay.tmes=3", expect=2))
    assert err.endswith("unknown option 'tmes' in -o weight_decay.tmes=3; did you mean 'times'?\n")


def test_no_checkpoint_steers_the_terminal(cli, project):
    """What a plugin lock of somebody else says, in a warning and in an error."""
    file = project / "trainconf.py"
    file.write_text(
        f"{file.read_text()}\n\n@hookimpl\ndef on_save(state):\n    state['plugin_lock'][0]['name'] = '\\x1b]0;x\\x07'\n"
    )
    words = ("train", "-p", "no:progress", "--set", "work_dir=out")
    cli(*words, "--set", "max_steps=1")
    for more, code in ((["--strict-plugins"], 2), ([], 0)):
        said = cli(*words, "--set", "max_steps=2", "--resume", "auto", *more, expect=code).err
        assert "'\\x1b]0;x\\x07' was active, now it is not" in said
        assert not {"\x1b", "\x07"} & set(said)


THEIRS = """
from trainhooks import hookimpl

class Boom:
    requires = ("ema",)

    @hookimpl
    def after_step(self):
        raise RuntimeError("boom")

class Bad:
    @hookimpl
    def after_stepp(self):
        pass

class Fails:
    def __init__(self, n: int):
        raise RuntimeError("not now")
"""


@pytest.fixture
def theirs(project):
    """Return a project beside which is a module with plugins for ``-p``."""
    (project / "their_hooks.py").write_text(THEIRS)
    yield project
    sys.modules.pop("their_hooks", None)


def test_a_plugin_that_was_named_as_code_is_known_by_its_word(cli, theirs, monkeypatch):
    word = "-p their_hooks:Boom"
    err = cli("train", *word.split(), "-p", "ema", expect=1).err
    note = f"raised in after_step() of plugin 'boom' ({word}) at step 0; rerun with -p no:boom to go on without it\n"
    assert note in err
    assert "unregister" not in err
    done = cli("train", *word.split(), "-p", "ema", "-p", "no:boom", "--json")
    assert outcome(done)["status"] == "completed"
    assert "nothing was taken out" not in done.err
    monkeypatch.setenv("TRAINHOOKS_PLUGINS", "their_hooks:Boom")
    assert "of plugin 'boom' (TRAINHOOKS_PLUGINS their_hooks:Boom) at step 0" in cli("train", "-p", "ema", expect=1).err


def test_a_broken_plugin_that_was_named_as_code_can_be_left_out_by_its_name(cli, theirs):
    for word, name, fault in (
        ("their_hooks:Bad", "bad", "after_stepp() in "),
        ("their_hooks:Fails", "fails", "cannot be built: RuntimeError: not now"),
    ):
        more = ("-o", "their_hooks:Fails.n=1") if name == "fails" else ()
        err = cli("train", "-p", word, *more, expect=3).err
        assert f"trainhooks: plugin '{name}' (-p {word}): {fault}" in err
        assert err.endswith(f"\n  rerun with -p no:{name} to go on without it\n")
        assert "nothing was taken out" not in cli("train", "-p", word, "-p", f"no:{name}").err
    err = refused(cli("train", "-p", "their_hooks:Fails", expect=2))  # who asks for it is not told to leave it out
    assert err == "trainhooks: plugin 'fails' (-p their_hooks:Fails): option 'n' is missing and has no default\n"


def test_who_asks_for_a_plugin_that_is_taken_out(cli, theirs):
    said = refused(cli("train", "-p", "their_hooks:Boom", "-p", "no:ema", expect=2))
    assert said.endswith(" (-p their_hooks:Boom) needs plugin 'ema', as it declares, but -p no:ema takes it out\n")
    said = refused(cli("train", "-o", "checkpoint.best=val/loss", "-p", "no:evaluation", expect=2))
    assert "needs plugin 'evaluation', as asked for in -o checkpoint.best=val/loss, but -p no:evaluation takes it out" in said


def test_what_a_project_lists_that_is_no_plugin(cli, project):
    code_of(project, '\nplugins = ["ema", 3]\n')
    first, second = refused(cli("train", expect=3)).splitlines()
    place = f"'plugins' of {project}/trainconf.py"
    assert first == (
        f"trainhooks: {place}: 'ema' is no plugin but a text; give a module, a class or an instance, or name an installed one "
        "with -p ema or enable = ['ema'] in trainhooks.toml"
    )
    assert second == f"{place}: 3 is no plugin; give a module, a class or an instance"


PRINT_LR = """

class PrintLR:
    \"\"\"Prints the rate.\"\"\"

    def __init__(self, every: int = 1, unit: str | None = None) -> None: ...

    @hookimpl
    def after_epoch(self): ...


plugins = [PrintLR]
"""


def test_options_of_a_class_of_the_project(cli, project, monkeypatch):
    code_of(project, PRINT_LR)
    shown = cli("plugins", "--options", "print_lr").out
    assert [line.split() for line in shown.splitlines()[:3]] == [
        ["option", "type", "default"],
        ["every", "int", "1"],
        ["unit", "str", "|", "None", "None"],
    ]
    assert shown.endswith("\nPrints the rate.\n")
    monkeypatch.chdir(project.parent)
    assert [row["option"] for row in json.loads(cli("plugins", "-C", "project", "--options", "print_lr", "--json").out)] == [
        "every",
        "unit",
    ]
    said = refused(cli("plugins", "-C", "project", "--options", "print_l", expect=2))
    end = "; `trainhooks plugins` lists all that are installed\n"
    assert said == f"trainhooks: no plugin is named 'print_l'; did you mean 'print_lr'?{end}"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import nothing_of_that_name\n", "{file}:1: ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("plugins = 3\n", "'int' object is not iterable"),
        ("import trainhooks\n\nprint('it runs')\ntrainhooks.Trainer().train()\n", "trainconf.py has no hooks, so it is"),
    ],
)
def test_options_of_a_class_of_a_project_that_cannot_be_imported(cli, project, source, why):
    file = project / "trainconf.py"
    file.write_text(source)
    run = cli("plugins", "--options", "print_lr", expect=2)
    assert f"installed; what trainconf.py lists is not known: {why.format(file=file)}" in refused(run)
    assert run.out == ""
    cli("plugins", "--options", "timer")


@pytest.mark.parametrize("words", [("train",), ("runs",), ("checkpoints", "list"), ("trace",)])
def test_a_working_directory_that_was_removed(cli, tmp_path, monkeypatch, words):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    said = "trainhooks: the working directory was removed: change to another one, then run this again\n"
    assert cli(*words, expect=2).err == said
