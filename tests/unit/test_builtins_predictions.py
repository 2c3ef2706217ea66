"""``predictions``: the table that a prediction writes, value by value, and what is left when it fails."""

import csv
import json
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from trainhooks import DataError, OptionError, SkipEpoch, SkipStep, Trainer, UsageError, hookimpl
from trainhooks_builtins import Checkpoint, Predictions
from trainhooks_builtins._tables import GROUP


class Gives:
    """Returns these outputs in turn."""

    def __init__(self, *outputs):
        self.outputs = list(outputs)

    @hookimpl
    def predict_step(self):
        return self.outputs.pop(0)


def predict(plugin, *outputs, batches=None, plugins=(), split="test", **arguments):
    batches = batches or [torch.zeros(rows_of(output)) for output in outputs]
    trainer = Trainer(
        nn.Identity(), loaders={split: batches}, plugins=[plugin, *plugins, Gives(*outputs)], autoload=False, **arguments
    )
    return trainer, trainer.predict(split)


def rows_of(output):
    first = next(iter(output.values())) if isinstance(output, dict) else output[0] if isinstance(output, tuple) else output
    return len(first)


def read(path="p.csv"):
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class TestCsv:
    def test_one_value_a_sample(self):
        """In the order of the loader, numbered over all batches; 0.1 as single precision, in digits that give it back."""
        _, outputs = predict(Predictions("p.csv"), torch.tensor([0.1, 2.0]), torch.tensor([3.5]))
        rows = read()
        assert [row[0] for row in rows] == ["index", "0", "1", "2"]
        assert [row[1] for row in rows] == ["prediction", "0.100000001", "2", "3.5"]
        assert [one.tolist() for one in outputs] == [pytest.approx([0.1, 2.0]), [3.5]]  # what predict returns is as ever

    def test_several_values_a_sample(self):
        predict(Predictions("p.csv"), torch.tensor([[1, 2], [3, 4]]), torch.tensor([[5, 6]]))
        assert read() == [
            ["index", "prediction_0", "prediction_1"],
            ["0", "1", "2"],
            ["1", "3", "4"],
            ["2", "5", "6"],
        ]

    def test_one_column_is_one_column(self):
        predict(Predictions("p.csv"), torch.tensor([[1], [2]]))
        assert read() == [["index", "prediction"], ["0", "1"], ["1", "2"]]

    def test_more_dimensions(self):
        predict(Predictions("p.csv"), torch.arange(8).reshape(2, 2, 2))
        assert read() == [
            ["index", "prediction_0_0", "prediction_0_1", "prediction_1_0", "prediction_1_1"],
            ["0", "0", "1", "2", "3"],
            ["1", "4", "5", "6", "7"],
        ]

    def test_a_mapping_has_named_columns(self):
        output = {"score": torch.tensor([0.5, 0.25]), "text": ["a,b", 'say "x"\nü'], "box": torch.tensor([[1, 2], [3, 4]])}
        predict(Predictions("p.csv"), output)
        assert read() == [
            ["index", "score", "text", "box_0", "box_1"],
            ["0", "0.5", "a,b", "1", "2"],
            ["1", "0.25", 'say "x"\nü', "3", "4"],
        ]

    def test_several_tensors_and_named_tuples(self):
        predict(Predictions("p.csv"), (torch.tensor([1]), torch.tensor([[2, 3]])))
        assert read() == [["index", "prediction_0", "prediction_1_0", "prediction_1_1"], ["0", "1", "2", "3"]]
        pair = namedtuple("Pair", ["mean", "std"])  # noqa: PYI024
        predict(Predictions("p.csv"), pair(torch.tensor([1]), torch.tensor([2])))
        assert read() == [["index", "mean", "std"], ["0", "1", "2"]]

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (torch.tensor([True]), "True"),
            (torch.tensor([0.1], dtype=torch.float64), "0.1"),
            (torch.tensor([0.1], dtype=torch.bfloat16), "0.100097656"),
            (torch.tensor([float("nan")]), "nan"),
            (torch.tensor([float("-inf")]), "-inf"),
            (torch.tensor([2**40]), "1099511627776"),
            (torch.tensor([0.5], requires_grad=True), "0.5"),
            (np.array([0.1]), "0.1"),
            (np.array(["x"]), "x"),
            ([None], ""),
            (["x"], "x"),
            ([7], "7"),
        ],
    )
    def test_values(self, value, text):
        predict(Predictions("p.csv"), value)
        assert read()[1] == ["0", text]

    @given(
        st.lists(st.lists(st.floats(width=32, allow_subnormal=True), max_size=5), min_size=1, max_size=5).filter(
            lambda batches: any(batches)
        )
    )
    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_every_number_comes_back(self, batches):
        """Whatever the batches are, empty ones included."""
        outputs = [torch.tensor(one, dtype=torch.float32) for one in batches]
        predict(Predictions("p.csv"), *outputs)
        found = np.array([float(row[1]) for row in read()[1:]], dtype=np.float32)
        np.testing.assert_array_equal(found, torch.cat(outputs).numpy())

    def test_one_value_for_a_batch_of_one(self):
        """As a model gives it that reduces its output."""
        predict(Predictions("p.csv"), torch.tensor(5), torch.tensor(6), batches=[torch.ones(1)] * 2)
        assert read() == [["index", "prediction"], ["0", "5"], ["1", "6"]]


