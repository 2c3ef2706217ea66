"""An exception in any hook, from any place in it: what leaves, who is torn down, and what the note says.

Every cell is one real run with a plugin that fails in one hook, first or last of three, between two innocent ones; the
innocent one in the middle may wrap the hook, so that the exception passes through a foreign generator as well.
"""

import re
from pathlib import Path

import pytest
import torch

from trainhooks import SkipStep, Trainer, hookimpl, hookspecs
from trainhooks.hookspecs import ONE_BY_ONE
from trainhooks.manager import Plugin
from trainhooks_builtins import Checkpoint

HOOKS = [name for name, spec in vars(hookspecs).items() if hasattr(spec, "trainhooks_spec")]
EVALUATING = {"evaluate", "before_eval", "eval_step", "after_eval_step", "after_eval"}
PREDICTING = {"predict", "before_predict", "predict_step", "after_predict_step", "after_predict"}
SAVING = {"save_checkpoint", "on_save", "after_save"}
LOADING = {"load_checkpoint", "on_load"}
REPORTING = set(hookspecs.REPORTS)

#: ``trainer.step`` when the hook fails. The run has one epoch of two batches; evaluation and checkpoint are asked for in
#: the first step and take place when it is counted; a report is made of what is flushed at the end of the epoch; the
#: checkpoint to be loaded is one of step 2, not yet restored.
STEP = dict.fromkeys(HOOKS, 0) | dict.fromkeys(EVALUATING | SAVING, 1)
STEP |= dict.fromkeys(("after_train_epoch", "after_epoch", "after_train", "teardown", *(REPORTING - {"report_start"})), 2)

EXCEPTIONS = {
    "ValueError": lambda: ValueError("the cause"),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("the cause"),
    "StopIteration": lambda: StopIteration("the cause"),
    "bare": lambda: RuntimeError(),
}


class Watched:
    """Notes its set-up and teardown, unless they are the hook that fails."""

    def __init__(self, name, log):
        self.name = name

        def note(hook):
            return hookimpl(specname=hook)(lambda: log.append((hook, name)))

        self.noted_setup, self.noted_teardown = note("setup"), note("teardown")


class Failing(Watched):
    """Fails in one hook."""

    def __init__(self, name, log, hook, place, exception):
        super().__init__(name, log)
        if hook in REPORTING:
            self.on_error = "raise"  # which is not what they have by themselves

        def fail():
            log.append(("failed", name))
            raise exception

        def before():
            fail()
            return (yield)

        def after():
            result = yield
            fail()
            return result

        function = {"plain": fail, "wrapped": fail, "before": before, "after": after}[place]
        self.failing = hookimpl(specname=hook, wrapper=place in ("before", "after"))(function)
        if hook in ("setup", "teardown"):
            delattr(self, f"noted_{hook}")


class Wrapping(Watched):
    """Wraps a hook and changes nothing."""

    def __init__(self, name, log, hook):
        super().__init__(name, log)

        def wrap():
            return (yield)

        self.wrapping = hookimpl(specname=hook, wrapper=True)(wrap)


class Makes:
    """Makes what the trainer was not given, after everybody else was asked."""

    @hookimpl(trylast=True)
    def make_model(self):
        return torch.nn.Linear(1, 1, bias=False)

    @hookimpl(trylast=True)
    def make_optimizer(self, trainer):
        return torch.optim.SGD(trainer.model.parameters(), lr=0.0)

    @hookimpl(trylast=True)
    def make_loader(self):
        return [torch.ones(1, 1), torch.ones(1, 1)]

    @hookimpl(trylast=True)
    def compute_loss(self, trainer, batch):
        return trainer.model(batch).sum()


class Asks:
    """Has the hook reached that the engine does not reach by itself."""

    def __init__(self, hook):
        self.hook = hook

    @hookimpl(trylast=True)
    def before_train(self):
        if self.hook == "on_exception":
            raise OSError("what went wrong first")

    @hookimpl(trylast=True)
    def before_step(self, trainer):
        if trainer.step > 0:
            return
        if self.hook == "count_updates":
            trainer.total_updates  # noqa: B018 - it asks
        if self.hook in EVALUATING:
            trainer.request_eval("val")
        if self.hook in SAVING:
            trainer.request_checkpoint()
        if self.hook == "after_skip":
            raise SkipStep("as asked")
        if self.hook == "report_artifact":
            trainer.log_artifact(Path(__file__))
        if self.hook == "report_media":
            trainer.log_text("text", "x")


