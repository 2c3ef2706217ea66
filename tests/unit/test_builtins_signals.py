"""``signals``: what a signal does to a run at each place, sent by the run to its own process."""

import faulthandler
import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import weakref

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from trainhooks import OptionError, Terminated, hookimpl
from trainhooks_builtins import EMA, Checkpoint, Evaluation, Signals


@pytest.fixture(autouse=True)
def handlers():
    """Check that a test leaves every handler as it was."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before


class Sends:
    """Sends signals to this process in one hook at one step; what the hooks saw after that is in ``calls``."""

    def __init__(self, hook, step, *numbers):
        self.calls = []

        @hookimpl(specname=hook)
        def send(trainer):
            if trainer.step == step:
                for number in numbers:
                    os.kill(os.getpid(), number)
                    time.sleep(0.15)  # more than what a launcher takes to forward one

        @hookimpl
        def after_save(trainer, kind):
            self.calls.append(("saved", trainer.step))

        @hookimpl
        def on_exception(exception):
            self.calls.append(("exception", exception))

        @hookimpl
        def teardown(trainer, outcome):
            if hook == "teardown" and trainer.step == step:
                os.kill(os.getpid(), numbers[0])
            self.calls.append((outcome.status, outcome.reason))

        watches = {"after_save": after_save, "on_exception": on_exception, "teardown": teardown}
        vars(self).update(watches if hook == "teardown" else {"send": send, **watches})


def ends(trainer, error, **arguments):
    """Train and return what is raised."""
    with pytest.raises(error) as raised:
        trainer.train(**arguments)
    return raised.value


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGUSR1", 138), ("SIGHUP", 129)])
@pytest.mark.parametrize("hook", ["before_step", "gradients_ready", "after_update", "after_step"])
def test_ends_after_the_running_step(make_trainer, tmp_path, name, code, hook):
    """The weight is -1 after each update: after step 3 it is -4."""
    sends = Sends(hook, 3, signal.Signals[name])
    trainer = make_trainer([Signals(), Checkpoint(), sends], work_dir=tmp_path / "run")
    error = ends(trainer, Terminated)
    assert (error.signum, error.code, str(error)) == (signal.Signals[name], code, name)
    assert trainer.model.w.item() == -4
    assert sends.calls == [("saved", 4), ("exception", error), ("interrupted", name)]
    assert (trainer.outcome.status, trainer.outcome.reason, trainer.outcome.step) == ("interrupted", name, 4)
    again = make_trainer([Signals(), Checkpoint()], work_dir=tmp_path / "run")
    assert again.train(resume="auto").status == "completed"
    assert again.model.w.item() == -10


def test_ctrl_c_is_a_keyboard_interrupt(make_trainer, tmp_path):
    sends = Sends("after_update", 3, signal.SIGINT)
    trainer = make_trainer([Signals(), Checkpoint(), sends], work_dir=tmp_path / "run")
    error = ends(trainer, KeyboardInterrupt)
    assert sends.calls == [("saved", 4), ("exception", error), ("interrupted", "Ctrl-C")]


def test_a_second_one_of_a_scheduler_changes_nothing(make_trainer, tmp_path):
    sends = Sends("after_update", 3, signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM)
    trainer = make_trainer([Signals(), Checkpoint(), sends], work_dir=tmp_path / "run")
    assert ends(trainer, Terminated).signum == signal.SIGUSR1
    assert [call for call in sends.calls if call[0] == "saved"] == [("saved", 4)]


def test_a_second_ctrl_c_while_the_training_ends_is_no_failure(make_trainer):
    """What the first one raises is due as well: both are one interruption, not a group of errors."""
    trainer = make_trainer([Signals(), Sends("after_train", 10, signal.SIGINT, signal.SIGINT)])
    ends(trainer, KeyboardInterrupt)
    assert trainer.outcome.status == "interrupted"


def test_a_second_ctrl_c_leaves_at_once_and_saves_nothing(make_trainer, tmp_path):
    class Reached(Exception):
        pass

    class Long:
        @hookimpl
        def before_step(self, trainer):
            if trainer.step == 3:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.15)
                assert trainer.interruption is not None
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(600)
                raise Reached

    sends = Sends("setup", 99)
    trainer = make_trainer([Signals(), Checkpoint(), Long(), sends], work_dir=tmp_path / "run")
    error = ends(trainer, KeyboardInterrupt)
    assert sends.calls == [("exception", error), ("interrupted", "KeyboardInterrupt")]
    assert trainer.step == 3


def test_ctrl_c_that_a_launcher_forwards_counts_once(make_trainer, tmp_path, monkeypatch):
    monkeypatch.setattr("trainhooks_builtins.signals._FORWARDED_S", 3600.0)  # a busy machine may need more than a tenth of 1 s

    class Twice:
        @hookimpl
        def before_step(self, trainer):
            if trainer.step == 3:
                os.kill(os.getpid(), signal.SIGINT)
                while trainer.interruption is None:
                    pass
                os.kill(os.getpid(), signal.SIGINT)

    trainer = make_trainer([Signals(), Checkpoint(), Twice()], work_dir=tmp_path / "run")
    ends(trainer, KeyboardInterrupt)
    assert trainer.plugins["checkpoint"].saved_step == 4


@pytest.mark.parametrize("hook", ["setup", "before_train", "before_epoch"])
def test_before_the_first_step_nothing_is_trained_or_saved(make_trainer, tmp_path, hook):
    sends = Sends(hook, 0, signal.SIGTERM)
    trainer = make_trainer([Signals(), Checkpoint(), sends], work_dir=tmp_path / "run")
    error = ends(trainer, Terminated)
    assert sends.calls == [("exception", error), ("interrupted", "SIGTERM")]
    assert trainer.step == 0
    assert trainer.model.w.item() == 0


@pytest.mark.parametrize("hook", ["after_train", "teardown"])
def test_what_comes_after_the_training_is_finished(make_trainer, tmp_path, hook):
    sends = Sends(hook, 10, signal.SIGTERM)
    trainer = make_trainer([Signals(), Checkpoint(), sends], work_dir=tmp_path / "run")
    ends(trainer, Terminated)
    assert sends.calls == [("saved", 10), ("completed", "max_epochs=1 reached")]


def test_in_a_save_it_is_finished_and_not_repeated(make_trainer, tmp_path):
    sends = Sends("on_save", 4, signal.SIGTERM)
    trainer = make_trainer([Signals(), Checkpoint(every_steps=2), sends], work_dir=tmp_path / "run")
    ends(trainer, Terminated)
    assert [call for call in sends.calls if call[0] == "saved"] == [("saved", 2), ("saved", 4)]


def test_an_evaluation_ends_with_its_batch_and_is_made_up_for(make_trainer, tmp_path):
    sends = Sends("after_eval_step", 4, signal.SIGTERM)
    parts = {"val": (1.0, 2.0, 3.0), "work_dir": tmp_path / "run"}
    trainer = make_trainer([Signals(), Checkpoint(), Evaluation(every_steps=4), sends], **parts)
    ends(trainer, Terminated)
    assert [call for call in sends.calls if call[0] == "saved"] == [("saved", 4)]

    class Seen:
        values = []

        @hookimpl
        def after_eval(self, trainer, metrics):
            self.values.append((trainer.step, metrics["val/loss"]))

    again = make_trainer([Signals(), Checkpoint(), Evaluation(every_steps=4), Seen()], **parts)
    again.train(resume="auto")
    assert Seen.values == [(4, -8), (8, -16), (10, -20)]  # w times the mean of 1, 2, 3


def test_an_evaluation_that_a_hook_asked_for_in_a_step_is_finished(make_trainer, tmp_path):
    """Else the step's update would be done and not counted."""

    class Evaluates:
        @hookimpl
        def after_update(self, trainer):
            if trainer.step == 3:
                self.metrics = trainer.evaluate("val")

    evaluates = Evaluates()
    sends = Sends("after_eval_step", 3, signal.SIGTERM)
    trainer = make_trainer([Signals(), Checkpoint(), evaluates, sends], val=(1.0, 3.0), work_dir=tmp_path / "run")
    ends(trainer, Terminated)
    assert evaluates.metrics == {"val/loss": -8}
    assert (trainer.step, trainer.model.w.item()) == (4, -4)