class TestOptions:
    def test_columns_choose_from_a_mapping(self):
        output = {"a": torch.tensor([1]), "loss": torch.tensor(9.0), "b": torch.tensor([2])}
        predict(Predictions("p.csv", columns=("b", "a")), output)
        assert read() == [["index", "b", "a"], ["0", "2", "1"]]

    def test_columns_name_what_has_no_names(self):
        predict(Predictions("p.csv", columns=("cat", "dog")), torch.tensor([[1, 2]]))
        assert read() == [["index", "cat", "dog"], ["0", "1", "2"]]

    def test_columns_that_are_not_there(self):
        with pytest.raises(DataError, match=r"'c' is not among what predict_step gave: a, b"):
            predict(Predictions("p.csv", columns=("a", "c")), {"a": torch.tensor([1]), "b": torch.tensor([1])})
        with pytest.raises(DataError, match="predictions.columns has 3 names for 2 columns"):
            predict(Predictions("p.csv", columns=("a", "b", "c")), torch.tensor([[1, 2]]))

    def test_arg_max(self):
        """Of scores; whole numbers and single values stay."""
        output = {
            "scores": torch.tensor([[0.1, 0.9], [0.8, 0.2]]),
            "ids": torch.tensor([[7, 8], [9, 6]]),
            "p": torch.tensor([0.5, 1]),
        }
        predict(Predictions("p.csv", arg_max=True), output)
        assert read() == [["index", "scores", "ids_0", "ids_1", "p"], ["0", "1", "7", "8", "0.5"], ["1", "0", "9", "6", "1"]]

    @pytest.mark.parametrize(
        ("batch", "target"),
        [
            ((torch.zeros(2), torch.tensor([4, 5])), [["target"], ["4"], ["5"]]),
            (
                (torch.zeros(2), torch.zeros(2), torch.tensor([[4, 5], [6, 7]])),
                [["target_0", "target_1"], ["4", "5"], ["6", "7"]],
            ),
            ({"x": torch.zeros(2), "labels": torch.tensor([4, 5])}, [["target"], ["4"], ["5"]]),
        ],
    )
    def test_targets(self, batch, target):
        predict(Predictions("p.csv", targets=True), torch.tensor([1, 2]), batches=[batch])
        assert [row[2:] for row in read()] == target

    def test_targets_that_are_not_there_are_said_once(self, messages):
        predict(Predictions("p.csv", targets=True), torch.tensor([1]), torch.tensor([2]))
        assert read() == [["index", "prediction"], ["0", "1"], ["1", "2"]]
        assert messages().count("predictions.targets: the batches of 'test' have no target") == 1

    def test_splits(self, folder):
        plugin = Predictions("{split}.csv", splits=("test",))
        trainer, _ = predict(plugin, torch.tensor([1]), torch.tensor([2]), batches=[torch.ones(1)])
        trainer.loaders["val"] = [torch.ones(1)]
        trainer.predict("val")
        assert names(folder) == ["test.csv"]

    def test_a_file_for_each_split(self, folder):
        plugin = Predictions("{split}.csv")
        trainer, _ = predict(plugin, torch.tensor([1]), torch.tensor([2]), batches=[torch.ones(1)])
        trainer.loaders["val"] = [torch.ones(1)]
        trainer.predict("val")
        assert [read(name)[1] for name in names(folder)] == [["0", "1"], ["0", "2"]]

    def test_one_file_for_two_splits_is_refused_before_the_first_is_lost(self):
        trainer, _ = predict(Predictions("p.csv"), torch.tensor([1]), torch.tensor([2]), batches=[torch.ones(1)])
        trainer.loaders["val"] = [torch.ones(1)]
        with pytest.raises(UsageError, match=r"holds the predictions of 'test': put \{split\} into the name"):
            trainer.predict("val")
        assert read()[1] == ["0", "1"]

    def test_a_second_prediction_replaces_the_first(self):
        trainer, _ = predict(Predictions("p.csv"), torch.tensor([1]), torch.tensor([2]), batches=[torch.ones(1)])
        trainer.predict("test")
        assert read() == [["index", "prediction"], ["0", "2"]]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"file": "p.txt"}, r"file = 'p.txt': its ending says no format"),
            ({"max_columns": 0}, r"max_columns = 0: must be 1 or more"),
        ],
    )
    def test_what_makes_no_sense(self, options, message):
        with pytest.raises(OptionError, match=message):
            Predictions(**options)

    @pytest.mark.parametrize(
        ("options", "wanted"),
        [
            ({"file": "p.csv"}, "csv"),
            ({"file": "p.PQ"}, "parquet"),
            ({"file": "p.parquet"}, "parquet"),
            ({"file": "p.txt", "format": "csv"}, "csv"),
            ({}, "csv"),
        ],
    )
    def test_the_ending_says_the_format(self, options, wanted):
        assert Predictions(**options).format == wanted

    def test_a_folder_that_is_not_there_fails_before_the_first_batch(self, folder):
        for file, message in (("no/p.csv", "there is no folder .*no"), ("here", "is a folder")):
            (folder / "here").mkdir(exist_ok=True)
            gives = Gives(torch.tensor([1]))
            trainer = Trainer(
                nn.Identity(), loaders={"test": [torch.ones(1)]}, plugins=[Predictions(file, "csv"), gives], autoload=False
            )
            with pytest.raises(UsageError, match=message):
                trainer.predict("test")
            assert len(gives.outputs) == 1

    def test_several_processes(self):
        trainer, _ = predict(Predictions("p.csv"), torch.tensor([1]))
        trainer.world_size = 2
        with pytest.raises(UsageError, match="writes the samples of one process"):
            trainer.predict("test")


