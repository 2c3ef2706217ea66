"""A run that was cut after any step and resumed ends as one that was not: a part of what ``cuts.py`` does."""

import shutil
from dataclasses import asdict
from itertools import combinations

import asynchronous
import cuts
import pytest
import torch
import workload
from cuts import FACTORS, STEPS, Cut, Part
from workload import Config


def possible(first, second):
    """Only workers can last."""
    return (first, second) not in {(("workers", 0), ("lasting", True)), (("lasting", True), ("workers", 0))}


def test_every_pair_of_values_is_in_the_grid():
    wanted = {
        frozenset([(one, a), (two, b)])
        for one, two in combinations(FACTORS, 2)
        for a in FACTORS[one]
        for b in FACTORS[two]
        if possible((one, a), (two, b))
    }
    found = {frozenset(pair) for config in cuts.grid() for pair in combinations(asdict(config).items(), 2)}
    assert found == wanted
    assert len(cuts.grid()) <= 15


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_whole_grid_at_some_steps():
    counts = cuts.run(scale=1 / 13)
    assert counts["cuts"] >= 3 * len(cuts.grid())
    assert counts["diff"] == 0


MUCH = Config(accumulate=3, amp="float16", ema=True, evaluate=5, schedule="torch", own_generator=True)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """Return that training without a cut."""
    workload.warm_up()
    return cuts.reference(MUCH, tmp_path_factory.mktemp("wanted"))


@pytest.mark.parametrize("step", [1, 7, 20, 39])  # 7 is the last of its epoch, 39 the last but one of all
@pytest.mark.parametrize("way", cuts.ways())
def test_each_way_to_end(tmp_path, wanted, step, way):
    parts = cuts.run_in_parts(MUCH, tmp_path / "cut", [(step, way)])
    assert [line[1] for line in parts[0].lines if line[0] == "step"] == list(range(1, step + 1))
    assert cuts.compare(parts, wanted, [(step, way)]) == []


def test_rs_11_ten_resumes_in_one_run(tmp_path):
    resumes, different = cuts.chain(tmp_path)
    assert resumes == 10
    assert different == []


def test_the_reference_is_the_training_that_the_case_describes(tmp_path):
    """40 losses, a rate that rises and falls, evaluations every 5 steps, 5 whole epochs, each sample once in each."""
    config = Config(workers=2, accumulate=2, amp="float16", ema=True, evaluate=5, schedule="torch")
    whole = cuts.reference(config, tmp_path)
    steps = whole.of("step")
    assert sorted(steps) == list(range(1, STEPS + 1))
    assert len({loss for loss, _, _ in steps.values()}) == STEPS
    assert sorted(whole.of("eval")) == list(range(5, STEPS + 1, 5))
    assert sorted(whole.of("epoch")) == [1, 2, 3, 4, 5]
    epoch = [index for step in range(8, 15) for index in steps[step][2]]
    assert sorted(epoch) == list(range(26))
    assert epoch != sorted(epoch)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Return the same run twice."""
    folder = tmp_path_factory.mktemp("pair")
    config = Config(ema=True, evaluate=5)
    return [Part(config, folder / name, 0) for name in ("one", "two")]


class TestWhatIsCompared:
    """A difference in any of it is seen."""

    def changed(self, pair, change):
        one, two = pair
        two = type("Part", (), {**vars(two), "of": Part.of, "state": dict(two.state), "lines": [list(x) for x in two.lines]})()
        change(two)
        return cuts.compare([two], one, [])

    def test_two_that_are_the_same(self, pair):
        assert self.changed(pair, lambda part: None) == []

    @pytest.mark.parametrize("kind", ["step", "eval", "epoch"])
    def test_a_value(self, pair, kind):
        def change(part):
            line = next(line for line in part.lines if line[0] == kind)
            line[2] = "another"

        assert [line.split(":")[0] for line in self.changed(pair, change)][:1] == [
            {"step": "step 1", "eval": "eval 5", "epoch": "epoch 1"}[kind]
        ]

    def test_a_step_that_is_missing(self, pair):
        assert "trained steps" in self.changed(pair, lambda part: part.lines.remove(part.lines[5]))[0]

    def test_a_warning(self, pair):
        assert self.changed(pair, lambda part: part.lines.append(["warning", "w"])) == ["warned of w"]

    def test_a_place_of_the_state(self, pair):
        for place in pair[0].state:
            assert len(self.changed(pair, lambda part, place=place: part.state.update({place: "another"}))) == 1

    def test_a_sample_that_was_loaded_without_need(self, pair, tmp_path):
        def change(part):
            part.served = shutil.copytree(part.served, tmp_path / "served")
            workload.append(next(part.served.iterdir()), "3\n")

        assert ["served" in line for line in self.changed(pair, change)] == [True]


def test_the_state_has_every_bit():
    base = {"a": torch.zeros(2), "b": [1, 2.0], "c": {"d": None}}
    changes = [
        {**base, "a": -torch.zeros(2)},
        {**base, "a": torch.zeros(2, dtype=torch.float64)},
        {**base, "a": torch.zeros(2, 1)},
        {**base, "a": torch.tensor([0.0, 1e-45])},
        {**base, "b": [1.0, 2.0]},
        {**base, "b": [True, 2.0]},
        {**base, "b": (1, 2.0)},
        {**base, "b": [1, 2.0000000000000004]},
        {**base, "c": {"e": None}},
        {**base, "c": {"d": 0}},
    ]
    assert workload.canonical(base) == workload.canonical({**base, "a": torch.zeros(2)})
    for changed in changes:
        assert workload.differences(workload.canonical(changed), workload.canonical(base)), changed


def test_a_cut_ends_the_run_where_it_should(tmp_path):
    trainer = workload.make(Config(), tmp_path / "run", plugins=[Cut(3, "stop")])
    assert (trainer.train().status, trainer.step) == ("stopped", 3)


def test_what_is_written_in_the_background_is_what_is_written_at_once():
    counts = asynchronous.run(scale=0.4)
    assert counts["saves"] == 14  # steps 3, 6, ... 39, and the end
    assert counts["diff"] == 0
