"""SE: what others may have written decides nothing about what is run, imported, written or used up."""

import importlib.metadata
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

RELIABILITY = Path(__file__).parents[1] / "reliability"
SCRIPT = str(Path(sys.executable).with_name("trainhooks"))


@pytest.fixture
def marker(tmp_path):
    """Return the file that every hostile content makes when it is run."""
    path = tmp_path / "marker"
    yield path
    assert not path.exists(), "code was executed"


@pytest.fixture
def hostile(monkeypatch):
    """Return the module of hostile run folders."""
    monkeypatch.syspath_prepend(RELIABILITY)
    import hostile

    return hostile


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return the run folder of a real training, with a folder beside it that nobody may touch."""
    sys.path.insert(0, str(RELIABILITY))
    try:
        from hostile import Place

        place = Place(tmp_path_factory.mktemp("hostile"))
        place.make()
    finally:
        sys.path.remove(str(RELIABILITY))
    return place


@pytest.fixture(scope="module")
def bombs(place):
    """Return the cases that claim, or are, more than fits."""
    from hostile import bomb_cases

    return list(bomb_cases(place))


class TestSE01:
    """Side files loaded unsafely."""

    FILES = ("manifest.json", "state.json", "tensors.safetensors")
    READERS = ("evaluate", "list", "verify", "resume elsewhere", "resume")

    @pytest.mark.parametrize("name", FILES)
    def test_se_01_each_file_replaced_by_a_pickle(self, hostile, place, name):
        """Also with the variable that switches torch's own protection off: ``try_case`` sets it."""
        contents = hostile.payloads(place.marker)
        for what in ("pickle of os.system", "torch archive", "torch, before archives"):
            data = contents[what]
            case = hostile.Case(what, lambda here, data=data: hostile.put(here.newer / name, data))
            results = hostile.try_case(place, case, self.READERS)
            assert [one["command"] for one in results] == list(self.READERS)
            for one in results:
                assert one["faults"] == []
                assert name in one["log"] or one["command"] == "list"
                assert (one["code"] != 0) is (one["command"] != "list"), one

    @pytest.mark.parametrize(
        "name", ["state.pt", "optimizer.pt", "rng.pkl", "scheduler.bin", "trainer_state.json", "model-00002.bin"]
    )
    def test_se_01_a_file_that_nobody_expects(self, hostile, place, name):
        data = hostile.payloads(place.marker)["torch archive of exec"]
        case = hostile.Case(name, lambda here: hostile.put(here.newer / name, data))
        for one in hostile.try_case(place, case, self.READERS):
            assert one["faults"] == []
            assert (one["code"] != 0 and name in one["log"]) or one["command"] == "list", one

    def test_se_01_an_older_one_is_taken_only_when_asked_for(self, hostile, place):
        data = hostile.payloads(place.marker)["pickle of os.system"]
        case = hostile.Case("pickle", lambda here: hostile.put(here.newer / "state.json", data))
        by_path, auto = hostile.try_case(place, case, ("resume", "resume auto"))
        assert (by_path["code"], by_path["faults"]) == (1, [])
        assert "state.json" in by_path["log"]
        assert "resumed from" not in by_path["log"]
        assert (auto["code"], auto["faults"]) == (0, [])
        assert re.search(r"skipped .*step-00000006/state\.json", auto["log"])
        assert re.search(r"resumed from \S* at step 3", auto["log"])


class TestSE02:
    """Safe-load flag itself is broken in old versions. The syntax trees are checked in ``tests/unit/test_static_safety.py``."""

    def test_se_02_the_floor_of_torch_is_above_the_bypass(self):
        requirement = next(one for one in importlib.metadata.requires("trainhooks") if re.match(r"torch\b", one))
        version = tuple(map(int, re.search(r">=\s*(\d+)\.(\d+)", requirement).groups()))
        assert version >= (2, 6)

    def test_se_02_no_checkpoint_goes_through_the_unpickler_of_torch(self, hostile, place, monkeypatch, tmp_path):
        """So no version of it matters: reading works where it is gone, and nothing falls back to it."""
        place.plant(hostile.Case("nothing", lambda _here: None))
        code = (
            "import sys, pickle, torch\n"
            "def gone(*a, **k): raise SystemExit('unpickled')\n"
            "torch.load = torch.serialization.load = pickle.load = pickle.loads = pickle.Unpickler = gone\n"
            "torch.__version__ = '2.5.1'\n"
            "from trainhooks.cli import main\n"
            "try: main(sys.argv[3:])\n"
            "except SystemExit as left: assert left.code == 0\n"
            "import shutil; shutil.copyfile(*sys.argv[1:3])\n"
            "main(sys.argv[3:])\n"
        )
        words = ["evaluate", str(place.project), "--checkpoint", str(place.newer), "--json"]
        (tmp_path / "torch.zip").write_bytes(hostile.payloads(place.marker)["torch archive"])
        replaced = [tmp_path / "torch.zip", place.newer / "tensors.safetensors"]
        done = subprocess.run([sys.executable, "-c", code, *replaced, *words], capture_output=True, text=True, cwd=tmp_path)
        assert json.loads(done.stdout)["val/loss"] > 0, done.stderr
        assert done.returncode == 1
        assert "tensors.safetensors" in done.stderr
        assert "unpickled" not in done.stderr


