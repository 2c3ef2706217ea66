"""Which plugins are found, in what state, and why; nothing is imported to tell."""

import sys
from pathlib import Path

import pytest

from trainhooks import PluginError, PluginNotFoundError, UsageError
from trainhooks.config import Config
from trainhooks.discovery import find_plugins, select, unmatched_blocks

SOURCE = "from trainhooks import hookimpl\nclass Plugin:\n    @hookimpl\n    def after_step(self): ...\n"


@pytest.fixture
def install(fake_distribution):
    def make(name, distribution=None, **arguments):
        distribution = distribution or f"dist-{name}"
        module = f"found_{distribution.replace('-', '_')}_{name}"
        return fake_distribution(distribution, {name: f"{module}:Plugin"}, {module: SOURCE}, **arguments)

    return make


def states(config=None, given=frozenset()):
    """Return name, distribution and state of everything that is no built-in."""
    records = select(find_plugins(), config or Config(), given)
    return {
        (one.name, one.found.distribution if one.found else None): one.state
        for one in records
        if one.found is None or not one.found.built_in or one.state == "shadowed"
    }


def configured(file="", python=(), environment=None, command_line=(), options=(), tmp_path=None):
    config = Config()
    if file:
        path = tmp_path / "trainhooks.toml"
        path.write_text(file)
        config.add_file(path)
    config.choose(python, "Trainer(plugins=[...])", 1)
    config.add_environment(environment or {})
    config.add_command_line(command_line, options)
    return config


#: What is said in each layer about plugin 'p', which is installed, and whether it takes part then.
PRECEDENCE = [
    ({}, "active"),
    ({"file": 'disable = ["p"]'}, "disabled"),
    ({"file": "autoload = false"}, "available"),
    ({"file": 'autoload = ["p"]'}, "active"),
    ({"file": 'autoload = ["q"]'}, "available"),
    ({"file": 'autoload = false\nenable = ["p"]'}, "active"),
    ({"file": "autoload = false\n[plugins.p]\nx = 1"}, "active"),
    ({"file": 'disable = ["p"]\n[plugins.p]\nx = 1'}, "disabled"),
    ({"file": 'disable = ["p"]', "python": ["p"]}, "active"),
    ({"file": 'enable = ["p"]', "python": ["no:p"]}, "disabled"),
    ({"file": 'disable = ["p"]', "environment": {"TRAINHOOKS_PLUGINS": "q, p"}}, "active"),
    ({"file": 'enable = ["p"]', "environment": {"TRAINHOOKS_PLUGINS": "no:p"}}, "disabled"),
    ({"python": ["p"], "environment": {"TRAINHOOKS_PLUGINS": "no:p"}}, "disabled"),
    ({"environment": {"TRAINHOOKS_DISABLE_AUTOLOAD": "1"}}, "available"),
    ({"environment": {"TRAINHOOKS_DISABLE_AUTOLOAD": "0"}}, "active"),
    ({"environment": {"TRAINHOOKS_DISABLE_AUTOLOAD": "1", "TRAINHOOKS_PLUGINS": "p"}}, "active"),
    ({"environment": {"TRAINHOOKS_PLUGINS": "no:p"}, "command_line": ["p"]}, "active"),
    ({"environment": {"TRAINHOOKS_PLUGINS": "p"}, "command_line": ["no:p"]}, "disabled"),
    ({"file": 'disable = ["p"]', "command_line": ["p"]}, "active"),
    ({"file": 'disable = ["p"]', "options": ["p.x=1"]}, "active"),
    ({"file": "[plugins.p]\nx = 1", "command_line": ["no:p"]}, "disabled"),
    ({"environment": {"TRAINHOOKS_DISABLE_AUTOLOAD": "1"}, "options": ["p.x=1"]}, "active"),
    ({"command_line": ["no:dist-p"]}, "disabled"),
    ({"command_line": ["no:found_dist_p_p:Plugin"]}, "disabled"),
]


@pytest.mark.parametrize(("layers", "state"), PRECEDENCE)
def test_command_line_before_environment_before_arguments_before_files(layers, state, install, tmp_path):
    install("p")
    install("q")
    assert states(configured(**layers, tmp_path=tmp_path))["p", "dist-p"] == state


def test_optional_plugins_take_part_only_when_named(install):
    install("p", group="trainhooks.optional")
    assert states()["p", "dist-p"] == "available"
    assert states(configured(command_line=["p"]))["p", "dist-p"] == "active"


def test_a_built_in_name_is_never_taken(install, make_trainer):
    install("timer", "impostor")
    found = states()
    assert found["timer", "impostor"] == "shadowed"
    trainer = make_trainer(["timer"])
    assert trainer.manager.plugins["timer"].distribution == "trainhooks"
    assert "found_impostor_timer" not in sys.modules


