"""Typed options from signatures."""

import dataclasses
import enum
import json
import re
import shlex
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import pytest
import torch
import typing_extensions

from trainhooks import OptionError, UsageError
from trainhooks.config import Config
from trainhooks.options import Given, convert, parameters, validated
from trainhooks.settings import pick_device
from trainhooks_builtins import LR

WHO = "plugin 'plug' (plug-dist 1.0)"


def given(**values):
    return {name: Given(value, f"-o plug.{name}={value}", str(value)) for name, value in values.items()}


def read(**values):
    return {name: Given(value, f"[plugins.plug] of settings.toml:{i}") for i, (name, value) in enumerate(values.items(), 2)}


class Plug:
    def __init__(self, decay: float, start: int = 0, name: str = "x", path: Path | None = None, *, on: bool = True) -> None: ...


def test_types_defaults_and_order():
    found = parameters(Plug)
    assert {name: (one.annotation, one.default) for name, one in found.items()} == {
        "decay": (float, found["decay"].empty),
        "start": (int, 0),
        "name": (str, "x"),
        "path": (Path | None, None),
        "on": (bool, True),
    }


def test_values_are_converted():
    values = validated(Plug, given(decay=1, start="3", name=5, path="a/b", on="false"), WHO)
    assert values == {"decay": 1.0, "start": 3, "name": "5", "path": Path("a/b"), "on": False}
    assert type(values["decay"]) is float


def test_all_problems_in_one_message():
    with pytest.raises(OptionError) as caught:
        validated(Plug, read(strat=1, start="many", path=3, zzz=1), WHO, "the remedy")
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        "plugin 'plug' (plug-dist 1.0): unknown option 'strat' in [plugins.plug] of settings.toml:2; did you mean 'start'?"
    )
    assert "option 'start' in [plugins.plug] of settings.toml:3: must be a valid integer" in lines[1]
    assert "not 'many'" in lines[1]
    assert "option 'path' in [plugins.plug] of settings.toml:4" in lines[2]
    assert (
        lines[3].strip() == "unknown option 'zzz' in [plugins.plug] of settings.toml:5; there are decay, start, name, path, on"
    )
    assert lines[4].strip() == "option 'decay' is missing and has no default"
    assert lines[5].strip() == "the remedy"


def test_text_in_a_file_is_no_other_type_but_a_number_typed_for_text_is():
    with pytest.raises(ValueError, match="must be a valid string, not 5"):
        convert(Given(5, "a file"), str)
    assert convert(Given(5, "-o", "5"), str) == "5"
    assert convert(Given(1e-05, "-o", "1e-5"), str) == "1e-5"
    assert convert(Given(True, "-o", "true"), str) == "true"


@pytest.mark.parametrize("word", ["none", "None", "null"])
def test_no_value_on_the_command_line(word):
    typed = Given(word, "-o", word)
    for annotation in (str | None, Path | None, float | None, typing.Any, Literal["a"] | None, tuple[str, ...] | None):
        assert convert(typed, annotation) is None
    assert convert(typed, str) == word
    assert convert(Given(word, "-o", f'"{word}"'), str | None) == word  # in quotes
    assert convert(Given(word, "a file"), str | None) == word
    assert convert(typed, Literal["none", "None", "null"] | None) == word  # one of the words that the option knows


def test_what_is_neither_toml_nor_json():
    typed = Given("{a: 1}", "-o", "{a: 1}")
    assert convert(typed, str) == "{a: 1}"
    wanted = r"""must be a valid dictionary, not '{a: 1}', which is neither TOML such as {a = 1} nor JSON such as {"a": 1}"""
    with pytest.raises(ValueError, match=re.escape(wanted)):
        convert(typed, dict[str, float])


def test_how_a_value_was_read_is_not_said():
    for annotation, expected in ((int, "valid integer"), (float, "valid number"), (bool, "valid boolean")):
        with pytest.raises(ValueError, match=rf"^must be a {expected}, not 'two'$"):
            convert(Given("two", "-o", "two"), annotation)


class Mode(enum.Enum):
    MIN = "min"


@dataclasses.dataclass
class Inner:
    rate: float = 0.1


