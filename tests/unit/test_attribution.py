"""Where a wrong call was made, said with the error that it raises."""

import inspect

import pytest

from trainhooks import UsageError, hookimpl
from trainhooks.errors import DataError


def notes(error):
    return getattr(error, "__notes__", [])


def log_text(trainer):
    trainer.log("x", "text")


LINE = f"{__file__}:{inspect.getsourcelines(log_text)[1] + 1}"


def test_a_wrong_call_in_a_function_of_a_hook(make_trainer):
    class Wrong:
        @hookimpl
        def after_step(self, trainer):
            log_text(trainer)

    with pytest.raises(UsageError, match=r"log\('x'\): 'text' is no number") as caught:
        make_trainer([Wrong()]).train()
    assert notes(caught.value)[0] == (
        f"raised in after_step() of plugin 'wrong' (given to Trainer) at step 0, {LINE}; "
        "leave it out of Trainer(plugins=...) or call trainer.unregister('wrong') to go on without it"
    )


def test_a_wrong_call_in_a_model(make_trainer):
    trainer = make_trainer()

    class Model(type(trainer.model)):
        def forward(self, x):
            log_text(trainer)
            return super().forward(x)

    trainer.model.__class__ = Model
    with pytest.raises(UsageError) as caught:
        trainer.train()
    assert notes(caught.value) == [f"raised in {LINE} at step 0"]


def test_an_error_of_ours_that_no_call_of_the_user_made_has_no_line(make_trainer):
    class Wraps:
        @hookimpl(wrapper=True)
        def train_epoch(self):
            return (yield)

    with pytest.raises(DataError, match="no batches") as caught:
        make_trainer([Wraps()], values=()).train()
    assert notes(caught.value) == []


@pytest.mark.parametrize("error", [UsageError("of mine"), ValueError("of mine")])
def test_an_error_that_a_plugin_raises_itself_has_a_message_or_a_traceback_of_its_own(make_trainer, error):
    class Raises:
        @hookimpl
        def after_step(self):
            raise error

    with pytest.raises(type(error)) as caught:
        make_trainer([Raises()]).train()
    assert len(notes(caught.value)) == 1
    assert __file__ not in notes(caught.value)[0]


def test_the_command_line_shows_it(cli, project):
    text = (
        project / "trainconf.py"
    ).read_text() + "\n@hookimpl\ndef after_step(trainer):\n    trainer.log('x', torch.ones(2))\n"
    (project / "trainconf.py").write_text(text)
    err = cli("train", expect=2).err
    assert "Traceback" not in err
    assert "trainhooks: log('x'): a tensor of shape (2,)" in err
    place = f"{project / 'trainconf.py'}:{text.count(chr(10))}"
    assert f"\nraised in after_step() of plugin 'trainconf' (project file) at step 0, {place}\n" in err
