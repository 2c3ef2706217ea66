"""PD: plugins that are found, broken, doubled, blocked, or written for something else."""

import os
import subprocess
import sys

import pytest

from trainhooks import PluginError, PluginImportError, PluginValidationError, Trainer, UsageError, hookimpl

COUNTS = """
import sys
from trainhooks import hookimpl
calls = vars(sys).setdefault("pd_calls", [])
class Plugin:
    def __init__(self, level: int = 1):
        self.level = level
    @hookimpl
    def after_step(self):
        calls.append(("{name}", self.level))
"""

TRAIN = ("train", "-p", "no:progress", "--set", "max_epochs=1")


@pytest.fixture
def install(fake_distribution):
    """Return a function that installs a distribution ``dist-NAME`` whose plugin NAME counts its calls in ``sys.pd_calls``."""

    def make(name, distribution=None, source=None, value=None, **arguments):
        module = f"pd_{(distribution or name).replace('-', '_')}"
        source = COUNTS.format(name=name) if source is None else source
        return fake_distribution(
            distribution or f"dist-{name}", {name: value or f"{module}:Plugin"}, {module: source}, **arguments
        )

    yield make
    vars(sys).pop("pd_calls", None)


@pytest.fixture
def three(install):
    install("good-a")
    install("broken", source="import a_module_that_is_missing\n", version="2.5")
    install("good-b")


def test_pd_01_a_broken_plugin_stops_the_run_and_says_everything(three, command):
    code, _, err = command(*TRAIN)
    assert code == 3
    for word in (
        "dist-broken 2.5",
        "'broken'",
        "pd_dist_broken",
        "pd_broken",
        "ModuleNotFoundError",
        "a_module_that_is_missing",
    ):
        assert word in err or word == "pd_dist_broken"
    assert "pd_broken.py" in err  # the frame of the original traceback
    assert "line 1, in <module>" in err
    assert "importlib" not in err
    assert "-p no:broken" in err
    assert sys.pd_calls == []
    assert not (command.folder / "runs").exists()


def test_pd_01_skipping_it_runs_the_others_with_one_warning(three, command):
    code, _, err = command(*TRAIN, "--skip-failed")
    assert code == 0
    assert sorted(sys.pd_calls) == [("good-a", 1)] * 5 + [("good-b", 1)] * 5
    assert err.count("going on without a broken plugin") == 1


def test_pd_01_commands_that_run_nothing_still_work(three, command):
    code, out, _ = command("plugins")
    assert code == 0
    assert "dist-broken" in out
    code, out, err = command("hooks", "after_step")
    assert code == 0
    assert "good-a" in out
    assert "dist-broken 2.5" in err
    assert command("--help")[0] == 0
    assert command("plugins", "--check")[0] == 1


@pytest.mark.parametrize("order", [("dist-x", "dist-y"), ("dist-y", "dist-x")])
def test_pd_02_two_distributions_with_one_name(order, install, command):
    install("zeta")
    for distribution in order:
        install("logger", distribution)
    code, _, err = command(*TRAIN)
    assert code == 3
    assert "'logger' is provided by dist-x 1.0 and dist-y 1.0; take one out with -p no:dist-x or -p no:dist-y" in err
    assert not (command.folder / "runs").exists()
    code, _, _ = command(*TRAIN, "-p", "no:dist-x")
    assert code == 0
    assert sorted(sys.pd_calls) == [("logger", 1)] * 5 + [("zeta", 1)] * 5
    assert "pd_dist_x" not in sys.modules
    code, out, _ = command("plugins")
    assert (code, out.count("logger")) == (0, 2)


def test_pd_03_one_plugin_through_four_channels_runs_once(install, command):
    install("plug")
    (command.folder / "trainhooks.toml").write_text('enable = ["plug"]\n[plugins.plug]\nlevel = 3\n')
    code, _, err = command(*TRAIN, "-p", "plug", "-p", "plug", "-p", "pd_plug:Plugin")
    assert code == 0, err
    assert sys.pd_calls == [("plug", 3)] * 5


