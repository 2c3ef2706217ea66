"""Reading loaders, moving batches, their size."""

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from trainhooks.data import LookAhead, batch_size, call_model, length_of, no_batches, read_epoch, to_device

META = torch.device("meta")  # a second device that every machine has


class Counting:
    """Seven batches, and how many of them were fetched."""

    def __init__(self, count=7):
        self.count, self.fetched = count, 0

    def __iter__(self):
        for number in range(self.count):
            self.fetched += 1
            yield number


class TestReadEpoch:
    def test_fetches_no_batch_before_it_is_asked_for(self):
        loader = Counting()
        batches = read_epoch(loader, None)
        assert loader.fetched == 0
        assert next(batches) == 0
        assert loader.fetched == 1

    def test_without_length_looks_ahead_only_when_asked(self):
        loader = Counting(2)
        batches = read_epoch(loader, None)
        assert isinstance(batches, LookAhead)
        next(batches)
        assert loader.fetched == 1
        assert not batches.exhausted
        assert loader.fetched == 2
        assert not batches.exhausted  # asking twice fetches once
        assert loader.fetched == 2
        assert next(batches) == 1
        assert batches.exhausted
        assert list(batches) == []

    def test_a_batch_that_is_none_or_compares_oddly_is_a_batch(self):
        odd = torch.ones(2)  # bool(odd == x) raises
        assert [*LookAhead([None, odd, None])][1] is odd
        look = LookAhead([None])
        assert not look.exhausted
        assert [*look] == [None]

    def test_takes_no_more_than_length_from_a_generator(self):
        endless = iter(range(100))
        assert list(read_epoch(endless, 3)) == [0, 1, 2]
        assert list(read_epoch(endless, 3)) == [3, 4, 5]


class TestLengthOf:
    def test_known_and_unknown(self):
        class Endless(IterableDataset):
            def __iter__(self):
                return iter(())

        class Refuses:
            def __len__(self):
                raise NotImplementedError

        assert length_of([1, 2]) == 2
        assert length_of(DataLoader(TensorDataset(torch.zeros(7)), batch_size=2)) == 4
        assert length_of(DataLoader(TensorDataset(torch.zeros(7)), batch_size=2, drop_last=True)) == 3
        assert length_of(DataLoader(Endless())) is None
        assert length_of(Refuses()) is None
        assert length_of(iter([1])) is None

    def test_an_error_in_len_is_not_hidden(self):
        class Broken:
            def __len__(self):
                raise OSError("index file is gone")

        with pytest.raises(OSError, match="index file is gone"):
            length_of(Broken())


class TestNoBatches:
    def test_names_dataset_batch_size_and_drop_last(self):
        loader = DataLoader(TensorDataset(torch.zeros(3)), batch_size=4, drop_last=True)
        text = str(no_batches(loader, "epoch 0"))
        assert text.startswith("epoch 0: no batches (loader DataLoader, dataset of 3 samples, batch_size=4, drop_last=True)")
        assert "smaller batch or drop_last=False" in text

    def test_says_that_a_generator_is_used_up(self):
        assert "a generator can be read once only" in str(no_batches((x for x in ()), "epoch 1"))


Pair = namedtuple("Pair", "x y")


class Movable:
    def __init__(self):
        self.device = "cpu"

    def to(self, device):
        moved = Movable()
        moved.device = str(device)
        return moved


