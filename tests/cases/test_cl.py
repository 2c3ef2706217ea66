"""CL: the command line and configuration."""

import hashlib
import json
import math
import os
import subprocess
import sys

import pytest
import torch

from trainhooks import OptionError, Trainer, UsageError, hookimpl
from trainhooks.config import Config
from trainhooks.options import validated

TRAIN = ("train", "-p", "no:progress", "--set", "max_epochs=1")


# --- CL-01 ---


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("trainhooks.toml", "[train]\nmax_epohcs = 5\n", ("trainhooks.toml:2", "'max_epohcs'", "did you mean 'max_epochs'?")),
        ("trainhooks.toml", "[train]\nmax_iters = 5\n", ("trainhooks.toml:2", "'max_iters'", "did you mean 'max_steps'?")),
        ("pyproject.toml", "[tool.trainhooks.train]\n\nmax_step = 5\n", ("pyproject.toml:3", "'max_step'", "'max_steps'")),
        ("pyproject.toml", "[tool.trainhooks]\ntrain.sede = 5\n", ("pyproject.toml", "'sede'", "did you mean 'seed'?")),
        ("trainhooks.toml", "[plugins.checkpoint]\nkeeep = 5\n", ("trainhooks.toml:2", "'keeep'", "did you mean 'keep'?")),
        ("trainhooks.toml", "[plugin.checkpoint]\nkeep = 5\n", ("trainhooks.toml:1", "'plugin'", "did you mean 'plugins'?")),
        ("trainhooks.toml", "autolaod = false\n", ("trainhooks.toml:1", "'autolaod'", "did you mean 'autoload'?")),
        ("trainhooks.toml", "\n[plugins.checkpiont]\nkeep = 5\n", ("trainhooks.toml:2", "'checkpiont'", "'checkpoint'?")),
        ("trainhooks.toml", 'enable = ["tiemr"]\n', ("trainhooks.toml:1", "'tiemr'", "did you mean 'timer'?")),
        ("trainhooks.toml", "[train\nseed = 1\n", ("trainhooks.toml:1", "not valid TOML")),
        ("trainhooks.toml", "train = 3\n", ("trainhooks.toml:1", "must be a table")),
        ("trainhooks.toml", "enable = 3\n", ("trainhooks.toml:1", "must be a list of plugin names")),
        ("trainhooks.toml", "autoload = 3\n", ("trainhooks.toml:1", "must be true, false or a list")),
        ("trainhooks.toml", "[plugins]\nlr = 3\n", ("trainhooks.toml:2", "must be a table")),
        ("pyproject.toml", "[tool]\ntrainhooks = 3\n", ("pyproject.toml", "must be a table")),
    ],
)
def test_cl_01_unknown_keys_in_a_file(file, text, words, command):
    (command.folder / file).write_text(text)
    code, out, err = command(*TRAIN)
    assert code == 2
    for word in words:
        assert word in err
    assert "Traceback" not in err
    assert out == ""
    assert not (command.folder / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "max_iters=5"), ("--set max_iters=5", "'max_iters'", "did you mean 'max_steps'?")),
        (("-o", "checkpoint.keeep=5"), ("-o checkpoint.keeep=5", "did you mean 'keep'?")),
        (("-o", "checkpiont.keep=5"), ("-o checkpiont.keep=5", "did you mean 'checkpoint'?")),
        (("-o", "wandb.project=x"), ("'wandb'", "-o wandb.project=x")),
        (("-o", "checkpoint.keep"), ("-o checkpoint.keep", "PLUGIN.KEY=VALUE")),
        (("--set", "max_epochs"), ("--set max_epochs", "KEY=VALUE")),
        (("-o", "checkpoint.keep=-1"), ("keep = -1", "-o checkpoint.keep=-1")),
        (("-p", "checkpiont"), ("-p checkpiont", "did you mean 'checkpoint'?")),
        (("--max-epochs", "5"), ("--max-epochs",)),
    ],
)
def test_cl_01_unknown_keys_on_the_command_line(arguments, words, command):
    code, _, err = command(*TRAIN, *arguments)
    assert code == 2
    for word in words:
        assert word in err
    assert "Traceback" not in err
    assert not (command.folder / "runs").exists()


