"""What is no project file: a script that makes a Trainer of its own is told from it by its source, before it trains on import."""

from __future__ import annotations

import ast
import shlex
from typing import TYPE_CHECKING, Any, Final

from trainhooks import hookspecs
from trainhooks.errors import UsageError
from trainhooks.project import PROJECT_FILE
from trainhooks.validation import hook_functions

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from trainhooks import Trainer

_LISTS: Final = ("plugins", "hookspecs")
#: Hooks without any of which there is nothing to train.
_NEEDED: Final = ("make_model", "train_step", "train_epoch", "train")


def script_of(file: Path) -> str | None:
    """Return how to run a file that is a script: it makes a Trainer and has no hooks; it is not run here."""
    source = _Source.of(file)
    return _script(file, source) if source is not None and source.is_script else None


def refuse_without_hooks(file: Path, trainer: Trainer) -> None:
    """Refuse a file that was run and has no hooks, unless another plugin of the user makes what is trained.

    Raises:
        UsageError: With what is missing.
    """
    project = next((one.object for one in trainer.manager.plugins.values() if one.source == "project"), None)
    theirs = (one for hook in _NEEDED for one in trainer.manager.implementations(hook))
    if project is not None and not has_hooks(project) and all(one.plugin.source in ("engine", "built-in") for one in theirs):
        raise UsageError(without_hooks(file))


def has_hooks(project: ModuleType) -> bool:
    """Return whether a project file that was run has anything of a project file."""
    return any(hook_functions(project)) or any(hasattr(project, name) for name in (*_LISTS, "state_dict"))


def without_hooks(file: Path) -> str:
    """Return what is missing in a file that was run."""
    source = _Source.of(file)
    if source is not None and source.makes_trainer:
        return _script(file, source)
    return (
        f"{file} has no hooks, so it is no project file: mark functions with @hookimpl, as the {PROJECT_FILE} does that "
        "`trainhooks init` writes, or list classes in plugins = [...]"
    )


def _script(file: Path, source: _Source) -> str:
    parts = (*file.parts[:-1], file.stem)
    module = ".".join(parts) if all(part.isidentifier() for part in parts) else file.stem
    guard = ', with its train() under if __name__ == "__main__"' if source.trains else ""
    return (
        f"{file} has no hooks, so it is no project file: run it with python {shlex.quote(str(file))}, or name a Trainer in it "
        f"as {module}:{source.trainer}{guard}"
    )


class _Source(ast.NodeVisitor):
    """What the source of a file says without being run: names at its top level, whatever functions and classes do."""

    def __init__(self) -> None:
        self.makes_trainer = self.trains = False
        self.trainer = "trainer"
        self._hooks = self._lists = self._begins = False
        self._depth = 0
        self._names = {name for name, one in vars(hookspecs).items() if hasattr(one, "trainhooks_spec")}

    @classmethod
    def of(cls, file: Path) -> _Source | None:
        """Return it, or ``None`` of what is no Python."""
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return None
        source = cls()
        source.visit(tree)
        return source

    @property
    def is_script(self) -> bool:
        """Whether it makes a Trainer and has nothing that may be a hook; ``plugins`` may be what that Trainer is given."""
        return self.makes_trainer and not self._hooks and (self._begins or not self._lists)

    def _inside(self, node: ast.AST) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        bases = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
        may_mark = any(
            isinstance(one, ast.Name) or "hookimpl" in ast.unparse(one) for one in bases
        )  # under any other name, too
        self._hooks |= self._depth == 0 and may_mark
        if self._depth == 0 and any(_called(one.value) == "Trainer" for one in ast.walk(node) if isinstance(one, ast.Return)):
            self.trainer = node.name
        self._inside(node)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the names are those of ast
    visit_ClassDef = visit_Lambda = _inside  # noqa: N815

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._hooks |= self._depth == 0 and any(
            one.name == "*" or (one.asname or one.name) in self._names for one in node.names
        )

    def visit_Name(self, node: ast.Name) -> None:
        if self._depth == 0:
            stored = isinstance(node.ctx, ast.Store)
            self._lists |= stored and node.id in _LISTS
            # `train` is a usual name of data
            self._hooks |= node.id in self._names and "_" in node.id if stored else node.id in ("hookimpl", "globals")

    def visit_Assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if self._depth == 0 and isinstance(target, ast.Name) and _called(node.value) == "Trainer":
            self.trainer = target.id
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        before = self.trains, self._begins
        self.generic_visit(node)
        if isinstance(node.test, ast.Compare) and ast.unparse(node.test.left) == "__name__":  # what only python FILE does
            self.trains, self._begins = before

    def visit_Call(self, node: ast.Call) -> None:
        name = _called(node)
        self.makes_trainer |= name == "Trainer"
        self._begins |= self._depth == 0 and name == "Trainer"
        self.trains |= self._depth == 0 and name == "train" and isinstance(node.func, ast.Attribute)
        self.generic_visit(node)


def _called(node: Any) -> str:
    """Return the last part of the name of what is called."""
    function = getattr(node, "func", None)
    return getattr(function, "attr", getattr(function, "id", ""))
