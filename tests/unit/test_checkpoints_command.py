"""``trainhooks checkpoints``: on runs that are trained here, with values that are noted while they are."""

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from trainhooks import CheckpointError, Trainer, UsageError, hookimpl
from trainhooks.cli import main
from trainhooks.cli.output import pasted
from trainhooks.run_lock import RunLock
from trainhooks_builtins import EMA, SWA, Checkpoint, Evaluation
from trainhooks_builtins._best_checkpoint import BestSaved, recorded_best
from trainhooks_builtins._checkpoint_files import read_manifest, take_snapshot, write_checkpoint
from trainhooks_builtins._checkpoint_manifest import manifest_text
from trainhooks_builtins._run_checkpoints import find

SCORES = {2: 0.5, 4: 0.9, 6: 0.7, 8: 0.6, 10: 0.1, 12: 0.2}
SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.outer = nn.Linear(3, 3, bias=False)
        self.outer.weight = self.inner.weight

    def forward(self, x):
        return self.outer(self.norm(self.inner(x)))
"""
namespace = {}
exec(SOURCE, namespace)
Net = namespace["Net"]
NAMES = {
    *("inner.weight", "inner.bias", "outer.weight", "norm.weight", "norm.bias"),
    *("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"),
}


class Scores:
    """Measures what ``SCORES`` says, and notes the weights as they are after each step."""

    def __init__(self):
        self.weights = {}

    @hookimpl
    def before_train(self, trainer):
        self.note(trainer, trainer.step)

    @hookimpl
    def after_step(self, trainer):
        self.note(trainer, trainer.step + 1)

    def note(self, trainer, step):
        self.weights[step] = {name: one.clone() for name, one in trainer.model.state_dict().items()}

    @hookimpl
    def eval_step(self, trainer):
        return {"score": torch.tensor(SCORES[trainer.step], dtype=torch.float64)}


def train(work_dir, *plugins, steps=8, resume=None, checkpoint=None, scores=None):
    torch.manual_seed(0)
    model = Net()
    data = torch.randn(8, 4, 3, generator=torch.Generator().manual_seed(1))
    scores = scores or Scores()
    trainer = Trainer(
        model,
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        loaders={"train": [(one, torch.ones(4, 3)) for one in data], "val": [torch.zeros(1)]},
        max_steps=steps,
        work_dir=work_dir,
        autoload=False,
        plugins=[
            scores,
            Evaluation(every_steps=2, every_epochs=0, monitor="val/score"),
            Checkpoint(**{"every_steps": 2, "keep": 0, "best": "val/score", **(checkpoint or {})}),
            *plugins,
        ],
    )
    trainer.train(resume=resume)
    return scores.weights, trainer


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 8 steps with checkpoints at 2, 4 (the best), 6 and 8, its weights by step, and the trainer."""
    run = tmp_path_factory.mktemp("trained") / "run"
    return run, *train(run, EMA(decay=0.5), SWA(start=0.5, every_updates=1, bn_batches=4))


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """A copy of that run as the folder ``run`` of the working directory."""
    shutil.copytree(trained[0], tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return Path("run")


def at(run, step):
    return run / "checkpoints" / f"step-{step:08d}"


def steps(run):
    return sorted(int(one.name[5:]) for one in (run / "checkpoints").iterdir() if one.name.startswith("step-"))


def flip(file, place):
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def one_line(said):
    """Return the one message of bad input."""
    lines = said.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("trainhooks: ")
    assert said.out == ""
    return lines[0]


def in_a_process(script, *words, **arguments):
    return subprocess.run([sys.executable, "-c", script, *map(str, words)], capture_output=True, text=True, **arguments)


# --- list ---


def test_list_shows_what_there_is(cli, run):
    lines = cli("checkpoints", "list", run).out.splitlines()
    assert lines[0].split() == ["step", "epoch", "kind", "kept", "val/score", "train/loss", "size", "saved", "state", "path"]
    cells = [line.split() for line in lines[1:]]
    assert [(one[0], one[2], one[-2], one[-1]) for one in cells] == [
        ("2", "periodic", "whole", "run/checkpoints/step-00000002"),
        ("4", "periodic", "whole", "run/checkpoints/step-00000004"),
        ("6", "periodic", "whole", "run/checkpoints/step-00000006"),
        ("8", "periodic", "whole", "run/checkpoints/step-00000008"),
    ]
    assert cells[1][3:6] == ["best", "val/score", "0.9"]
    assert cells[3][3] == "last"


def test_list_as_json_has_everything(cli, run):
    found = json.loads(cli("checkpoints", "list", "--json", run).out)
    assert [one["step"] for one in found] == [2, 4, 6, 8]
    assert [one["kept"] for one in found] == [[], ["best val/score"], [], ["last"]]
    assert [one["metrics"]["val/score"] for one in found] == [0.5, 0.9, 0.7, 0.6]
    for one in found:
        files = [Path(one["path"]) / name for name in ("tensors.safetensors", "state.json")]
        assert one["size_bytes"] == sum(file.stat().st_size for file in files)
        assert (one["whole"], one["fault"], one["pinned"]) == (True, None, False)
        assert one["update"] == one["step"]
        assert one["epoch"] == 0


@pytest.mark.parametrize("where", ["run", "run/checkpoints", "runs", ".", None])
def test_the_run_may_be_named_in_several_ways(cli, run, where, monkeypatch):
    if where == "runs":
        shutil.copytree(run, "runs/zzz-older")
        shutil.copytree(run, "runs/sweep/newer")
        for name, time in (("zzz-older", "2026-01-02T10:00:00Z"), ("sweep/newer", "2026-01-02T11:00:00Z")):
            record = Path("runs") / name / "run.json"
            record.write_text(json.dumps({**json.loads(record.read_text()), "started": time}))
        shutil.rmtree(at(Path("runs/sweep/newer"), 2))
    if where in (".", None):
        monkeypatch.chdir(run)
    said = cli("checkpoints", "list", "--json", *([where] if where else []))
    newer = "trainhooks: the newest run below runs is runs/sweep/newer\n"
    assert said.err == (newer if where == "runs" else "")
    assert [one["step"] for one in json.loads(said.out)] == ([4, 6, 8] if where == "runs" else [2, 4, 6, 8])


def test_list_without_a_path_takes_the_newest_run_below_runs(cli, run):
    Path("runs").mkdir()
    run.rename("runs/first")
    said = cli("checkpoints", "list", "--json")
    assert said.err == "trainhooks: the newest run below runs is runs/first\n"
    assert len(json.loads(said.out)) == 4


def test_list_names_a_single_checkpoint(cli, run):
    assert [one["step"] for one in json.loads(cli("checkpoints", "list", "--json", at(run, 6)).out)] == [6]


def test_list_says_what_is_wrong(cli, run):
    os.truncate(at(run, 2) / "tensors.safetensors", 100)
    (at(run, 4) / "manifest.json").unlink()
    flip(at(run, 8) / "tensors.safetensors", -1)
    found = json.loads(cli("checkpoints", "list", "--json", run).out)
    assert [one["whole"] for one in found] == [False, False, True, True]  # sizes alone say nothing of the last
    assert [one["kept"] for one in found] == [[], [], [], ["last"]]
    found = json.loads(cli("checkpoints", "list", "--json", "--verify", run).out)
    assert [one["whole"] for one in found] == [False, False, True, False]
    assert [one["kept"] for one in found] == [[], [], ["last"], []]
    said = cli("checkpoints", "list", run)
    assert [line.split()[-2] for line in said.out.splitlines()[1:]] == ["broken", "broken", "whole", "whole"]
    assert "step-00000002/tensors.safetensors has 100 bytes" in said.err
    assert "step-00000004/manifest.json is missing" in said.err


def test_a_checkpoint_that_stepped_aside_is_listed_where_it_is(cli, run):
    """A process was killed while it replaced one: reading it goes to the hidden name."""
    at(run, 8).rename(run / "checkpoints/.step-00000008.old")
    found = json.loads(cli("checkpoints", "list", "--json", run).out)
    assert [one["step"] for one in found] == [2, 4, 6, 8]
    assert cli("checkpoints", "verify", found[-1]["path"]).out.startswith("whole ")
    assert [one["step"] for one in json.loads(cli("checkpoints", "list", "--json", at(run, 8)).out)] == [8]


def test_a_run_without_checkpoints_is_no_error_to_list(cli, run):
    shutil.rmtree(run / "checkpoints")
    said = cli("checkpoints", "list", run)
    assert (said.out, said.err) == ("", "trainhooks: no checkpoints in run\n")
    assert json.loads(cli("checkpoints", "list", "--json", run).out) == []


def test_no_file_can_move_the_cursor(cli, run):
    for place in (run / "checkpoints").iterdir():
        manifest = read_manifest(place)
        evil = type(manifest)(**{**vars(manifest), "kind": "\x1b[2J\nx", "metrics": {"val/\x1b]0;x\x07": 1.0}})
        (place / "manifest.json").write_text(manifest_text(evil))
    out = cli("checkpoints", "list", run).out
    assert not {"\x1b", "\x07"} & set(out)
    assert len(out.splitlines()) == 5
    assert "\\x1b[2J\\nx" in out
    assert "val/\\x1b]0;x\\x07" in out.splitlines()[0]


# --- verify ---


def test_verify_reads_everything(cli, run):
    said = cli("checkpoints", "verify", run)
    assert said.out.splitlines() == [f"whole   run/checkpoints/step-0000000{step}" for step in (2, 4, 6, 8)]


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
def test_verify_finds_each_flipped_bit(cli, run, name):
    flip(at(run, 6) / name, 40)
    said = cli("checkpoints", "verify", run, expect=1)
    assert [line.split()[0] for line in said.out.splitlines()] == ["whole", "whole", "broken", "whole"]
    assert f"run/checkpoints/step-00000006/{name} is damaged" in said.out
    cli("checkpoints", "verify", at(run, 6), expect=1)
    cli("checkpoints", "verify", at(run, 4), at(run, 8))


def test_verify_says_where_the_damage_is(cli, run):
    """A block has 4 MiB: byte 5,000,000 lies in the second one."""
    path = at(run, 9)
    write_checkpoint(path, take_snapshot({"big": torch.zeros(9 << 20, dtype=torch.uint8)}), {"step": 9})
    flip(path / "tensors.safetensors", 5_000_000)
    said = cli("checkpoints", "verify", path, expect=1).out
    assert "tensors.safetensors is damaged between byte 4194304 and byte 8388608" in said


def test_verify_as_json(cli, run):
    flip(at(run, 2) / "state.json", 40)
    found = json.loads(cli("checkpoints", "verify", "--json", run, expect=1).out)
    assert [one["whole"] for one in found] == [False, True, True, True]
    assert "state.json is damaged" in found[0]["fault"]


def test_verify_of_nothing_is_an_error(cli, run):
    shutil.rmtree(run / "checkpoints")
    assert one_line(cli("checkpoints", "verify", run, expect=2)) == "trainhooks: no checkpoints in run"


# --- prune ---


def test_prune_leaves_the_newest_the_best_and_pinned_ones(cli, run):
    cli("checkpoints", "pin", at(run, 2))
    sizes = sum(file.stat().st_size for file in at(run, 6).iterdir())
    said = cli("checkpoints", "prune", run, "--keep", 1).out.splitlines()
    assert steps(run) == [2, 4, 8]
    assert said == [
        "removed  run/checkpoints/step-00000006",
        "kept  run/checkpoints/step-00000002  (pinned)",
        "kept  run/checkpoints/step-00000004  (best val/score)",
        "kept  run/checkpoints/step-00000008  (last)",
        f"1 removed, freed {sizes / 1000:.3g} kB",
    ]
    assert [one.name for one in (run / "checkpoints").iterdir() if one.name.startswith(".")] == []


def test_prune_by_another_metric(cli, run):
    cli("checkpoints", "prune", run, "--keep", 1, "--keep-best", "min:val/score")
    assert steps(run) == [2, 4, 8]  # 0.5, the lowest; 0.9, which the run recorded; the newest


def test_a_dry_run_removes_nothing(cli, run):
    before = {one: one.stat().st_mtime_ns for one in run.rglob("*")}
    said = cli("checkpoints", "prune", run, "--keep", 1, "--dry-run").out
    assert [line.split()[-1][-1] for line in said.splitlines() if line.startswith("would remove ")] == ["2", "6"]
    assert {one: one.stat().st_mtime_ns for one in run.rglob("*")} == before


def test_prune_counts_whole_ones_only(cli, run):
    """The newest is damaged in a way that its size does not show: the one before it is the newest that can be resumed."""
    flip(at(run, 8) / "tensors.safetensors", -1)
    said = cli("checkpoints", "prune", run, "--keep", 1)
    assert steps(run) == [4, 6, 8]
    assert "kept  run/checkpoints/step-00000006  (last)" in said.out
    assert said.err == "trainhooks: broken, and left there without --broken: run/checkpoints/step-00000008\n"
    cli("checkpoints", "prune", run, "--keep", 1, "--broken")
    assert steps(run) == [4, 6]


def test_prune_leaves_nothing_broken_as_the_last_one(cli, run):
    for step in (2, 4, 6, 8):
        flip(at(run, step) / "tensors.safetensors", -1)
    cli("checkpoints", "prune", run, "--keep", 4, "--broken", expect=1)
    assert steps(run) == [2, 4, 6, 8]


def test_a_pruned_run_goes_on(cli, run):
    cli("checkpoints", "prune", run, "--keep", 1)
    _, trainer = train(run.absolute(), EMA(decay=0.5), SWA(start=0.5, every_updates=1, bn_batches=4), steps=10, resume="auto")
    assert trainer.step == 10
    assert steps(run) == [4, 8, 10]


def test_prune_touches_nothing_that_is_not_ours(cli, run, tmp_path):
    folder, outside = run / "checkpoints", tmp_path / "outside"
    shutil.copytree(at(run, 2), outside)
    (folder / "step-00000001").symlink_to(outside)
    (folder / "step-1").mkdir()
    (folder / "my step-00000002").mkdir()
    (folder / "notes.txt").write_text("mine")
    before = sorted(folder.iterdir())
    cli("checkpoints", "prune", run, "--keep", 2)
    assert sorted(folder.iterdir()) == [one for one in before if one != at(run, 2)]
    assert len(list(outside.iterdir())) == 3


def test_prune_follows_no_link(cli, run):
    (run / "checkpoints").rename("elsewhere")
    (run / "checkpoints").symlink_to(Path("elsewhere").absolute())
    said = one_line(cli("checkpoints", "prune", run, "--keep", 1, expect=2))
    assert said == "trainhooks: run/checkpoints is a link, and nothing is removed through links: name where it leads"
    assert steps(run) == [2, 4, 6, 8]


def test_prune_leaves_a_checkpoint_with_a_file_of_the_users(cli, run):
    """It does not count as whole, and what somebody put into it would go with it."""
    (at(run, 6) / "notes.txt").write_text("mine")
    cli("checkpoints", "prune", run, "--keep", 1)
    assert steps(run) == [4, 6, 8]
    assert "notes.txt" in cli("checkpoints", "prune", run, "--keep", 1, "--broken", expect=1).err
    assert (at(run, 6) / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("where", ["run", "run/checkpoints", "link", "."])
def test_prune_waits_for_a_run_that_is_running(cli, run, where, monkeypatch):
    Path("link").symlink_to(run)
    run = run.absolute()
    with RunLock(run):
        if where == ".":
            monkeypatch.chdir(run / "checkpoints")
        said = one_line(cli("checkpoints", "prune", where, "--keep", 1, expect=2))
        assert " is in use by " in said
        assert steps(run) == [2, 4, 6, 8]
        cli("checkpoints", "list", where)
        cli("checkpoints", "verify", where)
    cli("checkpoints", "prune", where, "--keep", 1)


# --- pin ---


def test_a_pinned_checkpoint_survives_the_rotation_of_the_run(cli, run):
    assert cli("checkpoints", "pin", at(run, 2)).out == "pinned: run/checkpoints/step-00000002\n"
    assert cli("checkpoints", "pin", at(run, 2)).out == "was pinned already: run/checkpoints/step-00000002\n"
    assert json.loads(cli("checkpoints", "list", "--json", run).out)[0]["kept"] == ["pinned"]
    plugins = [EMA(decay=0.5), SWA(start=0.5, every_updates=1, bn_batches=4)]
    train(run.absolute(), *plugins, steps=10, resume="auto", checkpoint={"keep": 1})
    assert steps(run) == [2, 4, 10]
    assert cli("checkpoints", "unpin", at(run, 2)).out == "unpinned: run/checkpoints/step-00000002\n"
    assert cli("checkpoints", "unpin", at(run, 2)).out == "was not pinned: run/checkpoints/step-00000002\n"
    plugins = [EMA(decay=0.5), SWA(start=0.5, every_updates=1, bn_batches=4)]
    train(run.absolute(), *plugins, steps=12, resume="auto", checkpoint={"keep": 1})
    assert steps(run) == [4, 12]


def test_pin_of_a_run_is_its_newest(cli, run):
    assert cli("checkpoints", "pin", run).out == "pinned: run/checkpoints/step-00000008\n"


def test_what_is_broken_is_not_pinned(cli, run):
    os.truncate(at(run, 8) / "state.json", 3)
    assert "state.json has 3 bytes" in one_line(cli("checkpoints", "pin", at(run, 8), expect=1))
    assert cli("checkpoints", "pin", run).out == "pinned: run/checkpoints/step-00000006\n"


# --- export ---

PLAIN = (
    """
import sys
class Forbids:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("trainhooks", "trainhooks_builtins", "pluggy"):
            raise ImportError(name + " is not to be used here")
sys.meta_path.insert(0, Forbids())
"""
    + SOURCE
    + """
from safetensors.torch import load_file

while file := sys.stdin.readline().rstrip():
    reference = sys.stdin.readline().rstrip()
    weights = torch.load(file, weights_only=True) if file.endswith(".pt") else load_file(file)
    model = Net()
    said = model.load_state_dict(weights, strict=True)
    wanted = torch.load(reference, weights_only=True)
    state = model.state_dict()
    assert state.keys() == wanted.keys()
    for name, one in wanted.items():
        assert state[name].dtype == one.dtype and torch.equal(state[name], one), name
    assert state["inner.weight"].data_ptr() == state["outer.weight"].data_ptr()
    print(said, flush=True)
"""
)


@pytest.fixture(scope="module")
def plain():
    """Return a function that has a process without trainhooks load weights, compare them, and say how they matched."""
    command = [sys.executable, "-c", PLAIN]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **pipes) as process:

        def load(file, wanted):
            print(Path(file).absolute(), Path(wanted).absolute(), sep="\n", file=process.stdin, flush=True)
            said = process.stdout.readline()
            return said + process.stdout.read() if said.startswith("Traceback") else said

        yield load


def ema_by_hand(weights, step):
    """Averages of decay 1/2 from the weights at the start, buffers as they are at the end."""
    average = dict(weights[0])
    for number in range(1, step + 1):
        average = {
            name: torch.lerp(one, weights[number][name], 0.5) if "_" not in name else one for name, one in average.items()
        }
    return {name: weights[step][name] if "_" in name else one for name, one in average.items()}


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize(
    ("words", "step", "average"),
    [((), 8, None), (("--best",), 4, None), (("--best-by", "min:val/score"), 2, None), (("--ema",), 8, "ema")],
)
def test_plain_torch_loads_the_weights(cli, run, trained, plain, words, step, average, suffix):
    weights = trained[1]
    wanted = ema_by_hand(weights, step) if average else weights[step]
    torch.save(wanted, "wanted.pt")
    said = cli("checkpoints", "export", run, *words, *(["--pt"] if suffix == "pt" else []))
    name = f"run-step-{step:08d}{'-ema' if average else ''}.{suffix}"
    what = "the average of ema" if average else "the weights"
    assert said.out.startswith(f"{name}: {what} at step {step}, 8 tensors, ")
    assert plain(name, "wanted.pt") == "<All keys matched successfully>\n"


def test_the_average_of_swa_has_its_own_statistics(cli, run, trained):
    """Updates 5 to 8 are averaged with equal shares; their batch statistics are those that an evaluation sees."""
    _, weights, trainer = trained
    cli("checkpoints", "export", run, "--average", "swa", "-o", "swa.safetensors")
    found = load_file("swa.safetensors")
    assert found.keys() == NAMES
    for name in ("inner.weight", "inner.bias", "outer.weight", "norm.weight", "norm.bias"):
        mean = torch.stack([weights[step][name] for step in (5, 6, 7, 8)]).double().mean(0)
        torch.testing.assert_close(found[name].double(), mean, rtol=1e-6, atol=1e-7)
    with trainer.plugins["swa"].averaged(trainer):
        seen = {name: one.clone() for name, one in trainer.model.state_dict().items()}
    assert all(torch.equal(found[name], seen[name]) for name in NAMES)
    assert not torch.equal(found["norm.running_mean"], weights[8]["norm.running_mean"])


def test_the_header_says_where_they_are_from(cli, run):
    cli("checkpoints", "export", at(run, 6), "-o", "w.safetensors")
    with safe_open("w.safetensors", framework="pt") as file:
        assert file.metadata() == {
            "format": "pt",
            "step": "6",
            "weights": "model",
            "source": "run/checkpoints/step-00000006",
        }


def test_nothing_is_replaced_without_force(cli, run):
    Path("w.safetensors").write_text("mine")
    assert "--force replaces it" in one_line(cli("checkpoints", "export", run, "-o", "w.safetensors", expect=2))
    assert Path("w.safetensors").read_text() == "mine"
    cli("checkpoints", "export", run, "-o", "w.safetensors", "--force")
    assert load_file("w.safetensors").keys() == NAMES


def test_others_may_read_the_file(cli, run):
    before = os.umask(0o027)
    try:
        cli("checkpoints", "export", run, "-o", "w.safetensors")
        cli("checkpoints", "export", run, "-o", "w.pt")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(Path(name).stat().st_mode) for name in ("w.safetensors", "w.pt")] == [0o640, 0o640]


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_a_file_that_cannot_be_written_leaves_nothing(run, fork, name):
    """A limit of 300 bytes for files, as a full disk; what was there is still there."""
    Path(name).write_text("former")
    there = sorted(Path().iterdir())

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
        main(["checkpoints", "export", str(run), "-o", name, "--force"])

    process = fork(limited)
    assert process.said.read().startswith(f"trainhooks: cannot write {name}: ")
    process.join()
    assert process.exitcode == 1
    assert Path(name).read_text() == "former"
    assert sorted(Path().iterdir()) == there


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--average", "em"], "there is no average of a plugin 'em' in it; did you mean 'ema'?; there is that of ema, swa"),
        (["--average", "checkpoint"], "there is no average of a plugin 'checkpoint' in it; there is that of ema, swa"),
        (["--ema", "--average", "swa"], "--ema and --average swa: give one of them"),
        (["-o", "nowhere/w.pt"], "-o nowhere/w.pt: there is no folder "),
        (["-o", "run"], "-o run is a folder: name a file"),
        (["-o", "w.safetensors", "--pt"], "a file for torch.load must not be called .safetensors"),
        (["--best-by", "val/scor"], "has a value of 'val/scor'; did you mean 'val/score'?"),
    ],
)
def test_wrong_words_are_one_line_and_write_nothing(cli, run, words, message):
    assert message in one_line(cli("checkpoints", "export", run, *words, expect=2))
    assert sorted(one.name for one in Path().iterdir()) == ["run"]


