"""Images, text, histograms and tables on their way to a reporter."""

import inspect
import math
import time

import numpy as np
import pytest
import torch

from trainhooks import UsageError, hookimpl
from trainhooks.media import Histogram, Image, Table, Text


class Keeps:
    def __init__(self):
        self.items = []

    @hookimpl
    def report_media(self, items):
        self.items += items


@pytest.fixture
def logged(make_trainer):
    """Return a function that has a hook log before step 3 of five and gives what the reporter got."""

    def run(do):
        class Logs:
            @hookimpl
            def before_step(self, trainer):
                if trainer.step == 3:
                    do(trainer)

        keeps = Keeps()
        make_trainer([Logs(), keeps], values=(1.0,) * 5).train()
        return keeps.items

    return run


class TestImage:
    @pytest.mark.parametrize(
        ("image", "pixels"),
        [
            (torch.tensor([[0.0, 0.5], [1.0, 2.0]]), [[[0], [128]], [[255], [255]]]),
            (torch.tensor([[math.nan, -1.0]]), [[[0], [0]]]),
            (torch.tensor([[True, False]]), [[[255], [0]]]),
            (np.array([[7, 9]], dtype=np.uint8), [[[7], [9]]]),
            (torch.tensor([[[1]], [[2]], [[3]]], dtype=torch.uint8), [[[1, 2, 3]]]),
        ],
        ids=["float", "not finite", "bool", "array", "rgb"],
    )
    def test_pixels(self, logged, image, pixels):
        (item,) = logged(lambda trainer: trainer.log_image("x", image))
        assert isinstance(item, Image)
        assert item.pixels.dtype == torch.uint8
        assert item.pixels.tolist() == pixels
        assert (item.name, item.step, item.epoch) == ("x", 3, 0)

    def test_several_are_a_grid(self, logged):
        """Three images of one pixel are two rows of two, the last place empty."""
        images = torch.tensor([10, 20, 30], dtype=torch.uint8).reshape(3, 1, 1, 1)
        (item,) = logged(lambda trainer: trainer.log_image("x", images))
        assert item.pixels[..., 0].tolist() == [[10, 20], [30, 0]]

    def test_it_is_as_it_was_when_it_was_logged(self, logged):
        image = torch.ones(2, 2, dtype=torch.uint8)

        def do(trainer):
            trainer.log_image("x", image)
            image.zero_()

        (item,) = logged(do)
        assert item.pixels.sum() == 4

    def test_values_that_are_clipped_are_said_once(self, logged, messages):
        logged(lambda trainer: [trainer.log_image("x", 255 * torch.ones(2, 2)) for _ in range(3)])
        assert messages() == ["log_image('x'): values outside of 0 to 1 are clipped; divide by 255, or undo the normalization"]

    @pytest.mark.parametrize("image", [torch.ones(2, 2), 255 * torch.ones(2, 2, dtype=torch.uint8), torch.ones(2, 2) + 1e-6])
    def test_others_are_not(self, logged, messages, image):
        logged(lambda trainer: trainer.log_image("x", image))
        assert messages() == []

    @pytest.mark.parametrize(
        ("image", "message"),
        [
            (torch.zeros(5), r"shape \(5,\)"),
            (torch.zeros(2, 4, 4), r"shape \(2, 4, 4\)"),
            (torch.zeros(0, 3), r"shape \(0, 3\)"),
            (torch.zeros(2, 2, dtype=torch.int64), "torch.int64"),
        ],
    )
    def test_what_is_no_image_is_refused(self, make_trainer, image, message):
        with pytest.raises(UsageError, match=message):
            make_trainer().log_image("x", image)