def test_cl_01_in_a_process_of_its_own(command):
    (command.folder / "trainconf.py").write_text(command.conf)
    program = "from trainhooks.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *TRAIN, "-o", "checkpoint.keeep=5"],
        capture_output=True,
        text=True,
        cwd=command.folder,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("trainhooks: plugin 'checkpoint' (trainhooks ")
    assert "did you mean 'keep'?" in done.stderr
    assert sorted(entry.name for entry in command.folder.iterdir()) == ["trainconf.py"]


# --- CL-02 ---


def takes_float(lr: float):
    return lr


def takes_optional(lr: float | None = None):
    return lr


def takes_int(lr: int):
    return lr


def takes_bool(lr: bool):
    return lr


def takes_floats(lr: tuple[float, ...]):
    return lr


REFUSED = object()

#: What is written, and what it is as a float, an int and a bool.
VALUES = [
    ("1e-5", 0.00001, REFUSED, REFUSED),
    ("1E-5", 0.00001, REFUSED, REFUSED),
    ("1e3", 1000.0, 1000, REFUSED),
    ('"0.1"', 0.1, REFUSED, REFUSED),
    ("1_000", 1000.0, 1000, REFUSED),
    ("0x10", 16.0, 16, REFUSED),
    ("0o10", 8.0, 8, REFUSED),
    ("nan", REFUSED, REFUSED, REFUSED),
    ("inf", REFUSED, REFUSED, REFUSED),
    ("-inf", REFUSED, REFUSED, REFUSED),
    ("1e400", REFUSED, REFUSED, REFUSED),
    ("-0.0", -0.0, 0, False),
    ("1.5", 1.5, REFUSED, REFUSED),
    ("true", REFUSED, REFUSED, True),
    ("false", REFUSED, REFUSED, False),
    ('"nan"', REFUSED, REFUSED, REFUSED),
    ('"true"', REFUSED, REFUSED, True),
    ("[1.0]", REFUSED, REFUSED, REFUSED),
    ("[true]", REFUSED, REFUSED, REFUSED),
]

#: What TOML does not know: an error of the file's syntax, text on the command line.
BARE = [
    ("1.e-5", 0.00001, REFUSED, REFUSED),
    (".5", 0.5, REFUSED, REFUSED),
    ("on", REFUSED, REFUSED, True),
    ("yes", REFUSED, REFUSED, True),
    ("off", REFUSED, REFUSED, False),
    ("null", REFUSED, REFUSED, REFUSED),
    ("", REFUSED, REFUSED, REFUSED),
]