def saver():
    plugin = Checkpoint()
    plugin.after = ("first", "middle", "last")  # what is asked before it can fail before it
    return plugin


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint of step 2 of the same training."""
    folder = tmp_path_factory.mktemp("made") / "run"
    Trainer(plugins=[Makes(), saver()], work_dir=folder, max_epochs=1, autoload=False).train()
    return folder / "checkpoints" / "step-00000002"


def cells():
    for hook in HOOKS:
        for place in ("plain",) if hook in ONE_BY_ONE else ("plain", "wrapped", "before", "after"):
            for position in ("first", "last"):
                for kind in EXCEPTIONS if place == "plain" else list(EXCEPTIONS)[:3]:
                    yield pytest.param(hook, place, position, kind, id=f"{hook}-{place}-{position}-{kind}")


@pytest.mark.parametrize(("hook", "place", "position", "kind"), list(cells()))
def test_original_leaves_and_everybody_is_torn_down(hook, place, position, kind, request):
    raised, log = EXCEPTIONS[kind](), []
    work_dir = request.getfixturevalue("tmp_path") / "run" if hook in SAVING else None
    writes = [saver()] if hook in SAVING | LOADING else []
    trainer = Trainer(plugins=[Makes(), Asks(hook), *writes], max_epochs=1, autoload=False, work_dir=work_dir)
    phases = {"first": "bookkeeping", "middle": "measurement", "last": "reporting"}
    plugins = []
    for name, phase in phases.items():
        if name == position:
            one = Failing(name, log, hook, place, raised)
        elif name == "middle" and place != "plain":
            one = Wrapping(name, log, hook)
        else:
            one = Watched(name, log)
        one.phase = phase
        policy = getattr(one, "on_error", None)
        plugins.append(Plugin(name, one, "installed", distribution="matrix-dist", version="1.5", insists=policy == "raise"))
    trainer.manager.add(*plugins)

    with pytest.raises(BaseException) as caught:
        if hook in PREDICTING:
            trainer.predict("val")
        else:
            trainer.train(resume=request.getfixturevalue("checkpoint") if hook in LOADING else None)

    # What leaves is the object that was raised. Two exceptions to it: a generator cannot let a StopIteration out, Python
    # makes a RuntimeError of it; and what on_exception is called for is the exception that leaves.
    left = caught.value
    if hook == "on_exception":
        assert isinstance(left, OSError)
        assert str(left) == "what went wrong first"
    elif kind == "StopIteration" and place in ("before", "after"):
        assert isinstance(left, RuntimeError)
        assert left.__cause__ is raised
    else:
        assert left is raised

    notes = "\n".join(left.__notes__)
    named = re.findall(rf"raised in (\w+)\(\) of plugin '{position}' \(matrix-dist 1\.5\) at step (\d+); (.+)", notes)
    step = 2 if hook in ("train", "train_epoch") and place == "after" else STEP[hook]
    assert [(name, int(number)) for name, number, _ in named] == [(hook, step)]
    assert f"-p no:{position}" in named[0][2]

    # Exactly those whose setup returned, each once, in reverse order.
    began = [name for event, name in log if event == "setup"]
    ended = [name for event, name in log if event == "teardown" or (event == "failed" and hook == "teardown")]
    expected = {
        "configure": 0,
        "make_model": 0,
        "make_optimizer": 0,
        "make_loader": 0,
        "setup": {"first": 0, "last": 2}[position],
    }
    everybody = ["first", "middle", "last"]
    assert began == [name for name in everybody[: expected.get(hook, 3)] if (name, hook) != (position, "setup")]
    assert ended == everybody[: expected.get(hook, 3)][::-1]
    assert trainer.session is None
    failed = "interrupted" if kind == "KeyboardInterrupt" and hook != "on_exception" else "failed"
    assert trainer.outcome.status == failed
