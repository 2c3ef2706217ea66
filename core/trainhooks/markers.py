"""The two markers of pluggy, bound to this project."""

from __future__ import annotations

from typing import Final

import pluggy

PROJECT: Final = "trainhooks"

#: Marks a method or function as the implementation of a hook.
hookimpl: Final = pluggy.HookimplMarker(PROJECT)

#: Marks a function as the specification of a hook, for packages that add stages of their own.
hookspec: Final = pluggy.HookspecMarker(PROJECT)