def test_the_average_is_not_saved_as_the_weights(make_trainer, tmp_path):
    """In an evaluation with the average swapped in: 0.9 of the old and 0.1 of -1, -2: -1, -1.1."""
    sends = Sends("after_eval_step", 2, signal.SIGTERM)
    parts = {"val": (1.0,), "work_dir": tmp_path / "run"}
    trainer = make_trainer([Signals(), Checkpoint(), Evaluation(every_steps=2), EMA(0.9), sends], **parts)
    ends(trainer, Terminated)
    again = make_trainer([Checkpoint(), EMA(0.9)], work_dir=tmp_path / "run", max_steps=2, max_epochs=None)
    again.train(resume="auto")
    assert again.model.w.item() == -2


def test_a_handler_that_was_there_is_called_and_what_it_raises_comes_last(make_trainer, tmp_path):
    def own(signum, frame):
        seen.append(signum)
        raise LookupError("mine")

    seen = []
    before = signal.signal(signal.SIGTERM, own)
    try:
        trainer = make_trainer([Signals(), Checkpoint(), Sends("after_update", 3, signal.SIGTERM)], work_dir=tmp_path / "run")
        with pytest.raises(LookupError, match="mine"):
            trainer.train()
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]
    assert (trainer.outcome.status, trainer.plugins["checkpoint"].saved_step) == ("interrupted", 4)