def test_pd_03_contradicting_settings_name_both_places(install, command):
    install("plug")
    code, _, err = command(*TRAIN, "-o", "plug.level=2", "-o", "plug.level=3")
    assert code == 2
    assert "-o plug.level=2 and -o plug.level=3 contradict each other" in err
    code, _, err = command(*TRAIN, "-o", "plug.level=2", "-p", "no:plug")
    assert code == 2
    assert "-o plug.level=2" in err
    assert "-p no:plug" in err
    (command.folder / "trainhooks.toml").write_text("[plugins.plug]\nlevel = 4\n")
    conf = command.conf + "\nfrom pd_plug import Plugin\nplugins = [Plugin(level=5)]\n"
    code, _, err = command(*TRAIN, conf=conf)
    assert code == 2
    assert "was built by hand" in err
    assert "trainhooks.toml:2" in err
    assert not (command.folder / "runs").exists()


def test_pd_03_one_object_that_is_listed_twice_is_registered_once(make_trainer):
    calls = []

    class Plug:
        @hookimpl
        def after_step(self):
            calls.append(1)

    plug = Plug()
    make_trainer([plug, plug], values=(1.0,) * 5).train()
    assert len(calls) == 5


@pytest.mark.parametrize("channel", ["command line", "file", "environment", "argument"])
def test_pd_06_without_autoload_only_what_is_named_is_imported(channel, install, command, make_trainer, monkeypatch):
    for name in ("one", "two", "three"):
        install(name)
    if channel == "file":
        (command.folder / "trainhooks.toml").write_text('autoload = false\nenable = ["two"]\n')
        assert command(*TRAIN)[0] == 0
    elif channel == "environment":
        monkeypatch.setenv("TRAINHOOKS_DISABLE_AUTOLOAD", "1")
        monkeypatch.setenv("TRAINHOOKS_PLUGINS", "two")
        make_trainer(values=(1.0,) * 5, autoload=True).train()
    elif channel == "argument":
        make_trainer(["two"], values=(1.0,) * 5).train()
    else:
        monkeypatch.setenv("TRAINHOOKS_DISABLE_AUTOLOAD", "1")
        assert command(*TRAIN, "-p", "two")[0] == 0
    assert sys.pd_calls == [("two", 1)] * 5
    assert "pd_one" not in sys.modules
    assert "pd_three" not in sys.modules


@pytest.mark.parametrize("channel", ["command line", "file", "environment"])
def test_pd_06_a_blocked_plugin_is_never_imported(channel, install, command, monkeypatch):
    for name in ("one", "two"):
        install(name)
    arguments = TRAIN
    if channel == "file":
        (command.folder / "trainhooks.toml").write_text('disable = ["one"]\n')
    elif channel == "environment":
        monkeypatch.setenv("TRAINHOOKS_PLUGINS", "no:one")
    else:
        arguments = (*TRAIN, "-p", "no:one")
    assert command(*arguments)[0] == 0
    assert sys.pd_calls == [("two", 1)] * 5
    assert "pd_one" not in sys.modules


@pytest.mark.parametrize("channel", ["command line", "environment"])
def test_pd_06_a_misspelt_block_is_reported(channel, install, command, monkeypatch):
    install("wandlog")
    arguments = TRAIN
    if channel == "environment":
        monkeypatch.setenv("TRAINHOOKS_PLUGINS", "no:wandlgo")
    else:
        arguments = (*TRAIN, "-p", "no:wandlgo")
    code, _, err = command(*arguments)
    assert code == 0
    assert "no plugin is named 'wandlgo', nothing was taken out; did you mean 'wandlog'?" in err


def test_pd_06_in_a_process_of_its_own(install, tmp_path, command):
    """Nothing but the named plugin is in ``sys.modules`` of a fresh interpreter."""
    places = [install(name) for name in ("one", "two")]
    (command.folder / "trainconf.py").write_text(command.conf)
    script = "import sys\nfrom trainhooks.cli import main\ntry:\n    main()\nfinally:\n    print(*sorted(m for m in sys.modules if m.startswith('pd_')))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places)), "TRAINHOOKS_PLUGINS": "no:one"}
    done = subprocess.run(
        [sys.executable, "-c", script, *TRAIN], capture_output=True, text=True, env=environment, cwd=command.folder, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "pd_two"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-p", "no:checkpoint", "--resume", "auto"), ("resume='auto'", "-p no:checkpoint")),
        (("-p", "no:lr", "-o", "lr.warmup_updates=5"), ("-o lr.warmup_updates=5", "-p no:lr")),
        (("-p", "no:evaluation", "-o", "checkpoint.best=val/loss"), ("-o checkpoint.best=val/loss", "-p no:evaluation")),
    ],
)
def test_pd_07_what_a_blocked_plugin_was_needed_for_is_refused(arguments, words, command):
    """Early stopping is a later issue's; the checkpoint's ``best`` needs the evaluation in the same way."""
    code, _, err = command(*TRAIN, *arguments)
    assert code == 2
    for word in words:
        assert word in err
    assert not (command.folder / "runs").exists()