class TestToDevice:
    def test_what_is_there_already_is_the_same_object(self):
        for batch in (torch.ones(2), (torch.ones(2), torch.ones(1)), [torch.ones(2)]):
            assert to_device(batch, torch.device("cpu")) is batch

    def test_every_container_is_followed_and_keeps_its_type(self):
        one = torch.ones(1)
        ordered = OrderedDict(b=one, a=one)
        missing = defaultdict(list, a=one)
        batch = {"t": one, "l": [one, ("text", 3)], "p": Pair(one, None), "o": ordered, "d": missing, "m": Movable()}
        moved = to_device(batch, META)
        assert moved["t"].device == moved["l"][0].device == moved["p"].x.device == META
        assert moved["l"][1] == ("text", 3)
        assert type(moved["p"]) is Pair
        assert type(moved["o"]) is OrderedDict
        assert list(moved["o"]) == ["b", "a"]
        assert moved["o"]["a"].device == META
        assert type(moved["d"]) is defaultdict
        assert moved["d"].default_factory is list
        assert moved["m"].device == "meta"
        assert one.device.type == "cpu"
        assert ordered["a"] is one  # what the loader keeps is not changed

    def test_a_mapping_that_is_no_dict(self):
        assert to_device(UserDict(x=torch.ones(1)), META)["x"].device == META

    def test_a_packed_sequence_keeps_its_lengths_on_the_host(self):
        packed = to_device(pack_sequence([torch.ones(3), torch.ones(2)]), META)
        assert packed.data.device == META
        assert packed.batch_sizes.device.type == "cpu"

    def test_plain_values_pass(self):
        batch = ("label", 3, None, b"x")
        assert to_device(batch, META) == batch


IMAGE = torch.zeros(3, 8, 8)


@dataclass
class WithFields:
    x: torch.Tensor


class TestBatchSize:
    @pytest.mark.parametrize(
        ("batch", "size"),
        [
            (torch.zeros(5, 2), 5),
            (torch.tensor(1.0), 1),
            ((torch.zeros(5, 2), torch.zeros(5)), 5),
            ([torch.zeros(4), torch.zeros(4)], 4),
            ({"text": ["a", "b"], "x": torch.zeros(6, 2)}, 6),
            ({"text": ["a", "b"]}, 2),
            ({"in": {"x": torch.zeros(4, 2)}, "y": {"c": torch.zeros(4)}}, 4),
            (((torch.zeros(4), torch.zeros(4)), {"y": torch.zeros(4)}), 4),
            (([torch.zeros(4)], {"y": torch.zeros(4)}), 4),
            (({"a": {"b": torch.zeros(4)}}, torch.zeros(4)), 4),
            ((None, torch.zeros(4)), 4),
            ((5, torch.zeros(4)), 4),
            (("name", torch.zeros(4)), 4),
            ((np.zeros((4, 2)), np.zeros(4)), 4),
            ({"x": np.zeros(4)}, 4),
            ([(torch.zeros(3), 0), (torch.zeros(3), 1)], 2),  # a list of samples that nobody stacked
            (WithFields(torch.zeros(4)), 4),
            (((IMAGE, IMAGE), ({"boxes": torch.zeros(5, 4)}, {"boxes": torch.zeros(9, 4)})), 2),
            (({"x": torch.zeros(6, 2)}, torch.zeros(6)), 6),
            ([{"x": torch.zeros(6, 2)}, {"y": torch.zeros(6)}], 6),  # what the default collate makes of two mappings
            ([{"image": IMAGE}, {"image": IMAGE}], 2),  # Detectron2: a list of samples
            (((IMAGE, IMAGE), ({"boxes": 1}, {"boxes": 2})), 2),  # torchvision's detection references
            (((torch.zeros(9, 2), torch.zeros(9, 3)), torch.zeros(9)), 9),  # a model of two inputs
            (["a", "b", "c"], 3),
            ((), 1),
            ([], 1),
            (Pair(torch.zeros(7, 1), torch.zeros(7)), 7),
            (object(), 1),
            (None, 1),
        ],
    )
    def test_of(self, batch, size):
        assert batch_size(batch) == size


class TestCallModel:
    def test_mapping_sequence_and_single(self):
        def model(*args, **kwargs):
            return args, kwargs

        one = torch.ones(1)
        assert call_model(model, {"x": 1}) == ((), {"x": 1})
        assert call_model(model, [1, 2]) == ((1, 2), {})
        assert call_model(model, "text") == (("text",), {})
        assert call_model(model, one)[0][0] is one
