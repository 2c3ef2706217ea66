"""TR: several trainers, leaks. Logging handlers, signals and files of a failing run are in ``test_ex.py``."""

import atexit
import gc
import logging
import os
import random
import threading
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import trainhooks_builtins
from trainhooks import Trainer, UsageError, hookimpl
from trainhooks_builtins import LR, Checkpoint, CrashReport, Evaluation, MetricsLog, Progress, Timer


def resources():
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "atexit": atexit._ncallbacks(),
        "handlers": [list(logging.getLogger(name).handlers) for name in (None, "trainhooks")],
    }


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class KeepsBatch:
    """Makes a weak reference to the last batch."""

    ref = None

    @hookimpl
    def after_step(self, batch):
        self.ref = weakref.ref(batch)


class Fails:
    @hookimpl
    def after_step(self, trainer):
        raise ValueError("it 1")


class Loader:
    """Two batches, each a new tensor; can be referred to weakly, which a list cannot."""

    def __iter__(self):
        for _ in range(2):
            yield torch.ones(1, dtype=torch.float64)


def round_of(scalar_model, plugins, work_dir=None, fails=False):
    """Make a trainer, train two its, and return weak references to all that it had."""
    keeps = KeepsBatch()
    plugins = [*plugins, keeps]
    model = scalar_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = Loader()
    trainer = Trainer(
        model,
        optimizer=optimizer,
        loaders={"train": loader, "val": Loader()},
        plugins=[*plugins, *([Fails()] if fails else [])],
        max_steps=2,
        work_dir=work_dir,
        overwrite=True,
        autoload=False,
    )
    if fails:
        with pytest.raises(ValueError) as caught:
            trainer.train()
        del caught  # and with it the traceback
    else:
        trainer.train()
        assert model.w.item() < 0
    return [weakref.ref(thing) for thing in (trainer, model, optimizer, loader, *plugins)] + [keeps.ref]


@pytest.fixture
def no_gc(quiet):
    gc.disable()
    yield
    gc.enable()


class Wraps:
    """Wraps the stages that are around a failing step."""

    @hookimpl(wrapper=True)
    def train(self):
        return (yield)

    @hookimpl(wrapper=True)
    def train_epoch(self):
        return (yield)

    @hookimpl(wrapper=True)
    def train_step(self):
        return (yield)


BUILT_INS = {
    "bare": list,
    "built-ins": lambda: [Timer(), Evaluation(), MetricsLog(), Progress(style="lines"), Checkpoint(), CrashReport()],
    "wrappers": lambda: [Wraps()],
}
#: The others, with what they need here; those that need images, several weights, a loss function or a server have tests of their own.
OPTIONS = {
    "Closure": {"after_update": lambda: None},
    "Compile": {"backend": "eager"},
    "SWA": {"start_epoch": 0, "every_updates": 1},
    "TimeLimit": {"hours": 1.0},
}
ELSEWHERE = {"Cutmix", "FindBatchSize", "Freeze", "FindLR", "Mixup", "RemoteMonitor", "Predictions"}
OTHERS = sorted(set(trainhooks_builtins.__all__) - ELSEWHERE)


class TestTR01:
    """Reference cycle keeps the model in memory."""

    @pytest.mark.parametrize("fails", [False, True])
    @pytest.mark.parametrize("kind", BUILT_INS)
    def test_tr_01_everything_dies_with_its_last_reference(self, scalar_model, no_gc, tmp_path, kind, fails):
        round_of(scalar_model, BUILT_INS[kind](), tmp_path / "run", fails)  # what is imported late is imported now
        before = resources()
        for _ in range(3):
            refs = round_of(scalar_model, BUILT_INS[kind](), tmp_path / "run", fails)
            assert [ref() for ref in refs] == [None] * len(refs)
        assert resources() == before

    @pytest.mark.parametrize("fails", [False, True])
    @pytest.mark.parametrize("name", OTHERS)
    def test_tr_01_so_it_does_with_each_of_the_others(self, scalar_model, no_gc, tmp_path, name, fails, request):
        def one():
            return [getattr(trainhooks_builtins, name)(**OPTIONS.get(name, {}))]

        if name == "FreezeGC":  # which freezes where nothing is frozen: conftest.py has
            gc.unfreeze()
            request.addfinalizer(gc.freeze)
        round_of(scalar_model, one(), tmp_path / "run", fails)
        refs = round_of(scalar_model, one(), tmp_path / "run", fails)
        assert [ref() for ref in refs] == [None] * len(refs)

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", BUILT_INS)
    def test_tr_01_a_thousand_rounds(self, scalar_model, no_gc, tmp_path, kind, capsys):
        """Under 5 MB over the last 900 rounds; every second one fails. Some write to the disk, which they all sync."""
        for number in range(1000):
            on_disk = kind != "bare" and number % 50 < 2
            refs = round_of(scalar_model, BUILT_INS[kind](), tmp_path / "run" if on_disk else None, fails=number % 2 == 1)
            assert not any(ref() for ref in refs), number
            if number == 99:
                capsys.readouterr()
                size, before = resident_bytes(), resources()
        capsys.readouterr()
        assert resident_bytes() - size < 5e6
        assert resources() == before

    def test_tr_01_the_trainer_outlives_what_it_lent(self, scalar_model, no_gc):
        """A hook that keeps ``trainer.hooks`` or a bound method must not find a torn-down trainer that still lives."""
        model = scalar_model()
        trainer = Trainer(
            model, loaders={"train": Loader()}, max_steps=1, autoload=False, optimizer=torch.optim.SGD([model.w], 1.0)
        )
        bound = trainer.train
        del trainer
        assert bound().step == 1


