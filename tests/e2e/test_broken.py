"""Installed plugins that are broken, each in a way of its own: seen, refused before anything is made, left out on request."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

BROKEN = Path(__file__).parents[1] / "data/broken"

#: Folder, name of the plugin, distribution, module, exit code of a run, and what its message must say.
CASES = {
    "import_error": ("imports", "broken-import", "broken_import", 3, "No module named 'a_dependency_that_is_not_installed'"),
    "missing_attribute": ("attribute", "broken-attribute", "broken_attribute", 3, "has no attribute 'Plugin'"),
    "syntax_error": ("syntax", "broken-syntax", "broken_syntax", 3, "SyntaxError: expected ':' (broken_syntax.py, line 1)"),
    "exits": ("exits", "broken-exit", "broken_exit", 3, "SystemExit: 0"),
    "none": ("none", "broken-none", "broken_none", 3, "None is no plugin"),
    "factory_gives_none": ("factory", "broken-factory", "broken_factory", 3, "None is no plugin"),
    "wrong_hook": ("hook", "broken-hook", "broken_hook", 3, "there is no such hook; did you mean 'after_step'?"),
    "wrong_argument": ("argument", "broken-argument", "broken_argument", 3, "the hook has no argument 'runner'"),
    "unmarked": ("unmarked", "broken-mark", "broken_mark", 3, "has a hook's name but no @hookimpl"),
    "generator": ("generator", "broken-generator", "broken_generator", 3, "yields but is not marked @hookimpl(wrapper=True)"),
    "missing_option": ("wanting", "broken-option", "broken_option", 2, "option 'project' is missing and has no default"),
}

#: Faults that nothing but building the plugin with its options can show.
NEEDS_BUILDING = {"factory_gives_none"}


def install(monkeypatch, folder, *modules):
    """Put a folder of distributions on the path, as if pip had installed them."""
    for module in modules:
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(BROKEN / folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    importlib.invalidate_caches()


@pytest.fixture(params=CASES)
def broken(request, monkeypatch, project, cli):
    """Return one broken plugin, installed."""
    name, distribution, module, code, fault = CASES[request.param]
    install(monkeypatch, request.param, module)
    yield SimpleNamespace(case=request.param, name=name, distribution=distribution, module=module, exit_code=code, fault=fault)
    sys.modules.pop(module, None)


def states(cli, *words, expect=0):
    rows = json.loads(cli("plugins", "--json", *words, expect=expect).out)
    return {(row["name"], row["distribution"]): row["state"] for row in rows}


def trained(run):
    """Return the weight's number of updates, which the last line of output names."""
    return json.loads(run.out.splitlines()[-1])["update"]


def test_help_and_lists_still_work(broken, cli):
    assert "Commands:" in cli("--help").out
    assert states(cli)[broken.name, broken.distribution] == "active"  # by what is known without importing it
    assert broken.module not in sys.modules
    assert "before_train" in cli("hooks").out
    shown = cli("hooks", "after_step")
    assert f"not shown: plugin {broken.name!r} ({broken.distribution} 1.0): " in shown.err
    assert f"  {broken.name}  (" not in shown.out
    assert "progress  (trainhooks " in shown.out  # the others are not hidden by it


def test_check_finds_it(broken, cli):
    if broken.case in NEEDS_BUILDING:
        assert states(cli, "--check")[broken.name, broken.distribution] == "active"
        return
    checked = cli("plugins", "--check", expect=1)
    (line,) = [line for line in checked.out.splitlines() if line.startswith(f"{broken.name} ")]
    assert line.split()[1] == "failed"
    assert {"none": "None implements no hook"}.get(broken.case, broken.fault) in line
    assert [state for (name, _), state in states(cli, "--check", expect=1).items() if name == "progress"] == ["active"]


def test_a_run_refuses_before_anything_is_made(broken, cli, tree):
    before = tree()
    refused = cli("train", "--set", "work_dir=out", expect=broken.exit_code)
    assert f"plugin {broken.name!r} ({broken.distribution} 1.0)" in refused.err
    assert broken.fault in refused.err
    assert f"-p no:{broken.name}" in refused.err
    assert "trainhooks/cli" not in refused.err  # no frames of ours
    assert tree() == before


def test_it_can_be_taken_out_and_is_not_imported(broken, cli):
    sys.modules.pop(broken.module, None)
    run = cli("train", "-p", f"no:{broken.name}", "--json")
    assert trained(run) == 3
    assert broken.module not in sys.modules
    assert states(cli, "-p", f"no:{broken.name}")[broken.name, broken.distribution] == "disabled"


def test_skip_failed_goes_on_with_one_warning(broken, cli):
    if broken.exit_code == 2:  # a plugin that lacks an option is not broken; the run that does not give it is wrong
        cli("train", "--skip-failed", expect=2)
        assert trained(cli("train", "-o", f"{broken.name}.project=digits", "--json")) == 3
        return
    run = cli("train", "--skip-failed", "--json")
    assert trained(run) == 3
    assert run.err.count("going on without a broken plugin") == 1
    assert run.err.count(broken.distribution) >= 1


def test_the_arguments_that_there_are_are_listed(monkeypatch, project, cli):
    """PD-09: an unknown argument is reported with the hook, its place, and the list of valid ones."""
    install(monkeypatch, "wrong_argument", "broken_argument")
    err = cli("train", expect=3).err
    assert f"after_train() in {BROKEN}/wrong_argument/broken_argument.py:5: the hook has no argument 'runner'" in err
    assert "it has trainer" in err


