"""Fuzzed checkpoints: a part of the mutations of every kind, and whether the checks see what they are there for."""

import json
import os

import fuzz
import mutations
import pytest
from guard import Watch, forked, measured
from mutations import MANIFEST, NAMES, STATE, TENSORS, Mutation, seal

from trainhooks_builtins import Checkpoint


@pytest.fixture
def run(tmp_path):
    """Return a run folder with two checkpoints."""
    run = tmp_path / "run"
    fuzz.make_checkpoints(run)
    return run


def files_of(path):
    return {name: (path / name).read_bytes() for name in NAMES}


@pytest.mark.slow
def test_a_part_of_every_kind(tmp_path):
    results = fuzz.explore(scale=0.02)
    counters = fuzz.count(results)
    assert [one for one in results if one["faults"]] == []
    assert counters.pop("mutations") >= 250
    assert set(counters.values()) == {0}
    ways = {one["how"] for one in results}
    assert {"refused", "other data"} <= ways  # some get past the digests, so that the decoder is tried


def test_at_full_scale_there_are_ten_thousand(run):
    newer, older = map(files_of, fuzz.newest_first(run))
    assert sum(map(len, newer.values())) < 60_000
    everything = fuzz.all_mutations(newer, older, scale=1.0)
    assert len(everything) >= 10_000
    assert sum(mutation.sealed for mutation in everything) >= 3000
    assert all(mutation.files != newer for mutation in everything)


def test_sealed_files_are_what_trainhooks_would_have_written(run):
    """The digests are computed in another way here than there: a state that somebody edits is read."""
    newer, _ = fuzz.newest_first(run)
    files = files_of(newer)
    assert {name: json.loads(data) if name != TENSORS else data for name, data in seal(files).items()} == {
        name: json.loads(data) if name != TENSORS else data for name, data in files.items()
    }
    state = json.loads(files[STATE])
    state["run"]["records"] = 1234
    for name, data in seal({**files, STATE: json.dumps(state).encode()}).items():
        (newer / name).write_bytes(data)
    assert Checkpoint().load_checkpoint(newer)["run"]["records"] == 1234


def test_a_reader_that_checks_nothing_is_found(run, tmp_path, monkeypatch):
    """The suite's own test: without digests damage goes unseen, with an unpickler code runs, and so on; each is counted."""
    newer, older = fuzz.newest_first(run)
    files, marker = files_of(newer), tmp_path / "marker"
    state = json.loads(files[STATE])
    state["run"]["records"] += 1
    changed = {**files, STATE: json.dumps(state).encode()}
    read = Checkpoint.load_checkpoint

    def careless(self, path):
        """Read as the manifest says nothing, unpickle what is no JSON, die, take long, take much."""
        text = (newer / STATE).read_bytes()
        if path != newer or text == files[STATE]:
            return read(self, older if path == run else path)
        if text.startswith(b"\x80"):
            import pickle

            return pickle.loads(text)
        if text == b"die":
            os.kill(os.getpid(), 11)
        if text == b"raise":
            raise KeyError("x")
        if text == b"much":
            memory = bytearray(600 << 20)
            memory[::4096] = b"x" * len(memory[::4096])
        if text == b"write":
            (tmp_path / "outside").write_text("x")
        return {**read(self, older), "run": {}}

    import pickle

    class Evil:
        def __reduce__(self):
            return exec, (f"open({str(marker)!r}, 'w').close()",)

    cases = {
        "silent": changed,
        "exec": {**files, STATE: pickle.dumps(Evil())},
        "signal": {**files, STATE: b"die"},
        "untyped": {**files, STATE: b"raise"},
        "big": {**files, STATE: b"much"},
    }
    monkeypatch.setattr(Checkpoint, "load_checkpoint", careless)
    results = fuzz.read_all([Mutation(name, files) for name, files in cases.items()], run, tmp_path / "log")
    found = {one["kind"]: {text.partition(":")[0] for text in one["faults"]} for one in results}
    assert [kind for kind, faults in found.items() if kind not in faults] == []
    assert marker.exists()
    counters = fuzz.count(results)
    assert all(counters[name] >= 1 for name in ("silent", "exec", "signals", "untyped", "big"))


def test_the_watch_sees_what_a_reader_may_not_do(tmp_path):
    """Each act in a child of its own code; what is within the folder, or of an installed module, is no fault."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "f").write_text("x")
    (inside / "link").symlink_to(outside)

    def work(tell):
        import pickle
        import shutil
        import subprocess

        watch = Watch([inside])
        acts = {
            "system": lambda: os.system("true"),
            "popen": lambda: subprocess.run(["true"], check=False),
            "unpickle": lambda: pickle.loads(b"cos\ngetpid\n(tR."),
            "exec": lambda: eval(compile("1 + 1", "evil", "eval")),
            "write": lambda: (outside / "g").write_text("x"),
            "write through a link": lambda: (inside / "link/h").write_text("x"),
            "remove": lambda: (outside / "f").unlink(),
            "rmtree": lambda: shutil.rmtree(outside),
            "rename": lambda: (inside / "a").rename(tmp_path / "b"),
            "fine": lambda: ((inside / "x").write_text("x"), (inside / "x").unlink(), json.loads("{}"), os.listdir("/")),
        }
        (inside / "a").write_text("x")
        for name, act in acts.items():
            act()
            tell([name, len(watch.executed), len(watch.outside)])
            watch.executed.clear()
            watch.outside.clear()

    ended = forked(work, tmp_path / "log")
    assert ended.signal == 0, ended.log
    seen = {name: (executed > 0, changed > 0) for name, executed, changed in ended.records}
    assert seen.pop("fine") == (False, False)
    for name in ("system", "popen", "unpickle", "exec"):
        assert seen[name][0], name
    for name in ("write", "write through a link", "remove", "rmtree", "rename"):
        assert seen[name][1], name


def test_what_is_spent_is_measured():
    held = []
    _, spent = measured(lambda: held.append(bytearray(b"x" * (64 << 20))))
    assert 60 < spent.megabytes < 200
    _, spent = measured(lambda: None)
    assert spent.megabytes < 20  # the peak counts anew


def test_a_silent_child_is_ended(tmp_path):
    ended = forked(lambda tell: (tell(1), __import__("signal").pause()), tmp_path / "log", silence_s=1.0)
    assert (ended.timed_out, ended.records) == (True, [1])
    assert "Timeout" in ended.log  # with the place where it hung


def test_mutations_of_json_change_what_they_say(run):
    import random

    tree = mutations.parsed(files_of(fuzz.newest_first(run)[0])[MANIFEST])
    texts = {mutations.written(mutations.edited(tree, random.Random(seed))[1]) for seed in range(200)}
    assert len(texts) > 150
    assert (
        mutations.written(mutations.parsed(b'{"a": 1, "a": [null, true, {"b": 1.5}]}'))
        == '{"a": 1, "a": [null, true, {"b": 1.5}]}'
    )
