"""The page ``docs/reference/trainer.md``: what ``trainhooks`` exports, and what is public of a ``Trainer``."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import fields
from typing import TYPE_CHECKING, Any, get_args

from _docstrings import bullets, code, entries, markdown, signature, value
from _trainer_contents import INTRODUCTION, MARKERS, NOT_GIVEN, PLAIN, SECTIONS

import trainhooks
from trainhooks import Outcome, Record, RunInfo, Trainer, errors, series, types
from trainhooks.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from _trainer_contents import Section


def page() -> str:
    """Return the whole page."""
    return "\n".join(_parts()).rstrip() + "\n"


def _parts() -> Iterator[str]:
    yield INTRODUCTION
    yield from _construction()
    for section in SECTIONS:
        yield from _section(section)
        if section.title == "Running":
            yield from _class(Outcome, "What `train()` returns, and the argument `outcome` of `teardown` and `report_end`.")
    yield MARKERS
    yield "## What reporters get\n"
    yield from _class(RunInfo, "The argument `run` of the `report_` hooks.")
    yield from _class(Record, "One of the `records` of `report_metrics`.")
    yield from _exceptions()
    yield from _types()
    yield "## Version\n"
    yield "`trainhooks.__version__` is the version, as text."


def _construction() -> Iterator[str]:
    docstring, of = inspect.getdoc(Trainer) or "", inspect.signature(Trainer.__init__)
    texts = entries(docstring, "Args")
    settings = {one.name: one.default for one in fields(Settings)}
    yield "## Making one\n"
    yield f"{docstring.partition(chr(10))[0]}\n"
    yield f"```python\nclass Trainer:\n{textwrap.indent(signature('__init__', of), '    ')}\n```\n"
    yield "| argument | default | meaning |\n| --- | --- | --- |"
    for one in list(of.parameters.values())[1:]:
        default = settings.get(one.name) if one.default is None else one.default
        yield f"| `{one.name}` | `{value(default)}` | {code(texts[one.name])} |"
    yield f"\n{NOT_GIVEN}"
    yield f"**Raises**\n\n{code(bullets(docstring, 'Raises'))}\n"


def _section(section: Section) -> Iterator[str]:
    yield f"## {section.title}\n"
    if section.text:
        yield f"{section.text}\n"
    names = section.names.split()
    rows = [f"| {shared} | {text} |" for shared, text in _attributes(names)]
    if rows:
        yield "\n".join(["| attribute | meaning |\n| --- | --- |", *rows, ""])
    for name in names:
        if callable(method := inspect.getattr_static(Trainer, name, None)):
            yield f"### {name}\n"
            yield f"```python\n{signature(name, _public(method))}\n```\n"
            yield markdown(inspect.getdoc(method) or "")


def _attributes(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield attributes with what they mean; those that one comment stands above are together."""
    texts = {**properties(), **commented_attributes(), **PLAIN}
    together: dict[str, list[str]] = {}
    for name in names:
        if name in texts:
            together.setdefault(texts[name], []).append(name)
    for text, shared in together.items():
        yield ", ".join(f"`{name}`" for name in shared), code(text)


def properties() -> dict[str, str]:
    """Return what the docstring of each public property of ``Trainer`` says."""
    found = ((name, inspect.getattr_static(Trainer, name)) for name in dir(Trainer) if not name.startswith("_"))
    return {name: " ".join((inspect.getdoc(one) or "").split()) for name, one in found if isinstance(one, property)}


def commented_attributes() -> dict[str, str]:
    """Return what the ``#:`` comment above each public attribute says that the constructors of ``Trainer`` set."""
    found: dict[str, str] = {}
    for cls in reversed(Trainer.__mro__[:-1]):
        if (constructor := vars(cls).get("__init__")) is not None:
            source = textwrap.dedent(inspect.getsource(constructor))
            found |= {name: text for name, text in _comments(source) if not name.startswith("_")}
    return found


def _comments(source: str) -> Iterator[tuple[str, str]]:
    """Yield each name that is assigned in a source below a ``#:`` comment, with that comment."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            above = []
            for line in reversed(lines[: node.lineno - 1]):
                if not line.strip().startswith("#:"):
                    break
                above.append(line.strip().removeprefix("#:").strip())
            targets: Sequence[ast.expr] = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if above and isinstance(one, ast.Attribute | ast.Name):
                        yield one.attr if isinstance(one, ast.Attribute) else one.id, " ".join(reversed(above))


def _public(method: Any) -> inspect.Signature:
    """Return the signature of a method as its caller sees it, with the words that an argument takes in place of their alias."""
    of = inspect.signature(method)
    aliases = {name: ", ".join(f'"{word}"' for word in get_args(getattr(series, name))) for name in ("Reduce", "Ranks")}
    arguments = [
        one.replace(annotation=f"Literal[{aliases[one.annotation]}]") if one.annotation in aliases else one
        for one in of.parameters.values()
        if one.name != "self"
    ]
    result = of.return_annotation
    if hasattr(method, "__wrapped__"):  # by contextmanager
        result = result.replace("Iterator", "AbstractContextManager")
    return of.replace(parameters=arguments, return_annotation=result)


def _class(cls: type, where: str) -> Iterator[str]:
    docstring = inspect.getdoc(cls) or ""
    yield f"### {cls.__name__}\n"
    yield f"{docstring.partition(chr(10))[0]} {where}\n"
    yield "| attribute | meaning |\n| --- | --- |"
    yield from (f"| `{name}` | {code(text)} |" for name, text in entries(docstring, "Args").items())
    yield ""


def _exceptions() -> Iterator[str]:
    exported = [one for one in vars(errors).values() if inspect.isclass(one) and one.__name__ in trainhooks.__all__]
    tree = (inspect.getdoc(errors) or "").partition("\n\n")[2]
    yield "## Exceptions\n"
    yield f"```text\n{tree}\n```\n"
    yield "All but `ControlFlow` are exported by `trainhooks`.\n"
    for one in exported:
        docstring = inspect.getdoc(one) or ""
        text = " ".join(docstring.partition("\n\nArgs:")[0].split())
        attributes = "".join(f" `{name}`: {about}" for name, about in entries(docstring, "Args").items())
        yield f"- `{one.__name__}`: {code(text + attributes)}"
    yield ""


def _types() -> Iterator[str]:
    yield "## Names of types\n"
    for name, text in _comments(inspect.getsource(types)):
        yield f"- `{name}`: {code(text)}"
    yield ""