class TestWhere:
    def test_without_a_name_in_the_current_directory(self, folder):
        predict(Predictions(), torch.tensor([1]))
        assert names(folder) == ["predictions-test.csv"]

    def test_without_a_name_in_the_run_folder_and_listed_there(self, make_trainer, folder):
        trainer = make_trainer([Predictions(), Gives(torch.tensor([7]))], work_dir=folder / "run", max_steps=1)
        trainer.loaders["test"] = [torch.ones(1)]
        trainer.train()
        trainer.predict("test")
        assert read("run/predictions-test.csv")[1] == ["0", "7"]
        assert '"predictions-test.csv"' in (folder / "run" / "run.json").read_text()

    def test_reporters_are_told(self, make_trainer, folder):
        """Of what is predicted within a training; reporters are not opened for a prediction of its own."""
        seen = []

        class Reports:
            @hookimpl
            def report_artifact(self, path, name, kind):
                seen.append((path, name, kind))

            @hookimpl
            def predict_step(self, batch):
                return batch

            @hookimpl
            def after_train(self, trainer):
                trainer.predict("train")

        make_trainer([Predictions("p.csv"), Reports()], values=(1.0,)).train()
        assert seen == [(Path("p.csv").absolute(), "p.csv", "predictions")]


class TestFailure:
    def fails(self, folder, message, error, *outputs, batches=None, options=None, before=()):
        with pytest.raises(error, match=message):
            predict(Predictions("p.csv", **(options or {})), *outputs, batches=batches)
        assert names(folder) == list(before)

    def test_columns_that_change(self, folder):
        self.fails(folder, "the columns were a, in a later batch b", DataError, {"a": torch.ones(1)}, {"b": torch.ones(1)})
        self.fails(folder, "the columns were prediction_0", DataError, torch.ones(1, 2), torch.ones(1, 3))

    def test_columns_of_unequal_length(self, folder):
        output = {"a": torch.ones(2), "b": torch.ones(3)}
        self.fails(folder, r"a batch of 2 samples gave a 2, b 3; each must have one row", DataError, output)

    def test_one_value_for_a_batch_of_several(self, folder):
        batches = [torch.ones(4)]
        self.fails(folder, "a batch of 4 samples gave prediction 1", DataError, torch.tensor(1.0), batches=batches)

    def test_what_has_no_rows(self, folder):
        self.fails(folder, "'prediction' is made of object", DataError, [object()], batches=[torch.ones(1)])
        self.fails(folder, "'prediction' is made of set", DataError, {1}, batches=[torch.ones(1)])
        self.fails(folder, "'index', which is the name of the row's own", DataError, {"index": torch.ones(1)})

    def test_too_wide(self, folder):
        self.fails(
            folder,
            r"has 6 numbers for each sample, which is more than max_columns = 5",
            DataError,
            torch.ones(1, 6),
            options={"max_columns": 5},
        )

    @pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
    @pytest.mark.parametrize("file", ["p.csv", "p.parquet"])
    def test_in_the_middle_nothing_is_left_and_what_was_there_stays(self, folder, error, file):
        class Fails:
            armed = False

            @hookimpl
            def predict_step(self, trainer, batch):
                if self.armed and batch.item() == 2:
                    raise error("stopped")
                return batch

        fails = Fails()
        batches = [torch.tensor([1]), torch.tensor([2])]
        trainer = Trainer(nn.Identity(), loaders={"test": batches}, plugins=[Predictions(file), fails], autoload=False)
        fails.armed = True
        with pytest.raises(error):
            trainer.predict("test")
        assert names(folder) == []
        fails.armed = False
        trainer.predict("test")
        before = (folder / file).read_bytes()
        fails.armed = True
        with pytest.raises(error):
            trainer.predict("test")
        assert names(folder) == [file]
        assert (folder / file).read_bytes() == before

    def test_in_a_run_folder_nothing_is_listed(self, make_trainer, folder):
        trainer = make_trainer([Predictions(), Gives({1})], work_dir=folder / "run", max_steps=1)
        trainer.loaders["test"] = [torch.ones(1)]
        trainer.train()
        with pytest.raises(DataError):
            trainer.predict("test")
        assert json.loads((folder / "run" / "run.json").read_text())["files"] == []
        assert names(folder / "run") == ["run.json"]

    def test_nothing_predicted_no_file(self, folder, messages):
        class Filter:
            @hookimpl
            def prepare_batch(self):
                raise SkipStep("none")

        predict(Predictions("p.csv"), torch.ones(1), plugins=[Filter()])
        assert names(folder) == []
        assert "predictions: nothing was predicted for 'test', so there is no file" in messages()

    def test_rows_are_on_disk_before_the_prediction_ends(self, folder):
        """Bounded memory: 3000 rows are written while the last batch is still to come."""
        sizes = []

        class Looks:
            phase, after = "reporting", ("predictions",)

            @hookimpl
            def after_predict_step(self):
                sizes.append(Path(".p.csv.tmp").stat().st_size)

        predict(Predictions("p.csv"), *[torch.zeros(1000)] * 4, plugins=[Looks()])
        assert sizes[2] > 3000 * len("999,0\n") - 8192 > 0  # but for the buffer of the file
        assert names(folder) == ["p.csv"]