def test_a_handler_that_is_set_meanwhile_stays(make_trainer):
    def own(signum, frame):
        pass

    class Sets:
        @hookimpl
        def before_train(self):
            signal.signal(signal.SIGUSR2, own)

    before = signal.getsignal(signal.SIGUSR2)
    try:
        make_trainer([Signals(["SIGUSR2"]), Sets()]).train()
        assert signal.getsignal(signal.SIGUSR2) is own
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_run_inside_a_run_gives_the_signals_back(make_trainer):
    inner = make_trainer([Signals()])

    class Nests:
        @hookimpl
        def before_train(self):
            self.before = signal.getsignal(signal.SIGTERM)
            inner.train()
            self.after = signal.getsignal(signal.SIGTERM)

    nests = Nests()
    make_trainer([Signals(), nests]).train()
    assert nests.before is nests.after
    assert nests.before is not signal.SIG_DFL


def test_both_runs_are_interrupted_when_one_is_inside_the_other(make_trainer):
    inner = make_trainer([Signals(), Sends("after_update", 2, signal.SIGTERM)])

    class Nests:
        @hookimpl
        def before_train(self):
            inner.train()

    outer = make_trainer([Signals(), Nests()])
    with pytest.raises(Terminated):
        outer.train()
    assert inner.outcome.status == "interrupted"
    assert outer.step == 0


