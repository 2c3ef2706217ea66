"""The layers of settings, and where each value came from."""

import pytest

from trainhooks import OptionError, UsageError
from trainhooks.config import COMMAND_LINE, ENVIRONMENT, FILE, PYTHON, Config

PYPROJECT = """\
[project]
name = "mine"

[tool.trainhooks]
enable = ["ema"]
disable = [
    "timer",
]
autoload = ["wandb"]

[tool.trainhooks.train]
max_epochs = 3
"seed" = 1

[tool.trainhooks.plugins.lr]
base = 0.1

[tool.trainhooks.plugins."checkpoint@best"]
best = "val/loss"
"""


def test_a_pyproject_with_the_line_of_each_value(tmp_path):
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    config = Config.read(tmp_path)
    assert {name: (one.value, one.origin) for name, one in config.settings.items()} == {
        "max_epochs": (3, "[tool.trainhooks.train] of pyproject.toml:12"),
        "seed": (1, "[tool.trainhooks.train] of pyproject.toml:13"),
    }
    assert (config.autoload.value, config.autoload.origin) == (["wandb"], "[tool.trainhooks] of pyproject.toml:9")
    assert {
        name: {key: (one.value, one.origin) for key, one in options.items()} for name, options in config.plugins.items()
    } == {
        "lr": {"base": (0.1, "[tool.trainhooks.plugins.lr] of pyproject.toml:16")},
        "checkpoint@best": {"best": ("val/loss", '[tool.trainhooks.plugins."checkpoint@best"] of pyproject.toml:19')},
    }
    assert [(one.name, one.wanted) for one in config.choices if one.strength == FILE] == [("ema", True), ("timer", False)]
    assert [one.name for one in config.choices if one.strength == FILE - 1] == ["lr", "checkpoint@best"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plugins.lr.base = 1\n", 1),
        ("\n[plugins]\nlr.base = 1\n", 3),
        ("\n[plugins]\n\nlr = {base = 1}\n", 4),
        ("[plugins.lr]\n# base = 3\nbase = 1\n", 3),
        ("[plugins.other]\nbase = 3\n[plugins.lr]\n  base=1\n", 4),
        ("[plugins.'lr']\n'base' = 1\n", 2),
        ("[ plugins . lr ]\nbase = 1\n", 2),
    ],
)
def test_the_line_is_found_however_it_is_written(text, line, tmp_path):
    (tmp_path / "trainhooks.toml").write_text(text)
    given = Config.read(tmp_path).plugins["lr"]["base"]
    assert given.value == 1
    assert given.origin == f"[plugins.lr] of trainhooks.toml:{line}"


def test_trainhooks_toml_is_stronger_than_pyproject(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        "[tool.trainhooks.train]\nseed = 1\nmax_steps = 7\n[tool.trainhooks]\nautoload = false\n"
    )
    (tmp_path / "trainhooks.toml").write_text("autoload = true\n[train]\nseed = 2\n")
    config = Config.read(tmp_path)
    assert {name: one.value for name, one in config.settings.items()} == {"seed": 2, "max_steps": 7}
    assert config.autoload.value is True