def test_an_average_that_has_not_begun(cli, run):
    assert "swa had not begun to average" in one_line(cli("checkpoints", "export", at(run, 2), "--average", "swa", expect=2))


def test_export_needs_no_numpy(cli, run, monkeypatch):
    """Which neither torch nor trainhooks brings along."""
    monkeypatch.setitem(sys.modules, "numpy", None)
    cli("checkpoints", "export", at(run, 8), "-o", "w.safetensors")
    with safe_open("w.safetensors", framework="pt") as file:
        assert file.keys()


def test_a_damaged_checkpoint_is_not_exported(cli, run):
    flip(at(run, 8) / "tensors.safetensors", -1)
    assert "tensors.safetensors is damaged" in one_line(cli("checkpoints", "export", at(run, 8), expect=1))
    assert sorted(one.name for one in Path().iterdir()) == ["run"]


def test_what_is_no_tensor_needs_a_file_of_torch(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = {"model": {"w": torch.ones(2), "_extra_state": {"scale": 2}}, "plugins/ema": {"average": {}, "averagings": 0}}
    write_checkpoint(tmp_path / "step-00000001", take_snapshot(state), {"step": 1})
    said = one_line(cli("checkpoints", "export", "step-00000001", expect=2))
    assert "_extra_state: no plain tensor, which a safetensors file cannot hold; --pt writes a file for torch.load" in said
    cli("checkpoints", "export", "step-00000001", "-o", "w.pth")
    found = torch.load("w.pth", weights_only=True)
    assert found["_extra_state"] == {"scale": 2}
    assert torch.equal(found["w"], torch.ones(2))


def test_a_training_without_a_model_has_no_weights(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "step-00000001", take_snapshot({"run": {"step": 1}}), {"step": 1})
    assert "there is no model in it" in one_line(cli("checkpoints", "export", "step-00000001", expect=2))


# --- The best ---


def test_evaluate_and_predict_take_the_best(cli, project):
    """The weight is -step, so the loss on the val batch, which is 2, is -2 * step: the last is the lowest, the first the highest."""
    cli("train", "--set", "work_dir=out", "-o", "checkpoint.best=val/loss", "-o", "checkpoint.mode=max", *EACH_STEP)
    assert [-2.0 * step for step in (1, 2, 3)] == values("out")
    said = cli("evaluate", "--checkpoint", "out", "--best", "--json")
    assert json.loads(said.out) == {"val/loss": -2.0}
    best = "trainhooks: the best checkpoint is out/checkpoints/step-00000001: val/loss -2 at step 1, as the run recorded it"
    assert best in said.err.splitlines()
    assert json.loads(cli("evaluate", "--checkpoint", "out", "--json").out) == {"val/loss": -6.0}
    said = cli("evaluate", "--checkpoint", "out", "--best-by", "val/loss", "--json")
    assert json.loads(said.out) == {"val/loss": -6.0}
    assert "step-00000003: val/loss -6, the lowest of 3 checkpoints" in said.err
    assert json.loads(cli("evaluate", "--checkpoint", "out", "--best-by", "max:val/loss", "--json").out) == {"val/loss": -2.0}
    assert json.loads(cli("predict", "--checkpoint", "out", "--best", "--json").out.splitlines()[1]) == -2.0  # of the batch 2


EACH_STEP = ("-o", "checkpoint.every_steps=1", "-o", "checkpoint.keep=0", "-o", "evaluation.every_steps=1")


def values(run):
    manifests = [read_manifest(path) for path in sorted((Path(run) / "checkpoints").iterdir())]
    return [one.metrics["val/loss"] for one in manifests]


def test_the_best_that_cannot_be_told(cli, project):
    cli("train", "--set", "work_dir=out", *EACH_STEP)
    said = one_line(cli("evaluate", "--checkpoint", "out", "--best", expect=2))
    assert "the run out has not recorded a best checkpoint" in said
    assert "--best-by METRIC compares val/loss" in said
    said = one_line(cli("evaluate", "--checkpoint", "out/checkpoints/step-00000002", "--best", expect=2))
    assert "is a single checkpoint" in said
    said = one_line(cli("evaluate", "--checkpoint", "out", "--best", "-p", "no:checkpoint", expect=2))
    assert "no plugin of this run knows which checkpoint of out is the best" in said


def test_the_best_that_is_gone_or_broken_is_no_other(run):
    shutil.rmtree(at(run, 4))
    with pytest.raises(CheckpointError, match="was at step 4, whose checkpoint is not there any more"):
        Checkpoint().find_best(run)
    shutil.copytree(at(run, 6), at(run, 4))
    os.truncate(at(run, 4) / "state.json", 0)
    with pytest.raises(
        CheckpointError, match="the checkpoint with the best val/score, 0.9, is broken: .*is of step 6, the folder of step 4"
    ):
        Checkpoint().find_best(run)


def test_two_instances_have_two_best(tmp_path):
    again = Checkpoint(every_steps=2, keep=0, best="val/score", mode="min")
    train(tmp_path / "run", again)
    recorded = recorded_best(find(tmp_path / "run").entries())
    assert {(one.plugin, one.value, one.step) for one in recorded} == {("checkpoint", 0.9, 4), ("checkpoint@2", 0.5, 2)}
    path, _ = Checkpoint().find_best(tmp_path / "run")
    assert path.name == "step-00000004"  # that of the plugin `checkpoint`


def test_all_of_several_best_are_known(cli, tmp_path, monkeypatch):
    """Scores 0.5, 0.9, 0.7, 0.6, 0.1, 0.2 at steps 2 to 12: the best three are 4, 6 and 8, the newest is 12."""
    monkeypatch.chdir(tmp_path)
    train(Path("run"), steps=12, checkpoint={"keep": 0, "keep_best": 3})
    recorded = recorded_best(find(Path("run")).entries())
    assert [(one.step, one.value, one.place) for one in recorded] == [(4, 0.9, 1), (6, 0.7, 2), (8, 0.6, 3)]
    kept = {row["step"]: row["kept"] for row in json.loads(cli("checkpoints", "list", "run", "--json").out)}
    assert kept == {
        2: [],
        4: ["best val/score"],
        6: ["2nd best val/score"],
        8: ["3rd best val/score"],
        10: [],
        12: ["last"],
    }
    cli("checkpoints", "prune", "run", "--keep", 1)
    assert steps(Path("run")) == [4, 6, 8, 12]
    assert Checkpoint().find_best(Path("run"))[0].name == "step-00000004"


@pytest.mark.parametrize(("place", "words"), [(1, "best x"), (2, "2nd best x"), (11, "11th best x"), (23, "23rd best x")])
def test_places_in_words(place, words):
    assert BestSaved("checkpoint", "x", 0.0, 1, place).reason == words


@pytest.mark.parametrize("ranked", [None, 3, [3], [[4]], [["4", 1]], [[4, "x"]], {"4": 0.9}])
def test_a_ranking_that_somebody_edited_is_none(run, ranked):
    file = at(run, 8) / "state.json"
    tree = json.loads(file.read_bytes())
    tree["plugins/checkpoint"]["best"]["ranked"] = ranked
    text = json.dumps(tree, separators=(",", ":")).encode()
    file.write_bytes(text.ljust(file.stat().st_size))  # only its size is looked at
    assert recorded_best(find(run).entries()) == []


def test_prune_keeps_the_best_by_each_metric(cli, run):
    """0.5 at step 2 is the lowest, 0.9 at step 4 the highest."""
    cli("checkpoints", "prune", run, "--keep", 1, "--keep-best", "min:val/score", "--keep-best", "max:val/score")
    assert steps(run) == [2, 4, 8]


def test_equal_values_are_the_first_ones(tmp_path):
    """Checkpoints between two evaluations carry the value of the former one."""
    train(tmp_path / "run", checkpoint={"every_steps": 1, "best": None})
    path, why = Checkpoint().find_best(tmp_path / "run", "val/score")
    assert path.name == "step-00000004"
    assert why == "val/score 0.9, the highest of 7 checkpoints"  # the first one was before any evaluation


# --- Without the rest ---

FORBIDS = """
import sys
class Forbids:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy", "safetensors", "users"):
            raise ImportError(name + " is not to be imported here")
sys.meta_path.insert(0, Forbids())
from trainhooks.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "words",
    [
        ("list", "run"),
        ("list", "--verify", "run"),
        ("verify", "run"),
        ("pin", "run"),
        ("unpin", "run"),
        ("prune", "run", "--keep", "1"),
    ],
)
def test_only_export_needs_torch(run, words):
    done = in_a_process(FORBIDS, "checkpoints", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_pk_03_neither_the_project_nor_its_classes_are_needed(cli, project, tmp_path, monkeypatch):
    """State of a class of the project is in the checkpoint; it is read elsewhere, where that class is not, or is another one."""
    own = """

class Counts:
    seen = 0

    @hookimpl
    def after_step(self):
        self.seen += 1

    def state_dict(self):
        return {"seen": self.seen, "by": {("a", 1): torch.tensor([float(self.seen)])}}

    def load_state_dict(self, state):
        self.seen = state["seen"]


plugins = [Counts]
"""
    file = project / "trainconf.py"
    file.write_text(file.read_text() + own)
    cli("train", "--set", "work_dir=out", "--set", "max_steps=3", "-p", "no:progress")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move("out", elsewhere / "copied run")
    file.write_text("raise SystemExit('another file of that name was run')")
    monkeypatch.chdir(elsewhere)
    (elsewhere / "trainconf.py").write_text("raise SystemExit('another file of that name was run')")
    script = "import sys; sys.path.insert(0, ''); from trainhooks.cli import main; main(sys.argv[1:])"
    for words in (("list",), ("verify",), ("pin",), ("export", "-o", "w.safetensors"), ("prune", "--keep", "1")):
        done = in_a_process(script, "checkpoints", words[0], "copied run", *words[1:])
        assert done.returncode == 0, done.stderr
    assert load_file("w.safetensors")["w"].item() == -3.0


# --- Paths ---

ODD = [
    "run[1]",
    "a*b",
    "q?",
    "{x}",
    "%d",
    "a b",
    "-x",
    " lead",
    "trail ",
    "a\nb",
    "~x",
    "$HOME",
    "é",
    "e\u0301",
    "🚂",
    "n" * 255,
]
ODD += ["step-00000099", ".hidden", "a=b", "--", "it's", 'two"', "back\\slash", "\x1b[2J", os.fsdecode(b"\xff\xfe")]


def as_a_shell_reads(text):
    """Return the one word that a shell makes of what was printed."""
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {os.fsencode(text).decode('utf-8', 'surrogateescape')}"], capture_output=True
    )
    words = done.stdout.split(b"\0")[:-1]
    assert len(words) == 1
    return os.fsdecode(words[0])


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_every_path_that_is_printed_can_be_given_back(cli, run, name):
    run.rename(name)
    words = ["--", name] if name.startswith("-") else [name]
    lines = cli("checkpoints", "verify", *words).out.splitlines()
    assert len(lines) == 4
    for line in lines:
        path = as_a_shell_reads(line.removeprefix("whole   "))
        assert cli("checkpoints", "verify", path).out.splitlines() == [line]
    table = cli("checkpoints", "list", *words).out.splitlines()
    assert len(table) == 5
    assert all(row.endswith(line.removeprefix("whole   ")) for row, line in zip(table[1:], lines, strict=True))
    said = cli("checkpoints", "export", *words).out
    file = as_a_shell_reads(said.partition(": the weights at step")[0])
    assert load_file(file).keys() == NAMES
    assert Path(file).parent == Path()


@pytest.mark.parametrize("text", ODD, ids=ascii)
def test_pasted_is_one_printable_line(text):
    shown = pasted(text)
    assert shown.isprintable()
    assert as_a_shell_reads(shown) in (text, f"./{text}")


# --- Bad input ---


@pytest.mark.parametrize("command", [("list",), ("verify",), ("pin",), ("unpin",), ("export",), ("prune", "--keep", "1")])
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "there is no checkpoint or run folder nowhere"),
        ("file", "file is a file: name the folder of a checkpoint or of a run"),
        ("empty", "empty holds no checkpoint and no run: name a checkpoint, a run folder, or a folder of runs"),
    ],
)
def test_bad_input_is_one_line(cli, tmp_path, monkeypatch, command, path, message):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("empty").mkdir()
    assert one_line(cli("checkpoints", *command, path, expect=2)) == f"trainhooks: {message}"
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["empty", "file"]


def test_list_without_a_path_where_there_is_nothing(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "is no run folder and holds no folder runs: name a run" in one_line(cli("checkpoints", "list", expect=2))


def test_prune_of_a_single_checkpoint(cli, run):
    assert "is a single checkpoint: name the run folder" in one_line(
        cli("checkpoints", "prune", at(run, 2), "--keep", 1, expect=2)
    )


def test_find_best_of_nothing(tmp_path):
    with pytest.raises(UsageError, match="holds no checkpoint and no run"):
        Checkpoint().find_best(tmp_path)


# --- Help ---


def test_help_has_the_line_of_the_command_without_importing_it(cli):
    from trainhooks_builtins.checkpoints_command import checkpoints

    line = checkpoints.get_short_help_str(limit=200)
    shown = " ".join(cli("-h").out.split())
    assert f"checkpoints {line}" in shown
    script = """
import sys
from trainhooks.cli import main
try:
    main(["-h"])
finally:
    print([name for name in sys.modules if name.partition(".")[0] in ("torch", "trainhooks_builtins")])
"""
    assert in_a_process(script).stdout.splitlines()[-1] == "[]"


def test_nobody_takes_the_name_of_a_built_in_command(cli, fake_distribution, run):
    source = "import click\n\n@click.command()\ndef command():\n    click.echo('theirs')\n"
    points = {"checkpoints": "their_checkpoints:command", "audit": "their_checkpoints:command"}
    fake_distribution("aaa-extra", points, {"their_checkpoints": source}, group="trainhooks.commands")
    shown = cli("-h").out
    assert "List, verify, prune, pin and export the checkpoints of a run." in shown
    assert "audit        (from aaa-extra 1.0)" in shown
    assert cli("checkpoints", "verify", run).out.startswith("whole ")
    assert cli("audit").out == "theirs\n"


@pytest.mark.parametrize("command", ["list", "verify", "pin", "unpin", "prune", "export"])
def test_help_of_each(cli, command):
    assert cli("checkpoints", command, "-h").out.startswith(f"Usage: trainhooks checkpoints {command} ")
