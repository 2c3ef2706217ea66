"""What a process does while it reads what others may have written: an audit hook, limits, and a forked child to do it in.

The hook records every event that a reader of data has no business with: unpickling, a program started, a connection, code
executed that is not of an installed module, and whatever is written or removed outside of the folders that were named. It
cannot be taken off again, so it is only ever set in a forked child.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import resource
import select
import signal
import sys
import sysconfig
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).parents[2]
MEMORY_LIMIT = 4 << 30
#: Where code may come from: the interpreter, what is installed, and the project itself.
CODE = tuple(
    os.path.realpath(one)
    for one in (sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), ROOT / "core", ROOT / "plugins")
)
#: Events that no reader of data raises.
NEVER = (
    *("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.startfile", "subprocess.Popen"),
    *("pickle.find_class", "socket.connect", "socket.bind", "socket.getaddrinfo", "urllib.Request", "pty.spawn"),
    *(
        "code.__new__",
        "function.__new__",
        "ctypes.dlopen",
        "ctypes.call_function",
        "os.putenv",
        "os.unsetenv",
        "webbrowser.open",
    ),
)
#: Events that change files, with the positions of the paths among their arguments.
CHANGES = {
    **dict.fromkeys(
        ("os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.chown", "os.utime", "shutil.rmtree"), (0,)
    ),
    **dict.fromkeys(("os.symlink", "shutil.copyfile", "shutil.copytree"), (1,)),
    **dict.fromkeys(("os.rename", "os.link", "shutil.move"), (0, 1)),
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Watch:
    """The audit hook of this process.

    Args:
        writable: Folders that may be changed; everything else is outside.
    """

    def __init__(self, writable: Sequence[Path]) -> None:
        self.writable = [os.path.realpath(one) for one in writable]
        self.executed: list[str] = []
        self.outside: list[str] = []
        self._on = True
        self._inside = threading.local()
        sys.dont_write_bytecode = True
        sys.addaudithook(self._seen)

    def stop(self) -> None:
        """Record no more, until ``start``."""
        self._on = False

    def start(self) -> None:
        """Record from now on."""
        self._on = True

    def _seen(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._on or getattr(self._inside, "hook", False):
            return
        self._inside.hook = True  # what the hook itself does is not recorded
        try:
            self._judge(event, arguments)
        finally:
            self._inside.hook = False

    def _judge(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in NEVER:
            if not (event.startswith("ctypes.") and _caller_is_installed()):
                self.executed.append(f"{event} {arguments!r}"[:300])
        elif event in ("exec", "compile"):
            name = arguments[0].co_filename if event == "exec" else arguments[1]
            if not _is_installed(name) and not _caller_is_installed():
                self.executed.append(f"{event} of {name!r}")
        elif event == "open":
            path, mode, flags = arguments
            writes = isinstance(flags, int) and flags & _WRITING or (isinstance(mode, str) and set(mode) & set("wax+"))
            if writes and not isinstance(path, int):
                self._changed(event, path, follows=not (isinstance(flags, int) and flags & (os.O_NOFOLLOW | os.O_EXCL)))
        elif event in CHANGES:
            folder = next((one for one in arguments[1:] if isinstance(one, int) and one > 2), None)  # a dir_fd
            for position in CHANGES[event]:
                if not isinstance(arguments[position], int):  # what is open was judged when it was opened
                    self._changed(event, arguments[position], folder)

    def _changed(self, event: str, path: Any, folder: int | None = None, *, follows: bool = False) -> None:
        text = os.fsdecode(path)
        if folder is not None and not os.path.isabs(text):
            text = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
        parent, name = os.path.split(os.path.abspath(text))
        whole = os.path.realpath(text) if follows else os.path.join(os.path.realpath(parent), name)
        if whole in (os.devnull, f"/proc/{os.getpid()}/clear_refs") or any(
            whole == one or whole.startswith(one + os.sep) for one in self.writable
        ):
            return
        self.outside.append(f"{event} {whole}"[:300])


def _is_installed(name: Any) -> bool:
    text = os.fsdecode(name) if isinstance(name, str | bytes) else str(name)
    return text.startswith("<frozen") or os.path.realpath(text).startswith(CODE)


def _caller_is_installed() -> bool:
    """Return whether Python code of an installed module asks for it, not an unpickler on behalf of data.

    Unpicklers written in C have no frame: the first one outside of this file is the code that called them.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    name = frame.f_code.co_filename if frame is not None else ""
    return _is_installed(name) and "pickle" not in os.path.basename(name) and frame.f_code.co_name not in _LOADERS


#: Functions that hand data to an unpickler written in C.
_LOADERS = ("load", "_load", "_legacy_load", "loads")


@dataclasses.dataclass
class Spent:
    """What a piece of work took.

    Args:
        seconds: Of the processor, in this process and in those that it waited for; what waits for ever is ended by its silence.
        megabytes: Of memory beyond what the process had before.
    """

    seconds: float
    megabytes: float


def measured(work: Callable[[], Any]) -> tuple[Any, Spent]:
    """Run ``work`` and return its result, with the processor's time and the peak of additional memory that it took."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before, started = _memory("VmRSS"), sum(os.times()[:4])
    result = work()
    return result, Spent(sum(os.times()[:4]) - started, (_memory("VmHWM") - before) / 1024)


def _memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


@dataclasses.dataclass
class Ended:
    """How a forked child ended.

    Args:
        records: What it handed over.
        signal: Of which it died, 0 if none.
        timed_out: Whether it was ended because it took too long.
        log: What it wrote to stdout and stderr.
    """

    records: list[Any]
    signal: int
    timed_out: bool
    log: str


def forked(work: Callable[[Callable[[Any], None]], None], log: Path, *, silence_s: float = 30.0) -> Ended:
    """Run ``work(tell)`` in a forked child under a limit of 4 GB of address space.

    What the child tells arrives as JSON whatever becomes of it afterwards. A child that is silent for too long is killed.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _become_a_child(log)
        code = 1
        try:

            def tell(record: Any) -> None:
                _write_all(writing, json.dumps(record).encode() + b"\n")
                faulthandler.dump_traceback_later(silence_s * 0.8)  # where it hangs, before it is killed

            work(tell)
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    data, timed_out = bytearray(), False
    while True:
        if not select.select([reading], [], [], silence_s)[0]:
            timed_out = True
            os.kill(pid, signal.SIGKILL)
            break
        block = os.read(reading, 1 << 16)
        if not block:
            break
        data += block
    os.close(reading)
    status = os.waitpid(pid, 0)[1]
    died_of = os.WTERMSIG(status) if os.WIFSIGNALED(status) and not timed_out else 0
    records = [json.loads(line) for line in data.split(b"\n") if line.strip()]
    return Ended(records, died_of, timed_out, log.read_text(errors="replace") if log.exists() else "")


def _become_a_child(log: Path) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), open(1, "w", closefd=False), open(2, "w", closefd=False)
    faulthandler.enable(sys.stderr)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def tree(folder: Path) -> dict[str, str]:
    """Return every entry below a folder with what tells whether it was changed, following no link."""
    import hashlib

    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"link {os.readlink(path)}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.stat().st_size < 1 << 24 else str(path.stat())
        else:
            found[name] = oct(path.stat().st_mode)
    return found