def test_two_distributions_with_one_name(install, make_trainer):
    install("p", "dist-b")
    install("p", "dist-a")
    assert states() == {("p", "dist-a"): "active", ("p", "dist-b"): "shadowed"}
    with pytest.raises(PluginError, match=r"'p' is provided by dist-a 1\.0 and dist-b 1\.0"):
        make_trainer(["p"])
    for word in ("no:dist-a", "no:found_dist_a_p:Plugin"):
        assert states(configured(command_line=[word])) == {("p", "dist-b"): "active", ("p", "dist-a"): "disabled"}
        trainer = make_trainer(["p", word])
        assert trainer.manager.plugins["p"].distribution == "dist-b"
    for word in ("no:dist-b", "no:found_dist_b_p:Plugin"):
        trainer = make_trainer(["p", word])
        assert trainer.manager.plugins["p"].distribution == "dist-a"
    assert "p" not in make_trainer(["no:p"], autoload=["p"]).plugins


def test_nothing_is_imported_to_list(install):
    install("p")
    install("q", group="trainhooks.optional")
    before = set(sys.modules)
    assert len(states()) == 2
    assert not {name for name in set(sys.modules) - before if name.startswith(("found_", "trainhooks_builtins"))}


def test_own_distribution_first_then_by_distribution_and_name(install):
    for name in ("z", "a"):
        install(name)
    found = [(one.distribution, one.name) for one in find_plugins()]
    own = [pair for pair in found if pair[0] == "trainhooks"]
    assert found[: len(own)] == sorted(own)
    assert found[len(own) :] == [("dist-a", "a"), ("dist-z", "z")]


def test_the_same_distribution_twice_on_the_path_is_found_once(install):
    install("p", folder="first", version="2.0")
    install("p", folder="second", version="1.0")  # in front of the first
    found = [one for one in find_plugins() if one.name == "p"]
    assert [(one.version, one.distribution) for one in found] == [("1.0", "dist-p")]


@pytest.mark.parametrize(
    ("file", "content"),
    [("METADATA", b""), ("METADATA", b"\xff\xfe"), ("METADATA", None), ("entry_points.txt", b"\xff\xfe nonsense")],
)
def test_broken_metadata_of_one_distribution_hide_no_other(file, content, install):
    place = install("bad")
    install("good")
    info = next(place.glob("*.dist-info"))
    if content is None:
        (info / file).unlink()
    else:
        (info / file).write_bytes(content)
    assert states()["good", "dist-good"] == "active"


def test_names_that_match_nothing(install):
    install("wandb")
    for config, origin in (
        (configured(command_line=["wandbb"]), "-p wandbb"),
        (configured(environment={"TRAINHOOKS_PLUGINS": "wandbb"}), "TRAINHOOKS_PLUGINS wandbb"),
        (configured(options=["wandbb.x=1"]), "-o wandbb.x=1"),
        (configured(command_line=["wandbb@2"]), "-p wandbb@2"),
    ):
        with pytest.raises(PluginNotFoundError) as caught:
            states(config)
        assert f"in {origin}" in str(caught.value)
        assert "did you mean 'wandb'?" in str(caught.value)
    config = configured(command_line=["no:wandbb", "no:wandb"])
    assert unmatched_blocks(find_plugins(), config, ()) == [
        "-p no:wandbb: no plugin is named 'wandbb', nothing was taken out; did you mean 'wandb'?"
    ]


@pytest.mark.parametrize(
    ("command_line", "options"),
    [
        (["p", "no:p"], []),
        (["no:p"], ["p.x=1"]),
        (["no:p", "p@2"], []),
    ],
)
def test_contradictions_on_one_command_line(command_line, options, install):
    install("p")
    with pytest.raises(UsageError, match="takes plugin 'p' out, but .* asks for it; drop one"):
        states(configured(command_line=command_line, options=options))


def test_contradictions_of_arguments(make_trainer):
    with pytest.raises(UsageError, match="takes plugin 'timer' out"):
        make_trainer(["timer", "no:timer"])


def test_second_instances(install, make_trainer, tmp_path):
    from trainhooks_builtins import Checkpoint

    trainer = make_trainer(
        options={"checkpoint": {"keep": 3}, "checkpoint@best": {"best": "val/loss", "keep": 1}, "evaluation": {}}
    )
    assert {"checkpoint", "checkpoint@best"} <= set(trainer.plugins)
    first, second = (trainer.plugins[name] for name in ("checkpoint", "checkpoint@best"))
    assert isinstance(second, Checkpoint)
    assert (first.keep, first.best, second.keep, second.best.metric) == (3, None, 1, "val/loss")
    assert {"plugins/checkpoint", "plugins/checkpoint@best"} <= set(trainer.stateful)