def wrong(command, text, *words, file="trainhooks.toml"):
    """Run a training with a configuration and return what it said with exit code 2, having left no run folder."""
    (command.folder / file).write_text(text, encoding="utf-8")
    code, out, err = command("train", "--set", "max_epochs=1", *words)
    assert code == 2, (out, err)
    assert not (command.folder / "runs").exists()
    return err


class TestSE04:
    """Code execution through configuration."""

    @pytest.mark.parametrize("file", ["trainhooks.toml", "pyproject.toml"])
    def test_se_04_yaml_tags(self, command, marker, file):
        for tag in ("!!python/object/apply:os.system", "!!python/object/new:os.system", "!!python/name:os.system", "!exec"):
            assert file in wrong(command, f'{tag} ["touch {marker}"]\n', file=file)
            assert file in wrong(command, f'train: {tag} ["touch {marker}"]\n', file=file)
            assert file in wrong(command, f'[train]\nseed = {tag} ["touch {marker}"]\n', file=file)

    def test_se_04_yaml_and_json_and_python_files_are_not_read(self, command, marker):
        for name in (
            "trainhooks.yaml",
            "trainhooks.yml",
            "config.yaml",
            "trainhooks.json",
            "trainhooks.py",
            "config.py",
            "setup.cfg",
        ):
            (command.folder / name).write_text(f"import os; os.system('touch {marker}')\n!!python/object/apply:os.system [x]\n")
        code, _, err = command("train", "--set", "max_epochs=1")
        assert code == 0, err

    @pytest.mark.parametrize("key", ["_target_", "__class__", "class_path", "target", "type", "_partial_", "py/object", "$ref"])
    def test_se_04_keys_that_mean_code_elsewhere(self, command, marker, key):
        value = f'"os.system"\n_args_ = ["touch {marker}"]'
        assert f"unknown key {key!r}" in wrong(command, f'"{key}" = {value}\n')
        assert f"unknown option {key!r}" in wrong(command, f'[train]\n"{key}" = {value}\n')
        assert f"unknown option {key!r}" in wrong(command, f'[plugins.lr]\n"{key}" = {value}\n')
        table = f'{{"{key}" = "os.system", args = ["touch {marker}"]}}'
        assert "trainhooks.toml:2" in wrong(command, f"[plugins.checkpoint]\nkeep = {table}\n")
        assert "-o checkpoint.keep" in wrong(command, "", "-o", f"checkpoint.keep={table}")

    @pytest.mark.parametrize(
        "name",
        [
            "os",
            "os:system",
            "os.system",
            "evil",
            "evil:Plugin",
            "sub.evil",
            "sub.evil:Plugin",
            "./evil.py",
            "evil.py",
        ],
    )
    @pytest.mark.parametrize("how", ["enable = [{}]", "[plugins.{}]\nx = 1", "[plugins.{}]", "autoload = [{}]\n[plugins.{}]"])
    def test_se_04_a_file_names_installed_plugins_only(self, command, marker, name, how):
        (command.folder / "sub").mkdir()
        for path in ("evil.py", "sub/evil.py", "sub/__init__.py"):
            (command.folder / path).write_text(f"open({str(marker)!r}, 'w').close()\nclass Plugin: pass\n")
        said = wrong(command, how.format(*[f'"{name}"'] * 2) + "\n")
        assert f"{name!r}" in said
        assert "trainhooks.toml" in said

    def test_se_04_code_that_the_command_line_names_may_be_configured_by_a_file(self, command, monkeypatch):
        (command.folder / "mine.py").write_text(
            "from trainhooks import hookimpl\n"
            "class Say:\n"
            "    def __init__(self, word='nothing'):\n        self.word = word\n"
            "    @hookimpl\n    def before_train(self):\n        print('it says', self.word)\n"
        )
        (command.folder / "trainhooks.toml").write_text('[plugins."mine:Say"]\nword = "hello"\n')
        code, out, err = command("train", "--set", "max_epochs=1", "-p", "mine:Say")
        assert code == 0, err
        assert "it says hello" in out
        sys.modules.pop("mine")
        monkeypatch.setenv("TRAINHOOKS_PLUGINS", "mine:Say")  # the user's own, as the command line is
        code, out, err = command("train", "--set", "max_epochs=1")
        assert code == 0, err
        assert "it says hello" in out
        sys.modules.pop("mine")

    def test_se_04_nothing_is_expanded(self, command, marker, monkeypatch):
        """Neither variables nor ``~`` nor commands; so nothing is recursive either."""
        monkeypatch.setenv("WHERE", "${HOME}/elsewhere")
        for number, text in enumerate(
            ("${WHERE}", "$WHERE", "~", "${env:WHERE}", f"$(touch {shlex.quote(marker.name)})", "{seed}", "%(x)s")
        ):
            (command.folder / "trainhooks.toml").write_text(f"[train]\nwork_dir = 'out{number}/{text}'\nname = '{text}'\n")
            code, _, err = command("train", "--set", "max_epochs=1")
            assert code == 0, err
            assert (command.folder / f"out{number}" / text / "run.json").is_file()
        assert "seed" in wrong(command, '[train]\nseed = "${SEED}"\n')
        assert "seed" in wrong(command, '[train]\nseed = "1 + 1"\n')

    @pytest.mark.parametrize(
        "text", ["__import__('os').system('x')", "lambda: 1", "os.system", "!!python/name:os.system", "{{7*7}}"]
    )
    def test_se_04_text_is_never_evaluated(self, command, text):
        for option in ("max_epochs", "max_steps", "seed", "log_every_steps", "device"):
            said = wrong(command, f'[train]\n{option} = "{text}"\n') if option != "max_epochs" else text
            assert text in said
        for option in ("lr.warmup_updates", "checkpoint.keep", "checkpoint.best_mode", "amp.dtype", "early_stopping.patience"):
            plugin, _, name = option.partition(".")
            assert plugin in wrong(command, f'[plugins.{plugin}]\n{name} = "{text}"\n')


