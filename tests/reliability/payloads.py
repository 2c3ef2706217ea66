"""Files that run code when they are read by the wrong reader: each touches a marker."""

from __future__ import annotations

import functools
import gzip
import io
import json
import marshal
import os
import pickle
import subprocess
import warnings
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from pathlib import Path


class _Calls:
    """Pickles as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


def payloads(marker: Path) -> dict[str, bytes]:
    """Return hostile contents by name; whoever runs one of them makes the file ``marker``."""
    touch = f"touch '{marker}'"
    code = f"open({str(marker)!r}, 'w').close()"
    system, execute = _Calls(os.system, touch), _Calls(exec, code)
    found = {
        "pickle of os.system": pickle.dumps(system),
        "pickle of os.system, protocol 0": pickle.dumps(system, protocol=0),
        "pickle of exec": pickle.dumps({"step": 6, "state": execute}),
        "pickle of eval": pickle.dumps([_Calls(eval, f"__import__('os').system({touch!r})")]),
        "pickle of subprocess": pickle.dumps(_Calls(subprocess.Popen, ["touch", str(marker)])),
        "gzip of a pickle": gzip.compress(pickle.dumps(system)),
        "torch archive": _saved(system),
        "torch archive of exec": _saved({"model": execute}),
        "torch, before archives": _saved(system, _use_new_zipfile_serialization=False),
        "torch, tensor and code": _saved({"w": torch.ones(3), "x": execute}, _use_new_zipfile_serialization=False),
        "NumPy array of objects": _array(np.array([execute], dtype=object)),
        "marshalled code": b"\xa7\r\r\n" + bytes(12) + marshal.dumps(compile(code, "hostile", "exec")),
        "YAML tags": f'!!python/object/apply:os.system ["{touch}"]\n'.encode(),
        "YAML in JSON": json.dumps({"format": 2, "step": f"!!python/object/apply:os.system [{touch!r}]"}).encode(),
        "JSON with classes": json.dumps(
            {"__class__": "os.system", "py/reduce": [{"py/function": "os.system"}, [touch]]}
        ).encode(),
        "JSON with a target": json.dumps({"_target_": "os.system", "_args_": [touch], "files": {}, "format": 2}).encode(),
        "Python code": f"import os\nos.system({touch!r})\n{code}\n".encode(),
        "template": ("${env:HOME} $(" + touch + ") `" + touch + "` {{7*7}} %(x)s {0.__class__}").encode(),
    }
    return found


def _saved(thing: Any, **arguments: Any) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(thing, buffer := io.BytesIO(), **arguments)
    return buffer.getvalue()


def _array(array: Any) -> bytes:
    np.save(buffer := io.BytesIO(), array, allow_pickle=True)
    return buffer.getvalue()


@functools.cache
def zip_bomb(size: int = 1 << 30) -> bytes:
    """Return an archive that looks like one of torch and is two hundred times its size inside."""
    buffer, zeros = io.BytesIO(), bytes(1 << 20)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("archive/version", "3\n")
        with archive.open("archive/data.pkl", "w", force_zip64=True) as file:
            for _ in range(size >> 20):
                file.write(zeros)
    return buffer.getvalue()
