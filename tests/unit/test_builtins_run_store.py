"""``run_store``: what is in the folder, after failures, kills and resumes, and under any name."""

import csv
import json
import math
import os
import resource
import shutil
import signal
import struct
import zlib
from pathlib import Path

import pytest
import torch

from trainhooks import OptionError, RunInfo, UsageError, hookimpl
from trainhooks.media import Histogram, Image, Table, Text
from trainhooks.png import png
from trainhooks.run_media import read_media
from trainhooks.workdir import RunFolder
from trainhooks_builtins import Checkpoint, RunStore
from trainhooks_builtins._safe_names import safe_name


def read_png(data):
    """Return width, height and rows of samples, by the specification: signature, chunks with checksums, filters 0 to 2."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, rest = [], data[8:]
    while rest:
        (length,) = struct.unpack(">I", rest[:4])
        kind, content = rest[4:8], rest[8 : 8 + length]
        assert struct.unpack(">I", rest[8 + length : 12 + length])[0] == zlib.crc32(kind + content)
        chunks.append((kind, content))
        rest = rest[12 + length :]
    assert [kind for kind, _ in chunks] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, color, *methods = struct.unpack(">IIBBBBB", chunks[0][1])
    assert (depth, methods) == (8, [0, 0, 0])
    channels = {0: 1, 4: 2, 2: 3, 6: 4}[color]
    raw, rows = zlib.decompress(chunks[1][1]), []
    above = [0] * (width * channels)
    for number in range(height):
        kind, *row = raw[number * (width * channels + 1) : (number + 1) * (width * channels + 1)]
        for place in range(len(row)):
            before = (0, row[place - channels] if place >= channels else 0, above[place])[kind]
            row[place] = (row[place] + before) % 256
        rows.append(row)
        above = row
    assert len(raw) == height * (width * channels + 1)
    return width, height, rows


class TestPng:
    @pytest.mark.parametrize("shape", [(1, 1, 1), (5, 7, 1), (4, 3, 2), (6, 5, 3), (3, 8, 4), (1, 300, 3), (300, 1, 1)])
    def test_pixels_come_back(self, shape):
        """Noise, and a smooth gradient in which each row has another filter."""
        noise = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
        ramp = (torch.arange(shape[0])[:, None, None] * 3 + torch.arange(shape[1])[None, :, None] * 2).expand(shape) % 256
        for pixels in (noise, ramp.to(torch.uint8), torch.zeros(shape, dtype=torch.uint8), torch.full(shape, 255).byte()):
            width, height, rows = read_png(png(pixels))
            assert (height, width) == shape[:2]
            assert rows == pixels.reshape(shape[0], -1).tolist()

    def test_pixels_that_are_no_block_of_memory(self):
        pixels = torch.arange(4 * 6 * 3, dtype=torch.uint8).reshape(3, 4, 6).permute(1, 2, 0)[:, ::2]
        assert read_png(png(pixels))[2] == pixels.reshape(4, -1).tolist()

    def test_a_gradient_gets_small(self):
        """256 x 256 of RGB: 196 kB of pixels whose rows differ by one."""
        ramp = (torch.arange(256)[:, None] + torch.arange(256)[None]).remainder(256).byte()
        assert len(png(ramp[..., None].expand(-1, -1, 3))) < 3_000


class TestNames:
    NAMES = [
        *("Loss", "loss", "LOSS", "val/loss", "val_loss", "val\\loss", "..", ".", "../up", "/etc/passwd", "a/../../b", ""),
        *(
            "nul\0inside",
            "con",
            "CON.png",
            "aux",
            "lpt1.txt",
            " lead",
            "trail ",
            "dot.",
            ".hidden",
            "-x",
            "a\nb",
            "a:b",
            "a*b?",
        ),
        *(
            "é",
            "e\u0301",
            "\U0001f682",
            "half \ud800",
            "x" * 80,
            "x" * 81,
            "x" * 10_000,
            "weights.PT",
            "a.tar.gz",
            "%d",
            "$HOME",
        ),
    ]

    def test_one_component_each_also_where_case_does_not_count(self):
        made = [safe_name(name) for name in self.NAMES]
        assert len({one.casefold() for one in made}) == len(self.NAMES)
        for one in made:
            assert one == os.path.basename(one)
            assert one.isascii()
            assert one.isprintable()
            assert 0 < len(one) <= 80
            assert one[0] not in ".- "
            assert one[-1] not in ". "
            assert one.split(".")[0] not in ("con", "aux", "lpt1")

    def test_plain_ones_stay(self):
        for name in ("loss", "val_loss", "a-b.c", "weights.pt", "x" * 80, "0"):
            assert safe_name(name) == name

    def test_the_ending_stays(self):
        assert safe_name("Weights of Monday.PT").endswith(".pt")
        assert safe_name("models/best.pt").startswith("models_best-")


class Store:
    """A ``RunStore`` as its lane calls it, in a folder of its own."""

    def __init__(self, path, **options):
        self.path, self.store = path, RunStore(**options)
        self.folder = RunFolder(path)

    def open(self, step=0):
        if not self.folder.is_open:
            self.folder.open(resume=True, overwrite=False)
        self.store._folder = self.folder
        self.store.report_start(RunInfo("run", self.path, resumed_step=step))
        return self

    def drop(self):
        """Leave it as a kill does."""
        self.store._close()
        self.folder.close()

    @property
    def entries(self):
        text = (self.path / "media.jsonl").read_text(encoding="utf-8")
        assert text.endswith("\n")
        return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]

    @property
    def files(self):
        return sorted(path.relative_to(self.path).as_posix() for path in self.path.glob("media/**/*") if path.is_file())


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "run")
    yield made
    made.drop()


def place(name, step):
    return {"name": name, "step": step, "update": step, "epoch": 0, "time": 1000.5 + step}


def text(name, step, words="hello"):
    return Text(**place(name, step), text=words)


def image(name, step, value=7):
    return Image(**place(name, step), pixels=torch.full((2, 3, 1), value, dtype=torch.uint8))


def histogram(name, step):
    return Histogram(**place(name, step), counts=(1.0, 2.5), edges=(0.0, 0.5, 1.0))


def table(name, step):
    return Table(**place(name, step), columns=("a", "b, c"), rows=((1, None), (0.5, 'x"y'), (True, "line\nbreak")))


class TestRun:
    """Through a trainer."""

    class Logs:
        """Logs one of each after steps that are multiples of ``every``."""

        def __init__(self, path, every=2):
            self.path, self.every = path, every

        @hookimpl
        def after_step(self, trainer):
            number = trainer.step + 1
            if number % self.every == 0:
                trainer.log_image("val/samples", torch.full((1, 4, 5), number / 10))
                trainer.log_text("notes", f"step {number}: größe")
                trainer.log_histogram("weights", torch.tensor([0.0, 1.0, 1.0, math.nan]), bins=2)
                trainer.log_table("errors", ["label", "count"], [["a", number], ["b", None]])
                trainer.log_artifact(self.path, kind="model")

    def run(self, make_trainer, tmp_path, *others, resume=None, **arguments):
        path = tmp_path / "weights.pt"
        if not path.exists():
            path.write_bytes(b"12345")
        plugins = [self.Logs(path), RunStore(), Checkpoint(every_steps=4), *others]
        trainer = make_trainer(plugins, work_dir=tmp_path / "run", log_every_steps=1, **{"max_steps": 6, **arguments})
        return trainer.train(resume=resume)

    def test_what_is_there(self, make_trainer, tmp_path):
        self.run(make_trainer, tmp_path, max_steps=2)
        run = tmp_path / "run"
        entries = Store(run).entries
        assert sorted(entry["kind"] for entry in entries) == ["artifact", "histogram", "image", "table", "text"]
        found = {entry["kind"]: entry for entry in entries}
        assert read_png((run / found["image"]["file"]).read_bytes())[2] == [[51] * 5] * 4  # 0.2 of 255
        assert {key: found["image"][key] for key in ("name", "width", "height", "channels")} == {
            "name": "val/samples",
            "width": 5,
            "height": 4,
            "channels": 1,
        }
        assert (run / found["text"]["file"]).read_text(encoding="utf-8") == "step 2: größe"
        assert (found["histogram"]["counts"], found["histogram"]["edges"]) == ([1, 2], [0.0, 0.5, 1.0])
        with (run / found["table"]["file"]).open(newline="", encoding="utf-8") as file:
            assert list(csv.reader(file)) == [["label", "count"], ["a", "2"], ["b", ""]]
        assert (found["table"]["columns"], found["table"]["rows"]) == (["label", "count"], 2)
        assert (run / "artifacts/weights.pt").read_bytes() == b"12345"
        assert {key: found["artifact"][key] for key in ("name", "type", "file", "bytes", "source")} == {
            "name": "weights.pt",
            "type": "model",
            "file": "artifacts/weights.pt",
            "bytes": 5,
            "source": str(tmp_path / "weights.pt"),
        }
        record = json.loads((run / "run.json").read_text())
        assert {"media.jsonl", "media", "artifacts"} <= set(record["files"])
        assert [(item.kind, item.name) for item in read_media(run)] == [(entry["kind"], entry["name"]) for entry in entries]

    def test_an_overwritten_run_takes_it_along(self, make_trainer, tmp_path):
        self.run(make_trainer, tmp_path)
        mine = tmp_path / "run" / "mine.txt"
        mine.write_text("mine")
        make_trainer([RunStore()], work_dir=tmp_path / "run", overwrite=True).train()
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["mine.txt", "run.json"]

    def test_a_run_that_logs_nothing_has_nothing(self, make_trainer, tmp_path):
        make_trainer([RunStore()], work_dir=tmp_path / "run").train()
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]

    def test_without_a_work_dir(self, make_trainer, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        make_trainer([self.Logs(tmp_path / "gone"), RunStore()]).train()
        assert list(tmp_path.iterdir()) == []

    def test_resumed(self, make_trainer, tmp_path):
        """Fails at 7, after the checkpoint at 4: what was logged at 6 is dropped and logged again, once."""

        class Fails:
            @hookimpl
            def before_step(self, trainer):
                if trainer.step == 7:
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.run(make_trainer, tmp_path, Fails(), max_steps=10)
        before = Store(tmp_path / "run").entries
        assert {entry["step"] for entry in before if "step" in entry} == {2, 4, 6}
        self.run(make_trainer, tmp_path, max_steps=8, resume=tmp_path / "run" / "checkpoints" / "step-00000004")
        entries = Store(tmp_path / "run").entries
        for kind in ("image", "text", "histogram", "table"):
            assert [entry["step"] for entry in entries if entry["kind"] == kind] == [2, 4, 6, 8]
        assert len([entry for entry in entries if entry["kind"] == "artifact"]) == 1
        for entry in entries:
            assert "file" not in entry or (tmp_path / "run" / entry["file"]).is_file()
        assert len(Store(tmp_path / "run").files) == 3 * 4

    def test_switched_off(self, make_trainer, tmp_path):
        path = tmp_path / "weights.pt"
        path.write_bytes(b"1")
        plugins = [self.Logs(path), RunStore(media=False, artifacts="off")]
        make_trainer(plugins, work_dir=tmp_path / "run", log_every_steps=1).train()
        assert [one.name for one in (tmp_path / "run").iterdir()] == ["run.json"]
        with pytest.raises(OptionError, match="artifacts = 'keep': must be one of copy, link, list, off"):
            RunStore(artifacts="keep")


class TestMedia:
    def test_each_kind(self, store):
        store.open().store.report_media([image("i", 1), text("t", 1), histogram("h", 1), table("t", 1)])
        assert store.files == ["media/i/00000001.png", "media/t/00000001.csv", "media/t/00000001.txt"]
        assert store.entries == [
            {"kind": "image", **place("i", 1), "file": "media/i/00000001.png", "width": 3, "height": 2, "channels": 1},
            {"kind": "text", **place("t", 1), "file": "media/t/00000001.txt", "characters": 5},
            {"kind": "histogram", **place("h", 1), "counts": [1, 2.5], "edges": [0.0, 0.5, 1.0]},
            {"kind": "table", **place("t", 1), "file": "media/t/00000001.csv", "columns": ["a", "b, c"], "rows": 3},
        ]
        with (store.path / "media/t/00000001.csv").open(newline="", encoding="utf-8") as file:
            assert list(csv.reader(file)) == [["a", "b, c"], ["1", ""], ["0.5", 'x"y'], ["True", "line\nbreak"]]

    def test_several_of_a_step(self, store):
        store.open().store.report_media([text("t", 1, "a"), text("t", 1, "b"), text("t", 2, "c")])
        store.store.report_media([text("t", 2, "d")])
        found = [((store.path / entry["file"]).read_text(), entry["file"]) for entry in store.entries]
        assert found == [
            ("a", "media/t/00000001.txt"),
            ("b", "media/t/00000001-2.txt"),
            ("c", "media/t/00000002.txt"),
            ("d", "media/t/00000002-2.txt"),
        ]

    def test_any_name(self, store):
        names = TestNames.NAMES
        store.open().store.report_media([text(name, 1, f"text {index}") for index, name in enumerate(names)])
        entries = store.entries
        assert len({entry["file"].casefold() for entry in entries}) == len(names)
        for index, (name, entry) in enumerate(zip(names, entries, strict=True)):
            assert entry["name"] == name
            assert (store.path / entry["file"]).read_text() == f"text {index}"
        assert {path.parts[0] for path in map(Path, store.files)} == {"media"}
        assert all(len(Path(one).parts) == 3 for one in store.files)
        assert {path.name for path in store.path.parent.iterdir()} == {"run"}

    def test_a_full_disk(self, store):
        """The same items come again and get the same names; nothing is listed twice."""
        store.open().store.report_media([text("t", 1)])
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        items = [text("t", 2, "a"), text("t", 2, "b"), text("t", 2, "x" * 10_000)]
        size = (store.path / "media.jsonl").stat().st_size
        try:
            for room in (5_000, size + 100):  # within the third file, and within the index
                resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
                with pytest.raises(OSError, match="File too large"):
                    store.store.report_media(items if room == 5_000 else items[:2])
                assert (store.path / "media.jsonl").stat().st_size == size
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, handler)
        store.store.report_media(items)
        assert [entry["file"] for entry in store.entries] == [
            *("media/t/00000001.txt", "media/t/00000002.txt", "media/t/00000002-2.txt", "media/t/00000002-3.txt")
        ]
        assert len(store.files) == 4

    @pytest.mark.parametrize("cut", [1, 7, 60])
    def test_after_a_kill(self, store, cut):
        """The last line is cut; a file was written that no line lists; the checkpoint was at 2."""
        store.open().store.report_media([text("t", step, f"first {step}") for step in (1, 2, 3)])
        store.drop()
        index = store.path / "media.jsonl"
        index.write_bytes(index.read_bytes()[:-cut])
        (store.path / "media/t/00000004.txt").write_text("half")
        store.open(step=2).store.report_media([text("t", step, f"again {step}") for step in (3, 4)])
        assert [(store.path / entry["file"]).read_text() for entry in store.entries] == [
            *("first 1", "first 2", "again 3", "again 4")
        ]
        assert len(store.files) == 4

    def test_what_is_logged_again_at_the_step_of_the_checkpoint_is_there_once(self, store):
        """The checkpoint is written in the middle of step 2: what comes after it in that step is logged by both."""
        both = [text("after", 2), image("after", 2), histogram("after", 2), table("after", 2)]
        store.open().store.report_media([text("before", 2), *both])
        store.drop()
        store.open(step=2).store.report_media([*both, text("after", 2, "something else"), text("after", 3)])
        assert [(entry["kind"], entry["name"], entry["step"]) for entry in store.entries] == [
            ("text", "before", 2),
            *((kind, "after", 2) for kind in ("text", "image", "histogram", "table")),
            ("text", "after", 2),
            ("text", "after", 3),
        ]
        assert (store.path / store.entries[5]["file"]).read_text() == "something else"
        assert (store.path / store.entries[1]["file"]).read_text() == "hello"

    def test_an_index_that_somebody_edited_removes_nothing_elsewhere(self, store, tmp_path):
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "a").write_text("mine")
        store.open().store.report_media([text("t", 1)])
        store.drop()
        (store.path / "media/link").symlink_to(outside)
        (store.path / "mine.txt").write_text("mine")
        names = ["../outside/a", "media/link/a", "mine.txt", str(outside / "a"), "media/../mine.txt", "media/t/..", 5, "nul\0"]
        with (store.path / "media.jsonl").open("a") as file:
            for name in names:
                file.write(json.dumps({"kind": "text", **place("t", 9), "file": name}) + "\n")
            file.write('no json\n[]\n{"kind": 1}\n"text"\n')
        store.open(step=1)
        assert [entry["file"] for entry in store.entries] == ["media/t/00000001.txt"]
        assert (outside / "a").read_text() == (store.path / "mine.txt").read_text() == "mine"

    @pytest.mark.parametrize("link", ["media/t", "media/t/00000002.txt"])
    def test_nothing_is_written_through_a_link(self, store, tmp_path, link):
        outside = tmp_path / "outside"
        outside.mkdir()
        store.open().store.report_media([text("t", 1)])
        store.drop()
        if link == "media/t":
            shutil.rmtree(store.path / link)
        (store.path / link).symlink_to(outside / ("" if link == "media/t" else "new.txt"))
        store.open(step=1)
        with pytest.raises(UsageError, match=f"{link} is a link or no file"):
            store.store.report_media([text("t", 2)])
        assert not list(outside.iterdir())

    def test_a_folder_of_somebody_else_is_left_alone(self, make_trainer, tmp_path, messages):
        run = tmp_path / "run"
        (run / "media").mkdir(parents=True)
        (run / "media" / "mine").write_text("mine")
        plugins = [TestRun.Logs(tmp_path / "gone"), RunStore()]
        trainer = make_trainer(plugins, work_dir=run, max_steps=2, log_every_steps=1, overwrite=True)
        assert trainer.train().status == "completed"
        assert [path.name for path in (run / "media").iterdir()] == ["mine"]
        assert any("media exists and was not made by trainhooks" in message for message in messages())

    def test_a_folder_that_somebody_removes(self, store):
        store.open().store.report_media([text("t", 1)])
        shutil.rmtree(store.path)
        store.store.report_media([text("t", 2)])
        assert [entry["step"] for entry in store.entries] == [2]
        assert store.files == ["media/t/00000002.txt"]


class TestArtifacts:
    @pytest.fixture
    def source(self, tmp_path):
        path = tmp_path / "model.pt"
        path.write_bytes(b"weights")
        return path

    def keep(self, store, path, name=None, kind="file"):
        store.store.report_artifact(path, path.name if name is None else name, kind)

    def names(self, store):
        return sorted(path.name for path in (store.path / "artifacts").iterdir())

    def test_a_copy_that_stays_as_it_is(self, store, source):
        self.keep(store.open(), source)
        source.write_bytes(b"changed")
        assert (store.path / "artifacts/model.pt").read_bytes() == b"weights"

    def test_the_same_again_is_there_once_and_another_one_beside_it(self, store, source):
        store.open()
        for content in (b"weights", b"weights", b"other", b"weights", b"other"):
            source.write_bytes(content)
            self.keep(store, source)
        assert self.names(store) == ["model-2.pt", "model.pt"]
        assert [entry["file"] for entry in store.entries] == ["artifacts/model.pt", "artifacts/model-2.pt"]
        assert (store.path / "artifacts/model.pt").read_bytes() == b"weights"
        assert (store.path / "artifacts/model-2.pt").read_bytes() == b"other"

    def test_what_has_the_same_size_and_time_is_read(self, store, source, tmp_path):
        """The clock of a file system may not move between two files; the last one is a folder with such a file."""
        store.open()
        folder = tmp_path / "folder"
        folder.mkdir()
        for content in (b"weight0", b"weight1", b"weight1"):
            for path in (source, folder / "part"):
                path.write_bytes(content)
                os.utime(path, (1e9, 1e9))
            self.keep(store, source)
            self.keep(store, folder)
        assert self.names(store) == ["folder", "folder-2", "model-2.pt", "model.pt"]
        assert (store.path / "artifacts/model-2.pt").read_bytes() == b"weight1"
        assert (store.path / "artifacts/folder-2/part").read_bytes() == b"weight1"

    def test_one_that_begins_like_another(self, store, source):
        """Beyond what is read at once: another end, and a longer one."""
        store.open()
        for content in (bytes(2**20 + 1), bytes(2**20) + b"x", bytes(2**20 + 2)):
            source.write_bytes(content)
            self.keep(store, source)
        assert self.names(store) == ["model-2.pt", "model-3.pt", "model.pt"]

    def test_a_resume_keeps_them_and_lists_them_once(self, store, source):
        self.keep(store.open(), source)
        store.drop()
        self.keep(store.open(step=1), source)
        assert self.names(store) == ["model.pt"]
        assert len(store.entries) == 1

    def test_any_name(self, store, source):
        store.open()
        for name in TestNames.NAMES:
            source.write_text(f"{name!r}")
            self.keep(store, source, name)
        assert [entry["name"] for entry in store.entries] == TestNames.NAMES
        for entry in store.entries:
            assert (store.path / entry["file"]).read_text() == f"{entry['name']!r}"
            assert Path(entry["file"]).parent == Path("artifacts")

    def test_a_folder(self, store, tmp_path):
        """Links to files are followed; pipes, links to folders and links to nowhere are left out."""
        source = tmp_path / "export"
        (source / "deep" / "er").mkdir(parents=True)
        (source / "a").write_text("1")
        (source / "deep" / "er" / "b").write_text("22")
        (source / "to_b").symlink_to(source / "deep" / "er" / "b")
        (source / "nowhere").symlink_to(tmp_path / "gone")
        (source / "deep" / "round").symlink_to(source)
        os.mkfifo(source / "pipe")
        self.keep(store.open(), source)
        copy = store.path / "artifacts" / "export"
        found = {path.relative_to(copy).as_posix(): path.read_text() for path in copy.rglob("*") if path.is_file()}
        assert found == {"a": "1", "deep/er/b": "22", "to_b": "22"}
        assert not any(path.is_symlink() for path in copy.rglob("*"))
        (entry,) = store.entries
        assert (entry["files"], entry["bytes"], entry["file"]) == (3, 5, "artifacts/export")
        self.keep(store, source)
        assert len(store.entries) == 1
        (source / "a").write_text("other")
        self.keep(store, source)
        assert self.names(store) == ["export", "export-2"]

    def test_a_folder_that_holds_the_run(self, store, tmp_path):
        """A copy of it must not hold the copy."""
        (tmp_path / "script.py").write_text("pass")
        self.keep(store.open(), tmp_path, "everything")
        copy = store.path / "artifacts" / "everything"
        assert (copy / "script.py").read_text() == "pass"
        assert (copy / "run" / "run.json").is_file()
        assert not (copy / "run" / "artifacts").exists()
        self.keep(store, tmp_path, "everything")

    def test_what_is_in_the_run_folder_stays_where_it_is(self, store):
        store.open()
        (store.path / "profile").mkdir()
        (store.path / "profile" / "trace.json").write_text("{}")
        self.keep(store, store.path / "profile" / "trace.json", kind="profile")
        (entry,) = store.entries
        assert (entry["file"], entry["type"], entry["bytes"]) == ("profile/trace.json", "profile", 2)
        assert not (store.path / "artifacts").exists()

    @pytest.mark.parametrize("how", ["gone", "gone-inside", "file-for-folder"])
    def test_what_is_gone_by_then_is_said(self, store, tmp_path, messages, how):
        """The lane goes on with the next one: nothing is raised."""
        path = tmp_path / "gone"
        if how == "gone-inside":
            path.symlink_to(tmp_path / "nowhere")
        if how == "file-for-folder":
            path.write_text("a file")
            path /= "below"
        self.keep(store.open(), path, "the model")
        (told,) = [message for message in messages() if message.startswith("run_store")]
        assert told.startswith(f"run_store: artifact 'the model' is not kept: {path}: ")
        assert not (store.path / "media.jsonl").exists()

    def test_a_full_disk_leaves_nothing_and_is_tried_again(self, store, source):
        source.write_bytes(b"x" * 10_000)
        store.open()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, hard))
            with pytest.raises(OSError, match="File too large"):
                self.keep(store, source)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, handler)
        assert self.names(store) == []
        self.keep(store, source)
        assert (store.path / "artifacts/model.pt").stat().st_size == 10_000

    def test_what_a_kill_has_left_of_a_copy_is_in_nobodys_way(self, store, source):
        (store.open().path / "artifacts").mkdir()
        store.folder._names.append("artifacts")
        (store.path / "artifacts" / ".model.pt.tmp").mkdir()
        (store.path / "artifacts" / ".model.pt.tmp" / "half").write_text("half")
        self.keep(store, source)
        assert self.names(store) == ["model.pt"]

    def test_links(self, tmp_path, source):
        store = Store(tmp_path / "run", artifacts="link").open()
        self.keep(store, source)
        assert (store.path / "artifacts/model.pt").samefile(source)
        store.drop()

    def test_list(self, tmp_path, source):
        store = Store(tmp_path / "run", artifacts="list").open()
        self.keep(store, source)
        self.keep(store, source)
        (entry,) = store.entries
        assert "file" not in entry
        assert (entry["source"], entry["bytes"]) == (str(source), 7)
        assert not (store.path / "artifacts").exists()
        store.drop()