@dataclasses.dataclass
class Data:
    inner: Inner
    names: list[str] = dataclasses.field(default_factory=list)


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        ("min", Literal["min", "max"], "min"),
        ("min", Mode, Mode.MIN),
        (["a", "b"], tuple[str, ...], ("a", "b")),
        ([1, 2], tuple[float, float], (1.0, 2.0)),
        ({"a": 1}, dict[str, float], {"a": 1.0}),
        ({"a": True, "b": 1}, dict[str, typing.Any], {"a": True, "b": 1}),
        ([True, False], list[bool], [True, False]),
        ({"rate": 1}, Inner, Inner(1.0)),
        (3, Annotated[int, "a note"], 3),
        (None, float | None, None),
        (print, Callable[..., None], print),
        (object, typing.Any, object),
    ],
)
def test_annotations(value, annotation, expected):
    found = convert(Given(value, "a place"), annotation)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ("mean", Literal["min", "max"]),
        ([1, 2, 3], tuple[float, float]),
        (True, int),
        (True, float | None),
        (True, int | float),
        ([1, True], list[int]),
        ({"a": True}, dict[str, float]),
        ({"rate": True}, Inner),
        (float("nan"), float),
        ([float("inf")], list[float]),
        (None, float),
        (3, Callable[..., None]),
        (1.5, int),
    ],
)
def test_what_does_not_fit(value, annotation):
    with pytest.raises(ValueError, match="not "):
        convert(Given(value, "a place"), annotation)


@pytest.mark.parametrize(
    ("factory", "names"),
    [
        (Data, ["inner", "names"]),
        (lambda: None, []),
        (type("NoInit", (), {}), []),
        (type("Loose", (), {"__init__": lambda self, *args, **kwargs: None}), []),
        (type("Base", (Plug,), {}), ["decay", "start", "name", "path", "on"]),
    ],
)
def test_what_has_which_options(factory, names):
    assert list(parameters(factory)) == names


LATE = """
from __future__ import annotations
from typing import TYPE_CHECKING
from trainhooks import hookimpl
if TYPE_CHECKING:
    from collections.abc import Callable
    from a_package_that_is_missing import Thing

class Late:
    def __init__(self, rate: float = 0.1, clock: Callable[[], float] | None = None, thing: Thing | None = None, *, steps: int = 1):
        self.rate, self.clock, self.thing, self.steps = rate, clock, thing, steps
    @hookimpl
    def after_step(self): ...

def make(rate: float, thing: Thing = None) -> Late:
    return Late(rate)
"""


@pytest.fixture
def late(fake_distribution):
    fake_distribution("late-dist", {"late": "late_module:Late", "made": "late_module:make"}, {"late_module": LATE})


def test_postponed_annotations_and_names_for_type_checkers_only(late, make_trainer):
    clock = id
    trainer = make_trainer(options={"late": {"rate": "1e-3", "clock": clock, "steps": "4"}, "made": {"rate": 2}})
    plugin = trainer.plugins["late"]
    assert (plugin.rate, plugin.clock, plugin.thing, plugin.steps) == (0.001, clock, None, 4)
    assert trainer.plugins["made"].rate == 2.0
    for options, words in (
        ({"late": {"rate": "fast"}}, "'rate'"),
        ({"late": {"stesp": 1}}, "did you mean 'steps'?"),
        ({"made": {}}, "option 'rate' is missing"),
    ):
        with pytest.raises(OptionError) as caught:
            make_trainer(options=options)
        assert words in str(caught.value)
        assert "(late-dist 1.0)" in str(caught.value)


def test_what_the_constructor_refuses_names_the_origin(fake_distribution, make_trainer):
    source = (
        "from trainhooks import OptionError, hookimpl\nclass P:\n    def __init__(self, n: int = 1, kind: str = ''):\n"
        "        if kind: raise {'value': ValueError, 'type': TypeError, 'option': OptionError}[kind]('n must be even')\n"
        "    @hookimpl\n    def after_step(self): ...\n"
    )
    fake_distribution("picky", {"picky": "picky_module:P"}, {"picky_module": source})
    for kind in ("value", "type", "option"):
        with pytest.raises(OptionError) as caught:
            make_trainer(options={"picky": {"n": 3, "kind": kind}})
        assert str(caught.value) == "plugin 'picky' (picky 1.0): n must be even (in Trainer(options={'picky': ...}))"
        assert caught.value.exit_code == 2


def test_options_of_a_plugin_that_was_built_by_hand(make_trainer):
    from trainhooks_builtins import Checkpoint

    with pytest.raises(UsageError, match=r"'checkpoint'.* was built by hand and also has options in Trainer\(options="):
        make_trainer([Checkpoint()], options={"checkpoint": {"keep": 3}})


