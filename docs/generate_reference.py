"""Writes the pages in ``docs/reference`` from the docstrings; with ``--check`` it only says whether that is needed.

``hooks.md`` comes from ``trainhooks/hookspecs.py`` and is made here, ``trainer.md`` from ``Trainer`` and is made in ``_trainer_page``.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import _trainer_page
from _docstrings import markdown, signature

from trainhooks import hookspecs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FOLDER: Final = Path(__file__).parent / "reference"

_INTRODUCTION: Final = """\
# Hook reference

<!-- Written by docs/generate_reference.py from core/trainhooks/hookspecs.py. Do not edit: change the docstring there. -->

Every hook that the engine calls, in the order of the file that specifies them. `trainhooks hooks NAME` prints the same text
and, below it, who implements the hook in the run of the current directory, in call order.

What the words mean, how to wrap a hook and in which order implementations are called stands in
[the loop and its hooks](../the-loop.md) and [using plugins](../using-plugins.md#order); what a hook can read on `trainer` and ask of
it in [the reference of `Trainer`](trainer.md).

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
        yield f"```python\n{signature(name, inspect.signature(spec))}\n```\n"
        yield f"*{kind(name, spec).capitalize()}.* {markdown(inspect.getdoc(spec) or '')}"


#: The pages by file name, and what makes each.
PAGES: Final[dict[str, Callable[[], str]]] = {"hooks.md": page, "trainer.md": _trainer_page.page}


def main() -> None:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if a page is stale, and write nothing")
    check = parser.parse_args().check
    FOLDER.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        file, text = FOLDER / name, make()
        if not check:
            file.write_text(text, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != text:
            sys.exit(f"{file} is stale: run python docs/generate_reference.py")


if __name__ == "__main__":
    main()
