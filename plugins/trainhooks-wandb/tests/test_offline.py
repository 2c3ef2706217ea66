"""Runs that stay on disk, read back with ``wandb leet inspect``."""

import json
import math

import pytest
from read_back import config, exit_codes, files, of_kind, records, rows
from satellite_support import (
    ARTIFACT,
    COLUMNS,
    HYPERPARAMETERS,
    IMAGE,
    MEDIA_STEP,
    ODD_HYPERPARAMETERS,
    ODD_SCALARS,
    ROWS,
    TEXT,
    run,
)

from trainhooks_wandb import WandB


def test_everything_that_is_logged_is_in_the_file(tmp_path):
    ran = run(tmp_path, WandB(project="demo", group="g", tags=["a", "b"], notes="why", mode="offline"))
    (file,) = files(ran.work_dir)
    assert file.parent.name.startswith("offline-run-")
    assert file.parent.name.endswith(ran.run.id)
    found = records(file)
    history = rows(found)
    assert [step for step, _ in history] == list(range(1, 21))
    for step, values in history:
        assert values["probe/double"] == 2 * step
        assert values["update"] == step
        assert values["epoch"] == (step - 1) // 7 or values["epoch"] == step // 7
        assert math.isclose(values["train/loss"], -(step - 1), abs_tol=1e-9)
    written = config(found)
    assert {key: written[key] for key in HYPERPARAMETERS} == HYPERPARAMETERS
    assert written["optimizer/lr"] == 1.0
    (made,) = of_kind(found, "run")
    assert (made["run_id"], made["project"], made["run_group"], made["tags"], made["notes"]) == (
        ran.run.id,
        "demo",
        "g",
        ["a", "b"],
        "why",
    )
    assert made["display_name"] == ran.run.name
    assert exit_codes(found) == [0]
    assert not of_kind(found, "output")  # of the console
    assert not of_kind(found, "environment")
    assert ran.warnings == []


def test_media_have_the_pixels_the_text_the_counts_and_the_cells(tmp_path):
    from PIL import Image

    ran = run(tmp_path, WandB(mode="offline"), steps=7)
    (file,) = files(ran.work_dir)
    found = records(file)
    row = dict(rows(found))[MEDIA_STEP]
    with Image.open(file.parent / "files" / row["media/image.path"]) as picture:
        assert picture.mode == "RGB"
        assert list(picture.tobytes()) == IMAGE.permute(1, 2, 0).flatten().tolist()
    assert row["media/text._type"] == "html-file"
    page = (file.parent / "files" / row["media/text.path"]).read_text(encoding="utf-8")
    assert f"<pre>{TEXT}</pre>" in page
    assert row["media/histogram._type"] == "histogram"
    counts, edges = row["media/histogram.values"], row["media/histogram.bins"]
    assert len(edges) == len(counts) + 1
    assert (sum(counts), counts[0], counts[-1], edges[0], edges[-1]) == (4, 1, 1, 0, 4)
    (ones,) = [count for count, low, high in zip(counts, edges, edges[1:]) if low <= 1 < high]
    assert ones == 2
    table = json.loads((file.parent / "files" / row["media/table.path"]).read_text(encoding="utf-8"))
    assert (table["columns"], table["data"]) == (COLUMNS, ROWS)
    assert row["probe/double"] == 2 * MEDIA_STEP  # all in one row


def test_artifacts_have_their_files(tmp_path):
    ran = run(tmp_path, WandB(mode="offline"), steps=7)
    (file,) = files(ran.work_dir)
    made = {item["name"]: item for item in of_kind(records(file), "artifact") if item["type"] != "run_table"}
    assert {name: item["type"] for name, item in made.items()} == {"notes": "file", "bundle": "dataset"}
    entries = {
        name: {entry["path"]: entry["local_path"] for entry in item["manifest"]["contents"]} for name, item in made.items()
    }
    assert set(entries["notes"]) == {"notes.txt"}
    assert set(entries["bundle"]) == {"one.txt", "inner/two.txt"}
    for paths in entries.values():
        for local in paths.values():
            with open(local, encoding="utf-8") as copy:
                assert copy.read() == ARTIFACT


def test_artifacts_may_be_left_out(tmp_path):
    ran = run(tmp_path, WandB(mode="offline", artifacts=False), steps=7)
    assert {item["type"] for item in of_kind(records(files(ran.work_dir)[0]), "artifact")} <= {"run_table"}


@pytest.mark.parametrize(
    ("how", "status", "code"),
    [
        ({"fail_after": 5}, "failed", 1),
        ({"fail_after": 5, "error": KeyboardInterrupt()}, "interrupted", 255),
        ({"signal_after": 5}, "interrupted", 255),
    ],
)
def test_the_status_of_a_run_that_broke(tmp_path, how, status, code):
    ran = run(tmp_path, WandB(mode="offline"), **how)
    found = records(files(ran.work_dir)[0])
    assert ran.ended.status == status
    assert exit_codes(found) == [code]
    assert [step for step, _ in rows(found)][-1] in (5, 6)  # a signal is acted upon after the step


def test_odd_names_and_values(tmp_path):
    ran = run(tmp_path, WandB(mode="offline"), steps=3, scalars=ODD_SCALARS, hyperparameters=ODD_HYPERPARAMETERS)
    found = records(files(ran.work_dir)[0])
    for _, values in rows(found):
        for name, value in ODD_SCALARS.items():
            assert same(values[name], value), name
    written = config(found)
    for name, value in ODD_HYPERPARAMETERS.items():
        assert name in written
        if not (isinstance(value, float) and not math.isfinite(value)):
            assert written[name] == value
    assert ran.warnings == []


def test_disabled_does_nothing(tmp_path):
    ran = run(tmp_path, WandB(mode="disabled"), steps=3)
    assert not list(ran.work_dir.rglob("*.wandb"))
    assert not (ran.work_dir / "wandb").exists()


def same(read, value):
    return str(read).replace("Infinity", "inf").lower() == str(value).lower() if isinstance(read, str) else read == value
