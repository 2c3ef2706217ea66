"""What the distribution promises: its names, its plugins, its version, and that importing it is light."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import importlib_metadata
import pytest

import trainhooks
import trainhooks_builtins
from trainhooks import hookspecs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PLUGINS = {**PROJECT["entry-points"]["trainhooks"], **PROJECT["entry-points"]["trainhooks.optional"]}
COMMANDS = PROJECT["entry-points"]["trainhooks.commands"]
PACKAGES = (trainhooks, trainhooks_builtins)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_all_is_sorted_and_each_name_is_there(package):
    assert package.__all__ == sorted(package.__all__, key=_as_ruff_sorts)
    assert len(set(package.__all__)) == len(package.__all__)
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'Trainr'"):
        package.Trainr  # noqa: B018


def _as_ruff_sorts(name):
    """Constants first, then classes, then the rest, each by name."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2, name)


def test_all_is_complete():
    """Whatever is imported by name into the package, in TYPE_CHECKING or not, is in __all__; so is every error."""
    from trainhooks import errors

    declared = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == errors.__name__
    }
    assert declared - set(trainhooks.__all__) == {"ControlFlow"}  # the base of SkipStep and SkipEpoch, which nobody raises
    for package in PACKAGES:
        source = inspect.getsource(package)
        aliased = {
            line.split(" as ")[1].split(",")[0]
            for line in source.splitlines()
            if line.strip().startswith("from .") and " as " in line
        }
        assert aliased <= set(package.__all__)


def test_every_builtin_is_a_public_class_with_an_entry_point_of_its_module_s_name():
    modules = {module.name for module in pkgutil.iter_modules(trainhooks_builtins.__path__) if not module.name.startswith("_")}
    commands = {value.partition(":")[0].removeprefix("trainhooks_builtins.") for value in COMMANDS.values()}
    assert set(PLUGINS) == modules - commands
    classes = {value.removeprefix(f"trainhooks_builtins.{name}:") for name, value in PLUGINS.items()}
    assert classes == set(trainhooks_builtins.__all__)


@pytest.mark.parametrize("name", PLUGINS)
def test_every_builtin_can_be_loaded_and_says_what_it_is(name):
    module, _, attribute = PLUGINS[name].partition(":")
    plugin = getattr(importlib.import_module(module), attribute)
    assert inspect.getdoc(plugin).splitlines()[0].endswith(".")
    options = list(inspect.signature(plugin).parameters.values())
    assert all(option.default is not option.empty for option in options)  # each works without being configured
    documented = inspect.getdoc(plugin)
    described = [option.name for option in options if not hasattr(hookspecs, option.name)]  # those of closure are hooks
    assert [name for name in described if f"\n    {name}: " not in documented] == []
    from trainhooks.manager import plugin_name

    assert plugin_name(plugin) == name  # one name everywhere: entry point, options, -p, state


def test_what_is_installed_advertises_what_pyproject_says():
    for group in ("trainhooks", "trainhooks.optional", "trainhooks.commands"):
        points = importlib_metadata.distribution("trainhooks").entry_points.select(group=group)
        assert {point.name: point.value for point in points} == PROJECT["entry-points"][group]


def test_the_version_is_one():
    assert trainhooks.__version__ == PROJECT["version"] == importlib_metadata.version("trainhooks")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_importing_is_light(package):
    code = (
        f"import sys, {package.__name__}\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'numpy', 'pydantic', 'rich', 'click'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
    assert done.stderr == ""


def test_lazy_names_are_what_they_say():
    for name in ("Outcome", "Record", "RunInfo", "Trainer"):
        found = getattr(trainhooks, name)
        assert (found.__name__, found.__module__.partition(".")[0]) == (name, "trainhooks")
    assert {getattr(trainhooks_builtins, name).__name__ for name in trainhooks_builtins.__all__} == set(
        trainhooks_builtins.__all__
    )


def test_builtins_use_public_names_only():
    """A built-in is written as a third party would: it imports what is public, and no other built-in."""
    for path in Path(trainhooks_builtins.__file__).parent.glob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if words[:1] == ["from"] and words[1].startswith("trainhooks."):
                names = {word.strip("(),") for word in words[3:]}
                assert not any(name.startswith("_") for name in names), f"{path.name}: {line}"


def test_modules_are_small():
    """The design asks for a median under 150 lines, and none over 500 but the hookspecs."""
    package = ROOT / "core/trainhooks"
    sizes = {str(path.relative_to(package)): len(path.read_text("utf-8").splitlines()) for path in package.rglob("*.py")}
    assert sorted(sizes.values())[len(sizes) // 2] < 150
    assert [name for name, size in sizes.items() if size > 500] == ["hookspecs.py"]
