"""A checkpoint does not depend on which parts of the model are compiled, when it is saved or when it is read."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from trainhooks import Trainer
from trainhooks.cli import main
from trainhooks.compiled import plain_name
from trainhooks_builtins import EMA, SWA, Checkpoint, EarlyStopping, Evaluation, Freeze


def plain():
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def whole():
    return torch.compile(plain(), backend="eager")


def part():
    model = plain()
    model[0], model[1] = torch.compile(model[0], backend="eager"), torch.compile(model[1], backend="eager")
    return model


MODELS = {"plain": plain, "whole": whole, "part": part}
PLUGINS = {
    "swa": lambda: [SWA(start=0.0, every_updates=1, apply_at_end=True)],
    "others": lambda: [EMA(decay=0.5), Freeze(parameters=("0.*",)), EarlyStopping(patience=9, restore_best=True)],
}


def train(folder, model, max_steps, plugins, resume=None):
    torch.manual_seed(0 if resume is None else 1)
    model = MODELS[model]()
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(16, 2), torch.randn(16, 1))
    trainer = Trainer(
        model,
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        loaders={split: torch.utils.data.DataLoader(data, 4) for split in ("train", "val")},
        plugins=[Checkpoint(every_steps=1), Evaluation(every_steps=1), *PLUGINS[plugins]()],
        autoload=False,
        device="cpu",
        work_dir=folder,
        max_steps=max_steps,
    )
    trainer.train(resume=resume)
    return {plain_name(name): value for name, value in model.state_dict().items()}


@pytest.mark.filterwarnings("ignore")  # torch's own, about what its compiler meets
@pytest.mark.parametrize("plugins", PLUGINS)
@pytest.mark.parametrize(("before", "after"), [("plain", "whole"), ("whole", "part"), ("part", "plain")])
def test_resumed_with_other_parts_compiled(tmp_path, before, after, plugins):
    wanted = train(tmp_path / "whole", "plain", 6, plugins)
    train(tmp_path / "parts", before, 3, plugins)
    found = train(tmp_path / "parts", after, 6, plugins, resume="auto")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", ["whole", "part"])
def test_exported_by_the_names_without(tmp_path, model):
    train(tmp_path / "run", model, 2, "others")
    for words in ([], ["--ema"]):
        with pytest.raises(SystemExit) as end:
            main(
                ["checkpoints", "export", str(tmp_path / "run"), "-o", str(tmp_path / "weights.safetensors"), "--force", *words]
            )
        assert not end.value.code
        plain().load_state_dict(load_file(tmp_path / "weights.safetensors"))


@pytest.mark.filterwarnings("ignore")
def test_an_average_in_hand_has_the_models_own_names(tmp_path):
    for name, model in (("whole", whole()), ("part", part())):
        ema = EMA(decay=0.5)
        data = [(torch.randn(4, 2), torch.randn(4, 1))] * 3
        trainer = Trainer(
            model, loss=nn.functional.mse_loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loaders={"train": data}, plugins=[ema], autoload=False, device="cpu", work_dir=tmp_path / name, max_steps=3,
        )  # fmt: skip
        trainer.train()
        assert model.load_state_dict(ema.average, strict=False).unexpected_keys == []
