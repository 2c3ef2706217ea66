"""What the source may not do, by its syntax tree: run data, unpickle, delete or leave a folder, swallow errors.

Every place that does one of these things for a reason is listed in ``ALLOWED`` with the reason; a place that is gone must
leave the list too.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    [*(ROOT / "core").rglob("*.py"), *(ROOT / "plugins").rglob("src/**/*.py"), *(ROOT / "plugins/builtins").rglob("*.py")]
)

#: Modules that execute what they read, make executing it easy, or reach into memory.
UNSAFE_MODULES = (
    "ctypes",
    *("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "yaml", "ruamel", "jsonpickle"),
    *("runpy", "code", "codeop", "imp", "pydoc", "pty", "xmlrpc", "telnetlib", "ftplib"),
)
#: Calls that turn text into code or into objects of any class, by their full names.
EXECUTES = (
    *("eval", "exec", "compile", "__import__", "input", "breakpoint", "importlib.import_module", "importlib.reload"),
    *("importlib.util.spec_from_file_location", "importlib.util.module_from_spec", "importlib.machinery.SourceFileLoader"),
    *("pkgutil.resolve_name", "pkgutil.find_loader", "types.FunctionType", "types.CodeType", "builtins.eval", "builtins.exec"),
    *("torch.hub.load", "torch.jit.load", "torch.package.PackageImporter", "numpy.fromregex", "torch.utils.cpp_extension.load"),
    *("logging.config.dictConfig", "logging.config.fileConfig", "operator.methodcaller"),
)
#: Calls that start another program or reach into the process from outside of Python.
STARTS = ("os.system", "os.popen", "os.startfile", "os.posix_spawn", "os.posix_spawnp", "os.fork", "os.forkpty")
START_PREFIXES = (
    "os.exec",
    "os.spawn",
    "subprocess.",
    "ctypes.",
    "multiprocessing.Process",
    "socket.socket",
    "socket.create_connection",
    "http.",
    "urllib.request.",
)
#: Calls and methods that delete.
DELETES = ("shutil.rmtree", "os.remove", "os.unlink", "os.rmdir", "os.removedirs", "shutil.move")
DELETING_METHODS = ("unlink", "rmdir")
BROAD = ("Exception", "BaseException")

#: (file, rule, function, what): why it is right there.
ALLOWED: dict[tuple[str, str, str, str], str] = {}


def allow(file, rule, function, what, why):
    """Add a place to the list."""
    root = "core/trainhooks/" if not file.startswith("@") else "plugins/builtins/trainhooks_builtins/"
    ALLOWED[root + file.removeprefix("@"), rule, function, what] = why


BROKEN = "a stream or a display of the user's that is broken must not cost the run"
INSTALLED = "an entry point of what is installed and takes part, or is to be listed with --check or --options"
OWN = "a module of our own, by a name of ours"
HIDDEN = "the hidden name that it writes to first, or a half written file of its own"
allow("__init__.py", "executes", "__getattr__", "importlib.import_module", OWN)
allow("@__init__.py", "executes", "__getattr__", "importlib.import_module", OWN)
allow("cli/__init__.py", "executes", "_LazyGroup.get_command", "importlib.import_module", OWN)
allow("assembly.py", "executes", "Assembly._load", ".load()", INSTALLED)
allow("discovery.py", "executes", "Found.load", ".load()", INSTALLED)
allow("cli/__init__.py", "executes", "_plugin_command", ".load()", "a command of what is installed, when it is called")
allow("cli/listing.py", "executes", "_check", ".load()", INSTALLED)
allow("cli/plugin_options.py", "executes", "show_options", ".load()", INSTALLED)
allow(
    "assembly.py", "executes", "load_reference", "importlib.import_module", "module:attribute of the command line or the script"
)
allow("trainer.py", "unsafe load", "Trainer.load_state_dict", "weights_only=", "which parts are wanted; nothing is unpickled")
allow("project.py", "executes", "load_project", "compile", "the project file that the user runs")
allow("project.py", "executes", "load_project", "exec", "the project file that the user runs")
allow("options.py", "executes", "_resolved", "eval", "an annotation in the code of a plugin that is loaded")
allow("options.py", "swallows", "_resolved", "Exception", "an annotation that cannot be resolved is none")
allow("options.py", "swallows", "parameters", "Exception", "annotations that cannot be resolved are resolved one by one")
for what in ("compile", "exec"):
    allow("plan.py", "executes", "_compiled", what, "calls of hooks, made of names that are checked to be identifiers")
    allow("@closure.py", "executes", "_without_bound", what, "a function of other arguments, made of names of arguments")
allow("guards.py", "passes", "guard_wrapper.guarded", "StopIteration: pass", "how a generator ends")
allow(
    "@_checkpoint_folders.py",
    "passes",
    "remove_remains",
    "trainhooks.CheckpointError: pass",
    "one that is broken is what is looked for",
)
allow("durable.py", "deletes", "replace_text", ".unlink", HIDDEN)
allow("@_growing_file.py", "deletes", "GrowingFile.replace", ".unlink", HIDDEN)
for what in (".unlink", "shutil.rmtree"):
    allow("@_artifact_copies.py", "deletes", "_remove", what, HIDDEN)
allow("@run_store.py", "deletes", "RunStore._keep", ".unlink", "what a kill has left under the name of the file that it writes")
allow(
    "@run_store.py", "deletes", "RunStore._repair", ".unlink", "media after the checkpoint, by names of ours, through no link"
)
allow("@_exported_weights.py", "deletes", "write_weights", ".unlink", HIDDEN)
for function in ("Rows.add", "Rows.finish", "Rows.discard"):
    allow("@_tables.py", "deletes", function, ".unlink", HIDDEN)
allow("run_lock.py", "deletes", "RunLock.release", ".unlink", "the lock that it holds")
for what in (".unlink", ".rmdir"):
    allow(
        "cli/run_folder.py",
        "deletes",
        "_removed_if_unused",
        what,
        "a folder that it has just made and that holds its run.json at most",
    )
for what in (".unlink", ".rmdir", "shutil.rmtree"):
    allow(
        "workdir.py",
        "deletes",
        "RunFolder._remove_former",
        what,
        "--overwrite: what run.json lists, within the folder, through no link",
    )
for what in (".unlink", ".rmdir"):
    allow(
        "@_checkpoint_folders.py",
        "deletes",
        "discard",
        what,
        "files of a checkpoint by their names, in a folder with a name of ours",
    )
allow("@_checkpoint_folders.py", "deletes", "set_pinned", ".unlink", "the mark that it has set")
allow(
    "@slurm.py",
    "starts",
    "Slurm._requeue",
    "subprocess.run",
    "scontrol requeue, without a shell, of the job in the environment",
)
for function, what in (
    ("RemoteMonitor.__init__", "urllib.request.build_opener"),
    ("RemoteMonitor._post", "urllib.request.Request"),
):
    allow("@remote_monitor.py", "starts", function, what, "the address that the user gives")
allow(
    "worker_shield.py",
    "unsafe module",
    "",
    "pickle",
    "the error of pickling, to say what of a dataset cannot be sent to workers",
)
allow("@_checkpoint_tensors.py", "unsafe module", "", "ctypes", "the memory of a tensor as bytes, without NumPy")
for rule, function, what in (
    ("unsafe module", "", "ctypes"),
    *(("starts", "_end_threads", f"ctypes.{what}") for what in ("pythonapi.PyThreadState_SetAsyncExc", "c_ulong", "py_object")),
):
    allow("left_behind.py", rule, function, what, "Python's own function that raises an exception in a thread of ours")
allow(
    "stateful.py",
    "swallows",
    "StatefulRegistry.kept_places",
    "contextlib.suppress",
    "a plugin that cannot tell its place has none",
)
allow(
    "errors.py",
    "swallows",
    "add_note",
    "contextlib.suppress",
    "a note must not stand in the place of the exception that takes none",
)
allow("@_progress_screen.py", "swallows", "Screen._work", "contextlib.suppress", BROKEN)
allow("@_progress_screen.py", "swallows", "_is_terminal", "contextlib.suppress", BROKEN)


class Checker(ast.NodeVisitor):
    """Collects (rule, function, what, line) of everything that needs a reason."""

    def __init__(self):
        self.found = []
        self._names = {}  # local name -> full name
        self._where = []

    # --- Names ---

    def visit_Import(self, node):
        for alias in node.names:
            self._imported(alias.name, node)
            self._names[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )

    def visit_ImportFrom(self, node):
        module = node.module or ""
        if not node.level:
            self._imported(module, node)
        for alias in node.names:
            full = f"{module}.{alias.name}" if not node.level else f".{module}.{alias.name}"
            self._names[alias.asname or alias.name] = full
            if not node.level and full in UNSAFE_MODULES:
                self._add("unsafe module", full, node)

    def _imported(self, name, node):
        if name.partition(".")[0] in UNSAFE_MODULES:
            self._add("unsafe module", name, node)

    def full_name(self, node):
        """Return the dotted name of an expression with imports resolved, or ``None``; ``getattr(a, "b")`` is ``a.b``."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            owner = self.full_name(node.value)
            return f"{owner}.{node.attr}" if owner else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) > 1:
            owner, name = self.full_name(node.args[0]), node.args[1]
            return f"{owner}.{name.value}" if owner and isinstance(name, ast.Constant) else None
        return None

    # --- Where ---

    def _scope(self, node):
        for decorator in getattr(node, "decorator_list", ()):
            self.visit(decorator)
        self._where.append(node.name)
        for child in ast.iter_child_nodes(node):
            if child not in getattr(node, "decorator_list", ()):
                self.visit(child)
        self._where.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _scope

    def _add(self, rule, what, node):
        self.found.append((rule, ".".join(self._where), what, node.lineno))

    # --- Calls ---

    def visit_Call(self, node):
        name = self.full_name(node.func)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else None
        if name is not None:
            self._check_call(name, node)
        if method in DELETING_METHODS and name not in DELETES:
            self._add("deletes", f".{method}", node)
        if method == "load" and not node.args and not node.keywords:  # an entry point's
            self._add("executes", ".load()", node)
        self._check_keywords(node)
        self.generic_visit(node)

    def _check_call(self, name, node):
        if name.partition(".")[0].lstrip("_") in ("pickle", "marshal", "yaml") and name.endswith(
            ("load", "loads", "Unpickler")
        ):
            self._add("unsafe load", name, node)
        elif name in ("torch.load", "torch.serialization.load"):
            given = {one.arg: one.value for one in node.keywords}
            if not _is(given.get("weights_only"), True):
                self._add("unsafe load", name, node)
        elif name.startswith("importlib.import_module") and isinstance(node.args[0], ast.Constant):
            pass  # named in the source
        elif name in EXECUTES:
            self._add("executes", name, node)
        elif name in STARTS or name.startswith(START_PREFIXES):
            self._add("starts", name, node)
        elif name in DELETES:
            self._add("deletes", name, node)
        elif name in ("os.path.join", "posixpath.join", "ntpath.join"):
            self._add("joins names", name, node)
        elif name.startswith(("signal.", "threading.Thread", "threading.Timer", "atexit.")) and not self._in_function():
            self._add("acts at import", name, node)
        elif name == "open" and not self._in_function():
            self._add("acts at import", name, node)
        elif name == "contextlib.suppress" and any(self.full_name(one) in BROAD for one in node.args):
            self._add("swallows", name, node)

    def _check_keywords(self, node):
        for keyword, bad in (("weights_only", False), ("allow_pickle", True), ("trust_remote_code", True), ("shell", True)):
            if any(one.arg == keyword and not _is(one.value, not bad) for one in node.keywords):
                self._add("unsafe load", f"{keyword}=", node)

    def _in_function(self):
        return any(isinstance(one, str) and not one[:1].isupper() for one in self._where)

    def visit_Constant(self, node):
        if node.value == "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD":
            self._add("unsafe load", node.value, node)

    # --- Errors ---

    def visit_ExceptHandler(self, node):
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        names = [self.full_name(one) if one is not None else "everything" for one in kinds]
        empty = all(isinstance(one, ast.Pass | ast.Continue) or _is_docstring(one) for one in node.body)
        used = any(isinstance(one, ast.Raise) or (isinstance(one, ast.Name) and one.id == node.name) for one in _inside(node))
        if node.type is None:
            self._add("swallows", "bare except", node)
        elif empty and any(name in BROAD or name == "OSError" for name in names):
            self._add("swallows", f"{' | '.join(map(str, names))}: pass", node)
        elif empty and any(isinstance(one, ast.Pass) for one in node.body):
            self._add("passes", f"{' | '.join(map(str, names))}: pass", node)
        elif any(name in BROAD for name in names) and not used:
            self._add("swallows", " | ".join(map(str, names)), node)
        self.generic_visit(node)


