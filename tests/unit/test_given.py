"""The model, loss and optimizer of a script: what is none is refused; what somebody puts in their place is what is saved."""

import os
import re

import pytest
import torch
from torch import nn

from trainhooks import Trainer, UsageError, hookimpl
from trainhooks_builtins import Checkpoint


class TestRefused:
    @pytest.mark.parametrize(
        ("parts", "said"),
        [
            ({"model": nn.Linear}, "model is the class Linear; give Linear(...): must be a torch.nn.Module"),
            ({"model": "resnet"}, "model is 'resnet': must be a torch.nn.Module"),
            ({"model": [nn.Linear(1, 1)] * 9}, "model is a list: must be a torch.nn.Module"),
            ({"loss": nn.CrossEntropyLoss}, "loss is the class CrossEntropyLoss; give CrossEntropyLoss()"),
            ({"loss": "mse"}, "loss is 'mse': must be a function such as torch.nn.functional.cross_entropy"),
            (
                {"optimizer": "adam"},
                "optimizer is 'adam': must be one such as torch.optim.AdamW(model.parameters()), or a mapping",
            ),
            ({"optimizer": {"a": torch.optim.SGD}}, "optimizer is the class SGD; give SGD(model.parameters(), ...)"),
        ],
    )
    def test_what_is_no_part(self, parts, said):
        with pytest.raises(UsageError, match=re.escape(said)):
            Trainer(**{"model": nn.Linear(1, 1), "max_steps": 1, "autoload": False, **parts})

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"lr.warmup_updates": 3}, "options={'lr.warmup_updates': 3}: write options={'lr': {'warmup_updates': 3}}"),
            ({"a.b.c": "x"}, "options={'a.b.c': 'x'}: write options={'a': {'b': {'c': 'x'}}}"),
            (["lr"], "options must be a mapping such as {'lr': {'warmup_updates': 3}}, not ['lr']"),
            ([], "options must be a mapping such as {'lr': {'warmup_updates': 3}}, not []"),
            (
                {"lr": ["cosine"]},
                "options={'lr': ['cosine']}: write the options of a plugin by name, as in options={'lr': {'warmup_updates': 3}}",
            ),
            ({"lr": {3: 4}}, "options={'lr': {3: 4}}: write the options of a plugin by name, as in"),
            ({3: {}}, "options={3: {}}: write the options of a plugin by name, as in"),
        ],
    )
    def test_options_that_are_no_mappings_by_plugin(self, options, said):
        with pytest.raises(UsageError, match=re.escape(said)):
            Trainer(nn.Linear(1, 1), max_steps=1, autoload=False, options=options)


class TestNamesOfElsewhere:
    @pytest.mark.parametrize(
        ("arguments", "instead"),
        [
            ({"epochs": 1}, "; here that is max_epochs=1"),
            ({"max_epoch": 3}, "; here that is max_epochs=3"),
            ({"train_loader": [1.0]}, "; here that is loaders={'train': ..., 'val': ...}"),
            ({"train_dataloader": [1.0]}, "; here that is loaders={'train': ..., 'val': ...}"),
            ({"callbacks": []}, "; here that is plugins=[...]"),
            ({"scheduler": None}, "; here that is plugins=['lr'], options={'lr': {'schedule': 'cosine'}}"),
            ({"lr_scheduler": None}, "; here that is plugins=['lr'], options={'lr': {'schedule': 'cosine'}}"),
            ({"logger": True}, "; here that is plugins=['tensorboard'] or another reporter"),
            ({"loss_fn": nn.functional.mse_loss}, "; here that is loss=..."),
            ({"max_stpes": 3}, "; did you mean 'max_steps'?"),
            ({"zzz": 3}, ""),
        ],
    )
    def test_of_arguments(self, arguments, instead):
        (name,) = arguments
        with pytest.raises(TypeError) as caught:
            Trainer(nn.Linear(1, 1), autoload=False, **arguments)
        assert str(caught.value) == f"Trainer.__init__() got an unexpected keyword argument {name!r}{instead}"

    def test_what_is_said_of_schedules_works(self):
        trainer = Trainer(nn.Linear(1, 1), autoload=False, plugins=["lr"], options={"lr": {"schedule": "cosine"}})
        assert list(trainer.plugins) == ["lr"]

    @pytest.mark.parametrize(
        ("name", "instead"), [("fit", "train()"), ("validate", "evaluate()"), ("test", "evaluate('test')")]
    )
    def test_of_methods(self, name, instead):
        trainer = Trainer(nn.Linear(1, 1), autoload=False)
        with pytest.raises(AttributeError) as caught:
            getattr(trainer, name)
        assert str(caught.value) == f"'Trainer' object has no attribute {name!r}; here that is trainer.{instead}"
        assert not hasattr(trainer, name)

    def test_a_class_of_ones_own_may_have_them(self):
        class Mine(Trainer):
            def fit(self):
                return "fitted"

        assert Mine(autoload=False).fit() == "fitted"


