"""HK: the order of hooks, and wrappers."""

import itertools
import sys

import pytest
import torch

from trainhooks import PluginValidationError, SkipStep, StageResultError, Trainer, UsageError, hookimpl
from trainhooks.manager import Plugin


class Update:
    """Sets the weight to 1 + the number of updates, in place of an optimizer: 2 after update 1, 3 after update 2."""

    phase = "persistence"  # only what is declared can put it in front
    before = ("ema",)

    def __init__(self, log):
        self.log = log

    @hookimpl
    def after_step(self, trainer):
        self.log.append("update")
        with torch.no_grad():
            trainer.model.w.fill_(2.0 + trainer.step)


class EMA:
    """A plugin of this test's own; the built-in one is left to a later issue."""

    after = ("update",)

    def __init__(self, log):
        self.log, self.average = log, 1.0

    @hookimpl
    def after_step(self, trainer):
        self.log.append("ema")
        self.average = 0.9 * self.average + 0.1 * trainer.model.w.item()


class Save:
    after = ("ema",)
    phase = "bookkeeping"

    def __init__(self, log, folder, ema):
        self.log, self.folder, self.ema = log, folder, ema

    @hookimpl
    def after_step(self, trainer):
        self.log.append("save")
        if trainer.every_n_steps(2):
            torch.save({"ema": self.ema.average}, self.folder / "saved.pt")


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_hk_01_update_ema_save_whatever_the_registration(order, make_trainer, tmp_path):
    log = []
    ema = EMA(log)
    plugins = [Update(log), ema, Save(log, tmp_path, ema)]
    trainer = make_trainer([plugins[i] for i in order], values=(0.0, 0.0), start=1.0)
    trainer.train()
    assert log == ["update", "ema", "save"] * 2
    # 0.9 * 1 + 0.1 * 2 = 1.1 after update 1, 0.9 * 1.1 + 0.1 * 3 = 1.29 after update 2
    assert torch.load(tmp_path / "saved.pt", weights_only=True)["ema"] == pytest.approx(1.29, abs=1e-12)


SOURCE = """
from trainhooks import hookimpl
calls = __import__("sys").__dict__.setdefault("hk_03_calls", [])
class Plugin:
    {declared}
    @hookimpl
    def after_step(self):
        calls.append("{name}")
"""

DECLARED = {"a": "", "b": 'after = ("a",)', "c": 'before = ("a",)', "d": 'before = ("c",); after = ("b",)'}


@pytest.fixture
def install(fake_distribution):
    def make(*names):
        for name in names:
            source = SOURCE.format(name=name, declared=DECLARED[name])
            fake_distribution(f"dist-{name}", {name: f"hk_03_{name}:Plugin"}, {f"hk_03_{name}": source})

    yield make
    vars(sys).pop("hk_03_calls", None)


TRAIN = ("train", "-p", "no:progress", "--set", "max_epochs=1")


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_hk_03_declared_order_whatever_the_installation(order, install, command):
    install(*order)
    code, _, err = command(*TRAIN, "--set", "max_steps=1")
    assert code == 0, err
    assert sys.hk_03_calls == ["c", "a", "b"]
    code, out, _ = command("hooks", "after_step", "-p", "no:progress")
    assert code == 0
    listed = [line.split()[0] for line in out[out.index("Called in this order") :].splitlines()[1:]]
    assert [name for name in listed if name in "abc"] == ["c", "a", "b"]


def test_hk_03_cycle_is_refused_with_all_its_links(install, command):
    install("b", "d", "a", "c")
    code, _, err = command(*TRAIN)
    assert code == 2
    assert "c → a → b → d → c" in err
    for link in ("'c'", "'b'", "'d'"):
        assert f"declared by {link}" in err
    assert "c before a, declared by 'c'" in err
    assert "b after a, declared by 'b'" in err
    assert "d after b, declared by 'd'" in err
    assert "d before c, declared by 'd'" in err
    assert sys.hk_03_calls == []
    assert not (command.folder / "runs").exists()


def test_hk_05_pairs_do_not_interleave_under_accumulation(make_trainer):
    """A step is a micro-batch here: four pairs that never interleave, and an update after every second one."""
    log = []

    class Accumulate:
        @hookimpl
        def update_due(self, trainer):
            return trainer.every_n_steps(2)

    class Listens:
        @hookimpl
        def before_step(self, trainer):
            log.append(f"before {trainer.step + 1}")

        @hookimpl
        def after_step(self, trainer):
            log.append(f"after {trainer.step + 1}")

        @hookimpl
        def after_update(self, trainer):
            log.append(f"update {trainer.update + 1}")

        @hookimpl(wrapper=True)
        def compute_loss(self):
            log.append("fwd")
            return (yield)

    trainer = make_trainer([Accumulate(), Listens()], values=(1.0,) * 4)
    outcome = trainer.train()
    assert log == (
        ["before 1", "fwd", "after 1", "before 2", "fwd", "update 1", "after 2"]
        + ["before 3", "fwd", "after 3", "before 4", "fwd", "update 2", "after 4"]
    )
    assert (outcome.step, outcome.update) == (4, 2)


