"""Typed options from signatures."""

import dataclasses
import enum
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import pytest

from trainhooks import OptionError, UsageError
from trainhooks.options import Given, convert, parameters, validated

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
    clock = object()
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