class TestParquet:
    def test_types_and_values(self):
        output = {
            "score": torch.tensor([0.1, 0.2]),
            "double": torch.tensor([0.1, 0.2], dtype=torch.float64),
            "count": torch.tensor([1, 2]),
            "flag": torch.tensor([True, False]),
            "text": ["a", "ü"],
        }
        predict(Predictions("p.parquet"), output, output)
        table = pq.read_table("p.parquet")
        assert {field.name: str(field.type) for field in table.schema} == {
            "index": "int64",
            "score": "float",
            "double": "double",
            "count": "int64",
            "flag": "bool",
            "text": "string",
        }
        assert table["index"].to_pylist() == [0, 1, 2, 3]
        assert table["text"].to_pylist() == ["a", "ü"] * 2
        assert table["double"].to_pylist() == [0.1, 0.2] * 2
        assert torch.equal(torch.tensor(table["score"].to_pylist()), torch.tensor([0.1, 0.2] * 2))

    def test_wide_values_are_lists(self):
        wide = torch.arange(8.0).reshape(2, 2, 2)
        predict(Predictions("p.parquet", max_columns=3), {"wide": wide, "narrow": torch.ones(2, 3)})
        table = pq.read_table("p.parquet")
        assert table.column_names == ["index", "wide", "narrow_0", "narrow_1", "narrow_2"]
        assert str(table.schema.field("wide").type) == "list<element: list<element: float>>"
        assert table["wide"].to_pylist() == wide.tolist()

    def test_groups(self):
        """More rows than a group has, in batches that do not fit into it: all there, in order."""
        size, batches = 1000, GROUP // 1000 + 2
        predict(Predictions("p.parquet"), *[torch.arange(size) + size * i for i in range(batches)])
        assert pq.read_table("p.parquet")["prediction"].to_pylist() == list(range(size * batches))
        assert pq.ParquetFile("p.parquet").num_row_groups == 2

    def test_a_value_of_another_type(self, folder):
        with pytest.raises(DataError, match="column 'prediction' cannot be written as Parquet"):
            predict(Predictions("p.parquet"), ["a"], [1])
        assert names(folder) == []

    def test_without_pyarrow(self, monkeypatch, make_trainer):
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(UsageError, match=r"Parquet needs pyarrow: pip install pyarrow, or write CSV"):
            make_trainer([Predictions("p.parquet")]).train()  # not after days of training
        predict(Predictions("p.csv"), torch.tensor([1]))
        assert read()[1] == ["0", "1"]