def test_the_signal_of_a_run_inside_a_run_interrupts_the_outer_one_too(make_trainer, tmp_path):
    class Outer:
        @hookimpl
        def after_step(self, trainer):
            make_trainer([Signals(), Sends("after_step", 1, signal.SIGTERM)]).train()

    outer = make_trainer([Signals(), Outer()], work_dir=tmp_path / "run")
    with pytest.raises(Terminated):
        outer.train()
    assert outer.outcome.status == "interrupted"
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "interrupted"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which signals a process catches")
def test_a_handler_of_a_c_library_stays(make_trainer, tmp_path, messages):
    """``faulthandler`` shows where a run hangs; Python itself knows nothing of its handler, and could not put it back."""
    with (tmp_path / "stacks").open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks)
        try:
            trainer = make_trainer([Signals(), Sends("after_step", 2, signal.SIGUSR1)])
            trainer.train()
            os.kill(os.getpid(), signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
    assert trainer.outcome.status == "completed"
    assert (tmp_path / "stacks").read_text().count("Current thread") == 2
    assert "signals: SIGUSR1 is handled outside of Python, as by faulthandler, and is left to that" in messages()


def test_nothing_is_handled_while_evaluating(make_trainer):
    class Looks:
        @hookimpl
        def before_eval(self):
            self.found = signal.getsignal(signal.SIGTERM)

    looks = Looks()
    make_trainer([Signals(), looks], val=(1.0,)).evaluate()
    assert looks.found is signal.SIG_DFL


def test_a_finished_trainer_is_freed(make_trainer):
    class Asks:
        @hookimpl
        def after_step(self):
            os.kill(os.getpid(), signal.SIGTERM)

    trainer = make_trainer([Signals(), Asks()])
    with pytest.raises(Terminated):
        trainer.train()
    gone = weakref.ref(trainer)
    del trainer
    assert gone() is None


class Slow(Dataset):
    """Loads its eighth sample for ever, in whichever process."""

    def __init__(self, note):
        self.note = note

    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index == 7:
            self.note.touch()
            time.sleep(600)
        return torch.ones((), dtype=torch.float64)


class Waits:
    """Sends a signal when a sample has been begun and the main thread waits for it, as its stack tells."""

    def __init__(self, note, number=signal.SIGTERM):
        self.note, self.number = note, number
        self.done = 0

    @hookimpl
    def before_train(self):
        threading.Thread(target=self.send, daemon=True).start()

    @hookimpl
    def after_step(self, trainer):
        self.done = trainer.step + 1

    def send(self):
        while not (self.note.exists() and self.done == 7 and self.main_waits()):
            time.sleep(0.01)
        os.kill(os.getpid(), self.number)

    def main_waits(self):
        frame = sys._current_frames()[threading.main_thread().ident]
        codes = [one.f_code for one, _ in traceback.walk_stack(frame)]
        return Slow.__getitem__.__code__ in codes or "_poll" in [
            code.co_name for code in codes
        ]  # this process loads, or workers


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("lasting", [False, True])
def test_a_wait_for_workers_is_left_at_once(make_trainer, tmp_path, lasting):
    """Seven batches came, the eighth never does."""
    waits = Waits(tmp_path / "begun")
    trainer = make_trainer([Signals(patience_s=500), Checkpoint(), waits], work_dir=tmp_path / "run")
    trainer.loaders["train"] = DataLoader(
        Slow(waits.note), num_workers=2, multiprocessing_context="fork", persistent_workers=lasting
    )
    error = ends(trainer, Terminated)
    assert trainer.plugins["checkpoint"].saved_step == 7
    assert trainer.model.w.item() == -7
    del error
    assert trainer.loaders["train"]._iterator is None  # its workers are gone
    assert trainer.loaders["train"].worker_init_fn is None


def test_patience_with_a_loader_of_this_process(make_trainer, tmp_path, messages):
    waits = Waits(tmp_path / "begun")
    trainer = make_trainer([Signals(patience_s=0.2), Checkpoint(), waits], work_dir=tmp_path / "run")
    trainer.loaders["train"] = DataLoader(Slow(waits.note))
    assert ends(trainer, Terminated).signum == signal.SIGTERM
    assert trainer.plugins["checkpoint"].saved_step == 7
    assert messages().count("SIGTERM: the training ends at step 7") == 1
    assert [text for text in messages() if text.startswith("the loader did not give the next batch in time")]


def test_patience_does_not_end_a_step(make_trainer, tmp_path, messages):
    class Long:
        @hookimpl
        def after_update(self, trainer):
            if trainer.step == 3:
                os.kill(os.getpid(), signal.SIGTERM)
                until = time.monotonic() + 0.5
                while time.monotonic() < until:
                    time.sleep(0.01)

    trainer = make_trainer([Signals(patience_s=0.05), Checkpoint(), Long()], work_dir=tmp_path / "run")
    ends(trainer, Terminated)
    assert (trainer.step, trainer.model.w.item()) == (4, -4)
    assert not [text for text in messages() if text.startswith("the loader did not")]


def test_interrupt_by_a_plugin(make_trainer, tmp_path):
    """Without any signal: the error is whatever the caller gives."""

    class Asks:
        @hookimpl
        def after_step(self, trainer):
            if trainer.step == 3:
                trainer.interrupt(LookupError("enough"), "the disk is nearly full")
                trainer.interrupt(ValueError("too late"), "another")

    trainer = make_trainer([Checkpoint(), Asks()], work_dir=tmp_path / "run")
    with pytest.raises(LookupError, match="enough"):
        trainer.train()
    assert (trainer.outcome.status, trainer.outcome.reason) == ("interrupted", "the disk is nearly full")
    assert trainer.plugins["checkpoint"].saved_step == 4
    assert trainer.train().status == "completed"  # the next call goes on
    assert trainer.model.w.item() == -10


def test_saved_also_where_nothing_is_saved_at_the_end(make_trainer, tmp_path):
    plugins = [Signals(), Checkpoint(at_end=False), Sends("after_update", 3, signal.SIGTERM)]
    trainer = make_trainer(plugins, work_dir=tmp_path / "run")
    ends(trainer, Terminated)
    assert trainer.plugins["checkpoint"].saved_step == 4


def test_a_step_that_was_cut_off_is_not_saved(make_trainer, tmp_path):
    """Ctrl-C without the plugin comes in the middle of anything."""

    class Breaks:
        @hookimpl
        def after_update(self, trainer):
            if trainer.step == 3:
                raise KeyboardInterrupt

    trainer = make_trainer([Checkpoint(), Breaks()], work_dir=tmp_path / "run")
    ends(trainer, KeyboardInterrupt)
    assert trainer.outcome.status == "interrupted"
    assert trainer.plugins["checkpoint"].saved_step is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"signals": ("SIGTREM",)}, r"'SIGTREM' is none of .*did you mean 'SIGTERM'"),
        ({"signals": ("SIGKILL",)}, "nobody can handle SIGKILL"),
        ({"patience_s": 0}, "patience_s = 0: must be above 0"),
        ({"patience_s": float("inf")}, "patience_s = inf: must be above 0"),
    ],
)
def test_wrong_options(options, words):
    with pytest.raises(OptionError, match=words):
        Signals(**options)


