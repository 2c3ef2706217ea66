"""More of what people do to an engine: parts of the wrong kind, stages with odd results, requests without words, files that are not read."""

import logging
import os
import sys

import pytest
import torch
from torch import nn

from trainhooks import OptionError, PluginImportError, StageResultError, Trainer, UsageError, hookimpl
from trainhooks.config import Config

ONE = torch.ones(1, dtype=torch.float64)


def plugin(**hooks):
    """Return a plugin with these functions as its hooks."""
    return type("Given", (), {name: hookimpl(function) for name, function in hooks.items()})()


def wrapper(**hooks):
    """Return a plugin with these generators as its wrappers."""
    return type("Around", (), {name: hookimpl(wrapper=True)(function) for name, function in hooks.items()})()


def sgd(trainer):
    return torch.optim.SGD(trainer.model.parameters(), lr=1.0)


def pair(self, trainer):
    optimizer = sgd(trainer)
    return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class TestPartsThatHooksMake:
    @pytest.mark.parametrize(
        ("made", "said"),
        [
            (nn.Linear, "make_model gave the class Linear; give Linear(...)"),
            (3, "make_model gave 3: must be a torch.nn.Module"),
        ],
    )
    def test_a_model_that_is_none(self, made, said):
        trainer = Trainer(plugins=[plugin(make_model=lambda self: made)], loaders={"train": [ONE]}, max_steps=1, autoload=False)
        for _ in range(2):  # it is not taken for the model the second time
            with pytest.raises(UsageError) as caught:
                trainer.train()
            assert str(caught.value).startswith(said)

    @pytest.mark.parametrize(
        ("make", "said"),
        [
            (lambda self: torch.optim.SGD, "make_optimizer gave the class SGD; give SGD(model.parameters(), ...)"),
            (pair, "make_optimizer gave a tuple: must be one such as"),
            (lambda self: {}, "make_optimizer gave None: must be one such as"),
            (lambda self, trainer: pair(self, trainer)[1][0], "make_optimizer gave <torch.optim.lr_scheduler.StepLR"),
        ],
    )
    def test_an_optimizer_that_is_none(self, make, said, scalar_model):
        parts = {"plugins": [plugin(make_optimizer=make)], "loaders": {"train": [ONE]}}
        with pytest.raises(UsageError) as caught:
            Trainer(scalar_model(), **parts, max_steps=1, autoload=False).train()
        assert str(caught.value).startswith(said)
        assert any(note.startswith("make_optimizer() is that of plugin 'given'") for note in caught.value.__notes__)

    def test_a_schedule_as_the_optimizer(self, scalar_model):
        model = scalar_model()
        schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), lr=1.0), 1)
        with pytest.raises(UsageError, match="optimizer is <torch.optim.lr_scheduler.StepLR"):
            Trainer(model, optimizer=schedule, autoload=False)

    def test_one_that_a_hook_assigns(self, make_trainer):
        def setup(self, trainer):
            trainer.optimizer = torch.optim.SGD

        with pytest.raises(UsageError, match=r"trainer.optimizer is the class SGD"):
            make_trainer([plugin(setup=setup)]).train()

    @pytest.mark.parametrize("loader", [{"x": ONE}, b"abc"])
    def test_a_loader_whose_batches_would_be_keys(self, loader, scalar_model):
        with pytest.raises(UsageError, match=r"loaders\['train'\] is (dict|bytes)"):
            Trainer(scalar_model(), loaders={"train": loader}, autoload=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_scripted_model_trains_and_is_saved():
    model = torch.jit.script(nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        model.weight.fill_(1.0)
    trainer = Trainer(
        model,
        loss=lambda output, target: (output - target).sum(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        loaders={"train": [(torch.ones(1, 1), torch.zeros(1, 1))]},
        max_epochs=1,
        autoload=False,
    )
    assert trainer.train().status == "completed"
    assert trainer.state_dict()["model"]["weight"].item() == 0.5  # 1 - 0.5 * 1


@pytest.mark.parametrize(
    ("hook", "add"),
    [
        ("compute_loss", lambda result: result.item()),
        ("train_step", lambda result: result["loss"]),
        ("evaluate", lambda result: 0.5),
        ("eval_step", lambda result: result["loss"]),
    ],
)
def test_the_wrapper_that_gives_something_else_is_named(hook, add, make_trainer):
    def around(self):
        return add((yield))

    def after_step(self, output):
        """Look at what train_step returned."""

    trainer = make_trainer([wrapper(**{hook: around}), plugin(after_step=after_step)], val=(1.0,))
    with pytest.raises((UsageError, StageResultError), match=f"^{hook} (gave|must return)") as caught:
        (trainer.evaluate if "eval" in hook else trainer.train)()
    assert f"{hook}() is that of plugin 'around' (given to Trainer), {__file__}:" in "\n".join(caught.value.__notes__)


def test_what_only_begins_like_a_stage_names_nobody(make_trainer):
    def train(self, trainer):
        trainer.train()

    with pytest.raises(UsageError, match="train\\(\\) was called while") as caught:
        make_trainer([plugin(train=train)]).train()
    assert not [note for note in caught.value.__notes__ if "is that of" in note]


def test_epochs_that_are_never_complete_end(make_trainer):
    with pytest.raises(
        StageResultError, match="train_epoch returned False 100 times in a row without a step: return True"
    ) as caught:
        make_trainer([plugin(train_epoch=lambda self: False)], max_epochs=2).train()
    assert any(note.startswith("train_epoch() is that of plugin 'given'") for note in caught.value.__notes__)


class TestStopping:
    @pytest.mark.parametrize("reason", [None, "", True, 3])
    @pytest.mark.parametrize("at", ["step", "epoch"])
    def test_needs_words(self, reason, at, make_trainer):
        def after_step(self, trainer):
            trainer.stop(reason, at=at)

        with pytest.raises(UsageError, match="say why in words"):
            make_trainer([plugin(after_step=after_step)]).train()


def test_an_exception_that_takes_no_notes_leaves_as_itself(make_trainer, recorder):
    class Stubborn(Exception):
        def add_note(self, note):
            raise RuntimeError(note)

    error, heard = Stubborn("original"), recorder("on_exception", "teardown")

    def after_step(self):
        raise error

    with pytest.raises(Stubborn) as caught:
        make_trainer([heard, plugin(after_step=after_step)]).train()
    assert caught.value is error
    assert [hook for hook, _ in heard.calls] == ["on_exception", "teardown"]


class TestEvaluationModeOfTheWholeModel:
    def test_is_said(self, make_trainer, messages):
        trainer = make_trainer()
        trainer.model.eval()
        trainer.train()
        assert [one for one in messages() if one.startswith("the model is in evaluation mode")] != []
        assert not trainer.model.training

    def test_not_so_of_a_part_or_where_a_hook_has_set_it(self, messages):
        def before_train(self, trainer):
            trainer.model.train()
            trainer.model[1].eval()

        model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)).eval()
        Trainer(
            model,
            loss=nn.functional.mse_loss,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loaders={"train": [(torch.ones(2, 1), torch.ones(2, 1))]},
            max_steps=1,
            plugins=[plugin(before_train=before_train)],
            autoload=False,
        ).train()
        assert not [one for one in messages() if "evaluation mode" in one]


@pytest.mark.parametrize("value", ["5", 2.5, True, 0])
def test_a_length_of_epochs_that_a_hook_sets(value, make_trainer):
    def configure(self, trainer):
        trainer.steps_per_epoch = value

    with pytest.raises(UsageError, match=f"steps_per_epoch = {value!r}: must be"):
        make_trainer([plugin(configure=configure)]).train()


def test_gradients_that_are_off(make_trainer):
    with torch.no_grad(), pytest.raises(RuntimeError) as caught:
        make_trainer().train()
    assert "gradients are off, so train() was called within torch.no_grad()" in caught.value.__notes__[-1]


class TestNames:
    def test_of_what_a_function_makes(self, make_trainer):
        class Made:
            def __init__(self, k):
                self.k = k

            @hookimpl
            def after_step(self):
                """Do nothing."""

        def make_it(k: int = 1):
            return Made(k)

        trainer = make_trainer([make_it], options={"make_it": {"k": 3}})
        assert trainer.plugins["make_it"].k == 3

    def test_a_plugin_of_the_engines_name_is_told_from_it(self, make_trainer):
        class Engine:
            @hookimpl
            def after_step(self):
                raise ValueError("mine")

        with pytest.raises(ValueError, match="mine") as caught:
            make_trainer([Engine()]).train()
        assert caught.value.__notes__[0].startswith("raised in after_step() of plugin 'engine' (given to Trainer)")

    def test_what_register_takes(self, make_trainer, recorder):
        trainer = make_trainer()
        with pytest.raises(UsageError, match=r"register\('ema'\): give a module, a class or an instance"):
            trainer.register("ema")
        with pytest.raises(UsageError, match=r"register\(..., name=5\)"):
            trainer.register(recorder("after_step"), name=5)
        assert trainer.register(recorder("after_step"), name="mine") == "mine"

    def test_what_is_set_in_the_plugins_would_be_lost(self, make_trainer):
        with pytest.raises(TypeError):
            make_trainer().plugins["mine"] = object()

    @pytest.mark.parametrize("word", ["./mine.py", "mine.py", "mine.py:NAME", "some/mine.py:NAME"])
    def test_a_file_in_the_place_of_a_module(self, word, make_trainer):
        config = Config()
        config.add_command_line([word])
        with pytest.raises(PluginImportError, match="is the path of a file: write module:attribute, such as mine:NAME"):
            make_trainer(config=config)


class TestProjectFiles:
    BASE = """
import torch
from torch import nn
from trainhooks import hookimpl

@hookimpl
def make_model():
    return nn.Linear(1, 1)

@hookimpl
def make_optimizer(trainer):
    return torch.optim.SGD(trainer.model.parameters(), lr=0.1)

@hookimpl
def make_loader():
    return [torch.ones(2, 1)]

@hookimpl
def compute_loss(trainer, batch):
    return trainer.model(batch).mean()

class Extra:
    @hookimpl
    def after_step(self):
        pass

class More(Extra):
    pass
"""

    def said(self, tmp_path, messages, more, **arguments):
        (tmp_path / "trainconf.py").write_text(self.BASE + more)
        Trainer(conf=tmp_path / "trainconf.py", max_steps=1, autoload=False, **arguments).train()
        return [one for one in messages() if "are not called" in one]

    def test_classes_that_are_not_listed(self, tmp_path, messages):
        assert self.said(tmp_path, messages, "plugins = [Extra]") == [
            "the hooks of class More of trainconf.py are not called: list it in plugins = [...]"
        ]

    @pytest.mark.parametrize(
        "more",
        [
            "plugins = [More]",
            "plugins = [More()]",
            "def make():\n    return More()\nplugins = [make]",
            "@hookimpl\ndef configure(trainer):\n    trainer.register(More())",
        ],
    )
    def test_nor_is_it_said_of_those_that_take_part(self, more, tmp_path, messages):
        assert self.said(tmp_path, messages, more) == []

    def test_nor_of_one_that_was_taken_out(self, tmp_path, messages):
        assert self.said(tmp_path, messages, "plugins = [Extra, More]", plugins=["no:more", "no:extra"]) == []

    def test_a_mistake_in_a_module_beside_it_has_its_place(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / "beside_it.py").write_text("x = 1\ndef f(:\n")
        (tmp_path / "trainconf.py").write_text("import beside_it\n")
        with pytest.raises(PluginImportError) as caught:
            Trainer(conf=tmp_path / "trainconf.py", max_steps=1, autoload=False)
        assert str(caught.value).startswith(f"{tmp_path / 'beside_it.py'}:2: SyntaxError")


class TestConfigurationFiles:
    @pytest.mark.parametrize("value", ["mine", "True", "None"])
    def test_what_is_no_value_of_toml(self, value, tmp_path):
        (tmp_path / "trainhooks.toml").write_text(f"[train]\nname = {value}\n")
        with pytest.raises(UsageError, match=r"trainhooks.toml:2: not valid TOML: .* TOML has text in quotes, true and false"):
            Config.read(tmp_path)

    @pytest.mark.parametrize(
        ("file", "text", "said"),
        [
            ("trainhooks.toml", "max_epochs = 3\n", r"settings stand in \[train\]"),
            ("trainhooks.toml", "[checkpoint]\nkeep = 3\n", r"options of a plugin stand in \[plugins.checkpoint\]"),
            ("pyproject.toml", "[tool.trainhooks.lr]\nbase = 1\n", r"stand in \[tool.trainhooks.plugins.lr\]"),
        ],
    )
    def test_where_it_belongs(self, file, text, said, tmp_path):
        (tmp_path / file).write_text(text)
        with pytest.raises(OptionError, match=said):
            Config.read(tmp_path)


class TestOutput:
    @pytest.fixture(autouse=True)
    def quiet_log(self):
        logging.getLogger("trainhooks").setLevel(logging.ERROR)

    def test_of_predictions_is_checked_before_they_are_made(self, cli, project):
        said = cli("predict", ".", "--checkpoint", project, "--split", "val", "--output", project, expect=2)
        assert said.err == f"trainhooks: --output {project}: it is a folder, name a file\n"

    def test_that_cannot_be_written_is_one_line(self, fork):
        def work():
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, 1)
            from trainhooks.cli import main

            sys.stdout = open(1, "w", closefd=False)
            main(["plugins"])

        process = fork(work)
        process.join()
        assert process.exitcode == 1
        assert process.said.read() == "trainhooks: the output cannot be written to stdout: No space left on device\n"

    def test_to_nowhere_is_no_failure(self, monkeypatch, cli):
        monkeypatch.setattr(sys, "stdout", None)
        from trainhooks.cli import main

        with pytest.raises(SystemExit) as left:
            main(["plugins"])
        assert left.value.code == 0
