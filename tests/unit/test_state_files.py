"""The state of a run on disk and back: exactly typed, bit for bit; and what is refused, both when it is saved and when it is read."""

import collections
import contextlib
import enum
import io
import json
import math
import struct
import threading

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save
from torch import nn

from trainhooks import CheckpointError
from trainhooks_builtins import _checkpoint_tensors, _state_files
from trainhooks_builtins._checkpoint_files import read_checkpoint, take_snapshot, write_checkpoint
from trainhooks_builtins._checkpoint_tensors import DTYPES, write_tensors
from trainhooks_builtins._state_decoder import decode_state


def returned(value, tmp_path):
    """Return a value after its way to the disk and back."""
    path = tmp_path / "step-00000001"
    write_checkpoint(path, take_snapshot({"x": value}), {"step": 1})
    return read_checkpoint(path)["x"]


def in_memory(value):
    """Likewise, as it would come from its files."""
    snapshot = take_snapshot({"x": value})
    write_tensors(buffer := io.BytesIO(), snapshot.tensors)
    raw = buffer.getvalue()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert set(header) - {"__metadata__"} == set(snapshot.tensors)
    return decode_state(snapshot.text, {name: tensor.contiguous() for name, tensor in snapshot.tensors.items()})["x"]


def same(one, other):
    """Compare types, bits and order; 1 is not 1.0 is not True, and NaN is NaN only with the same bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        facts = [(t.dtype, t.shape, t.stride(), t.device) for t in (one, other)]
        return facts[0] == facts[1] and bits(one) == bits(other)
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, complex):
        return struct.pack("dd", one.real, one.imag) == struct.pack("dd", other.real, other.imag)
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=False)
        return len(one) == len(other) and all(same(k, m) and same(v, w) for (k, v), (m, w) in pairs)
    if isinstance(one, list | tuple | collections.deque):
        return (
            len(one) == len(other) and all(map(same, one, other)) and getattr(one, "maxlen", 0) == getattr(other, "maxlen", 0)
        )
    return one == other


def bits(tensor):
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).tolist()) if tensor.numel() else b""


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**30), max_value=10**30)
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.text(st.characters(categories=["Cs", "Ll"]), max_size=4)
    | st.binary()
    | st.binary().map(bytearray)
    | st.sampled_from([*DTYPES.values()])
    | st.sampled_from(["cpu", "cuda", "cuda:3", "mps", "meta"]).map(torch.device)
    | st.lists(st.integers(0, 9)).map(torch.Size)
)
KEYS = st.text() | st.sampled_from(["$tensor", "$dict", "$", "", "a"]) | st.integers() | st.tuples(st.integers(), st.text())
HASHABLE = st.integers() | st.text() | st.tuples(st.booleans(), st.text())
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=3).map(collections.OrderedDict)
        | st.lists(inner, max_size=4).map(lambda items: collections.deque(items, maxlen=9))
        | st.frozensets(HASHABLE, max_size=4)
        | st.sets(HASHABLE, max_size=4)
        | st.lists(st.text(), max_size=5).map(collections.Counter)
    ),
    max_leaves=25,
)


class TestRoundTrip:
    @settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(TREES)
    def test_any_tree(self, tree):
        assert same(in_memory(tree), tree)

    def test_what_looks_like_a_tag_is_data(self, tmp_path):
        value = {"$tensor": "x/y", "$": {"$tuple": [1]}, "$dict": [["a", 1]], "plain": {"nested": {"$int": "0x1"}}}
        assert same(returned(value, tmp_path), value)

    def test_the_text_does_not_depend_on_the_process(self):
        """Sets of strings are in another order in each process; a checkpoint of the same state is the same file."""
        one, other = ({"x": set(words)} for words in (["a", "b", "c", "d"], ["d", "c", "b", "a"]))
        assert take_snapshot(one).text == take_snapshot(other).text == b'{"x":{"$set":["a","b","c","d"]}}'

    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    def test_all_types_bit_for_bit(self, dtype, tmp_path):
        raw = torch.arange(256, dtype=torch.uint8).repeat(4)
        raw = raw % 2 if dtype == torch.bool else raw
        tensor = raw.view(dtype)
        again = returned(tensor, tmp_path)
        assert (again.dtype, again.shape) == (dtype, tensor.shape)
        assert bytes(again.view(torch.uint8).tolist()) == bytes(raw.tolist())

    @pytest.mark.parametrize("indices", [[[0, 2], [1, 0]], [[2, 2], [1, 1]], [[], []]], ids=["usual", "twice", "empty"])
    def test_sparse(self, indices, tmp_path):
        """As the gradients of an embedding are; an index that is there twice is not added up."""
        tensor = torch.sparse_coo_tensor(
            torch.tensor(indices).long(), torch.ones(len(indices[0])), (3, 2), check_invariants=True
        )
        again = returned(tensor, tmp_path)
        assert again.layout == torch.sparse_coo
        assert again.shape == (3, 2)
        assert again.is_coalesced() == tensor.is_coalesced()
        assert torch.equal(again._indices(), tensor._indices())
        assert torch.equal(again._values(), tensor._values())

    def test_nan_payloads_and_negative_zero(self, tmp_path):
        raw = struct.pack("<4Q", 0x7FF8000000000001, 0xFFF8DEADBEEF0000, 0x8000000000000000, 0x7FF0000000000001)
        tensor = torch.frombuffer(bytearray(raw), dtype=torch.float64)
        assert bits(returned(tensor, tmp_path)) == raw
        number = struct.unpack("<d", raw[8:16])[0]
        assert struct.pack("<d", returned(number, tmp_path)) == raw[8:16]
        assert math.copysign(1, returned(-0.0, tmp_path)) == -1

    @pytest.mark.parametrize(
        "tensor",
        [
            torch.tensor(3.5),
            torch.empty(0),
            torch.empty(2, 0, 3),
            torch.arange(24.0).reshape(2, 3, 4),
            torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
            torch.arange(6.0).reshape(2, 3).t(),
            torch.arange(24.0).reshape(2, 3, 4).permute(1, 2, 0),
            torch.arange(3.0).reshape(3, 1, 1).as_strided((3, 1, 1), (1, 3, 7)),  # a dimension of size 1 may have any stride
            torch.randn(3, dtype=torch.complex64).conj(),
            torch.randn(2, 3, dtype=torch.complex128).t(),
            torch.randn(3, dtype=torch.complex64).imag.neg(),
        ],
        ids=lambda tensor: f"{tuple(tensor.shape)}-{tensor.stride()}-{tensor.dtype}",
    )
    def test_shapes_and_strides(self, tensor, tmp_path):
        again = returned(tensor, tmp_path)
        expected = tensor.resolve_conj().resolve_neg()
        assert (again.shape, again.stride(), again.dtype) == (expected.shape, expected.stride(), expected.dtype)
        assert torch.equal(again, expected)
        assert again.untyped_storage().nbytes() == again.numel() * again.element_size()

    @pytest.mark.parametrize("view", [lambda t: t[:, 1], lambda t: t[::2], lambda t: t[0].expand(5, 4), lambda t: t[:, ::2]])
    def test_a_view_with_gaps_has_its_own_values_only(self, view, tmp_path):
        tensor = view(torch.arange(16.0).reshape(4, 4))
        again = returned(tensor, tmp_path)
        assert torch.equal(again, tensor)
        assert again.is_contiguous()
        assert again.untyped_storage().nbytes() == tensor.numel() * 4

    def test_what_is_one_tensor_is_stored_once_and_is_one_again(self, tmp_path):
        tensor = torch.arange(4.0)
        value = {"a": tensor, "b": tensor.detach(), "c": tensor.clone(), "part": tensor[:2]}
        snapshot = take_snapshot({"x": value})
        assert list(snapshot.tensors) == ["x/a", "x/c", "x/part"]
        again = returned(value, tmp_path)
        assert again["a"] is again["b"]
        assert again["a"] is not again["c"]
        assert torch.equal(again["part"], tensor[:2])

    def test_parameters_are_tensors(self, tmp_path):
        again = returned(nn.Parameter(torch.ones(2)), tmp_path)
        assert type(again) is torch.Tensor
        assert not again.requires_grad

    def test_versions_that_modules_read_older_states_by(self, tmp_path):
        state = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).state_dict()
        again = returned(state, tmp_path)
        assert type(again) is collections.OrderedDict
        assert again._metadata == state._metadata
        assert again._metadata["1"] == {"version": 2}

    def test_what_is_read_shares_no_memory_with_the_file(self, tmp_path):
        """The file may be rotated away or replaced while the run goes on, and a truncated mapping would kill the process."""
        tensor = returned(torch.arange(1000.0), tmp_path)
        with (tmp_path / "step-00000001" / "tensors.safetensors").open("r+b") as file:
            file.truncate(0)
        assert tensor.sum() == 499_500
        with open("/proc/self/maps", encoding="utf-8") as maps:
            assert "tensors.safetensors" not in maps.read()

    def test_whatever_the_default_device_is(self, tmp_path):
        torch.set_default_device("meta")
        try:
            again = returned(torch.ones(3, device="cpu"), tmp_path)
        finally:
            torch.set_default_device(None)
        assert again.device.type == "cpu"
        assert again.tolist() == [1, 1, 1]

    def test_states_of_torch_itself(self, tmp_path):
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 5])
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        scheduler.step()
        value = {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(), "rng": torch.get_rng_state()}
        again = returned(value, tmp_path)
        assert same(again, value)
        assert again["scheduler"]["milestones"] == collections.Counter([2, 2, 5])


class TestTheFile:
    """What this project writes with plain file operations is what the safetensors library reads and would write."""

    def test_the_library_reads_the_same_values(self, tmp_path):
        names = [name for name in DTYPES if not name.startswith(("complex", "float8", "float4"))]
        state = {name: torch.arange(6).reshape(2, 3).to(DTYPES[name]) for name in names}
        write_checkpoint(tmp_path / "step-00000001", take_snapshot({"model": state}), {"step": 1})
        loaded = load_file(tmp_path / "step-00000001" / "tensors.safetensors")
        assert set(loaded) == {f"model/{name}" for name in names}
        for name in names:
            assert loaded[f"model/{name}"].dtype == DTYPES[name]
            assert torch.equal(loaded[f"model/{name}"].to(torch.float64), state[name].to(torch.float64))

    def test_the_library_writes_the_same_data(self):
        tensors = {"b": torch.arange(3, dtype=torch.float32), "a": torch.tensor([[1.5]], dtype=torch.float32)}
        write_tensors(buffer := io.BytesIO(), tensors)
        ours, theirs = buffer.getvalue(), save(tensors, metadata={"format": "pt"})
        headers = [json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")]) for raw in (ours, theirs)]
        assert headers[0] == headers[1]
        assert ours[-16:] == theirs[-16:] == struct.pack("<4f", 1.5, 0, 1, 2)

    def test_a_dimension_order_of_its_own_is_the_order_in_memory(self, tmp_path):
        tensor = torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last)
        returned(tensor, tmp_path)
        loaded = load_file(tmp_path / "step-00000001" / "tensors.safetensors")["x"]
        assert loaded.shape == (2, 4, 5, 3)
        assert torch.equal(loaded.permute(0, 3, 1, 2), tensor)


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


class TestRefusedAtTheSave:
    @pytest.mark.parametrize(
        ("value", "words"),
        [
            ({"a": [0, 1, threading.Lock()]}, r"plugins/foo\['a'\]\[2\] is a _thread.lock"),
            ({("k", 1): object()}, r"plugins/foo\[\('k', 1\)\] is an object"),
            (np.float64(1), r"plugins/foo is a numpy.float64"),
            (Colour.RED, r"plugins/foo is a .*Colour"),
            (Text("x"), r"plugins/foo is a .*Text"),
            (collections.defaultdict(list), r"plugins/foo is a collections.defaultdict"),
            ((1, {2: lambda: 0}), r"plugins/foo\[1\]\[2\] is a function"),
            (torch.ones(2, device="meta"), r"plugins/foo is a tensor without data \(device meta\)"),
            (torch.qint8, r"plugins/foo is a torch.qint8"),
            (nn.Linear(1, 1), r"plugins/foo is a torch.nn.modules.linear.Linear"),
            (nn.parameter.UninitializedParameter(), r"plugins/foo is a .*UninitializedParameter"),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_with_its_place(self, value, words):
        with pytest.raises(CheckpointError, match=f"^{words}: a checkpoint holds tensors and plain values"):
            take_snapshot({"plugins/foo": value})

    def test_quantized_tensors(self):
        with pytest.warns(UserWarning), contextlib.suppress(RuntimeError):
            tensor = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
            with pytest.raises(CheckpointError, match="plugins/foo is a torch.strided tensor of torch.qint8"):
                take_snapshot({"plugins/foo": tensor})

    def test_what_contains_itself(self):
        value = []
        value.append(value)
        with pytest.raises(CheckpointError, match="is nested deeper than 100 levels, or contains itself"):
            take_snapshot({"x": value})

    def test_a_hundred_levels_are_possible(self):
        value = ()
        for _ in range(98):
            value = (value,)
        assert in_memory(value) == value
        with pytest.raises(CheckpointError, match="nested deeper"):
            take_snapshot({"x": ((((value,),),),)})

    def test_too_much_text(self, monkeypatch):
        monkeypatch.setattr(_state_files, "LIMIT_BYTES", 1000)
        with pytest.raises(
            CheckpointError, match=r"make 2\d{3} bytes of JSON, at most 1000 are possible; 'big' alone has 20\d\d: put"
        ):
            take_snapshot({"small": 1, "big": [1] * 1000})

    def test_too_many_tensors(self, monkeypatch):
        monkeypatch.setattr(_checkpoint_tensors, "_MAX_HEADER_BYTES", 200)
        snapshot = take_snapshot({"model": [torch.ones(1)] + [torch.ones(1) for _ in range(3)]})
        with pytest.raises(
            CheckpointError, match=r"names and shapes of the 4 tensors of the state make 2\d\d bytes, at most 200"
        ):
            write_tensors(io.BytesIO(), snapshot.tensors)


class TestSnapshot:
    """CK-12: what is written in the background is what was there when it was asked for."""

    @pytest.mark.parametrize(
        "value", [torch.ones(3), torch.ones(2, 3).t(), torch.ones(4)[::2], torch.ones(2, dtype=torch.complex64)]
    )
    def test_a_copy_knows_nothing_of_later_changes(self, value):
        numbers = [1, 2]
        snapshot = take_snapshot({"w": value, "numbers": numbers}, copy=True)
        value.zero_()
        numbers.append(3)
        tensor = next(iter(snapshot.tensors.values()))
        assert torch.equal(tensor, torch.ones_like(tensor))
        assert json.loads(snapshot.text)["numbers"] == [1, 2]

    def test_without_a_copy_nothing_is_copied(self):
        value = torch.ones(3)
        assert take_snapshot({"w": value}).tensors["w"].data_ptr() == value.data_ptr()
        assert take_snapshot({"w": value}).size_bytes == 12 + len(b'{"w":{"$tensor":"w"}}')


ONE = {"t": torch.ones(2, 3)}


class TestRefusedWhenRead:
    """A text that nobody who is well-meaning has written; digests do not protect from it."""

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("[]", "it is not an object"),
            ('{"a":1,"a":2}', "a key is there twice"),
            ('{"a":NaN}', "NaN is no JSON"),
            ('{"a":1e999}', "inf is too large"),
            (f'{{"a":{1 << 64}}}', "an integer of more than 64 bits"),
            ('{"a":{"$nothing":1}}', r"\$nothing is wrong: it is not known"),
            ('{"a":{"$tuple":[],"b":1}}', r"\$tuple is wrong: it is not known"),
            ('{"a":{"$tuple":1}}', r"\$tuple is wrong: list expected, not int"),
            ('{"a":{"$int":5}}', r"\$int is wrong: str expected, not int"),
            ('{"a":{"$float":"00"}}', r"\$float is wrong: '00' is no double"),
            ('{"a":{"$bytes":"?"}}', r"\$bytes is wrong"),
            ('{"a":{"$dtype":"os"}}', r"\$dtype is wrong: 'os'"),
            ('{"a":{"$device":"os.system"}}', r"\$device is wrong"),
            ('{"a":{"$set":[1,1]}}', r"\$set is wrong: a member is there twice"),
            ('{"a":{"$set":[[]]}}', r"\$set is wrong: unhashable"),
            ('{"a":{"$dict":[[1,2],[1,3]]}}', r"\$dict is wrong: a key is there twice"),
            ('{"a":{"$dict":[[1]]}}', r"\$dict is wrong: 2 values expected, not 1"),
            ('{"a":{"$size":["x"]}}', r"\$size is wrong"),
            ('{"a":{"$deque":[[1],-2]}}', r"\$deque is wrong"),
            ('{"a":{"$tensor":"u"}}', "there is no tensor 'u'"),
            ('{"a":{"$tensor":["t"]}}', "str expected, not list"),
            ('{"a":1}', "nothing refers to the tensor 't'"),
            ('{"a":{"$tensor":"t"},"b":{"$tensor":"t","stride":[3,1]}}', "'t' is said to have two forms"),
            ('{"a":{"$tensor":"t","dtype":"float64"}}', "torch.float32 cannot be torch.float64"),
            ('{"a":{"$tensor":"t","dtype":"complex64"}}', r"a tensor of shape \[2, 3\] cannot be torch.complex64"),
            ('{"a":{"$tensor":"t","shape":[7]}}', r"shape \[7\] with strides \[1\] does not fill 6 elements"),
            ('{"a":{"$tensor":"t","shape":[6],"stride":[2]}}', r"shape \[6\] with strides \[2\] does not fill"),
            ('{"a":{"$tensor":"t","stride":[0,0]}}', "does not fill"),
            ('{"a":{"$tensor":"t","shape":[-2,-3]}}', "are no sizes"),
            (f'{{"a":{{"$tensor":"t","shape":[{1 << 62},{1 << 62}]}}}}', "does not fill"),
            ('{"a":{"$tensor":"t","storage_offset":9}}', "other keys than dtype, shape and stride"),
            ('{"a":{"$sparse":[1,{"$tensor":"t"},[3],true]}}', r"\$sparse is wrong: its indices and values are no tensors"),
            (
                '{"a":{"$sparse":[{"$tensor":"t"},{"$tensor":"t"},[3],true]}}',
                r"\$sparse is wrong",
            ),  # indices that are no integers
            ('{"a":' + "[" * 200 + "]" * 200 + "}", "nested deeper than 100"),
            ('{"a":' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        ],
    )
    def test_with_the_reason(self, text, words):
        with pytest.raises(ValueError, match=words):
            decode_state(text.encode(), dict(ONE))

    @pytest.mark.parametrize("index", [3, -1, 1 << 40])
    def test_sparse_with_an_index_outside(self, index):
        tensors = {"i": torch.tensor([[index]]), "v": torch.ones(1)}
        with pytest.raises(ValueError, match=r"\$sparse is wrong"):
            decode_state(b'{"a":{"$sparse":[{"$tensor":"i"},{"$tensor":"v"},[3],true]}}', tensors)