def test_a_signal_that_the_system_lacks_is_left_out(monkeypatch):
    monkeypatch.delattr(signal, "SIGUSR1")
    assert Signals().signals == (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def test_the_terminal_is_told_once(make_trainer, tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="trainhooks")
    trainer = make_trainer([Signals(), Sends("after_update", 3, signal.SIGTERM)])
    ends(trainer, Terminated)
    assert [record.getMessage() for record in caplog.records] == ["SIGTERM: the training ends at step 4"]


def test_sys_exit_code_of_an_unknown_signal():
    assert str(Terminated(77)) == "signal 77"
    with pytest.raises(SystemExit) as left:
        sys.exit(Terminated(15).code)
    assert left.value.code == 143


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_second_ctrl_c_kills_workers_that_are_busy(make_trainer, tmp_path):
    note = tmp_path / "begun"

    class Twice:
        @hookimpl
        def before_step(self, trainer):
            if trainer.step == 3:
                while not note.exists():
                    time.sleep(0.01)
                for _ in range(2):
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(0.15)

    before = set(multiprocessing.active_children())
    trainer = make_trainer([Signals(), Twice()])
    trainer.loaders["train"] = DataLoader(Slow(note), num_workers=2, prefetch_factor=4, multiprocessing_context="fork")
    error = ends(trainer, KeyboardInterrupt)
    assert trainer.step == 3
    until = time.monotonic() + 60
    while not set(multiprocessing.active_children()) <= before:  # although the exception still has every frame
        assert time.monotonic() < until
        time.sleep(0.01)
    del error


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_while_the_workers_are_started_nothing_more_is_trained(make_trainer, tmp_path):
    """The signal comes as the second epoch is opened, and its order drawn: a resumed run draws it once."""

    class Order:
        def __init__(self, send):
            self.seen, self.send = [], send

        def __iter__(self):
            if self.send and len(self.seen) == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            return iter(torch.randperm(4).tolist())

        def __len__(self):
            return 4

        @hookimpl
        def before_step(self, batch):
            self.seen.append(int(batch))

    def run(folder, send, *, resume=None):
        order = Order(send)
        trainer = make_trainer([Signals(), Checkpoint(every_steps=99), order], max_epochs=2, work_dir=tmp_path / folder, seed=4)
        data = [torch.tensor(float(n), dtype=torch.float64) for n in range(4)]
        trainer.loaders["train"] = DataLoader(
            data, sampler=order, batch_size=None, num_workers=1, multiprocessing_context="fork"
        )
        try:
            trainer.train(resume=resume)
        except Terminated:
            assert send
        return trainer, order.seen

    _, whole = run("whole", send=False)
    cut, begun = run("cut", send=True)
    assert (cut.step, begun) == (4, whole[:4])
    _, rest = run("cut", send=False, resume="auto")
    assert begun + rest == whole


def test_in_the_last_step_the_training_is_complete(make_trainer, tmp_path):
    """With a limit in the middle of an epoch, which is closed then as ever."""
    sends = Sends("after_update", 6, signal.SIGTERM)
    trainer = make_trainer([Signals(), Checkpoint(), sends], max_steps=7, max_epochs=None, work_dir=tmp_path / "run")
    ends(trainer, Terminated)
    assert sends.calls == [("saved", 7), ("completed", "max_steps=7 reached")]