def test_pd_07_any_plugin_can_say_what_it_needs(make_trainer):
    class EarlyStopping:
        requires = ("evaluation",)

        @hookimpl
        def after_eval(self):
            pass

    with pytest.raises(UsageError, match=r"'early_stopping'.* needs plugin 'evaluation'.*no:evaluation"):
        make_trainer([EarlyStopping(), "no:evaluation"], autoload=True)


def test_pd_09_every_wrong_argument_is_reported_at_the_start(install, command):
    install(
        "old",
        source="from trainhooks import hookimpl\nclass Plugin:\n    @hookimpl\n    def after_train(self, runner): ...\n"
        "    @hookimpl\n    def after_step(self, trainer, bacth): ...\n",
        version="0.3.1",
    )
    code, _, err = command(*TRAIN)
    assert code == 3
    assert "plugin 'old' (dist-old 0.3.1)" in err
    assert "after_train()" in err
    assert "the hook has no argument 'runner'" in err
    assert "; it has trainer" in err
    assert "the hook has no argument 'bacth'; it has trainer, batch, output; did you mean 'batch'?" in err
    assert not (command.folder / "runs").exists()


FUNCTIONS = """
import sys
from trainhooks import hookimpl
@hookimpl
def after_step():
    vars(sys).setdefault("pd_calls", []).append(("fine", 1))
"""

KINDS = {
    "a hook": (
        "from trainhooks import hookimpl\n@hookimpl\ndef after_step(trainer): ...\n",
        "pd_odd:after_step",
        "is one hook",
    ),
    "a function that gives nothing": ("def make(): ...\n", "pd_odd:make", "None is no plugin"),
    "None": ("nothing = None\n", "pd_odd:nothing", "None is no plugin"),
    "a string": ("text = 'x'\n", "pd_odd:text", "'x' is no plugin"),
    "no such module": ("", "pd_odd.sub:Plugin", "cannot be imported"),
    "no such attribute": ("", "pd_odd:Plugin", "cannot be imported"),
    "a class of another library": (
        "class Plugin:\n    def on_epoch_end(self, logs): ...\n",
        "pd_odd:Plugin",
        "implements no hook",
    ),
    "a module without hooks": ("x = 1\n", "pd_odd", "implements no hook"),
    "a class that cannot be built": ("class Plugin:\n    def __init__(self): 1 / 0\n", "pd_odd:Plugin", "ZeroDivisionError"),
    "a wrong type inside": ("class Plugin:\n    def __init__(self): len(3)\n", "pd_odd:Plugin", "cannot be built: TypeError"),
    "it exits": ("raise SystemExit(0)\n", "pd_odd:Plugin", "SystemExit"),
    "it exits when built": ("class Plugin:\n    def __init__(self): raise SystemExit(0)\n", "pd_odd:Plugin", "SystemExit"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_pd_09_an_entry_point_to_something_else(kind, install, make_trainer):
    source, value, text = KINDS[kind]
    install("odd", source=source, value=value, version="0.3.1")
    with pytest.raises(PluginError) as caught:
        make_trainer(["odd"])
    assert "plugin 'odd' (dist-odd 0.3.1)" in str(caught.value)
    assert text in str(caught.value)
    assert isinstance(caught.value, PluginImportError | PluginValidationError)


@pytest.mark.parametrize(
    ("value", "source"),
    [
        ("pd_fine:Plugin", COUNTS.format(name="fine")),
        ("pd_fine:made", COUNTS.format(name="fine") + "\nmade = Plugin(level=1)\n"),
        ("pd_fine:make", COUNTS.format(name="fine") + "\ndef make(level: int = 1):\n    return Plugin(level)\n"),
        ("pd_fine", FUNCTIONS),
    ],
)
def test_pd_09_class_instance_factory_and_module_are_all_fine(value, source, install, make_trainer):
    install("fine", source=source, value=value)
    make_trainer(["fine"], values=(1.0,) * 5).train()
    assert sys.pd_calls == [("fine", 1)] * 5


def test_pd_09_a_bad_hook_signature_of_an_object_is_reported_before_anything_runs():
    class Old:
        @hookimpl
        def after_train(self, runner):
            pass

    with pytest.raises(PluginValidationError, match="no argument 'runner'"):
        Trainer(plugins=[Old()], max_steps=1, autoload=False)