def test_hk_06_a_batch_that_never_ran_has_no_after_step(make_trainer):
    losses, skipped, begun = [], [], []

    class Cancels:
        @hookimpl
        def before_step(self, trainer):
            begun.append(trainer.batch_index)
            if trainer.batch_index == 2:
                raise SkipStep("the third")

        @hookimpl
        def after_step(self, output):
            losses.append(float(output["loss"]))

        @hookimpl
        def after_skip(self, trainer, reason):
            skipped.append((trainer.batch_index, reason))

    # The loss of a batch is w * x; with w = 1 and a rate of 0 it is the value itself.
    trainer = make_trainer([Cancels()], values=(1.0, 2.0, 6.0, 4.0, 5.0), start=1.0, lr=0.0)
    trainer.train()
    assert losses == [1.0, 2.0, 4.0, 5.0]
    assert sum(losses) / len(losses) == 3.0
    assert skipped == [(2, "the third")]
    assert len(begun) == len(losses) + len(skipped) == 5
    # 3 is also what the engine reports as the mean of the epoch
    assert trainer.outcome.step == 4


def test_hk_06_the_engines_own_mean_counts_no_batch_twice(make_trainer):
    means = []

    class Cancels:
        @hookimpl
        def before_step(self, trainer):
            if trainer.batch_index == 2:
                raise SkipStep("the third")

        @hookimpl
        def after_epoch(self, metrics):
            means.append(metrics["train/loss"])

    make_trainer([Cancels()], values=(1.0, 2.0, 6.0, 4.0, 5.0), start=1.0, lr=0.0).train()
    assert means == [3.0]


HK_07 = {
    "no return": "@hookimpl(wrapper=True)\ndef compute_loss():\n    yield\n",
    "returns None at times": "@hookimpl(wrapper=True)\ndef compute_loss(trainer):\n    loss = yield\n    if trainer.step < 0:\n"
    "        return loss\n",
    "swallows": "@hookimpl(wrapper=True)\ndef train_step(trainer):\n    print('step', trainer.step + 1)\n    try:\n"
    "        return (yield)\n    except Exception:\n        pass\n\n"
    "@hookimpl\ndef backward(trainer):\n    if trainer.step == 2:\n        raise ValueError('at it 3')\n",
    "yields twice": "@hookimpl(wrapper=True)\ndef train_step():\n    result = yield\n    yield\n    return result\n",
    "never yields": "@hookimpl(wrapper=True)\ndef train_step(trainer):\n    if trainer.step < 0:\n        yield\n    return {}\n",
    "is no generator": "@hookimpl(wrapper=True)\ndef train_step(trainer):\n    return {}\n",
}


@pytest.mark.parametrize("kind", HK_07)
def test_hk_07_a_wrapper_that_loses_the_result_is_named(kind, command):
    conf = command.conf + HK_07[kind]
    hook = "compute_loss" if "compute_loss" in HK_07[kind] else "train_step"
    line = command.conf.count("\n") + 1
    code, out, err = command(*TRAIN, conf=conf)
    assert code in (1, 3)
    assert f"{command.folder / 'trainconf.py'}:{line}" in err.replace("', line ", ":").replace('", line ', ":")
    assert "plugin 'trainconf'" in err
    assert hook in err
    assert "backward" not in err or kind == "swallows"  # no TypeError from inside the backward pass
    if kind == "swallows":
        assert out.split("step ")[1:][-1].startswith("3")
        assert "step 4" not in out


def test_hk_07_the_guilty_one_of_several_wrappers_is_named(make_trainer):
    class Innocent:
        def __init__(self, name):
            self.name = name

        @hookimpl(wrapper=True)
        def compute_loss(self):
            return (yield)

    class Guilty:
        @hookimpl(wrapper=True)
        def compute_loss(self, trainer):
            loss = yield
            if trainer.step < 2:
                return loss

    trainer = make_trainer([Innocent("one"), Guilty(), Innocent("two")])
    with pytest.raises(StageResultError) as caught:
        trainer.train()
    text = str(caught.value)
    assert "'guilty'" in text
    assert "'one'" not in text
    assert "'two'" not in text
    assert "compute_loss" in text
    assert trainer.update == 2