class TestHistogram:
    def test_counts_and_edges(self, logged):
        """0, 1, 2, 3, 4 in four bins of width 1: the last holds 3 and 4."""
        (item,) = logged(lambda trainer: trainer.log_histogram("x", torch.arange(5.0), bins=4))
        assert isinstance(item, Histogram)
        assert item.counts == (1, 1, 1, 2)
        assert item.edges == (0, 1, 2, 3, 4)

    @pytest.mark.parametrize(
        ("values", "counts", "edges"),
        [
            ([math.nan, 1.0, math.inf, 3.0, -math.inf], (1, 1), (1, 2, 3)),
            ([2.0, 2.0], (2, 0), (2, 2.5, 3)),
            ([math.nan], (0, 0), (0, 0.5, 1)),
            ([[1, 2], [3, 5]], (2, 2), (1, 3, 5)),
        ],
        ids=["not finite", "all equal", "nothing finite", "whole numbers"],
    )
    def test_odd_values(self, logged, values, counts, edges):
        (item,) = logged(lambda trainer: trainer.log_histogram("x", torch.tensor(values), bins=2))
        assert (item.counts, item.edges) == (counts, edges)

    def test_as_numpy_counts(self, logged):
        values = torch.randn(10_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        (item,) = logged(lambda trainer: trainer.log_histogram("x", values))
        counts, edges = np.histogram(values.numpy(), bins=64)
        assert sum(item.counts) == 10_000
        assert np.abs(np.array(item.counts) - counts).sum() <= 2  # one value may lie on an edge
        assert item.edges == pytest.approx(edges)

    @pytest.mark.parametrize(
        ("values", "bins"), [(torch.zeros(0), 4), (torch.zeros(3), 0), (torch.zeros(3, dtype=torch.complex64), 3)]
    )
    def test_what_cannot_be_counted_is_refused(self, make_trainer, values, bins):
        with pytest.raises(UsageError, match="give real numbers and 1 bin or more"):
            make_trainer().log_histogram("x", values, bins)


class TestTableAndText:
    def test_rows_become_plain_values(self, logged):
        rows = [[1, torch.tensor(2.5), "a"], [None, np.float32(1.5), torch.zeros(2)]]
        table, text = logged(lambda trainer: (trainer.log_table("t", ["a", "b", "c"], rows), trainer.log_text("x", "hello")))
        assert isinstance(table, Table)
        assert table.columns == ("a", "b", "c")
        assert table.rows == ((1, 2.5, "a"), (None, 1.5, "tensor([0., 0.])"))
        assert isinstance(text, Text)
        assert text.text == "hello"

    def test_a_row_of_another_length_is_refused(self, make_trainer):
        with pytest.raises(UsageError, match=r"row 1 has 1 values, there are 2 columns"):
            make_trainer().log_table("t", ["a", "b"], [[1, 2], [3]])


class TestWhen:
    def test_before_the_reporters_are_open_and_after_the_training(self, make_trainer, tmp_path):
        class Logs:
            @hookimpl
            def setup(self, trainer):
                trainer.log_text("early", "x")
                (tmp_path / "file").touch()
                trainer.log_artifact(tmp_path / "file")

            @hookimpl
            def teardown(self, trainer):
                trainer.log_text("late", "x")

        class Takes(Keeps):
            @hookimpl
            def report_artifact(self, path, name, kind):
                self.items.append((path, name, kind))

        takes = Takes()
        make_trainer([Logs(), takes]).train()
        assert takes.items[0] == (tmp_path / "file", "file", "file")
        assert [item.name for item in takes.items[1:]] == ["early", "late"]

    def test_nothing_is_kept_where_nobody_reports(self, make_trainer):
        held = []

        class Logs:
            @hookimpl
            def after_step(self, trainer):
                trainer.log_image("x", torch.zeros(4, 4))
                held.append(len(trainer._media))

        make_trainer([Logs()]).train()
        assert set(held) == {0}

    def test_many_before_a_flush_are_passed_on(self, make_trainer):
        keeps, held = Keeps(), []

        class Logs:
            @hookimpl
            def after_step(self, trainer):
                for _ in range(150):
                    trainer.log_text("x", "y")
                    held.append(len(trainer._media))

        make_trainer([Logs(), keeps], values=(1.0,)).train()
        assert max(held) < 100
        assert len(keeps.items) == 150


@pytest.mark.parametrize("value", [None, "image.png", {}, [[1.0], [1.0, 2.0]]], ids=repr)
def test_what_is_no_image_is_refused_where_it_is_logged(make_trainer, value):
    trainer = make_trainer()
    with pytest.raises(UsageError, match=r"log_image\('x'\): \w+ is no tensor or array of numbers"):
        trainer.log_image("x", value)
    with pytest.raises(UsageError, match=r"log_histogram\('x'\): \w+ is no tensor or array of numbers"):
        trainer.log_histogram("x", value)


@pytest.mark.parametrize(
    ("columns", "rows"), [(None, [[1]]), (["a"], [1]), (["a"], None), (["a"], [{"a": 1}]), (["a", "b"], ["xy", {1, 2}])]
)
def test_what_is_no_table_is_refused_where_it_is_logged(make_trainer, columns, rows):
    with pytest.raises(UsageError, match=r"log_table\('x'\): .* give names of columns"):
        make_trainer().log_table("x", columns, rows)


def test_names_are_text(make_trainer):
    trainer = make_trainer()
    for log in (lambda name: trainer.log_text(name, "x"), lambda name: trainer.log(name, 1.0)):
        with pytest.raises(UsageError, match="what is logged has the name 3: a name is text, such as '3'"):
            log(3)
        with pytest.raises(UsageError, match="what is logged has an empty name: give it one, such as 'train/accuracy'"):
            log("")
    with pytest.raises(UsageError, match="what is logged has the name 3: a name is text, such as '3'"):
        trainer.log_artifact("x", name=3)


class Uploads:
    def __init__(self):
        self.got = []

    @hookimpl
    def report_artifact(self, name, step, update, epoch, time):
        self.got.append((name, step, update, epoch))
        self.time = time


class TestArtifact:
    def test_it_has_the_counters_of_the_record_of_its_step(self, make_trainer, tmp_path):
        """Logged in the second step of the second epoch of three steps: step 5; its update is done, its epoch is not."""

        class Logs:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 4:
                    trainer.log_artifact(tmp_path, name="folder")

        uploads, before = Uploads(), time.time()
        make_trainer([Logs(), uploads], values=(1.0,) * 3, max_epochs=2).train()
        assert uploads.got == [("folder", 5, 5, 1)]
        assert before <= uploads.time <= time.time()

    @pytest.mark.parametrize("when", ["setup", "after_step"])
    def test_one_that_is_not_there_is_said_once_with_the_line_that_logs_it(self, make_trainer, messages, tmp_path, when):
        class Logs:
            @hookimpl(specname=when)
            def log(self, trainer):
                for path in (tmp_path / "gone", tmp_path / "gone", tmp_path / "also gone"):
                    trainer.log_artifact(path)

        line = inspect.getsourcelines(Logs.log)[1] + 3
        uploads = Uploads()
        make_trainer([Logs(), uploads], values=(1.0,) * 2).train()
        assert uploads.got == []
        assert [text for text in messages() if "log_artifact" in text] == [
            f"log_artifact(): there is no file or folder {tmp_path / name}, so it is left out ({__file__}:{line})"
            for name in ("gone", "also gone")
        ]

    def test_it_is_said_before_a_run_too_but_not_where_nobody_reports(self, make_trainer, messages, tmp_path):
        trainer = make_trainer(val=(1.0,))
        trainer.log_artifact(tmp_path / "gone")
        assert len(messages()) == 1

        class Logs:
            @hookimpl
            def before_eval(self, trainer):
                trainer.log_artifact(tmp_path / "gone")

        trainer.register(Logs())
        trainer.evaluate("val")
        assert len(messages()) == 1

    def test_a_folder_given_as_dots_has_its_own_name(self, make_trainer, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)

        class Logs:
            @hookimpl
            def after_step(self, trainer):
                trainer.log_artifact(".")

        uploads = Uploads()
        make_trainer([Logs(), uploads], values=(1.0,)).train()
        assert [one[0] for one in uploads.got] == [tmp_path.name]


def test_a_flipped_array_and_a_sparse_tensor(make_trainer):
    class Logs:
        @hookimpl
        def after_step(self, trainer):
            trainer.log_image("flipped", np.array([[0.0, 1.0]])[:, ::-1])
            trainer.log_image("sparse", torch.tensor([[0.0, 1.0]]).to_sparse())

    keeps = Keeps()
    make_trainer([Logs(), keeps], values=(1.0,)).train()
    assert [item.pixels.flatten().tolist() for item in keeps.items] == [[255, 0], [0, 255]]


def test_values_so_far_apart_that_their_distance_is_infinite_have_a_histogram(make_trainer):
    class Logs:
        @hookimpl
        def after_step(self, trainer):
            trainer.log_histogram("x", torch.tensor([-1e308, 0.0, 2.0, 1e308], dtype=torch.float64), bins=2)

    keeps = Keeps()
    make_trainer([Logs(), keeps], values=(1.0,)).train()
    assert keeps.items[0].edges == (0.0, 1.0, 2.0)
    assert keeps.items[0].counts == (1.0, 1.0)


def test_too_many_before_the_training_begins_are_counted(make_trainer, messages):
    class Logs:
        @hookimpl
        def setup(self, trainer):
            for number in range(130):
                trainer.log_text("x", str(number))

    keeps = Keeps()
    make_trainer([Logs(), keeps], values=(1.0,)).train()
    assert [item.text for item in keeps.items] == [str(number) for number in range(100)]
    said = "30 images, texts, ... were left out: no more than 100, or 64 MiB, are kept until the training begins"
    assert messages().count(said) == 1


def test_large_ones_before_the_training_begins_are_counted_and_a_single_one_gets_through(make_trainer, messages, monkeypatch):
    """Of 1 MiB: the first is larger than that, the second does not fit any more."""
    monkeypatch.setattr("trainhooks.run_log._EARLY_MIB", 1)

    class Logs:
        @hookimpl
        def setup(self, trainer):
            for size in (2**21, 10):
                trainer.log_image("x", torch.zeros(1, size, dtype=torch.uint8))

    keeps = Keeps()
    make_trainer([Logs(), keeps], values=(1.0,)).train()
    assert [item.pixels.numel() for item in keeps.items] == [2**21]
    assert any(text.startswith("1 images, texts, ... were left out") for text in messages())


def test_large_ones_are_passed_on_before_the_flush(make_trainer, monkeypatch):
    """Images of 300 KiB, of which 1 MiB may wait: after the fourth they are passed on."""
    monkeypatch.setattr("trainhooks.run_log._EARLY_MIB", 1)
    held = []

    class Logs:
        @hookimpl
        def after_step(self, trainer):
            for _ in range(6):
                trainer.log_image("x", torch.zeros(300, 1024, dtype=torch.uint8))
                held.append(len(trainer._media))

    keeps = Keeps()
    make_trainer([Logs(), keeps], values=(1.0,)).train()
    assert held == [1, 2, 3, 0, 1, 2]
    assert len(keeps.items) == 6


@pytest.mark.parametrize(
    ("log", "least", "most"),
    [
        (lambda trainer: trainer.log_image("x", torch.zeros(3, 100, 100)), 30_000, 31_000),
        (lambda trainer: trainer.log_text("x", "y" * 10_000), 10_000, 11_000),
        (lambda trainer: trainer.log_histogram("x", torch.ones(5), bins=1000), 2000 * 32, 2100 * 32),
        (lambda trainer: trainer.log_table("x", ["a"], [[1.5]] * 1000), 24_000, 100_000),
    ],
    ids=["image", "text", "histogram", "table"],
)
def test_what_they_take_in_memory(logged, log, least, most):
    (item,) = logged(log)
    assert least <= item.size_bytes <= most


def test_what_an_evaluation_on_its_own_logs_is_not_kept_for_a_training(make_trainer):
    class Logs:
        @hookimpl
        def before_eval(self, trainer):
            trainer.log_text("x", "y")

    keeps = Keeps()
    trainer = make_trainer([Logs(), keeps], val=(1.0,))
    trainer.evaluate()
    trainer.train()
    assert keeps.items == []


@pytest.mark.parametrize("values", [None, [("a", 1)], "a=1"])
def test_hyperparameters_are_a_mapping(make_trainer, values):
    with pytest.raises(UsageError, match=r"log_hyperparameters\(\): \w+ is no mapping of names to values"):
        make_trainer().log_hyperparameters(values)