class TestTR02:
    """One plugin object in two trainers."""

    @pytest.mark.parametrize("make", [MetricsLog, Evaluation, Checkpoint, CrashReport, Timer, Progress])
    def test_tr_02_is_refused_by_name(self, make_trainer, make):
        plugin = make()
        first = make_trainer([plugin])
        with pytest.raises(UsageError, match="already served another Trainer.*make a new one"):
            make_trainer([plugin])
        first.train()
        del first

    def test_tr_02_a_class_is_isolated(self, make_trainer, tmp_path):
        """A and B train at the same time, B inside a hook of A; each file has only the rows of its own run."""

        class Nested:
            @hookimpl
            def after_step(self, trainer):
                if trainer.step == 1:
                    make_trainer([MetricsLog], max_steps=4, work_dir=tmp_path / "b", log_every_steps=1).train()

        make_trainer([MetricsLog, Nested], max_steps=3, work_dir=tmp_path / "a", log_every_steps=1).train()
        steps = {
            name: [line.split(",")[0] for line in (tmp_path / name / "metrics.csv").read_text().splitlines()]
            for name in ("a", "b")
        }
        assert steps == {"a": ["step", "1", "2", "3"], "b": ["step", "1", "2", "3", "4"]}

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_tr_02_two_trainers_do_not_write_to_one_folder(self, make_trainer, tmp_path, overwrite):
        """B inside a hook of A is refused before anything changes; afterwards the folder is free."""
        seen = []

        class Nested:
            @hookimpl
            def after_step(self, trainer):
                before = {path.name: path.read_bytes() for path in trainer.work_dir.iterdir()}
                with pytest.raises(UsageError, match="in use by another Trainer of this process"):
                    make_trainer([MetricsLog], work_dir=tmp_path / "a", overwrite=overwrite).train()
                seen.append(before == {path.name: path.read_bytes() for path in trainer.work_dir.iterdir()})

        make_trainer([Nested], max_steps=2, work_dir=tmp_path / "a").train()
        assert seen == [True, True]
        make_trainer(max_steps=1, work_dir=tmp_path / "a", overwrite=True).train()

    def test_tr_02_a_trainer_is_not_entered_twice(self, make_trainer):
        class Again:
            @hookimpl
            def after_step(self, trainer):
                trainer.train()

        with pytest.raises(UsageError, match="use another Trainer for a nested run"):
            make_trainer([Again()]).train()

    def test_tr_02_what_keeps_nothing_may_serve_two(self, make_trainer, recorder):
        """A listener without state, set-up or teardown has nothing that could leak from one run to the other."""
        steps = recorder("after_step")
        make_trainer([steps], max_steps=2).train()
        make_trainer([steps], max_steps=1).train()
        assert [step for _, step in steps.calls] == [0, 1, 0]


def globals_of_the_process():
    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic warn": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.enabled),
        "tf32": (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
        "precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "autocast": torch.is_autocast_enabled("cpu"),
        "environment": dict(os.environ),
        "cwd": Path.cwd(),
        "filters": list(warnings.filters),
        "logging": [logging.getLogger(name).level for name in (None, "trainhooks")],
        "gc": (gc.isenabled(), gc.get_threshold()),
        "print": np.get_printoptions()["precision"],
    }


def states_of_the_generators():
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002


def all_built_ins():
    return [Timer(), LR(), Evaluation(), Checkpoint(every_steps=1), MetricsLog(), Progress(style="lines"), CrashReport()]


class TestTR04:
    """Global state left behind. The generators are those that the training itself draws from: documented."""

    @pytest.mark.parametrize("fails", [False, True])
    def test_tr_04_all_equal_with_every_built_in(self, make_trainer, tmp_path, fails):
        make_trainer(all_built_ins(), val=(1.0,), work_dir=tmp_path / "warm-up").train()  # torch's own late imports
        before, generators = globals_of_the_process(), states_of_the_generators()
        trainer = make_trainer(
            [*all_built_ins(), *([Fails()] if fails else [])], val=(1.0,), work_dir=tmp_path / "run", device="cpu"
        )
        if fails:
            with pytest.raises(ValueError):
                trainer.train()
        else:
            trainer.train()
            trainer.evaluate("val")
        assert globals_of_the_process() == before
        assert states_of_the_generators() == generators  # neither the engine nor a built-in draws anything

    def test_tr_04_the_modes_of_the_modules(self, scalar_model):
        """A frozen submodule stays in evaluation mode, the rest in training mode."""
        model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.BatchNorm1d(1), torch.nn.Linear(1, 1))
        model[1].eval()
        before = [module.training for module in model.modules()]
        data = DataLoader(TensorDataset(torch.ones(4, 1), torch.ones(4, 1)), batch_size=2)
        trainer = Trainer(
            model,
            loss=torch.nn.functional.mse_loss,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loaders={"train": data, "val": data},
            plugins=[Evaluation(every_steps=1)],
            max_epochs=1,
            autoload=False,
        )
        trainer.train()
        assert [module.training for module in model.modules()] == before