class TestSE06:
    """Code picked up from the current folder."""

    @pytest.fixture
    def trap(self, tmp_path, marker, place, hostile):
        """Return a folder in which every file that could be imported makes the marker, and a run folder full of them."""
        place.plant(hostile.Case("nothing", lambda _here: None))
        folder = tmp_path / "trap"
        folder.mkdir()
        code = f"open({str(marker)!r}, 'w').close()\nraise SystemExit('imported ' + __name__)\n"
        names = (
            "hooks",
            "conftest",
            "sitecustomize",
            "usercustomize",
            "torch",
            "click",
            "pluggy",
            "safetensors",
            "numpy",
            "trainhooks",
        )
        for where in (folder, place.run, place.run / "checkpoints"):
            for name in (*names, "trainhooks_builtins", "json", "logging", "importlib_metadata", "trainconf", "evil"):
                (where / f"{name}.py").write_text(code)
            (where / "trainhooks.toml").write_text('enable = ["evil:Plugin", "hooks"]\n')
            (where / "pyproject.toml").write_text(
                '[tool.trainhooks]\nenable = ["evil:Plugin"]\n[tool.trainhooks.plugins."hooks:X"]\n'
            )
            (where / ".env").write_text("TRAINHOOKS_PLUGINS=evil:Plugin\nPYTHONSTARTUP=evil.py\n")
        return folder

    def said(self, words, folder):
        done = subprocess.run([SCRIPT, *words], capture_output=True, text=True, check=False, cwd=folder)
        return done.returncode, done.stdout + done.stderr

    @pytest.fixture
    def said_by_each(self, tmp_path):
        """Return a function that gives exit code and output of several command lines, one after the other in a new process."""
        program = tmp_path / "program" / "commands.py"  # whose folder Python looks in, as in that of the script
        program.parent.mkdir()
        program.write_text(
            "import contextlib, io, json, logging, sys\n"
            "from trainhooks.cli import main\n"
            "ended = []\n"
            "for words in json.loads(sys.argv[1]):\n"
            "    logging.getLogger('trainhooks').handlers = []\n"
            "    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):\n"
            "        try:\n            main(words)\n"
            "        except SystemExit as left:\n            ended.append([left.code, said.getvalue()])\n"
            "print(json.dumps(ended))\n"
        )

        def run(commands, folder):
            command = [sys.executable, program, json.dumps(commands)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
            assert done.returncode == 0, done.stderr
            ended = json.loads(done.stdout)
            assert len(ended) == len(commands)
            return ended

        return run

    @pytest.mark.parametrize(
        "words",
        [
            ["--help"],
            ["--version"],
            ["train", "--help"],
            ["plugins"],
            ["plugins", "--json"],
            ["plugins", "--options", "lr"],
            ["hooks"],
            ["runs"],
            ["runs", "RUN"],
            ["checkpoints", "--help"],
            ["checkpoints", "list", "RUN"],
            ["checkpoints", "verify", "RUN"],
        ],
    )
    def test_se_06_help_and_lists_import_nothing_of_the_folder(self, trap, place, words):
        words = [str(place.run) if word == "RUN" else word for word in words]
        code, said = self.said(words, trap)
        assert code == 0 or (code == 2 and words == ["runs"]), said  # where there are no runs
        assert "imported" not in said
        code, said = self.said(words, place.run)
        assert code == 0 or (code == 2 and words == ["runs"]), said
        assert "imported" not in said

    def test_se_06_what_is_run_is_the_project_that_was_named(self, trap, place, said_by_each):
        """From within the trap; modules beside the project file are found last, so that none is taken for a dependency."""
        evaluate = ["evaluate", str(place.project), "--checkpoint", str(place.run), "--json"]
        code, said = self.said(evaluate, place.run)
        assert code == 0, said
        assert "imported" not in said
        away = ["--set", f"work_dir={trap / 'out'}", "--set", "max_steps=7"]
        train = ["train", str(place.project), *away, "--resume", str(place.newer)]
        evaluated, trained = said_by_each([evaluate, train], trap)
        assert evaluated[0] == 0, evaluated
        assert "imported" not in evaluated[1]
        assert trained[0] == 0, trained
        assert "at step 6" in trained[1]

    def test_se_06_a_project_beside_modules_named_like_dependencies(self, trap, place):
        """``trainhooks train`` runs the project file of its folder, as ``make`` does, and nothing else of it."""
        (trap / "trainconf.py").write_text((place.project / "trainconf.py").read_text())
        (trap / "trainhooks.toml").unlink()
        (trap / "pyproject.toml").unlink()
        code, said = self.said(["train", "--set", "max_steps=1", "--set", "work_dir=out"], trap)
        assert code == 0, said
        assert "imported" not in said

    def test_se_06_a_checkpoint_can_not_name_what_is_imported(self, hostile, trap, place, said_by_each, tmp_path):
        """With digests that fit: the lock of plugins, their states and the settings name code."""

        def named(word, copy):
            state = json.loads((place.newer / "state.json").read_bytes())
            lock = [{"name": word, "distribution": "evil", "version": "1", "options": {}, "module": word}]
            state.update(plugin_lock=lock, settings={"conf": "trainconf.py", "seed": None})
            state[f"plugins/{word}"] = {"__class__": word}
            shutil.copytree(place.run, copy.run)
            hostile.sealed_files(copy, {"state.json": json.dumps(state).encode()})
            return ["evaluate", str(place.project), "--checkpoint", str(copy.newer)]

        words = ("evil", "evil:Plugin", "trainconf", "hooks.py", "os:system")
        commands = [named(word, hostile.Place(tmp_path / f"names {word}")) for word in words]
        for word, (code, said) in zip(words, said_by_each(commands, place.run), strict=True):
            assert "imported" not in said, word
            assert code in (0, 1), said


class TestSE07:
    """Decompression bombs and absurd headers, each under 4 GB of address space, 500 MB of memory and 5 s."""

    @pytest.mark.parametrize(
        ("match", "named"),
        [
            ("zip bomb as checkpoints", None),
            ("sparse GB as checkpoints", None),
            ("nested a million times: checkpoints", None),
            ("10**6 entries: checkpoints", None),
            ("one number of 10 MB: checkpoints", None),
            ("10**6 tensors", "tensors.safetensors"),
            ("tensor of 2**60 values", "tensors.safetensors"),
            ("header of 2**62 bytes", "tensors.safetensors"),
            ("header that is deep", "tensors.safetensors"),
        ],
    )
    def test_se_07_refused_at_once_and_by_name(self, hostile, place, bombs, match, named):
        cases = [case for case in bombs if case.name.startswith(match)]
        assert cases
        for case in cases:
            file = named or case.name.rpartition("/")[2]
            results = hostile.try_case(place, case, ("evaluate", "verify", "resume", "resume auto"))
            assert [one["faults"] for one in results] == [[]] * 4, case.name
            digests_fit = case.name.endswith("sealed")  # so that verifying, which compares them, finds nothing
            assert [one["code"] for one in results] == [1, 0 if digests_fit else 1, 1, 0], case.name
            assert all(file in one["log"] for one in results if one["code"] or one["command"] == "resume auto"), (
                case.name,
                file,
            )
            assert "at step 3" in results[3]["log"]

    def test_se_07_names_that_leave_the_folder(self, hostile, place):
        cases = [case for case in hostile.named_cases(place) if case.name.startswith("the manifest lists")]
        assert len(cases) >= 10
        for case in cases:
            for one in hostile.try_case(place, case, ("evaluate", "verify")):
                assert (one["code"], one["faults"]) == (1, []), case.name
                assert "manifest.json" in one["log"]


def test_the_torch_of_this_test_has_the_fixes():
    """CVE-2025-32434 and CVE-2026-24747, for what a project file may load with it."""
    assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)
