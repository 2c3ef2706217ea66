"""``seed``: this process, flags that are undone. Workers are in ``tests/cases/test_wk.py``."""

import os
import random

import numpy as np
import pytest
import torch

from trainhooks import OptionError, UsageError, hookimpl
from trainhooks_builtins import Checkpoint, Seed

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


class Draws:
    """Draws from each generator in each step."""

    def __init__(self):
        self.seen = []

    @hookimpl
    def before_step(self):
        self.seen.append((torch.rand(()).item(), np.random.rand(), random.random()))  # noqa: NPY002


def drawn(make_trainer, *plugins, resume=None, rank=0, **arguments):
    draws = Draws()
    trainer = make_trainer([*plugins, draws], **arguments)
    trainer.rank = rank
    trainer.train(resume=resume)
    return draws.seen


def test_this_process_is_seeded(make_trainer):
    """As torch, NumPy and Python themselves give it for seed 3."""
    seen = drawn(make_trainer, Seed(3), max_steps=1)
    expected = torch.rand((), generator=torch.Generator().manual_seed(3)).item()
    assert seen == [(expected, np.random.RandomState(3).random_sample(), random.Random(3).random())]


def test_the_seed_of_the_run_is_its_default(make_trainer):
    assert drawn(make_trainer, Seed(), seed=3) == drawn(make_trainer, Seed(3)) == drawn(make_trainer, Seed(3), seed=3)


def test_a_second_training_goes_on(make_trainer):
    draws = Draws()
    trainer = make_trainer([Seed(3, per_rank=True), draws], max_steps=4)
    trainer.train()
    trainer.train(max_steps=8)
    assert draws.seen == drawn(make_trainer, Seed(3, per_rank=True), max_steps=8)
    assert len(set(draws.seen)) == 8


def test_two_seeds_are_refused(make_trainer):
    with pytest.raises(UsageError, match=r"seed\.seed = 3, but the seed of the run is 4"):
        make_trainer([Seed(3)], seed=4).train()


@pytest.mark.parametrize("options", [{"seed": -1}, {"seed": 2**63}, {"warn_only": True}])
def test_options_are_checked(options):
    with pytest.raises(OptionError):
        Seed(**options)


def test_ranks_differ_after_the_model_was_made(make_trainer):
    """The model is made with the same seed everywhere; what is drawn in training differs, the same again in each run."""

    class Makes:
        @hookimpl
        def make_model(self):
            model = torch.nn.Linear(1, 1).double()
            made.append(model.weight.item())
            return model

        @hookimpl
        def compute_loss(self, trainer, batch):
            return trainer.model(batch).mean()

        @hookimpl
        def make_optimizer(self, trainer):
            return torch.optim.SGD(trainer.model.parameters(), lr=0.0)

    def run(rank, **options):
        draws = Draws()
        trainer = make_trainer([Seed(3, **options), Makes(), draws], max_steps=2)
        trainer.rank, trainer.world_size, trainer.model, trainer.optimizers = rank, 2, None, {}
        trainer.train()
        return draws.seen

    made = []
    assert run(0) == run(1)
    zero, one = run(0, per_rank=True), run(1, per_rank=True)
    assert not set(sum(map(list, zero), [])) & set(sum(map(list, one), []))
    assert run(1, per_rank=True) == one
    assert len(set(made)) == 1


def test_without_a_seed_one_is_drawn_and_kept(make_trainer, tmp_path, messages):
    first = Seed()
    drawn(make_trainer, first, Checkpoint(), max_steps=4, work_dir=tmp_path / "run")
    assert f"seed: drew {first.seed}" in messages()
    again = Seed()
    drawn(make_trainer, again, Checkpoint(), max_steps=8, work_dir=tmp_path / "run", resume="auto")
    assert again.seed == first.seed
    assert f"seed: {first.seed}, from the checkpoint" in messages()
    given = Seed(5)
    drawn(make_trainer, given, Checkpoint(), max_steps=9, work_dir=tmp_path / "run", resume="auto")
    assert given.seed == 5


def test_each_rank_would_draw_another(make_trainer):
    trainer = make_trainer([Seed()])
    trainer.world_size = 2
    with pytest.raises(UsageError, match="give a seed where there are several ranks"):
        trainer.train()


@pytest.mark.parametrize("cut", [1, 4, 7])
def test_resumed(make_trainer, tmp_path, cut):
    whole = drawn(make_trainer, Seed(3, per_rank=True), values=(1.0,) * 4, max_epochs=2)
    settings = {"values": (1.0,) * 4, "max_epochs": 2, "work_dir": tmp_path / "run"}
    first = drawn(make_trainer, Seed(3, per_rank=True), Checkpoint(), max_steps=cut, **settings)
    assert first + drawn(make_trainer, Seed(3, per_rank=True), Checkpoint(), resume="auto", **settings) == whole


def flags():
    backend = torch.backends.cudnn
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        backend.deterministic,
        backend.benchmark,
        os.environ.get(CUBLAS),
    )


@pytest.fixture
def as_found():
    """Check that a test leaves torch's flags alone."""
    found = flags()
    yield found
    assert flags() == found


class Looks:
    def __init__(self, fails=False):
        self.fails = fails
        self.seen = None

    @hookimpl
    def after_step(self):
        self.seen = flags()
        if self.fails:
            raise ValueError("step 0")


@pytest.mark.parametrize("warn_only", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_deterministic_until_the_end(make_trainer, monkeypatch, as_found, warn_only, fails):
    monkeypatch.delenv(CUBLAS, raising=False)
    looks = Looks(fails)
    trainer = make_trainer([Seed(3, deterministic=True, warn_only=warn_only), looks])
    if fails:
        with pytest.raises(ValueError, match="step 0"):
            trainer.train()
    else:
        trainer.train()
    assert looks.seen == (True, warn_only, True, False, ":4096:8")
    assert flags() == as_found
    trainer.evaluate("train")
    assert flags() == as_found


def test_deterministic_keeps_the_users_workspace(make_trainer, monkeypatch):
    monkeypatch.setenv(CUBLAS, ":16:8")
    looks = Looks()
    make_trainer([Seed(3, deterministic=True), looks]).train()
    assert looks.seen[-1] == os.environ[CUBLAS] == ":16:8"


def test_what_was_on_before_stays_on(make_trainer, monkeypatch):
    monkeypatch.delenv(CUBLAS, raising=False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = True
    try:
        found = flags()
        make_trainer([Seed(3, deterministic=True)]).train()
        assert flags() == found
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = False


def test_an_operation_without_a_deterministic_algorithm(make_trainer, monkeypatch, as_found):
    """torch documents ``put_`` without ``accumulate`` as such a one."""
    monkeypatch.delenv(CUBLAS, raising=False)

    class Puts:
        @hookimpl
        def before_step(self):
            torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))

    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        make_trainer([Seed(3, deterministic=True), Puts()]).train()
    with pytest.warns(UserWarning, match="does not have a deterministic implementation"):
        make_trainer([Seed(3, deterministic=True, warn_only=True), Puts()], max_steps=1).train()
    make_trainer([Seed(3), Puts()]).train()


def test_without_workers_there_is_no_hook_for_them(make_trainer):
    trainer = make_trainer([Seed(3, workers=False)])
    assert not trainer.manager.has("train_epoch")
    trainer.train()
