"""accumulate, clip and amp together, on the toy model: the gradient of a value is the value, so weights can be had by hand."""

import math
from itertools import permutations

import pytest

from trainhooks import hookimpl
from trainhooks_builtins import AMP, Accumulate, Checkpoint, Clip


class Weights:
    """Notes the weight after each step that was to be an update."""

    def __init__(self):
        self.seen = []

    @hookimpl(wrapper=True)
    def train_step(self, trainer, update_due):
        output = yield
        if update_due:
            self.seen.append(trainer.model.w.item())
        return output


ACCUMULATE = lambda: Accumulate(2)  # noqa: E731
CLIP = lambda: Clip(max_norm=5.0)  # noqa: E731
BFLOAT16 = lambda: AMP()  # noqa: E731
FLOAT16 = lambda: AMP("float16", growth_interval=2)  # noqa: E731

CASES = {
    # windows [2, 4] [6, 10] [7]: means 3, 8, 7; clipped 3, 5, 5
    "accumulate and clip": ([ACCUMULATE, CLIP], [2, 4, 6, 10, 7], [-3, -8, -13]),
    "accumulate and bfloat16": ([ACCUMULATE, BFLOAT16], [2, 4, 6, 10, 7], [-3, -11, -18]),
    # windows [2, 4] [inf, 1] [6, 10] [7]: means 3, skipped, 8, 7
    "accumulate and float16": ([ACCUMULATE, FLOAT16], [2, 4, math.inf, 1, 6, 10, 7], [-3, -3, -11, -18]),
    "clip and bfloat16": ([CLIP, BFLOAT16], [2, 10, -7], [-2, -7, -2]),
    # 2, skipped, 10 clipped to 5, skipped, -7 clipped to -5
    "clip and float16": ([CLIP, FLOAT16], [2, math.inf, 10, math.nan, -7], [-2, -2, -7, -7, -2]),
    "all with bfloat16": ([ACCUMULATE, CLIP, BFLOAT16], [2, 4, 6, 10, 7], [-3, -8, -13]),
    "all with float16": ([ACCUMULATE, CLIP, FLOAT16], [2, 4, math.inf, 1, 6, 10, 7], [-3, -3, -8, -13]),
}


@pytest.mark.parametrize("case", CASES)
def test_weights_are_right_in_any_order(make_trainer, case):
    makers, values, wanted = CASES[case]
    for order in permutations(makers):
        weights = Weights()
        trainer = make_trainer([weights, *(make() for make in order)], values=values)
        trainer.train()
        assert weights.seen == pytest.approx(wanted, rel=2e-6)
        skipped = sum(a == b for a, b in zip([0, *wanted], wanted, strict=False))
        assert trainer.update == len(wanted) - skipped
        if "float16" in case and skipped:
            # each skip halves it, two good updates in a row double it
            assert trainer.stateful["plugins/amp"].state_dict()["scale"] == {1: 65536.0, 2: 16384.0}[skipped]
            assert trainer.bus.before_flush == []


def test_the_norm_is_that_of_the_mean_and_without_the_scale(make_trainer):
    norms = []

    class Norm:
        @hookimpl(wrapper=True)
        def clip_gradients(self):
            norm = yield
            norms.append(norm.item())
            return norm

    make_trainer([Norm(), Accumulate(2), Clip(max_norm=5.0), AMP("float16")], values=[6, 10, 7]).train()
    assert norms == [8.0, 7.0]


@pytest.mark.parametrize("step", range(1, 8))
def test_all_three_resume_within_a_window_and_after_a_skip(make_trainer, tmp_path, step):
    class Stop:
        @hookimpl
        def after_step(self, trainer):
            if trainer.step + 1 == step:
                trainer.stop("test")

    def trainer(*plugins, **arguments):
        amp = AMP("float16", growth_interval=2)
        values = [2, 4, math.inf, 1, 6, 10, 7]
        return make_trainer([Accumulate(2), Clip(max_norm=5.0), amp, Checkpoint(), *plugins], values=values, **arguments)

    whole = trainer()
    whole.train()
    trainer(Stop(), work_dir=tmp_path).train()
    resumed = trainer(work_dir=tmp_path)
    resumed.train(resume="auto")
    assert resumed.model.w.item() == whole.model.w.item()
    assert resumed.stateful["plugins/amp"].state_dict() == whole.stateful["plugins/amp"].state_dict()
    assert (resumed.step, resumed.update) == (whole.step, whole.update)