def test_a_pyproject_of_something_else_says_nothing(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n[tool.ruff]\nline-length = 3\n")
    config = Config.read(tmp_path)
    assert (config.settings, config.plugins, config.choices) == ({}, {}, [])


#: The same setting in each layer; the strongest that is given counts.
LAYERS = ("pyproject.toml", "trainhooks.toml", "argument", "command line")


@pytest.mark.parametrize("given", [LAYERS[: n + 1] for n in range(4)] + [LAYERS[:1] + LAYERS[2:3], LAYERS[1:2] + LAYERS[3:]])
def test_the_strongest_layer_counts(given, tmp_path):
    values = dict(zip(LAYERS, (1, 2, 3, 4), strict=True))
    if "pyproject.toml" in given:
        (tmp_path / "pyproject.toml").write_text("[tool.trainhooks.train]\nseed = 1\n[tool.trainhooks.plugins.lr]\nbase = 1\n")
    if "trainhooks.toml" in given:
        (tmp_path / "trainhooks.toml").write_text("[train]\nseed = 2\n[plugins.lr]\nbase = 2\n")
    config = Config.read(tmp_path)
    if "argument" in given:
        config.add_python({"seed": 3, "name": None}, {"lr": {"base": 3}})
    if "command line" in given:
        config.add_command_line([], ["lr.base=4"], ["seed=4"])
    assert config.settings["seed"].value == config.plugins["lr"]["base"].value == values[given[-1]]
    assert "name" not in config.settings


def test_options_of_one_plugin_are_merged_across_layers(tmp_path):
    (tmp_path / "trainhooks.toml").write_text("[plugins.lr]\nbase = 1\nend = 2\n")
    config = Config.read(tmp_path)
    config.add_command_line([], ["lr.end=3", "lr.schedule=linear"])
    assert {name: one.value for name, one in config.plugins["lr"].items()} == {"base": 1, "end": 3, "schedule": "linear"}


def test_under_puts_one_on_top_of_the_other():
    weak, strong = Config(), Config()
    weak.add_python({"seed": 1, "max_steps": 5}, {"lr": {"base": 1, "end": 2}}, autoload=["x"])
    strong.add_command_line(["no:timer"], ["lr.base=3"], ["seed=4"])
    both = weak.under(strong)
    assert {name: one.value for name, one in both.settings.items()} == {"seed": 4, "max_steps": 5}
    assert {name: one.value for name, one in both.plugins["lr"].items()} == {"base": 3, "end": 2}
    assert both.autoload.value == ["x"]
    assert both.last_word("timer").wanted is False
    assert weak.plugins["lr"]["base"].value == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("enabel = []\n", ("trainhooks.toml:1", "'enabel'", "did you mean 'enable'?")),
        ("enable = 'x'\n", ("trainhooks.toml:1", "'enable'", "must be a list of plugin names, not 'x'")),
        ("\ndisable = [1]\n", ("trainhooks.toml:2", "'disable'", "must be a list of plugin names")),
        ("autoload = 'x'\n", ("trainhooks.toml:1", "'autoload'", "must be true, false or a list")),
        ("train = []\n", ("trainhooks.toml:1", "'train'", "must be a table")),
        ("[plugins]\nlr = true\n", ("trainhooks.toml:2", "'lr'", "must be a table")),
        ('enable = ["x"]\n\ndisable = ["y", "x"]\n', ("'x'", "trainhooks.toml:1", "trainhooks.toml:3", "drop one")),
        ("x = \n", ("trainhooks.toml:1", "not valid TOML")),
        ("[tool]\ntrainhooks = 3\n", ("trainhooks.toml", "must be a table, not 3")),
    ],
)
def test_what_is_wrong_in_a_file(text, words, tmp_path):
    (tmp_path / "trainhooks.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        Config.read(tmp_path)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.exit_code == 2


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match="no configuration at .*missing"):
        Config.read(tmp_path / "missing")
    (tmp_path / "trainhooks.toml").write_bytes(b"x = '\xff'\n")
    with pytest.raises(UsageError, match=r"cannot read .*trainhooks\.toml"):
        Config.read(tmp_path)
    (tmp_path / "trainhooks.toml").write_text("tool = 3\n")
    with pytest.raises(OptionError, match="unknown key 'tool'"):
        Config.read(tmp_path)
    (tmp_path / "trainhooks.toml").write_text("[train]\nseed = 1\n[tool.trainhooks]\nautoload = false\n")
    with pytest.raises(OptionError, match=r"'train' in trainhooks.toml stands beside \[tool.trainhooks\]"):
        Config.read(tmp_path)
    (tmp_path / "trainhooks.toml").write_text("[train]\nseed = 1\n[tool.other]\nx = 3\n")
    assert Config.read(tmp_path).settings["seed"].value == 1


@pytest.mark.parametrize("value", ["", "0", "false", "False", "NO", "no"])
def test_the_environment_variable_is_off(value):
    config = Config()
    config.add_environment({"TRAINHOOKS_DISABLE_AUTOLOAD": value})
    assert config.autoload.value is True


def test_words_of_the_environment_and_the_command_line():
    config = Config()
    config.add_environment({"TRAINHOOKS_PLUGINS": " a, no:b ,,c", "TRAINHOOKS_DISABLE_AUTOLOAD": "yes"})
    config.add_command_line(["no:c", "m.n:o"])
    config.add_python({}, {"d": {}})
    assert [(one.name, one.wanted, one.strength, one.origin) for one in config.choices] == [
        ("a", True, ENVIRONMENT, "TRAINHOOKS_PLUGINS a"),
        ("b", False, ENVIRONMENT, "TRAINHOOKS_PLUGINS no:b"),
        ("c", True, ENVIRONMENT, "TRAINHOOKS_PLUGINS c"),
        ("c", False, COMMAND_LINE, "-p no:c"),
        ("m.n:o", True, COMMAND_LINE, "-p m.n:o"),
        ("d", True, PYTHON, "Trainer(options={'d': ...})"),
    ]
    assert config.autoload.value is False
    assert config.last_word("c").origin == "-p no:c"
    assert config.last_word("zzz") is None
    assert config.taken_out("c").origin == "-p no:c"
    assert config.taken_out("a") is None


