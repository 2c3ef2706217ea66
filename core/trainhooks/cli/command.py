"""What a command says of settings and options of plugins that are given to it as if they were options of its own."""

from __future__ import annotations

import shlex
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import click

from trainhooks.cli.target import SETTINGS

_BOTH: Final = "; a setting is written --set KEY=VALUE, an option of a plugin -o PLUGIN.KEY=VALUE"


class RunCommand(click.Command):
    """A command that takes ``--set`` and ``-o``, and says so of what was given without them."""

    allow_extra_args = True  # they are refused below

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, which click takes from the list."""
        words = list(args)
        try:
            extra = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name
            at = next((index for index, word in enumerate(words) if word.partition("=")[0] == name), len(words))
            value = "".join(words[at : at + 1]).partition("=")[2] or next(iter(words[at + 1 : at + 2]), "")
            raise click.UsageError(f"No such option {name!r}{self._hint(name, value)}", ctx) from None
        if ctx.resilient_parsing:
            return extra
        target = str(ctx.params.get("target", ""))
        assigned = [word for word in (target, *extra) if "=" in word and not Path(word).exists()]
        if stray := assigned or extra:
            name, _, value = stray[0].partition("=")
            hint = self._hint(name, value) if assigned else ""
            ctx.fail(f"Got unexpected extra argument{'s' if stray[1:] else ''} ({' '.join(stray)}){hint}")
        return extra

    def _hint(self, name: str, value: str) -> str:
        """Return how a setting or an option of a plugin is written, or the nearest option of this command."""
        name = name.lstrip("-").replace("-", "_")
        own = [option[2:] for parameter in self.params for option in parameter.opts if option.startswith("--")]
        flag = "-o" if "." in name else "--set"
        if name not in SETTINGS and "." not in name:
            if near := get_close_matches(name.replace("_", "-"), own, n=1):
                return f"; did you mean '--{near[0]}'?"
            near = get_close_matches(name, SETTINGS, n=1)
            if not near:
                return _BOTH
            name = near[0]
        value = value if value and not value.startswith("--") else "VALUE"
        return f"; did you mean {flag} {shlex.quote(f'{name}={value}')}?"