def from_file(text, tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(f"[plugins.plug]\nlr = {text}\n")
    return Config.read(path).plugins["plug"], "settings.toml:2"


def from_command_line(text, tmp_path):
    config = Config()
    config.add_command_line((), [f"plug.lr={text}"], ())
    return config.plugins["plug"], f"-o plug.lr={text}"


def check(factory, given, origin, expected):
    if expected is REFUSED:
        with pytest.raises(OptionError) as caught:
            validated(factory, given, "plugin 'plug'")
        assert "'plug'" in str(caught.value)
        assert "'lr'" in str(caught.value)
        assert origin in str(caught.value)
    else:
        value = validated(factory, given, "plugin 'plug'")["lr"]
        assert value == expected
        assert type(value) is type(expected)
        assert math.copysign(1, value) == math.copysign(1, expected)


@pytest.mark.parametrize("read", [from_file, from_command_line])
@pytest.mark.parametrize("text", [row[0] for row in VALUES])
def test_cl_02_values_are_the_same_in_file_and_command_line(text, read, tmp_path):
    _, as_float, as_int, as_bool = next(row for row in VALUES if row[0] == text)
    given, origin = read(text, tmp_path)
    check(takes_float, given, origin, as_float)
    check(takes_optional, given, origin, as_float)
    check(takes_int, given, origin, as_int)
    if text != "-0.0":
        check(takes_bool, given, origin, as_bool)


@pytest.mark.parametrize("text", [row[0] for row in BARE])
def test_cl_02_what_toml_does_not_know_is_text_on_the_command_line(text, tmp_path):
    _, as_float, as_int, as_bool = next(row for row in BARE if row[0] == text)
    given, origin = from_command_line(text, tmp_path)
    check(takes_float, given, origin, as_float)
    check(takes_int, given, origin, as_int)
    check(takes_bool, given, origin, as_bool)
    with pytest.raises(UsageError, match=r"settings\.toml:2.*not valid TOML"):
        from_file(text, tmp_path)


def test_cl_02_null_is_none_where_none_may_stand(tmp_path):
    given, _ = from_command_line("null", tmp_path)
    assert validated(takes_optional, given, "plugin 'plug'") == {"lr": None}


@pytest.mark.parametrize("read", [from_file, from_command_line])
@pytest.mark.parametrize("text", ["[true, 1.0]", "[nan]", "[1e400]", '["on"]'])
def test_cl_02_nor_inside_lists(text, read, tmp_path):
    given, origin = read(text, tmp_path)
    check(takes_floats, given, origin, REFUSED)


@pytest.mark.parametrize("text", ["nan", "inf", "1e400", "true", "on", "null"])
def test_cl_02_a_learning_rate_that_is_no_number(text, command):
    code, _, err = command(*TRAIN, "-o", f"lr.warmup_start={text}")
    assert code == 2
    assert f"option 'warmup_start' in -o lr.warmup_start={text}" in err
    assert not (command.folder / "runs").exists()


# --- CL-04 ---


class Patient:
    def __init__(self, patience: int = 3, mode: str = "min"):
        self.patience = patience

    @hookimpl
    def after_step(self):
        pass


def test_cl_04_differences_of_plugins_are_said_once_each(make_trainer, tmp_path, messages):
    """Options of plugins: the given ones are used."""
    from trainhooks_builtins import Checkpoint

    def make(**arguments):
        return make_trainer([Patient, Checkpoint], values=(1.0,) * 4, work_dir=tmp_path / "run", **arguments)

    make(options={"patient": {"patience": 3}}, max_steps=2).train()
    before = len(messages())
    trainer = make(options={"patient": {"patience": 5}}, max_steps=4)
    trainer.train(resume="auto")
    said = [text for text in messages()[before:] if "patience" in text]
    assert len(said) == 1
    assert "'patient': option patience saved 3, given 5, using 5" in said[0]
    assert trainer.plugins["patient"].patience == 5
    assert trainer.step == 4


def test_cl_04_so_are_those_of_the_run_and_of_the_optimizer(make_trainer, tmp_path, messages):
    """Rate 0.1, seed 1; resumed with 0.05, seed 2 and batches of 8: the seed and the rate are the saved ones, the batches not."""
    from trainhooks_builtins import Checkpoint

    def train(steps, rate, seed, batch_size):
        weight = torch.nn.Linear(1, 1)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(16, 1), torch.ones(16, 1)), batch_size)
        trainer = Trainer(
            weight, loss=torch.nn.functional.mse_loss, optimizer=torch.optim.SGD(weight.parameters(), lr=rate), seed=seed,
            loaders={"train": loader}, plugins=[Checkpoint], autoload=False, work_dir=tmp_path / "run", max_steps=steps, device="cpu",
        )  # fmt: skip
        trainer.train(resume="auto")
        return trainer

    train(4, 0.1, 1, 4)
    before = len(messages())
    trainer = train(6, 0.05, 2, 8)
    said = [text for text in messages()[before:] if "saved" in text]
    said = sorted(text.partition("made with: ")[2] for text in said)
    assert said == [
        "batch_size saved 4, given 8, using 8",
        "optimizer: lr saved 0.1, given 0.05, using 0.1",
        "seed saved 1, given 2, using 1",
    ]
    assert trainer.optimizer.param_groups[0]["lr"] == 0.1


def test_cl_04_the_same_is_said_of_nothing_else(make_trainer, tmp_path, messages):
    from trainhooks_builtins import Checkpoint

    for steps in (2, 4):
        trainer = make_trainer([Patient, Checkpoint], values=(1.0,) * 4, work_dir=tmp_path / "run", max_steps=steps)
        trainer.train(resume="auto")
    assert [text for text in messages() if "saved" in text or "other plugins" in text] == []