class TestCommandLine:
    """w is -3 after three steps; the batches of ``test`` are 1 and 2, so it predicts -3 and -6."""

    @pytest.fixture
    def trained(self, cli, project):
        cli("train", "--set", "work_dir=out", "-p", "no:progress")
        return project

    def test_csv(self, cli, trained):
        said = cli("predict", ".", "--checkpoint", "out", "-p", "predictions", "-o", "predictions.file=p.csv")
        assert read() == [["index", "prediction"], ["0", "-3"], ["1", "-6"]]
        assert "predictions: 2 rows of 'test' in p.csv" in said.err
        assert said.out == "tensor(-3.)\ntensor(-6.)\n"  # printed as without the plugin
        assert "p.csv" in names(trained)

    def test_parquet_of_another_split(self, cli, trained):
        options = ["-o", "predictions.file={split}.parquet", "-o", "predictions.targets=true"]
        cli("predict", "--checkpoint", "out", "--split", "val", *options)
        assert pq.read_table("val.parquet").to_pydict() == {"index": [0], "prediction": [-6.0]}

    def test_one_that_cannot_be(self, cli, trained):
        said = cli("predict", "--checkpoint", "out", "-o", "predictions.file=no/p.csv", expect=2)
        assert "predictions.file = 'no/p.csv': there is no folder" in said.err
        assert "Traceback" not in said.err


def test_a_prediction_from_a_checkpoint_is_that_of_the_restored_model(make_trainer, folder):
    make_trainer([Checkpoint()], val=(1.0,), max_steps=3, work_dir=folder / "run").train()
    again = make_trainer([Checkpoint(), Predictions("p.csv")], val=(1.0, 2.0))
    again.predict("val", checkpoint=folder / "run")
    assert read() == [["index", "prediction"], ["0", "-3.0"], ["1", "-6.0"]]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_two_columns_of_one_name_are_refused(ending):
    """``a`` has two numbers for each sample, the second of which would be ``a_1`` too."""
    output = {"a": torch.zeros(3, 2), "a_1": torch.ones(3)}
    with pytest.raises(DataError, match="two columns would have the name 'a_1'; rename an output"):
        predict(Predictions(file=f"p.{ending}"), output)


