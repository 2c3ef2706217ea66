"""Names, values and requests within what MLflow takes, as MLflow itself checks them."""

from __future__ import annotations

import json

import pytest
from mlflow.utils.validation import MAX_BATCH_LOG_REQUEST_SIZE, _validate_metric_name, _validate_tag_name

from trainhooks_mlflow.batches import batches
from trainhooks_mlflow.files import tables_tag
from trainhooks_mlflow.names import Names, ascii_only, clean, cut
from trainhooks_mlflow.tracking import shown

ODD = [
    "",
    "/",
    ".",
    "..",
    "../up",
    "/root",
    "a//b",
    "a/./b",
    "a/",
    "50% (x): y?",
    "é/µ",
    "\n",
    "x" * 1000,
    "a" * 190 + "/" + "b" * 50,
    "𝛼",
]


@pytest.mark.parametrize("name", ODD)
def test_mlflow_takes_every_name(name):
    names = Names("trainhooks.metric/")
    _validate_metric_name(names[name])
    assert len(names[name]) <= 250
    for key, original in names.notes.items():
        _validate_tag_name(key)
        assert len(key) <= 250
        assert original == name
    assert ascii_only(name).isascii()


def test_no_two_names_become_one_also_after_a_resume():
    names = Names("p/")
    found = {name: names[name] for name in ("a%", "a_", "a&", "x" * 300, "x" * 301)}
    assert len(set(found.values())) == 5
    assert found["a%"] == "a_"
    again = Names("p/")
    again.recall(found.values(), names.notes)
    assert {name: again[name] for name in reversed(found)} == found
    assert again.notes == {}


def test_a_name_that_is_fine_stays():
    assert [clean(name) for name in ("train/loss", "val acc", "µ-1.5_x")] == ["train/loss", "val acc", "µ-1.5_x"]
    assert cut("abc", 3) == "abc"
    assert cut("abcd", 3) == "ab…"


@pytest.mark.parametrize("text", ["x" * 200, "é" * 200, "𝛼" * 200, "\x01" * 200])
def test_requests_are_within_the_limits_of_mlflow(text):
    entries = [{"key": text, "value": 1e-300, "timestamp": 2_000_000_000_000, "step": 10**9} for _ in range(5000)]
    found = list(batches(entries, 1000, lambda entry: entry["key"]))
    assert [entry for batch in found for entry in batch] == entries
    assert max(map(len, found)) <= 1000
    assert max(len(json.dumps(batch)) for batch in found) < MAX_BATCH_LOG_REQUEST_SIZE


def test_long_parameters_are_cut_into_requests():
    found = list(batches([("k", "é" * 6000)] * 250, 100, "".join))
    assert sum(map(len, found)) == 250
    assert max(len(json.dumps(batch)) for batch in found) < MAX_BATCH_LOG_REQUEST_SIZE


def test_the_tag_of_tables_has_the_newest_of_each_and_stays_short():
    tag = tables_tag('[{"path": "mine.json", "type": "table"}]', "table/a", "1.json")
    tag = tables_tag(tables_tag(tag, "table/b", "1.json"), "table/a", "2.json")
    assert [one["path"] for one in json.loads(tag)] == ["mine.json", "table/b/1.json", "table/a/2.json"]
    for number in range(500):
        tag = tables_tag(tag, f"table/{number}", "1.json")
    assert len(tag) <= 5000
    assert json.loads(tag)[-1]["path"] == "table/499/1.json"
    assert json.loads(tables_tag("no json", "t", "1.json")) == [{"path": "t/1.json", "type": "table"}]


def test_what_is_secret_in_an_address_is_not_shown():
    assert shown("https://me:secret@host:8000/mlflow?token=secret") == "https://host:8000/mlflow"
    assert shown("sqlite:////tmp/x.db") == "sqlite:////tmp/x.db"