@pytest.mark.parametrize(
    ("layers", "active"),
    [
        ({"file": '[plugins."p@2"]\n'}, {"p", "p@2"}),
        ({"file": '[plugins."p@2"]\n', "command_line": ["no:p@2"]}, {"p"}),
        ({"file": '[plugins."p@2"]\n', "command_line": ["no:p"]}, set()),
        ({"file": 'disable = ["p"]', "command_line": ["p@2"]}, {"p@2"}),
        ({"file": 'disable = ["p@2"]\n[plugins."p@2"]\n'}, {"p"}),
    ],
)
def test_taking_out_second_instances(layers, active, install, tmp_path):
    install("p")
    found = states(configured(**layers, tmp_path=tmp_path))
    assert {name for (name, _), state in found.items() if state == "active"} == active


def test_code_that_is_not_installed(make_trainer, tmp_path, monkeypatch):
    (tmp_path / "loose_code.py").write_text(
        "from trainhooks import hookimpl\nclass Loose:\n    def __init__(self, level: int = 1):\n        self.level = level\n"
        "    @hookimpl\n    def after_step(self): ...\n"
    )
    monkeypatch.syspath_prepend(Path(tmp_path))
    trainer = make_trainer(["loose_code:Loose"], options={"loose_code:Loose": {"level": 7}})
    assert trainer.plugins["loose"].level == 7
    with pytest.raises(PluginError, match="'loose_code:Tight' cannot be imported: AttributeError"):
        make_trainer(["loose_code:Tight"])
    sys.modules.pop("loose_code")


def test_an_object_takes_the_place_of_the_installed_plugin_of_its_class(install, make_trainer):
    install("p")
    from importlib import import_module

    cls = import_module("found_dist_p_p").Plugin
    trainer = make_trainer([cls()], autoload=["p"])
    record = trainer.manager.plugins["p"]
    assert list(trainer.plugins) == ["p"]
    assert (record.source, record.distribution, record.version) == ("object", "dist-p", "1.0")


def test_requirements_of_a_plugin_that_was_taken_out(make_trainer):
    options = {"checkpoint": {"best": "val/loss"}}
    with pytest.raises(UsageError, match=r"'checkpoint' .* needs plugin 'evaluation', .*no:evaluation takes it out"):
        make_trainer(["no:evaluation"], options=options)


def test_failed_plugins_are_skipped_with_one_warning_each(fake_distribution, make_trainer, messages):
    for name in ("bad-a", "bad-b"):
        module = name.replace("-", "_")
        fake_distribution(f"dist-{name}", {name: f"{module}:Plugin"}, {module: "1 / 0\n"})
    with pytest.raises(PluginError) as caught:
        make_trainer(["bad-a", "bad-b"])
    for name in ("dist-bad-a 1.0", "dist-bad-b 1.0"):
        assert name in str(caught.value)
    trainer = make_trainer(["bad-a", "bad-b"], skip_failed=True)
    assert trainer.train().step == 10
    assert len([text for text in messages() if "going on without a broken plugin" in text]) == 2
    failed = {record.name: record.reason for record in trainer.plugin_records if record.state == "failed"}
    assert set(failed) == {"bad-a", "bad-b"}
    assert "ZeroDivisionError" in failed["bad-a"]


def test_one_module_under_two_names_takes_part_once(fake_distribution, make_trainer, messages):
    """PD-03; two names of a class are two plugins."""
    source = "from trainhooks import hookimpl\ncalls = []\n@hookimpl\ndef after_step():\n    calls.append(1)\n"
    fake_distribution("dist-double", {"first": "double_module", "second": "double_module"}, {"double_module": source})
    trainer = make_trainer(["first", "second"], max_steps=5)
    trainer.train()
    assert len(sys.modules["double_module"].calls) == 5
    assert list(trainer.plugins) == ["first"]
    said = "plugin 'second' (dist-double 1.0) is the same object as plugin 'first' (dist-double 1.0), under another name: it takes part once"
    assert said in messages()


@pytest.mark.parametrize("ends", ["raise BaseException('gone')", "import pytest; pytest.importorskip('nothing_of_that_name')"])
def test_a_module_that_leaves_its_import_by_no_exception_is_broken_like_others(fake_distribution, make_trainer, ends):
    fake_distribution("dist-leaves", {"leaves": "leaving_module"}, {"leaving_module": f"{ends}\n"})
    with pytest.raises(PluginError, match="'leaves' .*cannot be imported"):
        make_trainer(["leaves"])
    assert make_trainer(["leaves"], skip_failed=True).train().step == 10


def test_ctrl_c_in_an_import_is_no_fault_of_the_plugin(fake_distribution, make_trainer):
    fake_distribution("dist-waits", {"waits": "waiting_module"}, {"waiting_module": "raise KeyboardInterrupt\n"})
    with pytest.raises(KeyboardInterrupt):
        make_trainer(["waits"], skip_failed=True)