def _inside(node):
    return (one for statement in node.body for one in ast.walk(statement))


def _is(node, value):
    return isinstance(node, ast.Constant) and node.value is value


def _is_docstring(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def check(source):
    """Return what needs a reason in a text of Python."""
    checker = Checker()
    checker.visit(ast.parse(source))
    return checker.found


def everything():
    """Return what needs a reason in the whole project, with the lines."""
    found = {}
    for path in SOURCES:
        file = path.relative_to(ROOT).as_posix()
        for rule, function, what, line in check(path.read_text(encoding="utf-8")):
            found.setdefault((file, rule, function, what), []).append(line)
    return found


def test_everything_that_needs_a_reason_has_one_and_every_reason_is_needed():
    found = everything()
    assert {key: lines for key, lines in found.items() if key not in ALLOWED} == {}
    assert sorted(ALLOWED.keys() - found.keys()) == []


def test_the_whole_project_is_read():
    names = {path.relative_to(ROOT).as_posix() for path in SOURCES}
    assert {"core/trainhooks/trainer.py", "plugins/builtins/trainhooks_builtins/checkpoint.py"} <= names
    assert len(names) > 90


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("import pickle", "unsafe module"),
        ("import pickle as json", "unsafe module"),
        ("def f():\n    from _pickle import loads", "unsafe module"),
        ("import yaml\nyaml.safe_load(x)", "unsafe module"),
        ("from ruamel import yaml", "unsafe module"),
        ("import marshal", "unsafe module"),
        ("import pickle\npickle.loads(data)", "unsafe load"),
        ("from pickle import Unpickler as U\nU(file).load()", "unsafe load"),
        ("import torch\ntorch.load(path)", "unsafe load"),
        ("import torch\ntorch.load(path, weights_only=False)", "unsafe load"),
        ("import torch\ntorch.load(path, weights_only=flag)", "unsafe load"),
        ("import torch\ntorch.load(path, **options)", "unsafe load"),
        ("from torch import load as read\nread(path)", "unsafe load"),
        ("from torch.serialization import load\nload(path)", "unsafe load"),
        ("import torch as t\ngetattr(t, 'load')(path)", "unsafe load"),
        ("import numpy\nnumpy.load(path, allow_pickle=True)", "unsafe load"),
        ("import os\nos.environ['TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'] = '1'", "unsafe load"),
        ("eval(text)", "executes"),
        ("import builtins\nbuiltins.exec(text)", "executes"),
        ("run = compile(text, 'f', 'exec')", "executes"),
        ("__import__(name)", "executes"),
        ("from importlib import import_module as get\nget(name)", "executes"),
        ("import importlib\nimportlib.import_module(f'x.{name}')", "executes"),
        ("entry_point.load()", "executes"),
        ("import importlib.util\nimportlib.util.spec_from_file_location('m', path)", "executes"),
        ("import os\nos.system('ls')", "starts"),
        ("import subprocess\nsubprocess.run(['ls'])", "starts"),
        ("from subprocess import run\nrun(['ls'])", "starts"),
        ("import os\nos.execv('/bin/sh', [])", "starts"),
        ("import ctypes\nctypes.CDLL(None)", "starts"),
        ("import shutil\nshutil.rmtree(path)", "deletes"),
        ("from shutil import rmtree\nrmtree(path)", "deletes"),
        ("path.unlink()", "deletes"),
        ("import os\nos.remove(path)", "deletes"),
        ("import os\nos.path.join(folder, name)", "joins names"),
        ("from os import path\npath.join(folder, name)", "joins names"),
        ("import signal\nsignal.signal(2, f)", "acts at import"),
        ("import signal\nclass C:\n    old = signal.signal(2, f)", "acts at import"),
        ("import threading\nthreading.Thread(target=f).start()", "acts at import"),
        ("text = open('f').read()", "acts at import"),
        ("try:\n    f()\nexcept:\n    raise", "swallows"),
        ("try:\n    f()\nexcept Exception:\n    pass", "swallows"),
        ("try:\n    f()\nexcept OSError:\n    pass", "swallows"),
        ("for x in y:\n    try:\n        f()\n    except (ValueError, BaseException):\n        continue", "swallows"),
        ("try:\n    f()\nexcept Exception:\n    return_value = None", "swallows"),
        ("try:\n    f()\nexcept Exception as error:\n    return_value = None", "swallows"),
        ("from contextlib import suppress\nwith suppress(Exception):\n    f()", "swallows"),
        ("try:\n    f()\nexcept KeyError:\n    pass", "passes"),
    ],
)
def test_the_checker_sees(source, rule):
    assert rule in [one for one, *_ in check(source)]


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.load(path, weights_only=True)",
        "import json\njson.load(file)\njson.loads(text)",
        "model.eval()\nmodel.compile()",
        "import re\nre.compile('x')",
        "from importlib import import_module\nimport_module('pyarrow')",
        "import signal\ndef f():\n    signal.signal(2, g)",
        "import threading\ndef f():\n    threading.Thread(target=g)",
        "', '.join(names)",
        "try:\n    f()\nexcept Exception as error:\n    log(error)",
        "try:\n    f()\nexcept BaseException:\n    g()\n    raise",
        "from contextlib import suppress\nwith suppress(FileNotFoundError):\n    f()",
        "numbers.remove(3)\npaths.clear()",
    ],
)
def test_the_checker_lets_pass(source):
    assert check(source) == []


def test_the_checker_says_where():
    source = "import os\n\nclass A:\n    def b(self):\n        return os.system('x')\n"
    assert check(source) == [("starts", "A.b", "os.system", 5)]