def test_options_of_a_given_class(make_trainer):
    from trainhooks_builtins import Checkpoint

    trainer = make_trainer([Checkpoint], options={"checkpoint": {"keep": 3}})
    assert trainer.plugins["checkpoint"].keep == 3
    assert trainer.plugin_lock()[0]["options"] == {"keep": 3}


def test_pydantic_is_not_imported_before_a_value_is_converted():
    import subprocess

    program = "import sys, trainhooks.options, trainhooks.config; print('pydantic' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@dataclasses.dataclass
class Inner:
    depth: int = 1


@dataclasses.dataclass
class Outer:
    inner: Inner
    layers: list[Inner] = dataclasses.field(default_factory=list)


class Table(typing_extensions.TypedDict, total=False):
    depth: int


class Nested:
    def __init__(
        self,
        outer: Outer | None = None,
        table: Table | None = None,
        betas: tuple[float, float] = (0.9, 0.99),
        by_number: dict[int, float] | None = None,
        pairs: list[tuple[float, float]] | None = None,
    ) -> None: ...


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"outer": {"inner": {"depht": 3}}}, "unknown key 'depht'; did you mean 'depth'?, in {'inner': {'depht': 3}}"),
        ({"outer": {"inner": {}, "layers": [{}, {"x": 1}]}}, "unknown key 'x', in"),
        ({"table": {"depth": 1, "depht": 2}}, "unknown key 'depht'; did you mean 'depth'?"),
        ({"outer": {"layers": []}}, "'inner' is missing, not {'layers': []}"),
        ({"betas": [0.5]}, "item 1 is missing, not [0.5]"),
    ],
)
def test_keys_inside_of_an_option_are_checked(values, said):
    with pytest.raises(OptionError, match=re.escape(said)):
        validated(Nested, read(**values), WHO)


def test_keys_that_become_others_are_none_that_are_left_out():
    assert validated(Nested, read(by_number={"1": 0.5}), WHO) == {"by_number": {1: 0.5}}
    assert validated(Nested, read(outer={"inner": {"depth": 3}}), WHO) == {"outer": Outer(Inner(3))}


def test_types_that_are_imported_for_checkers_only():
    """As linters have them: the names are not there when the options are read."""
    source = (
        "from __future__ import annotations\n"
        "class Plug:\n"
        "    def __init__(self, clock: Callable[[], float] | None = None, path: Path | None = None) -> None: ...\n"
    )
    namespace = {}
    exec(source, namespace)
    plug = namespace["Plug"]
    with pytest.raises(OptionError, match="option 'clock' in -o plug.clock=time.time: must be callable"):
        validated(plug, given(clock="time.time"), WHO)
    assert validated(plug, given(path="a/b"), WHO) == {"path": Path("a/b")}


def test_a_type_that_pydantic_does_not_take_is_left_to_the_plugin():
    class Old:
        def __init__(self, table: typing.TypedDict("Table", {"depth": int}) | None = None) -> None: ...

    refused = sys.version_info < (3, 12)  # where pydantic asks for that of typing_extensions
    value = "anything" if refused else {"depth": 3}
    assert validated(Old, {"table": Given(value, "a file")}, WHO) == {"table": value}


def test_a_name_that_differs_in_case_alone_is_suggested():
    with pytest.raises(OptionError, match="unknown option 'Decay' in .*; did you mean 'decay'"):
        validated(Plug, read(Decay=0.5), WHO)


Texts = tuple[str, ...]


class Lists:
    def __init__(
        self,
        splits: Texts | None = None,
        names: list[str] = [],  # noqa: B006
        when: Annotated[tuple[Literal["train", "val"], ...], "a note"] = (),
        either: str | Texts = (),
        groups: list[int | str] | None = None,
        betas: tuple[float, float] = (0.9, 0.99),
        sizes: list[int] | None = None,
    ) -> None: ...


def typed(**values):
    """Return options as the command line reads them: numbers as TOML does, and the rest as text."""
    return {name: Given(json.loads(t) if t[0] in '0123456789"[' else t, f"-o x.{name}={t}", t) for name, t in values.items()}


def test_a_bare_word_is_a_list_of_one():
    values = typed(splits="val", names="a.b/c", when="train", either="none.of")
    assert validated(Lists, values, WHO) == {"splits": ("val",), "names": ["a.b/c"], "when": ("train",), "either": "none.of"}
    with pytest.raises(ValueError, match="^must be a list, not 'val'$"):  # a file says what it means
        convert(Given("val", "a file"), Texts)


