"""The engine's own parts of a checkpoint that somebody has edited are refused by name, before anything is restored."""

import copy

import pytest
import torch

from trainhooks import CheckpointError
from trainhooks.checked_state import COMPARED, WITH_WEIGHTS, check_state


@pytest.fixture
def state(make_trainer):
    """Return the state of a trainer that has run."""
    trainer = make_trainer(max_steps=3)
    trainer.train()
    return trainer.state_dict()


WRONG = [
    ("run", ["step"], "3", "step is '3'"),
    ("run", ["step"], True, "step is True"),
    ("run", ["update"], -1, "update is -1"),
    ("run", ["epoch"], 1.0, "epoch is 1.0"),
    ("run", ["records"], 10**1000, "records is a number of 3322 bits"),
    ("run", ["batch_index"], None, "batch_index is None"),
    ("run", ["owed"], {"val": None}, "owed is no list of splits"),
    ("run", ["owed"], [1], "owed is no list of splits"),
    ("run", ["planned"], [1], "planned is"),
    ("run", ["planned"], [1, -1], "planned is"),
    ("run", ["planned"], 3, "planned is"),
    ("run", [], [], "it is no dict"),
    ("metrics", ["evaluated"], [], "evaluated is []"),
    ("metrics", ["medians"], [{}], "medians is [{}]"),
    ("metrics", ["series"], {"a": {"reduce": "most"}}, "series is"),
    ("metrics", ["losses"], [[1.0], []], "losses is [[1.0], []]"),
    ("metrics", ["losses"], [["1"], [1]], "losses is"),
    ("metrics", ["recent"], {"a": 1}, "recent is {'a': 1}"),
    ("metrics", ["trained"], "a", "trained is 'a'"),
    ("metrics", ["latest"], [1.0], "latest are no numbers by name"),
    ("metrics", ["latest"], {"x": "y"}, "latest are no numbers by name"),
    ("metrics", ["epoch"], {"x": [1, 2, 3]}, "epoch are no series by name"),
    ("metrics", ["epoch"], {"x": ["mean", 2.0]}, "epoch are no series by name"),
    ("rng", ["torch"], [1, 2], "torch is no tensor"),
    ("rng", ["python"], [3, [1]], "python has not 3 values"),
    ("rng", ["numpy"], "MT19937", "numpy has not 5 values"),
    ("rng", ["cuda"], [1], "cuda is no list of tensors"),
    ("loader", ["order"], {"rng": {}}, "order is no state of generators"),
    ("loader", ["generators"], [[]], "generators is no list of tensors"),
    ("loader", ["batches_read"], 1.5, "batches_read is 1.5"),
    ("loader", ["ahead"], 1, "ahead is 1"),
    ("loader", ["rng_before_fetch"], {}, "rng_before_fetch is no state of generators"),
    ("loader", ["batch_size"], 0, "batch_size is 0"),
    ("evaluated", [], {"val/loss": [1]}, "they are no numbers by name"),
    ("plugin_lock", [], {}, "it is no list of plugins"),
    ("plugin_lock", [], [{"name": []}], "it is no list of plugins"),
    ("plugin_lock", [], [{"name": "x", "distribution": [], "version": "1", "options": {}}], "it is no list of plugins"),
    ("settings", [], [1], "they are no values by name"),
    ("settings", ["seed"], torch.ones(2), "they are no values by name"),
]


def test_what_the_engine_writes_passes(state):
    check_state(state)


@pytest.mark.parametrize(("part", "path", "value", "fault"), WRONG)
def test_what_it_cannot_have_written_is_refused(make_trainer, state, part, path, value, fault):
    state = copy.deepcopy(state)
    if path:
        state[part][path[0]] = value
    else:
        state[part] = value
    with pytest.raises(CheckpointError, match=f"the checkpoint's state of '{part}' does not fit: ") as refused:
        check_state(state)
    assert fault in str(refused.value)
    trainer = make_trainer(start=5.0)
    with pytest.raises(CheckpointError):
        trainer.load_state_dict(state)
    assert trainer.model.w.item() == 5.0  # nothing was restored


@pytest.mark.parametrize("part", ["run", "metrics", "rng", "loader", "evaluated"])
def test_a_missing_part_is_named(state, part):
    del state[part]
    with pytest.raises(CheckpointError, match=f"'{part}' does not fit: it is missing"):
        check_state(state)
    if part != "run":
        check_state(state, WITH_WEIGHTS)


def test_what_is_only_compared_may_be_missing(state):
    del state["plugin_lock"], state["settings"]
    check_state(state)
    check_state(state, COMPARED)


def test_generators_that_do_not_take_their_state_are_a_checkpoint_error(make_trainer, state):
    trainer = make_trainer()
    for name, value in (("torch", torch.zeros(3, dtype=torch.uint8)), ("python", [3, [1, 2], None])):
        with pytest.raises(CheckpointError, match="state of 'rng' does not fit"):
            trainer.rng.load_state_dict({**state["rng"], name: value})
