"""Docstrings and signatures as Markdown, for the pages of the reference."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import inspect

#: What a page shows without scrolling.
_WIDTH: Final = 100


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown: arguments and errors as lists, the example as a block of code."""
    parts = []
    for paragraph in re.split(r"\n\n(?=\S)", docstring):
        if paragraph.startswith("Args:"):
            parts.append("**Arguments**\n\n" + bullets(docstring, "Args"))
        elif paragraph.startswith("Returns:"):
            parts.append("**Returns** " + " ".join(paragraph.removeprefix("Returns:").split()))
        elif paragraph.startswith("Raises:"):
            parts.append("**Raises**\n\n" + bullets(docstring, "Raises"))
        elif paragraph.startswith("Example:"):
            parts.append(f"```python\n{example(paragraph)}\n```")
        else:
            parts.append(paragraph)
    return "\n\n".join(code(part) for part in parts) + "\n"


def code(text: str) -> str:
    """Return a text with the code in it marked as Markdown does."""
    return re.sub(r"``(.+?)``", r"`\1`", text)


def example(docstring: str) -> str:
    """Return the code of the example that ends a docstring."""
    text = docstring.partition("Example:\n")[2]
    lines = (line.strip() for line in text.splitlines() if line.strip())
    return "\n".join(re.sub(r"^(>>>|\.\.\.) ?", "", line) for line in lines)


def entries(docstring: str, section: str) -> dict[str, str]:
    """Return the texts of a section such as ``Args`` by name, in the order of the docstring."""
    found = re.search(rf"^{section}:$(.*?)(?=^\S|\Z)", docstring, flags=re.MULTILINE | re.DOTALL)
    parts = re.split(r"\n    (?=\w+: )", found[1])[1:] if found else []
    return {name: " ".join(text.split()) for name, _, text in (part.partition(": ") for part in parts)}


def bullets(docstring: str, section: str) -> str:
    """Return a section with an entry for each name as a list."""
    return "\n".join(f"- `{name}`: {text}" for name, text in entries(docstring, section).items())


def signature(name: str, of: inspect.Signature) -> str:
    """Return a signature on one line, or with an argument on each where that is too long."""
    arguments: list[str] = []
    for one in of.parameters.values():
        if one.kind is one.KEYWORD_ONLY and "*" not in arguments:
            arguments.append("*")
        arguments.append(_argument(one))
    result = f"-> {of.return_annotation}: ..."
    line = f"def {name}({', '.join(arguments)}) {result}"
    if len(line) <= _WIDTH:
        return line
    return f"def {name}(\n    " + ",\n    ".join(arguments) + f",\n) {result}"


def _argument(one: inspect.Parameter) -> str:
    annotation = "" if one.annotation is one.empty else f": {one.annotation}".replace("'", '"')
    text = f"{'**' if one.kind is one.VAR_KEYWORD else ''}{one.name}{annotation}"
    return text if one.default is one.empty else f"{text} = {value(one.default)}"


def value(default: object) -> str:
    """Return a default as one writes it."""
    return json.dumps(default) if isinstance(default, str) else repr(default)