@pytest.mark.parametrize(
    ("name", "text", "way"),
    [
        ("splits", "val,test", """'x.splits=["val", "test"]'"""),
        ("splits", "two words", """'x.splits=["two words"]'"""),
        ("splits", "3", """'x.splits=["3"]'"""),
        ("splits", '"val"', """'x.splits=["val"]'"""),
        ("names", "none", """'x.names=["none"]'"""),
        ("groups", "head", """'x.groups=["head"]'"""),
        ("groups", "0, head", """'x.groups=[0, "head"]'"""),
        ("betas", "0.9,0.95", "'x.betas=[0.9, 0.95]'"),
        ("sizes", "3", "'x.sizes=[3]'"),
    ],
)
def test_how_a_list_is_written(name, text, way):
    with pytest.raises(OptionError) as caught:
        validated(Lists, {name: Given(3 if text == "3" else text, f"-o x.{name}={text}", text)}, WHO)
    value = "3" if text == "3" else repr(text)
    assert str(caught.value).endswith(f"option '{name}' in -o x.{name}={text}: must be a list, not {value}: write -o {way}")
    word = shlex.split(str(caught.value).rpartition(": write ")[2])[1]
    config = Config()
    config.add_command_line(options=[word])
    validated(Lists, config.plugins["x"], WHO)  # what is advised is taken


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("betas", "0.9", "must be a list, not '0.9'"),
        ("betas", "a,b", "must be a list, not 'a,b'"),
        ("sizes", "many", "must be a list, not 'many'"),
        ("when", "tests", "must be a list, not 'tests'"),
    ],
)
def test_what_no_list_makes_right(name, text, said):
    with pytest.raises(OptionError) as caught:
        validated(Lists, {name: Given(text, f"-o x.{name}={text}", text)}, WHO)
    assert str(caught.value).endswith(f": {said}")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"outer": {"inner": {"depth": "x"}}}, "outer.inner.depth must be a valid integer, not 'x'"),
        (
            {"outer": {"inner": {"depth": "x"}, "layers": [{}, {"depth": "2x"}]}},
            "outer.inner.depth must be a valid integer, not 'x'; outer.layers[1].depth must be a valid integer, not '2x'",
        ),
        ({"outer": {"inner": {}, "layers": [3]}}, "outer.layers[0] must be a dictionary or an instance of Inner, not 3"),
        ({"pairs": [[1.0]]}, "pairs[0]: item 1 is missing, not [1.0]"),
        ({"betas": [0.5, "x"]}, "betas[1] must be a valid number, not 'x'"),
        ({"by_number": {"a": 1.0}}, "by_number.a as a key must be a valid integer, not 'a'"),
        ({"outer": 3}, "must be a dictionary or an instance of Outer, not 3"),
    ],
)
def test_the_place_inside_of_an_option(values, said):
    with pytest.raises(OptionError) as caught:
        validated(Nested, read(**values), WHO)
    assert str(caught.value).endswith(f" of settings.toml:2: {said}")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("lr.warmup=100", "not 100; did you mean 'warmup_updates'?"),
        ("lr.warmup=true", "not True; did you mean 'warmup_overlaps'?"),
        ("lr.warmup=[1]", "not [1]\n"),
        ("lr.total=9", "unknown option 'total' in -o lr.total=9; did you mean 'total_epochs'?"),
        ("lr.w=9", "unknown option 'w' in -o lr.w=9; did you mean 'warmup'?"),
    ],
)
def test_a_name_that_was_only_begun(word, said):
    config = Config()
    config.add_command_line(options=[word])
    with pytest.raises(OptionError, match=re.escape(said)):
        validated(LR, config.plugins["lr"], "plugin 'lr'", "and so on")


@pytest.mark.parametrize("name", ["gpu", "cuda:x", ""])
def test_a_device_that_there_is_not(name):
    with pytest.raises(UsageError) as caught:
        pick_device(name)
    assert str(caught.value) == f"device {name!r}: must be one such as cpu, cuda, cuda:0 or mps, or auto"


@pytest.mark.parametrize("name", ["mps", "cuda"])
def test_a_device_that_is_not_here_is_said_in_one_sentence(name):
    if getattr(torch, name).is_available():
        name = "xpu"
    with pytest.raises(UsageError) as caught:
        pick_device(name)
    assert re.fullmatch(f"device '{name}': .{{10,100}}; --set device=cpu runs everywhere", str(caught.value))