def test_the_traceback_of_a_failed_import_is_shown(monkeypatch, project, cli):
    """PD-01: the message has the original traceback, from the plugin's own code on."""
    install(monkeypatch, "import_error", "broken_import")
    err = cli("train", expect=3).err
    assert f'File "{BROKEN}/import_error/broken_import.py", line 1' in err
    assert err.count('  File "') == 1
    assert "\ntrainhooks: plugin 'imports' (broken-import 1.0): entry point 'imports' = 'broken_import:Plugin'" in f"\n{err}"
    assert "pip install --force-reinstall broken-import" in err


def test_a_syntax_error_is_shown_with_its_line(monkeypatch, project, cli):
    install(monkeypatch, "syntax_error", "broken_syntax")
    err = cli("train", expect=3).err
    assert f'File "{BROKEN}/syntax_error/broken_syntax.py", line 1\n    class Plugin\n' in err


@pytest.mark.parametrize("first", ["x", "y"])
def test_two_distributions_with_one_name(first, monkeypatch, project, cli, tree, tmp_path):
    """PD-02: the same for both orders of the path; both are named, and either can be taken out."""
    modules = ("twin_x", "twin_y")
    install(monkeypatch, "duplicate", *modules)
    for one in "xy" if first == "y" else "yx":  # the one that is put in front last is found first
        place = tmp_path / one
        place.mkdir()
        (place / f"twin_{one}.py").symlink_to(BROKEN / f"duplicate/twin_{one}.py")
        (place / f"twin_{one}-1.0.dist-info").symlink_to(BROKEN / f"duplicate/twin_{one}-1.0.dist-info")
        monkeypatch.syspath_prepend(place)
    sys.path.remove(str(BROKEN / "duplicate"))
    before = tree()
    assert states(cli) | {("twin", "twin-x"): "conflict", ("twin", "twin-y"): "shadowed"} == states(cli)
    assert "Commands:" in cli("--help").out
    refused = cli("train", expect=3).err
    for one in "xy":
        assert f"twin-{one} 1.0" in refused
        assert f"-p no:twin-{one}" in refused
    shown = cli("hooks", "after_step")
    assert "twin-x 1.0 and twin-y 1.0" in shown.err
    assert "progress  (trainhooks " in shown.out
    assert tree() == before
    assert {*modules} & {*sys.modules} == set()
    assert trained(cli("train", "-p", "no:twin-x", "--json")) == 3
    assert {*modules} & {*sys.modules} == {"twin_y"}
    monkeypatch.delitem(sys.modules, "twin_y")
    assert trained(cli("train", "-p", "no:twin", "--json")) == 3
    assert {*modules} & {*sys.modules} == set()


def test_the_name_of_a_builtin_is_reserved(monkeypatch, project, cli):
    install(monkeypatch, "shadows_a_builtin", "broken_shadow")
    found = states(cli)
    assert (found["checkpoint", "trainhooks"], found["checkpoint", "broken-shadow"]) == ("active", "shadowed")
    (reason,) = [row["reason"] for row in json.loads(cli("plugins", "--json").out) if row["distribution"] == "broken-shadow"]
    assert "'checkpoint' is the name of a built-in plugin of trainhooks" in reason
    assert cli("plugins", "--check").out.count("shadowed") == 1
    run = cli("train", "--json")
    assert "broken_shadow" not in sys.modules
    assert (Path(json.loads(run.out.splitlines()[-1])["checkpoint"]) / "manifest.json").is_file()  # the built-in one wrote it
    order = json.loads(cli("hooks", "save_checkpoint", "--json").out)["implementations"]
    assert [one["distribution"] for one in order if one["plugin"] == "checkpoint"] == ["trainhooks"]


def test_all_broken_ones_are_named_at_once(monkeypatch, project, cli, tree):
    wrong = ("import_error", "none", "wrong_hook")
    for case in wrong:
        install(monkeypatch, case, CASES[case][2])
    before = tree()
    err = cli("train", expect=3).err
    for case in wrong:
        name, distribution, _, _, fault = CASES[case]
        assert f"plugin {name!r} ({distribution} 1.0)" in err
        assert fault in err
    assert tree() == before
    run = cli("train", "--skip-failed", "--json")
    assert run.err.count("going on without a broken plugin") == 3
    assert trained(run) == 3


@pytest.mark.slow
@pytest.mark.parametrize("case", ["import_error", "exits"])
def test_in_a_process_of_its_own(case, project):
    name, distribution, _, code, fault = CASES[case]
    environment = {**os.environ, "PYTHONPATH": str(BROKEN / case), "PYTHONDONTWRITEBYTECODE": "1"}
    script = str(Path(sys.executable).with_name("trainhooks"))

    def run(*words):
        return subprocess.run([script, *words], env=environment, capture_output=True, text=True, check=False)

    listed = run("plugins", "--json")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert distribution in [row["distribution"] for row in json.loads(listed.stdout)]
    refused = run("train")
    assert (refused.returncode, refused.stdout) == (code, "")
    assert f"plugin {name!r} ({distribution} 1.0)" in refused.stderr
    assert fault in refused.stderr
    assert [path.name for path in project.iterdir()] == ["trainconf.py"]
    assert run("train", "-p", f"no:{name}", "--json").returncode == 0
