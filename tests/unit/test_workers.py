"""Loader workers that die: whose error it is. Whole runs are in ``tests/cases/test_wk.py``."""

import gc
import os
import select
import signal
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from trainhooks import Trainer, hookimpl
from trainhooks.workers import _cause, _stopped, note_lost_workers, reader_of
from trainhooks_builtins import Signals

# torch raises the end of a worker in a signal handler, in whatever code runs at the moment, a finalizer among it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Data(Dataset):
    """Six samples; the worker that reads the fourth one exits, or fails."""

    def __init__(self, how=None):
        self.how = how

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == 3 and self.how == "exits":
            os._exit(7)
        if index == 3 and self.how == "fails":
            raise ValueError("sample 3")
        return torch.ones(1)


class Waits:
    """Waits for the worker's end inside a hook, so that torch raises there."""

    @hookimpl
    def before_step(self, trainer):
        for worker in trainer.loaders["train"]._iterator._workers:
            if trainer.step == 1:
                worker.join(5)


def make(loader, *plugins):
    model = torch.nn.Linear(1, 1)
    arguments = {"loaders": {"train": loader}, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "device": "cpu"}

    class Loss:
        @hookimpl
        def compute_loss(self, trainer, batch):
            return trainer.model(batch).mean()

    return Trainer(model, plugins=[Loss(), *plugins], autoload=False, max_epochs=1, **arguments)


def notes(error):
    return getattr(error, "__notes__", [])


def test_a_dead_worker_is_named_and_lasting_ones_can_start_again():
    loader = DataLoader(Data("exits"), num_workers=1, persistent_workers=True)
    trainer = make(loader)
    with pytest.raises(Exception) as caught:
        trainer.train()
    text = "\n".join([str(caught.value), *notes(caught.value)])
    assert "loader worker (pid " in text.replace("DataLoader", "loader")
    assert "code 7" in text
    assert loader._iterator is None
    loader.dataset.how = None
    trainer.train()
    assert trainer.outcome.step >= 6


def test_no_plugin_is_blamed():
    loader = DataLoader(Data("exits"), num_workers=1, persistent_workers=True, prefetch_factor=6)
    with pytest.raises(Exception) as caught:  # torch's, or that of a connection which a tensor was to come through
        make(loader, Waits()).train()
    assert "oader worker (pid" in "\n".join([str(caught.value), *notes(caught.value)])
    assert not any("raised in before_step" in note for note in notes(caught.value))


def test_the_trainer_is_freed_all_the_same():
    """Looking through the traceback leaves no cycle behind."""

    def fail():
        trainer = make(DataLoader(Data("exits"), num_workers=1))
        try:
            trainer.train()
        except Exception as error:
            return weakref.ref(trainer), weakref.ref(trainer.loaders["train"]), type(error)

    gc.collect()
    gc.disable()
    try:
        trainer, loader, kind = fail()
        assert issubclass(kind, Exception)
        assert (trainer(), loader()) == (None, None)
    finally:
        gc.enable()


class Sends(Dataset):
    """A sample that cannot be sent to the main process, or whose error cannot."""

    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 2

    def __getitem__(self, index):
        class Local(Exception):
            pass

        if self.how == "error":
            raise Local
        return Local


@pytest.mark.parametrize("how", ["sample", "error"])
def test_what_cannot_be_sent_ends_the_worker_instead_of_the_waiting(how, capfd):
    """torch's own loader waits for ever: ``pytest`` would be killed by the time limit of the session."""
    loader = DataLoader(Sends(how), num_workers=1, collate_fn=list)
    with pytest.raises(RuntimeError, match="exited unexpectedly") as caught:
        make(loader, Signals()).train()
    assert any("exited with code 1" in note for note in notes(caught.value))
    shown = capfd.readouterr().err
    assert "Can't pickle" in shown
    assert "what a loader worker gives cannot be pickled, so the worker ends" in shown


def test_errors_of_a_dataset_are_its_own():
    loader = DataLoader(Data("fails"), num_workers=1)
    with pytest.raises(ValueError, match="sample 3") as caught:
        make(loader).train()
    assert not any("loader worker" in note for note in notes(caught.value))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("DataLoader")])
def test_other_errors_are_not_about_workers(error):
    assert not note_lost_workers(error, [[]])


def test_only_a_loader_with_workers_and_a_timeout_is_watched():
    for loader in ([1], DataLoader(Data()), DataLoader(Data(), num_workers=1)):
        assert reader_of(loader) is loader
    assert reader_of(DataLoader(Data(), num_workers=1, timeout=60)) is not None


def test_the_watch_ends_with_the_epoch():
    trainer = make(DataLoader(Data(), num_workers=1, timeout=60))
    trainer.train()
    watch = [thread for thread in threading.enumerate() if "_watch" in thread.name]
    for thread in watch:
        thread.join(5)
    assert not any(thread.is_alive() for thread in watch)
    assert trainer.step == 6


def test_causes():
    assert _cause(3) == "exited with code 3"
    assert _cause(-11) == "was killed by signal 11 (SIGSEGV)"
    assert "memory" in _cause(-9)
    assert _cause(-63).startswith("was killed by signal 63")
    assert not _stopped(os.getpid())
    assert not _stopped(2**30)


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")
def test_a_worker_whose_parent_was_killed_before_it_looked_ends(tmp_path):
    """Its parent is then the process that adopted it, and stays that for ever."""
    script = tmp_path / "orphan.py"
    script.write_text(
        "import multiprocessing, os, signal, sys, time\n"
        "from trainhooks.worker_shield import begin_worker\n"
        "def work():\n"
        "    while os.getppid() == int(sys.argv[1]):\n"
        "        time.sleep(0.01)\n"
        "    begin_worker((signal.SIGTERM,), None, 0)\n"
        "    time.sleep(1000)\n"
        "sys.argv.append(str(os.getpid()))\n"
        "worker = multiprocessing.get_context('fork').Process(target=work)\n"
        "worker.start()\n"
        "print(worker.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n",
        encoding="utf-8",
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        gone, _, _ = select.select([process.stdout], [], [], 60)  # its end is read when nobody has the pipe any more
        if not gone:
            os.kill(pid, signal.SIGKILL)
    assert gone