@pytest.mark.parametrize("shape", [(3,), ()])
def test_a_list_of_a_tensor_for_each_sample_is_refused(shape):
    """Each would become a column, and a batch of four samples three rows."""
    outputs = [[torch.zeros(shape) for _ in range(4)]]
    with pytest.raises(DataError, match=r"a list of 4 tensors for 4 samples; return one tensor.*torch\.stack"):
        predict(Predictions(file="p.csv"), *outputs, batches=[torch.zeros(4)])


def test_a_list_of_several_outputs_is_one(tmp_path):
    predict(Predictions(file="p.csv"), [torch.tensor([1, 2]), torch.tensor([3, 4])], batches=[torch.zeros(2)])
    assert read()[1:] == [["0", "1", "3"], ["1", "2", "4"]]


def test_a_sparse_tensor():
    predict(Predictions(file="p.csv"), torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse(), batches=[torch.zeros(2)])
    assert read()[1:] == [["0", "0", "2"], ["1", "3", "0"]]


def test_a_number_that_parquet_has_no_type_for():
    with pytest.raises(DataError, match="column 'prediction' cannot be written as Parquet"):
        predict(Predictions(file="p.parquet"), torch.tensor([2**63], dtype=torch.uint64))


def test_the_names_of_several_outputs():
    """Those of the columns, as for a single one: a tuple has no names of its own."""
    output = (torch.tensor([[1, 2], [3, 4]]), torch.tensor([5, 6]))
    predict(Predictions("p.csv", columns=("low", "high", "size")), output)
    assert read() == [["index", "low", "high", "size"], ["0", "1", "2", "5"], ["1", "3", "4", "6"]]
    with pytest.raises(DataError, match="predictions.columns has 2 names for 3 columns"):
        predict(Predictions("p.csv", columns=("low", "high")), output)


def test_a_mapping_whose_only_part_is_named_as_a_single_output():
    predict(Predictions("p.csv", columns=("prediction",)), {"prediction": torch.tensor([[1, 2]]), "other": torch.tensor([3])})
    assert read()[0] == ["index", "prediction_0", "prediction_1"]
    predict(Predictions("p.csv", columns=("prediction",)), {"prediction": torch.tensor([[1, 2]])})
    assert read()[0] == ["index", "prediction_0", "prediction_1"]


def test_a_name_twice():
    with pytest.raises(OptionError, match=r"columns = \['a', 'a'\]: a name is there twice"):
        Predictions("p.csv", columns=("a", "a"))


@pytest.mark.parametrize("request_", [SkipStep, SkipEpoch])
@pytest.mark.parametrize("hook", ["predict_step", "after_predict_step", "before_predict"])
def test_a_prediction_within_a_step_does_not_steer_the_training(make_trainer, request_, hook):
    """It would drop the batch that is being trained, or the rest of the epoch."""

    class Predicts:
        @hookimpl
        def before_step(self, trainer):
            trainer.predict("val")

    class Asks:
        pass

    def ask():
        raise request_("asked")

    setattr(Asks, hook, staticmethod(hookimpl(ask)))
    trainer = make_trainer([Predicts(), Asks()], val=(1.0,))
    with pytest.raises(UsageError, match=f"{request_.__name__} was raised in the prediction of 'val'; it steers training only"):
        trainer.train()
    assert (trainer.step, trainer.split, trainer.model.training) == (0, "train", True)


def test_an_output_that_is_named_as_the_target():
    """Neither takes the place of the other."""
    batches = [(torch.zeros(2), torch.tensor([1, 0]))]
    output = {"score": torch.zeros(2), "target": torch.ones(2)}
    with pytest.raises(DataError, match="two columns would have the name 'target'"):
        predict(Predictions("p.csv", targets=True), output, batches=batches)
    predict(Predictions("p.csv", targets=True, columns=("score",)), output, batches=batches)
    assert read()[0] == ["index", "score", "target"]