def test_hk_09_defaults_are_refused():
    class Defaulted:
        name = "defaulted"

        @hookimpl
        def after_step(self, trainer, batch=10):
            pass

        @hookimpl
        def before_step(self, trainer, every=5):
            pass

    with pytest.raises(PluginValidationError) as caught:
        Trainer(plugins=[Defaulted()], autoload=False, max_steps=1)
    text = str(caught.value)
    assert "'defaulted'" in text
    assert "after_step()" in text
    assert "argument 'batch' has a default" in text
    assert "before_step()" in text
    assert "'every'" in text


def test_hk_10_misspelt_hook_is_refused_with_file_and_suggestion(command):
    conf = command.conf + "\n@hookimpl\ndef after_stepp(trainer):\n    print('never')\n"
    code, out, err = command(*TRAIN, conf=conf)
    assert code == 3
    assert f"after_stepp() in {command.folder / 'trainconf.py'}:" in err
    assert "did you mean 'after_step'?" in err
    assert "never" not in out
    assert not (command.folder / "runs").exists()


def test_hk_10_late_registration_is_checked_at_once(make_trainer):
    class Late:
        @hookimpl
        def after_stepp(self):
            pass

    class Registers:
        @hookimpl
        def before_train(self, trainer):
            trainer.register(Late())

    trainer = make_trainer([Registers()])
    with pytest.raises(PluginValidationError, match=r"did you mean 'after_step'\?"):
        trainer.train()
    assert trainer.step == 0
    assert "late" not in trainer.plugins


def test_hk_10_an_optional_hook_passes(make_trainer):
    class Optional:
        @hookimpl(optionalhook=True)
        def other_package_hook(self, anything):
            pass

    assert make_trainer([Optional()]).train().step == 10


def test_hk_12_plugins_that_come_and_go(make_trainer):
    log = []

    class P:
        @hookimpl
        def before_step(self, trainer):
            log.append(("before", trainer.step + 1))

        @hookimpl
        def after_step(self, trainer):
            log.append(("after", trainer.step + 1))

    class Registers:
        @hookimpl
        def before_step(self, trainer):
            if trainer.step == 2:
                trainer.register(P(), "p")

    class Removes:
        phase = "reporting"

        @hookimpl(trylast=True)
        def after_step(self, trainer):
            if trainer.step == 4:
                trainer.unregister("p")

    outcome = make_trainer([Registers(), Removes()], values=(1.0,) * 6).train()
    assert outcome.step == 6
    assert [step for hook, step in log if hook == "before"] == [4, 5]
    assert [step for hook, step in log if hook == "after"] == [3, 4, 5]


class Stops:
    def __init__(self, hook, step):
        self.ends = []

        @hookimpl(specname=hook)
        def ask(trainer):
            if trainer.step == step:
                trainer.stop("asked")

        self.ask = ask

    @hookimpl
    def after_train(self, trainer):
        self.ends.append(trainer.step)


@pytest.mark.parametrize(
    ("hook", "step", "updates"),
    # the counter is the index of the running step: 2 in step 3; it is 4 when the evaluation after step 4 is done
    [("after_step", 2, 3), ("before_step", 2, 2), ("after_eval", 4, 4)],
)
def test_hk_15_a_stop_request_runs_no_further_batch(hook, step, updates, make_trainer, tmp_path):
    from trainhooks_builtins import Checkpoint, Evaluation

    stops, checkpoint = Stops(hook, step), Checkpoint()
    plugins = [stops, checkpoint, Evaluation(every_steps=2, at_end=False)]
    trainer = make_trainer(plugins, val=(1.0,), max_steps=10, work_dir=tmp_path / "run")
    outcome = trainer.train()
    assert (outcome.status, outcome.reason) == ("stopped", "asked")
    assert (outcome.step, outcome.update, trainer.batch_index) == (updates, updates, updates)
    assert trainer.model.w.item() == -updates  # each update takes 1 off
    assert stops.ends == [updates]
    assert checkpoint.path.name == f"step-{updates:08d}"


def test_hk_03_in_a_real_trainer_without_files(make_trainer):
    """The same order for objects that are registered one after the other, as installed plugins are."""
    log = []

    def one(name, **declared):
        function = hookimpl(specname="after_step")(lambda: log.append(name))
        return Plugin(name, type(name, (), {"hook": staticmethod(function), **declared})(), "installed")

    plugins = [one("a"), one("b", after=("a",)), one("c", before=("a",))]
    for order in itertools.permutations(plugins):
        trainer = make_trainer(values=(1.0,))
        for plugin in order:
            trainer.manager.add(plugin)
        trainer.train()
        assert log == ["c", "a", "b"]
        log.clear()
    with pytest.raises(UsageError, match="cycle"):
        trainer.manager.add(one("d", before=("c",), after=("b",)))
