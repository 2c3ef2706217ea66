"""``compile``: the same weights as without, names of the state, what is compiled when, what is left behind."""

import gc
import weakref

import pytest
import torch
from torch import nn

from trainhooks import OptionError, Trainer, UsageError, hookimpl
from trainhooks_builtins import EMA, SWA, Checkpoint, Compile, Evaluation, Freeze


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """Forget what other tests compiled: torch keeps at most eight versions of one piece of code."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Net(nn.Module):
    """Notes whether it is being compiled, or called as it is."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x):
        return self.layers(x)


def net_trainer(plugins=(), model=None, **arguments):
    model = model if model is not None else Net()
    generator = torch.Generator().manual_seed(1)
    data = [(torch.randn(5, 3, generator=generator), torch.randn(5, 1, generator=generator)) for _ in range(4)]
    arguments.setdefault("max_epochs", 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = nn.functional.mse_loss
    loaders = {"train": data, "val": data[:2]}
    return Trainer(model, loss=loss, optimizer=optimizer, loaders=loaders, plugins=plugins, autoload=False, **arguments)


def same_weights(one, other):
    mine, theirs = one.model.state_dict(), other.model.state_dict()
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert torch.equal(mine[name], theirs[name]), name


class Calls:
    """Notes for each call of the model in training and in evaluation whether it is a compiled one."""

    def __init__(self):
        self.seen = {}

    @hookimpl
    def before_step(self, trainer):
        self.seen["train"] = trainer.model._compiled_call_impl is not None

    @hookimpl
    def before_eval(self, trainer):
        self.seen["eval"] = trainer.model._compiled_call_impl is not None

    @hookimpl
    def before_predict(self, trainer):
        self.seen["predict"] = trainer.model._compiled_call_impl is not None


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_weights_and_metrics_are_those_of_the_uncompiled_run(backend):
    plain, compiled = (net_trainer([*plugins, Evaluation()]) for plugins in ((), (Compile(backend=backend),)))
    plain.train()
    counters = torch._dynamo.utils.counters
    counters.clear()
    compiled.train()
    assert counters["stats"]["unique_graphs"] >= 2  # one to train, one to evaluate
    same_weights(plain, compiled)
    assert plain.metrics["val/loss"] == compiled.metrics["val/loss"]


@pytest.mark.parametrize(
    "model", [nn.Linear(3, 1), nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)), Net()], ids=type
)
def test_a_model_is_one_graph_whatever_its_class(model):
    counters = torch._dynamo.utils.counters
    counters.clear()
    net_trainer([Compile(backend="eager", fullgraph=True)], model).train()
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, {"train": True, "eval": True, "predict": True}),
        ({"evaluation": False}, {"train": True, "eval": False, "predict": False}),
        ({"training": False}, {"train": False, "eval": True, "predict": True}),
    ],
)
def test_what_is_compiled(options, wanted):
    calls = Calls()

    class Predict:
        @hookimpl
        def after_epoch(self, trainer):
            trainer.predict("val")

    trainer = net_trainer([Compile(backend="eager", **options), Evaluation(every_steps=3), calls, Predict()])
    trainer.train()
    assert calls.seen == wanted
    assert trainer.manager.has("predict") == bool(options)
    calls.seen.clear()
    trainer.evaluate("val")
    assert calls.seen == {"eval": wanted["eval"]}
    assert trainer.model._compiled_call_impl is None


def test_back_after_an_evaluation_that_failed():
    class Fails:
        @hookimpl
        def eval_step(self):
            raise ValueError("broken")

        @hookimpl
        def before_step(self, trainer):
            if trainer.step == 1:
                with pytest.raises(ValueError, match="broken"):
                    trainer.evaluate("val")

    calls = Calls()
    net_trainer([Compile(backend="eager", evaluation=False), Fails(), calls]).train()
    assert calls.seen == {"train": True, "eval": False}


