"""Damage to the files of a checkpoint, and edits of them by somebody who knows the format.

A checkpoint is a mapping of file names to bytes here; a mutation returns another one. Damage is what disks, copies and
transfers do. An edit may be sealed: all digests are computed anew, so that only the decoder can notice anything.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

MANIFEST, STATE, TENSORS = "manifest.json", "state.json", "tensors.safetensors"
NAMES = (MANIFEST, STATE, TENSORS)

Files = dict[str, bytes]


class Mutation(NamedTuple):
    """One checkpoint that is not as it was written.

    Args:
        kind: What was done.
        files: What the folder holds now.
        sealed: Whether the digests fit, so that it may be read as other data.
    """

    kind: str
    files: Files
    sealed: bool = False


class Raw(str):
    """A piece of JSON text that stands as it is."""

    __slots__ = ()


class Pairs(list):
    """A JSON object as a list of [key, value], so that keys may come twice."""


# --- Digests ---

BLOCK_BYTES = 4 << 20


def seal(files: Files) -> Files:
    """Return the files with a manifest whose digests fit, as far as it is one; what cannot be sealed stays as it is."""
    try:
        tree = parsed(files[MANIFEST])
    except (ValueError, RecursionError):
        return files
    if not isinstance(tree, Pairs):
        return files
    for key, listed in tree:
        for name, facts in listed if key == "files" and isinstance(listed, Pairs) else ():
            if isinstance(facts, Pairs) and name in files:
                for fact in facts:
                    fact[1] = _facts(files[name]).get(fact[0], fact[1])
    text = written(Pairs(pair for pair in tree if pair[0] != "digest"))
    try:
        content = json.loads(text)
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")
    except (ValueError, RecursionError):
        return files
    digest = hashlib.sha256(canonical).hexdigest()
    sealed = Pairs([key, digest if key == "digest" else value] for key, value in tree)
    return {**files, MANIFEST: written(sealed).encode("utf-8", "surrogatepass")}


def _facts(data: bytes) -> dict[str, Any]:
    blocks = [data[start : start + BLOCK_BYTES] for start in range(0, len(data), BLOCK_BYTES)]
    crc32 = [f"{zlib.crc32(block):08x}" for block in blocks]
    return {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "crc32": crc32}


# --- Damage ---


def bit_flips(files: Files, chance: random.Random, count: int) -> Iterator[Mutation]:
    """Flip one bit; each file gets its share, since most of the bytes are in one of them."""
    for index in range(count):
        name = NAMES[index % 3]
        data = bytearray(files[name])
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        yield Mutation(f"bit flip in {name}", {**files, name: bytes(data)})


def zeroed_pages(files: Files, chance: random.Random, count: int) -> Iterator[Mutation]:
    """Fill a page with zeros, or the end of a file from a page on, as a file system may after a power cut."""
    for index in range(count):
        name = NAMES[index % 3]
        size = chance.choice((512, 4096))
        start = chance.randrange(0, len(files[name]), size)
        end = len(files[name]) if chance.random() < 0.3 else min(start + size, len(files[name]))
        yield Mutation(f"zeroed page in {name}", {**files, name: files[name][:start] + bytes(end - start) + files[name][end:]})


def swapped_sectors(files: Files, chance: random.Random, count: int) -> Iterator[Mutation]:
    """Swap two sectors of one file, or put one of another file in the place of one."""
    for index in range(count):
        name, other = NAMES[index % 3], chance.choice(NAMES)
        data, source = bytearray(files[name]), files[other]
        at, start = (chance.randrange(0, len(one), 512) for one in (data, source))
        size = min(512, len(data) - at, len(source) - start)
        if name == other:
            data[at : at + size], data[start : start + size] = data[start : start + size], data[at : at + size]
        else:
            data[at : at + size] = source[start : start + size]
        yield Mutation(f"swapped sector in {name}", {**files, name: bytes(data)})


def truncations(files: Files, chance: random.Random, count: int) -> Iterator[Mutation]:
    """Cut a file: nothing left, within its first bytes, at the end of its header, at a page, one byte short."""
    for index in range(count):
        name = NAMES[index % 3]
        size = len(files[name])
        header = 8 + struct.unpack("<Q", files[TENSORS][:8])[0]
        marks = (0, 1, 2, 7, 8, 9, header - 1, header, header + 1, size // 2, size - 4096, size - 512, size - 2, size - 1)
        cut = marks[index // 3] if index // 3 < len(marks) else chance.randrange(size)
        yield Mutation(f"truncated {name}", {**files, name: files[name][: max(0, min(cut, size - 1))]})


def appended(files: Files, chance: random.Random, count: int) -> Iterator[Mutation]:
    """Put bytes behind the end of a file, or before its beginning."""
    for index in range(count):
        name = NAMES[index % 3]
        more = chance.choice(
            (b"\0", b"\n", b" ", b"\xff" * 8, bytes(4096), chance.randbytes(chance.randint(1, 600)), b"{}", b"]")
        )
        yield Mutation(
            f"appended to {name}", {**files, name: files[name] + more if chance.random() < 0.8 else more + files[name]}
        )


def splices(files: Files, other: Files, chance: random.Random, count: int) -> Iterator[Mutation]:
    """Take whole files, or a part of one, from another checkpoint of the same run."""
    for taken in ((MANIFEST,), (STATE,), (TENSORS,), (MANIFEST, STATE), (MANIFEST, TENSORS), (STATE, TENSORS), NAMES):
        yield Mutation("files of another step", {**files, **{name: other[name] for name in taken}})
    for first, second in ((MANIFEST, STATE), (STATE, TENSORS), (MANIFEST, TENSORS)):
        yield Mutation("files swapped", {**files, first: files[second], second: files[first]})
    for index in range(max(0, count - 10)):
        name = NAMES[index % 3]
        start = chance.randrange(min(len(files[name]), len(other[name])))
        end = start + chance.choice((1, 8, 64, 512, 4096, 1 << 20))
        yield Mutation(
            f"part of another step in {name}", {**files, name: files[name][:start] + other[name][start:end] + files[name][end:]}
        )


def missing_and_extra(files: Files) -> Iterator[Mutation]:
    """Take files away, put others beside them."""
    for gone in ((MANIFEST,), (STATE,), (TENSORS,), (MANIFEST, STATE), (MANIFEST, TENSORS), (STATE, TENSORS), NAMES):
        yield Mutation("missing file", {name: data for name, data in files.items() if name not in gone})
    for name in (
        "state.pt",
        "state.json.bak",
        "optimizer.pt",
        "manifest.json~",
        "rng.pkl",
        "a\nb",
        "x" * 255,
        "MANIFEST.JSON",
        "-rf",
    ):
        yield Mutation("extra file", {**files, name: files[TENSORS][:100]})


# --- Edits of JSON ---

DEEP = 3000
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, "", "x", [], {}, "step-00000003", "../../x", "/etc/passwd", "\0", "\ud800"),
    *(2**31, 2**63, 2**64, -(2**63), 10**30, [[]], [0] * 1000, {"": {}}, {"a": 1}, "a" * 5000, "os.system"),
    *(
        Raw("1e400"),
        Raw("NaN"),
        Raw("-Infinity"),
        Raw("1" * 5000),
        Raw("0." + "1" * 5000),
        Raw("1E-999"),
        Raw("-0"),
        Raw("-0.0"),
    ),
    *(Raw("[" * DEEP + "]" * DEEP), Raw('{"a":' * DEEP + "1" + "}" * DEEP), Raw("[" * 99 + "]" * 99)),
)


def parsed(data: bytes) -> Any:
    """Return JSON with its objects as pairs."""
    return json.loads(data, object_pairs_hook=lambda pairs: Pairs(map(list, pairs)))


def written(node: Any) -> str:
    """Return the text of what ``parsed`` gave, edited or not."""
    if isinstance(node, Raw):
        return str(node)
    if isinstance(node, Pairs):
        return "{" + ", ".join(f"{json.dumps(key)}: {written(value)}" for key, value in node) + "}"
    if isinstance(node, list):
        if set(map(type, node)) <= {int}:  # a generator's state has thousands
            return json.dumps(node)
        return "[" + ", ".join(written(item) for item in node) + "]"
    if isinstance(node, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {written(value)}" for key, value in node.items()) + "}"
    return json.dumps(node)


def _copied(node: Any) -> Any:
    if not isinstance(node, list):
        return node
    return type(node)(_copied(one) if isinstance(one, list) else one for one in node)


def _place(node: Any, chance: random.Random) -> tuple[Any, int]:
    """Return (container, index) of a value below a node, each level as likely as the next: most values are in a few long lists."""
    while True:
        index = chance.randrange(len(node))
        inner = node[index][1] if isinstance(node, Pairs) else node[index]
        if not isinstance(inner, list) or not inner or chance.random() < 0.25:
            return node, index
        node = inner


def edited(tree: Any, chance: random.Random) -> tuple[str, Any]:
    """Return a copy of a JSON tree with one thing changed, and what that was."""
    tree = _copied(tree)
    container, index = _place(tree, chance)
    is_object = isinstance(container, Pairs)
    old = container[index][1] if is_object else container[index]
    what = chance.choice(("value", "value", "close value", "key", "removed", "doubled", "moved", "type"))
    if what == "removed":
        del container[index]
        return what, tree
    if what == "doubled":
        container.insert(index, _copied(container[index]))
        if is_object and chance.random() < 0.5:
            container[index][1] = chance.choice(VALUES)
        return what, tree
    if what == "moved":
        other, place = _place(tree, chance)
        new = _copied(other[place][1] if isinstance(other, Pairs) else other[place])
    elif what == "close value":
        new = _close_to(old, chance)
    elif what == "type":
        new = _of_another_type(old)
    elif what == "key" and is_object:
        container[index][0] = chance.choice(
            ("", "x", "\0", "$ref", "__class__", "__proto__", container[0][0], container[-1][0] + "x")
        )
        return what, tree
    else:
        new = chance.choice(VALUES)
    if is_object:
        container[index][1] = new
    else:
        container[index] = new
    return what, tree


def _close_to(value: Any, chance: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + chance.choice((-1, 1, 2, 1000, 2**32, -value, -2 * value))
    if isinstance(value, float):
        return value * chance.choice((1 + 1e-15, 2.0, -1.0, 0.0))
    if isinstance(value, str) and value:
        at = chance.randrange(len(value))
        return value[:at] + chance.choice(("", "x", value[at].swapcase() + value[at])) + value[at + 1 :]
    if isinstance(value, list) and value:
        return type(value)(chance.sample(value, len(value) - chance.randint(0, 1)))
    return chance.choice(VALUES)


def _of_another_type(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return float(value) if abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return str(value)
    if isinstance(value, Pairs):
        return [list(pair) for pair in value]
    return [value] if isinstance(value, str) else {str(index): item for index, item in enumerate(value or ())}


def json_edits(
    files: Files, name: str, chance: random.Random, count: int, seal: Callable[[Files], Files] | None
) -> Iterator[Mutation]:
    """Edit the tree of the manifest or of the state."""
    tree = parsed(files[name])
    for _ in range(count):
        what, new = edited(tree, chance)
        changed = {**files, name: written(new).encode("utf-8", "surrogatepass")}
        kind = f"{what} in {name}"
        yield Mutation(f"{kind}, sealed", seal(changed), sealed=True) if seal is not None else Mutation(kind, changed)


def format_numbers(files: Files, seal: Callable[[Files], Files]) -> Iterator[Mutation]:
    """Claim another format: never readable, with digests that fit or not."""
    tree = parsed(files[MANIFEST])
    for value in (0, 1, 3, -2, 2.0, 2.5, "2", "", None, True, [], [2], {}, 10**400, Raw("2e0"), Raw("1e400"), Raw("NaN")):
        new = Pairs([key, value if key == "format" else item] for key, item in tree)
        changed = {**files, MANIFEST: written(new).encode()}
        yield Mutation("format number", changed)
        yield Mutation("format number, sealed", seal(changed), sealed=True)


# --- Edits of the tensors' header ---


def header_edits(files: Files, chance: random.Random, count: int, seal: Callable[[Files], Files] | None) -> Iterator[Mutation]:
    """Edit offsets, data types and shapes, so that tensors overlap, leave the file, are huge or have holes between them."""
    data = files[TENSORS]
    (size,) = struct.unpack("<Q", data[:8])
    header, body = parsed(data[8 : 8 + size]), data[8 + size :]
    for _ in range(count):
        what, new = _edited_header(header, len(body), chance)
        text = written(new).encode("utf-8", "surrogatepass")
        text += b" " * (-len(text) % 8)
        length = len(text)
        if chance.random() < 0.1:
            what, length = (
                "length of the header",
                chance.choice((0, 1, 7, length - 1, length + 1, len(data), 2**31, 2**63, 2**64 - 1)),
            )
        changed = {**files, TENSORS: struct.pack("<Q", length) + text + body}
        kind = f"{what} in {TENSORS}"
        yield Mutation(f"{kind}, sealed", seal(changed), sealed=True) if seal is not None else Mutation(kind, changed)


def _edited_header(header: Any, size: int, chance: random.Random) -> tuple[str, Any]:
    what = chance.choice(("any value", "data type", "shape", "offsets", "overlap", "name"))
    if what == "any value":
        return edited(header, chance)
    header = _copied(header)
    entries = [pair for pair in header if pair[0] != "__metadata__"]
    name_and_entry = chance.choice(entries)
    fields = {pair[0]: pair for pair in name_and_entry[1]}
    if what == "data type":
        types = (
            "F64",
            "F32",
            "F16",
            "BF16",
            "I64",
            "I32",
            "I16",
            "I8",
            "U8",
            "U64",
            "BOOL",
            "F8_E4M3",
            "C64",
            "F4",
            "",
            "Q8",
            "float32",
        )
        fields["dtype"][1] = chance.choice(types)
    elif what == "shape":
        shapes = (
            [2**60],
            [2**32, 2**32],
            [-1],
            [0],
            [],
            [1] * 2000,
            [2**63],
            [1.5],
            ["1"],
            [size],
            [size // 4],
            [True],
            [0, 2**62],
        )
        fields["shape"][1] = chance.choice(shapes)
    elif what == "offsets":
        ends = (0, 1, size, size - 1, size + 1, -1, 2**63, 2**64, 10**30, 0.5, "0", None)
        fields["data_offsets"][1] = [chance.choice(ends), chance.choice(ends)]
    elif what == "overlap":
        other = {pair[0]: pair for pair in chance.choice(entries)[1]}
        fields["data_offsets"][1], fields["shape"][1] = other["data_offsets"][1], other["shape"][1]
    else:
        name_and_entry[0] = chance.choice(("", "__metadata__", chance.choice(entries)[0], "../../x", "\0", "x" * 10_000))
    return what, header


def sealed_noise(files: Files, chance: random.Random, count: int, seal: Callable[[Files], Files]) -> Iterator[Mutation]:
    """Damage a file and make the digests fit: what is read is other data, or nothing."""
    for index in range(count):
        name = (STATE, TENSORS)[index % 2]
        data = bytearray(files[name])
        what = chance.choice(("bits", "bytes", "cut", "more"))
        if what == "bits":
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        elif what == "bytes":
            at = chance.randrange(len(data))
            data[at : at + 8] = chance.randbytes(8)
        elif what == "cut":
            del data[chance.randrange(len(data)) :]
        else:
            data += chance.randbytes(chance.randint(1, 100))
        yield Mutation(f"{what} in {name}, sealed", seal({**files, name: bytes(data)}), sealed=True)
