"""Writes ``docs/reference/hooks.md`` from ``trainhooks/hookspecs.py``; with ``--check`` it only says whether that is needed."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainhooks import hookspecs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE: Final = Path(__file__).parent / "reference" / "hooks.md"

_INTRODUCTION: Final = """\
# Hook reference

<!-- Written by docs/generate_reference.py from core/trainhooks/hookspecs.py. Do not edit: change the docstring there. -->

Every hook that the engine calls, in the order of the file that specifies them. `trainhooks hooks NAME` prints the same text
and, below it, who implements the hook in the run of the current directory, in call order.

What the words mean, how to wrap a hook and in which order implementations are called stands in
[the loop and its hooks](../the-loop.md) and [using plugins](../using-plugins.md#order).

- **stage**: a piece of the engine's work. Implementations are asked in order; the first value that is not `None` is the
  result. The engine's own implementation is asked last.
- **event**: a notification. Every implementation is called; return values are ignored.
- **event, plugin by plugin**: likewise, but an error of one plugin does not keep the others from being called where the page
  says so, and it cannot be wrapped.
"""


def hooks() -> dict[str, Any]:
    """Return every hook specification by name, in the order of the file."""
    return {name: spec for name, spec in vars(hookspecs).items() if hasattr(spec, "trainhooks_spec")}


def kind(name: str, spec: Any) -> str:
    """Return what kind of hook it is, in the words of the page."""
    if spec.trainhooks_spec["firstresult"]:
        return "stage"
    return "event, plugin by plugin" if name in hookspecs.ONE_BY_ONE else "event"


def page() -> str:
    """Return the whole page."""
    return "\n".join([*_head(), *(line for group in _groups() for line in _group(*group))]).rstrip() + "\n"


def _head() -> Iterator[str]:
    yield _INTRODUCTION
    yield "## The loop\n"
    text = inspect.getdoc(hookspecs) or ""
    loop = text.partition("\n\n")[2].partition("\n\nA *stage*")[0]
    yield f"```text\n{textwrap.dedent(loop)}\n```\n"
    yield "## All hooks\n"
    yield "| hook | kind | arguments |\n| --- | --- | --- |"
    for name, spec in hooks().items():
        arguments = ", ".join(f"`{argument}`" for argument in inspect.signature(spec).parameters)
        yield f"| [`{name}`](#{name}) | {kind(name, spec)} | {arguments} |"
    yield ""


def _groups() -> Iterator[tuple[str, list[str]]]:
    """Yield the title of each part of the file with the hooks in it."""
    source = inspect.getsource(hookspecs)
    title, names = "", list[str]()
    for line in source.splitlines():
        if found := re.match(r"# --- (.+?) -+$", line):
            if names:
                yield title, names
            title, names = found[1], []
        elif (found := re.match(r"def (\w+)\(", line)) and found[1] in hooks():
            names.append(found[1])
    yield title, names


def _group(title: str, names: Sequence[str]) -> Iterator[str]:
    yield f"## {title}\n"
    for name in names:
        spec = hooks()[name]
        yield f"### {name}\n"
        yield f"```python\n{_signature(name, spec)}\n```\n"
        yield f"*{kind(name, spec).capitalize()}.* {markdown(inspect.getdoc(spec) or '')}"


def _signature(name: str, spec: Any) -> str:
    """Return the signature on one line, or with an argument on each where that is too long."""
    signature = inspect.signature(spec)
    arguments = [f"{one.name}: {one.annotation}" for one in signature.parameters.values()]
    line = f"def {name}({', '.join(arguments)}) -> {signature.return_annotation}: ..."
    if len(line) <= 100:  # noqa: PLR2004 - what a page shows without scrolling
        return line
    return f"def {name}(\n    " + ",\n    ".join(arguments) + f",\n) -> {signature.return_annotation}: ..."


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown: arguments as a list, the example as a block of code."""
    parts = []
    for paragraph in re.split(r"\n\n(?=\S)", docstring):
        if paragraph.startswith("Args:"):
            parts.append("**Arguments**\n\n" + "\n".join(_arguments(paragraph)))
        elif paragraph.startswith("Returns:"):
            parts.append("**Returns** " + " ".join(paragraph.removeprefix("Returns:").split()))
        elif paragraph.startswith("Example:"):
            parts.append(f"```python\n{example(paragraph)}\n```")
        else:
            parts.append(paragraph)
    return "\n\n".join(re.sub(r"``(.+?)``", r"`\1`", part) for part in parts) + "\n"


def example(docstring: str) -> str:
    """Return the code of the example that ends a docstring."""
    text = docstring.partition("Example:\n")[2]
    lines = (line.strip() for line in text.splitlines() if line.strip())
    return "\n".join(re.sub(r"^(>>>|\.\.\.) ?", "", line) for line in lines)


def _arguments(paragraph: str) -> Iterator[str]:
    for entry in re.split(r"\n    (?=\w+: )", paragraph)[1:]:
        name, _, text = entry.partition(": ")
        yield f"- `{name}`: {' '.join(text.split())}"


def main() -> None:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if the page is stale, and write nothing")
    check = parser.parse_args().check
    text = page()
    if check:
        if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
            sys.exit(f"{PAGE} is stale: run python docs/generate_reference.py")
        return
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