def test_cl_04_strict_plugins_make_it_an_error(make_trainer, tmp_path):
    from trainhooks_builtins import Checkpoint

    def make(**arguments):
        return make_trainer([Patient, Checkpoint], values=(1.0,) * 4, work_dir=tmp_path / "run", **arguments)

    make(options={"patient": {"patience": 3}}, max_steps=2).train()
    trainer = make(options={"patient": {"patience": 5}}, max_steps=4, strict_plugins=True)
    with pytest.raises(UsageError, match="saved 3, given 5, using 5"):
        trainer.train(resume="auto")
    assert trainer.step == 0


# --- CL-06 ---


def tree(folder):
    """Return every path below a folder with its kind and the digest of its content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = "link" if path.is_symlink() else "folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = kind
    return found


def run_into(command, place, *more):
    return command(*TRAIN, "--set", f"work_dir={place}", *more)


@pytest.fixture
def finished(command):
    """A finished run with a foreign file in it and one in its folder of checkpoints."""
    place = command.folder / "out"
    assert run_into(command, place)[0] == 0
    (place / "dataset").mkdir()
    (place / "dataset" / "image.png").write_bytes(b"foreign")
    (place / "checkpoints" / "notes.txt").write_text("mine")
    return place


def test_cl_06_a_finished_run_is_refused_unchanged(finished, command):
    before = tree(finished)
    code, _, err = run_into(command, finished)
    assert code == 2
    assert str(finished) in err
    assert "--overwrite" in err
    assert tree(finished) == before


def test_cl_06_overwrite_removes_only_what_the_run_made(finished, command):
    own = json.loads((finished / "run.json").read_text())["files"]
    assert "metrics.csv" in own
    marker = finished / "checkpoints" / "step-00000005" / "manifest.json"
    assert marker.is_file()
    code, _, err = run_into(command, finished, "--overwrite", "--set", "max_steps=2")
    assert code == 0, err
    assert not marker.exists()
    assert (finished / "checkpoints" / "step-00000002").is_dir()
    assert (finished / "dataset" / "image.png").read_bytes() == b"foreign"
    assert (finished / "checkpoints" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_cl_06_the_directory_with_the_sources(more, command):
    (command.folder / "model.py").write_text("x = 1\n")
    (command.folder / "metrics.csv").write_text("mine\n")
    (command.folder / "trainconf.py").write_text(command.conf)
    before = tree(command.folder)
    code, _, err = run_into(command, ".", *more)
    assert code == (0 if more else 2), err
    if not more:
        assert "not empty" in err
        assert tree(command.folder) == before
    after = tree(command.folder)
    assert {name: after.get(name) for name in before} == before


@pytest.mark.parametrize("place", ["/", "~"])
def test_cl_06_the_root_and_the_home_directory(place, command, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    (home / "letter.txt").write_text("private")
    monkeypatch.setenv("HOME", str(home))
    target = os.path.expanduser(place)
    before = sorted(os.listdir(target))
    code, _, err = run_into(command, target)
    assert code == 2
    assert "not empty" in err
    assert sorted(os.listdir(target)) == before
    assert (home / "letter.txt").read_text() == "private"


@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_cl_06_a_file(more, command):
    place = command.folder / "out"
    place.write_text("mine")
    code, _, err = run_into(command, place, *more)
    assert code == 2
    assert "is a file" in err
    assert place.read_text() == "mine"


@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_cl_06_a_link_to_elsewhere(more, command):
    elsewhere = command.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "image.png").write_bytes(b"foreign")
    place = command.folder / "out"
    place.symlink_to(elsewhere)
    before = tree(elsewhere)
    code, _, _ = run_into(command, place, *more)
    assert code == (0 if more else 2)
    if not more:
        assert tree(elsewhere) == before
    assert (elsewhere / "image.png").read_bytes() == b"foreign"
    assert place.is_symlink()


def test_cl_06_a_link_inside_a_former_run_is_not_followed(finished, command):
    elsewhere = command.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "image.png").write_bytes(b"foreign")
    step = finished / "checkpoints" / "step-00000005"
    step.rename(command.folder / "kept")
    step.symlink_to(elsewhere)
    code, _, err = run_into(command, finished, "--overwrite", "--set", "max_steps=2")
    assert code == 0, err
    assert (elsewhere / "image.png").read_bytes() == b"foreign"
    assert not step.is_symlink()


# --- Others of their kinds ---


@pytest.mark.parametrize(("value", "expected"), [("0", 1), ("None", 1), ("256", 1), ("7", 7), ("'bye'", 1)])
def test_sys_exit_in_a_hook_is_no_success(value, expected, command):
    conf = command.conf + f"\n@hookimpl\ndef after_step(trainer):\n    raise SystemExit({value})\n"
    code, _, err = command(*TRAIN, conf=conf)
    assert code == expected
    assert f"the run was ended by SystemExit: {value.strip(chr(39))}" in err
    assert "raised in after_step() of plugin 'trainconf' (project file) at step 0" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("[tool.trainhook.train]", "unknown table [tool.trainhook] of trainhooks.toml:1; did you mean [tool.trainhooks]?"),
        ("[tool.train-hooks.train]", "unknown table [tool.train-hooks] of trainhooks.toml:1"),
    ],
)
def test_a_misspelt_table_of_our_own(table, said, command):
    (command.folder / "trainhooks.toml").write_text(f"{table}\nmax_steps = 2\n")
    code, _, err = command(*TRAIN)
    assert code == 2
    assert said in err
    (command.folder / "trainhooks.toml").rename(command.folder / "pyproject.toml")
    code, _, err = command(*TRAIN)
    assert code == 2
    assert said.replace("trainhooks.toml", "pyproject.toml") in err


def test_the_tables_of_other_tools_are_left_alone(command):
    (command.folder / "pyproject.toml").write_text("[tool.train]\nmax_steps = 2\n[tool.ruff]\nline-length = 9\n")
    code, _, err = command(*TRAIN)
    assert code == 0, err


def test_a_byte_order_mark_is_no_mistake(command):
    (command.folder / "trainhooks.toml").write_bytes(b"\xef\xbb\xbf[train]\nmax_steps = 2\n")
    code, out, err = command("train", "-p", "no:progress")
    assert code == 0, err
    assert "max_steps=2 reached" in out


def test_a_misspelt_name_in_autoload_is_said(command):
    (command.folder / "trainhooks.toml").write_text('autoload = ["timr"]\n')
    code, _, err = command("train", "--set", "max_steps=1")
    assert code == 0, err
    assert "'autoload' in trainhooks.toml:1: no plugin is named 'timr'; did you mean 'timer'?" in err


@pytest.mark.parametrize("seed", ["-1", str(2**64)])
def test_a_seed_that_no_generator_takes(seed, command):
    code, _, err = command(*TRAIN, "--set", f"seed={seed}")
    assert code == 2
    assert f"option 'seed' in --set seed={seed}: must be 0 or more and below 2**64, not {seed}" in err


def test_a_plugin_named_as_its_class_is_suggested(command):
    code, _, err = command(*TRAIN, "-o", "EMA.decay=0.9")
    assert code == 2
    assert "no plugin is named 'EMA', in -o EMA.decay=0.9; did you mean 'ema'?" in err


def test_a_name_in_the_plugins_of_the_project_file(command):
    code, _, err = command(*TRAIN, conf=command.conf + '\nplugins = ["ema"]\n')
    assert code == 3
    assert "'ema' is no plugin but a text; give a module, a class or an instance, or name an installed one with -p ema" in err


@pytest.mark.parametrize("limit", [sys.maxsize, 10**30])
def test_a_limit_beyond_all_numbers_is_one(limit):
    class Stops:
        @hookimpl
        def after_step(self, trainer):
            trainer.stop("enough")

        @hookimpl
        def train_step(self):
            return {"loss": 0.0}

    assert Trainer(plugins=[Stops()], autoload=False, max_steps=limit).train().reason == "enough"