@pytest.mark.parametrize("batch", [(torch.ones(1), torch.ones(1)), {"x": torch.ones(1), "labels": torch.ones(1)}])
def test_a_loss_that_was_forgotten(batch):
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, optimizer=optimizer, loaders={"train": [batch]}, max_steps=1, autoload=False)
    with pytest.raises(TypeError) as caught:
        trainer.train()
    assert "no loss= was given, so the model is called with the whole batch and returns its loss" in caught.value.__notes__


def test_not_said_of_an_error_inside_of_the_model(make_trainer):
    class Fails(nn.Linear):
        def forward(self, x):
            return x + "1"

    model = Fails(1, 1)
    trainer = Trainer(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loaders={"train": [torch.ones(1)]},
        max_steps=1,
        autoload=False,
    )
    with pytest.raises(TypeError) as caught:
        trainer.train()
    assert not [note for note in getattr(caught.value, "__notes__", ()) if "no loss= was given" in note]


class TestForeignParameters:
    def train(self, make_trainer, prepare=lambda trainer: None):
        trainer = make_trainer(max_steps=1)
        trainer.take_optimizer(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0))
        prepare(trainer)
        trainer.train()

    def test_an_optimizer_of_another_model_is_said(self, make_trainer, messages):
        self.train(make_trainer)
        assert [one for one in messages() if one.startswith("'optimizer' trains no parameter of the model or the loss")]

    def test_not_one_of_a_module_that_is_saved_too(self, make_trainer, messages):
        def prepare(trainer):
            trainer.stateful["critic"] = critic = nn.Linear(1, 1)
            trainer.take_optimizer(torch.optim.SGD(critic.parameters(), lr=1.0))

        self.train(make_trainer, prepare)
        assert not [one for one in messages() if "trains no parameter" in one]


class ReplacesModel:
    """What wraps a model for low-rank or quantized training does."""

    @hookimpl
    def setup(self, trainer):
        trainer.model = type(trainer.model)(5.0)
        trainer.take_optimizer(torch.optim.SGD(trainer.model.parameters(), lr=1.0))


class TestReplaced:
    """MX-05: what a user sees in ``trainer`` is what is trained, and what is saved."""

    def test_a_model_that_a_hook_put_in_place(self, make_trainer, tmp_path):
        trainer = make_trainer([ReplacesModel(), Checkpoint()], max_steps=3, work_dir=tmp_path / "run")
        trainer.train()
        assert trainer.model.w.item() == 2.0
        again = make_trainer([Checkpoint()], val=(1.0,))
        again.evaluate(checkpoint=tmp_path / "run")
        assert again.model.w.item() == 2.0

    def test_is_resumed(self, make_trainer, tmp_path):
        for steps in (3, 4):
            trainer = make_trainer([ReplacesModel(), Checkpoint()], max_steps=steps, work_dir=tmp_path / "run")
            trainer.train(resume="auto")
        assert trainer.model.w.item() == 1.0

    def test_an_optimizer_that_was_assigned_between_two_trainings(self, make_trainer):
        """Three steps of rate 1, then two of rate 0.5."""
        trainer = make_trainer(max_steps=3)
        trainer.train()
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.5)
        trainer.train(max_steps=5)
        assert trainer.model.w.item() == -4.0
        assert trainer.state_dict()["optimizers/optimizer"]["param_groups"][0]["lr"] == 0.5

    def test_an_object_that_was_registered_by_that_name_stays(self, make_trainer):
        trainer = make_trainer(max_steps=1)
        trainer.stateful["model"] = own = nn.Linear(1, 1)
        trainer.train()
        assert trainer.stateful["model"] is own


class TestPlaces:
    """PT-04: a path means what it meant when it was given."""

    @pytest.fixture
    def elsewhere(self, tmp_path):
        (tmp_path / "elsewhere").mkdir()
        before = os.getcwd()

        class ChangesFolder:
            @hookimpl
            def setup(self):
                os.chdir(tmp_path / "elsewhere")

        yield ChangesFolder
        os.chdir(before)

    def test_of_a_checkpoint_when_a_hook_changes_the_folder(self, make_trainer, tmp_path, elsewhere, monkeypatch):
        monkeypatch.chdir(tmp_path)
        make_trainer([Checkpoint()], max_steps=2, work_dir="out").train()
        trainer = make_trainer([Checkpoint(), elsewhere()], max_steps=4, val=(1.0,))
        assert trainer.train(resume="out").step == 4
        assert trainer.model.w.item() == -4.0
        monkeypatch.chdir(tmp_path)
        other = make_trainer([Checkpoint(), elsewhere()], val=(1.0,))
        other.evaluate(checkpoint="out")
        assert other.model.w.item() == -2.0
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UsageError, match="no checkpoint at ''"):
            trainer.train(resume="")