@pytest.mark.parametrize(
    ("word", "plugin", "name", "value"),
    [
        ("lr.base=0.1", "lr", "base", 0.1),
        ("lr.base=", "lr", "base", ""),
        ("lr.text=a=b", "lr", "text", "a=b"),
        ("lr.text=[1, 2]", "lr", "text", [1, 2]),
        ("lr.text={a = 1}", "lr", "text", {"a": 1}),
        ("checkpoint@best.keep=1", "checkpoint@best", "keep", 1),
        ("pkg.mod:Cls.keep=1", "pkg.mod:Cls", "keep", 1),
        ("lr.text=val/loss", "lr", "text", "val/loss"),
        ("lr.text=1\ny = 2", "lr", "text", "1\ny = 2"),
        ("lr.text=true", "lr", "text", True),
        ('lr.text={"a": [1, 0.5, null]}', "lr", "text", {"a": [1, 0.5, None]}),
        ("lr.text=[1, null]", "lr", "text", [1, None]),
        ("lr.text={a: 1}", "lr", "text", "{a: 1}"),
        ("lr.args.gamma=0.5", "lr", "args", {"gamma": 0.5}),
    ],
)
def test_values_on_the_command_line(word, plugin, name, value):
    config = Config()
    config.add_command_line([], [word])
    given = config.plugins[plugin][name]
    assert given.value == value
    assert type(given.value) is type(value)
    assert given.origin == f"-o {word}"


@pytest.mark.parametrize("word", ["lr.base", "lr=1", ".base=1", "lr.=1", "lr..x=1", "lr.args.=1", "=1", ""])
def test_options_that_are_not_written_right(word):
    with pytest.raises(UsageError, match=r"write it as PLUGIN\.KEY=VALUE"):
        Config().add_command_line([], [word])


@pytest.mark.parametrize("word", ["seed", "=1", ""])
def test_settings_that_are_not_written_right(word):
    with pytest.raises(UsageError, match="write it as KEY=VALUE"):
        Config().add_command_line([], [], [word])


@pytest.mark.parametrize(
    ("words", "contradiction"),
    [
        (["lr.base=1", "lr.base=2"], "-o lr.base=1 and -o lr.base=2"),
        (["lr.args.gamma=1", "lr.args.gamma=2"], "-o lr.args.gamma=1 and -o lr.args.gamma=2"),
        (["lr.args={gamma=1}", "lr.args.power=2"], "-o lr.args={gamma=1} and -o lr.args.power=2"),
        (["lr.args.a.b=1", "lr.args.a=1"], "-o lr.args.a.b=1 and -o lr.args.a=1"),
    ],
)
def test_the_command_line_must_not_contradict_itself(words, contradiction):
    Config().add_command_line([], [words[0], words[0]], ["seed=1", "seed=1"])
    with pytest.raises(UsageError) as caught:
        Config().add_command_line([], words)
    assert str(caught.value) == f"{contradiction} contradict each other; drop one"


def test_nor_in_settings():
    with pytest.raises(UsageError, match="--set seed=1 and --set seed=2 contradict each other"):
        Config().add_command_line([], ["seed.seed=3"], ["seed=1", "seed=2"])


def test_keys_inside_of_an_option(tmp_path):
    """They are added to the table of a weaker layer, whose other keys stay; a whole table replaces it."""
    file = tmp_path / "trainhooks.toml"
    file.write_text("[plugins.lr]\nargs = {gamma = 0.1, deep = {a = 1, b = 2}}\nbase = 3\n")
    config = Config.read(tmp_path)
    config.add_command_line([], ["lr.args.power=2", "lr.args.deep.a=none", "lr.base.x=[1]"])
    given = config.plugins["lr"]
    assert given["args"].value == {"gamma": 0.1, "deep": {"a": None, "b": 2}, "power": 2}
    assert given["args"].origin == "[plugins.lr] of trainhooks.toml:2, -o lr.args.power=2, -o lr.args.deep.a=none"
    assert given["base"].value == {"x": [1]}
    config.add_command_line([], ['lr.args={"x": 0.1, "y": null}'])
    assert (given["args"].value, given["args"].origin) == ({"x": 0.1, "y": None}, '-o lr.args={"x": 0.1, "y": null}')


@pytest.mark.parametrize(
    ("name", "value", "least"), [("log_every_steps", 0, 1), ("log_every_steps", -1, 1), ("report_timeout_s", -1.0, 0)]
)
def test_settings_that_are_too_small(make_trainer, name, value, least):
    match = rf"option '{name}' in Trainer\({name}=\.\.\.\): must be {least} or more, not {value:g}"
    with pytest.raises(UsageError, match=match):
        make_trainer(**{name: value})