def test_the_model_is_left_as_it_was_found():
    model = Net()
    before = set(vars(model))
    trainer = net_trainer([Compile(backend="eager")], model)
    seen = []

    class Look:
        @hookimpl
        def after_step(self, trainer):
            seen.append((trainer.model is model, list(trainer.model.state_dict())))

    trainer.register(Look())
    trainer.train()
    assert set(vars(model)) == before
    assert seen[0] == (True, list(Net().state_dict()))


def test_the_model_is_left_as_it_was_found_after_a_failure():
    class Fails:
        @hookimpl
        def after_step(self):
            raise ValueError("broken")

    model = Net()
    before = set(vars(model))
    with pytest.raises(ValueError, match="broken"):
        net_trainer([Compile(backend="eager"), Fails()], model).train()
    assert set(vars(model)) == before


def test_a_checkpoint_fits_a_run_without_it(tmp_path):
    whole = net_trainer()
    whole.train()
    net_trainer([Compile(backend="eager"), Checkpoint(every_epochs=0)], work_dir=tmp_path / "run").train(max_steps=3)
    second = net_trainer([Checkpoint(every_epochs=0)], work_dir=tmp_path / "run")
    second.train(resume="auto")
    same_weights(whole, second)


def test_the_first_call_is_timed(messages):
    times = iter([10.0, 12.5])
    trainer = net_trainer([Compile(backend="eager", clock=lambda: next(times))])
    trainer.train()
    said = [one for one in messages() if one.startswith("compile")]
    assert said == ["compile: the first call of the model took 2.5 s, most of it to compile"]
    assert trainer.metrics["time/compile"] == 2.5


def test_with_averages_and_frozen_parameters():
    """Their exchange of data and modes does not escape compiled code, nor does it compile anew each time."""
    results = []
    for compiled in (False, True):
        plugins = [EMA(decay=0.5), SWA(start=0.5), Freeze(("layers.1.*",), until_epoch=1), Evaluation(every_steps=1)]
        torch._dynamo.utils.counters.clear()
        trainer = net_trainer([*plugins, *([Compile(backend="aot_eager")] if compiled else [])], max_epochs=3)
        trainer.train()
        results.append(trainer)
    same_weights(*results)
    assert results[0].metrics["val/loss"] == results[1].metrics["val/loss"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 5


def test_a_finished_trainer_and_its_model_are_freed():
    trainer = net_trainer([Compile(backend="eager")])
    trainer.train()
    gone, model = weakref.ref(trainer), weakref.ref(trainer.model)
    gc.collect()
    gc.disable()
    try:
        del trainer
        assert gone() is None
    finally:
        gc.enable()
    gc.collect()
    assert model() is None


class TestRefused:
    def test_names_that_torch_does_not_know(self):
        with pytest.raises(
            OptionError, match="torch.compile does not take backend = 'aot_eagre', .*; did you mean 'aot_eager'"
        ):
            net_trainer([Compile(backend="aot_eagre")]).train()
        with pytest.raises(OptionError, match="mode = 'fast'.*reduce-overhead"):
            net_trainer([Compile(mode="fast")]).train()

    @pytest.mark.parametrize(
        "how", [lambda model: torch.compile(model, backend="eager"), lambda model: model.compile(backend="eager") or model]
    )
    def test_a_model_that_is_compiled_already(self, how):
        trainer = net_trainer([Compile(backend="eager")], how(Net()))
        with pytest.raises(UsageError, match="the model is compiled already"):
            trainer.train()

    def test_no_model(self):
        class Step:
            @hookimpl
            def train_step(self):
                return {}

        with pytest.raises(UsageError, match="plugin 'compile' needs a model"):
            Trainer(plugins=[Compile(), Step()], max_steps=1, autoload=False).train()

    def test_nothing_to_compile(self):
        with pytest.raises(OptionError, match="nothing would be compiled"):
            Compile(training=False, evaluation=False)

    def test_a_mode_of_another_backend(self):
        with pytest.raises(OptionError, match="mode = 'max-autotune': backend 'eager' has no modes"):
            Compile(mode="max-autotune", backend="eager")


def test_by_name():
    trainer = net_trainer(["compile"], options={"compile": {"backend": "eager", "dynamic": False}})
    trainer.train()
    plain = net_trainer()
    plain.train()
    same_weights(plain, trainer)
