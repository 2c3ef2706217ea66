"""``cutmix`` with boxes worked out by hand."""

import pytest
import torch
from torch import nn

from trainhooks import Trainer, UsageError, hookimpl
from trainhooks_builtins import Cutmix, Mixup, _mixing
from trainhooks_builtins.cutmix import clipped


@pytest.fixture
def fixed(monkeypatch):
    """Return a function that fixes the share, the centre (row, column), and the pairs to the batch in reverse."""

    def fix(share, *centre):
        draws = list(centre)
        monkeypatch.setattr(_mixing, "draw_share", lambda alpha: share)
        monkeypatch.setattr(torch, "randperm", lambda n, device=None: torch.arange(n - 1, -1, -1))
        monkeypatch.setattr(torch, "randint", lambda high, size: torch.tensor(draws.pop(0)))

    return fix


class Sums(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(()))

    def forward(self, x, *others):
        return self.w * x.flatten(1).sum(1)


def train(plugins, batch, loss=nn.functional.l1_loss):
    seen = {}

    class Watch:
        @hookimpl
        def after_step(self, batch, output):
            seen.update(batch=batch, loss=output["loss"].item())

    model = Sums()
    Trainer(
        model,
        loss=loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        loaders={"train": [batch]},
        plugins=[*plugins, Watch()],
        max_epochs=1,
        autoload=False,
        device="cpu",
    ).train()
    return seen


def images(height, width):
    """Two images, one of zeros and one of ones."""
    return torch.stack([torch.zeros(1, height, width), torch.ones(1, height, width)])


def test_a_box_in_the_middle(fixed):
    """lam 0.75 of 4 x 4: half of each side, so 2 x 2 of 16; centred at (2, 2) it is rows and columns 1 and 2."""
    fixed(0.75, 2, 2)
    x = images(4, 4)
    seen = train([Cutmix(probability=1.0)], (x, torch.tensor([0.0, 16.0])))
    box = torch.zeros(4, 4)
    box[1:3, 1:3] = 1
    assert torch.equal(seen["batch"][0][0, 0], box)
    assert torch.equal(seen["batch"][0][1, 0], 1 - box)
    # Sums are 4 and 12: |4 - 0| and |12 - 16| for the own targets, |4 - 16| and |12 - 0| for the others; lam' = 12/16.
    assert seen["loss"] == 0.75 * 4 + 0.25 * 12
    assert torch.equal(x, images(4, 4))  # the loader's tensor is left alone


def test_a_box_at_the_corner_is_clipped_and_the_share_follows(fixed):
    """Centred at (0, 3): rows 0, columns 2 and 3; 2 of 16 are cut, so lam' is 14/16 and not 0.75."""
    fixed(0.75, 0, 3)
    seen = train([Cutmix(probability=1.0)], (images(4, 4), torch.tensor([0.0, 16.0])))
    box = torch.zeros(4, 4)
    box[0:1, 2:4] = 1
    assert torch.equal(seen["batch"][0][0, 0], box)
    assert seen["loss"] == 14 / 16 * 2 + 2 / 16 * 14


def test_height_and_width_have_their_own_sides(fixed):
    fixed(0.75, 1, 4)
    seen = train([Cutmix(probability=1.0)], (images(2, 8), torch.tensor([0.0, 16.0])))
    box = torch.zeros(2, 8)
    box[1:2, 2:6] = 1
    assert torch.equal(seen["batch"][0][0, 0], box)


@pytest.mark.parametrize(("share", "area"), [(1.0, 0), (0.0, 9)])
def test_all_or_nothing(fixed, share, area):
    fixed(share, 1, 1)
    seen = train([Cutmix(probability=1.0)], (images(3, 3), torch.tensor([0.0, 9.0])))
    assert seen["batch"][0][0].sum().item() == area
    assert seen["loss"] == 0  # all of it, or nothing: the target goes with it


def test_boxes_stay_within_and_have_the_size_that_the_share_says():
    torch.manual_seed(0)
    for length in (1, 2, 5, 32):
        for share in (0.0, 0.3, 0.75, 0.99, 1.0):
            side = int(length * (1 - share) ** 0.5)
            for _ in range(20):
                box = clipped(length, share)
                assert 0 <= box.start <= box.stop <= length
                assert box.stop - box.start <= side
                if side == length > 1:
                    assert box.stop - box.start >= length // 2


def test_centres_are_uniform():
    torch.manual_seed(0)
    counts = torch.zeros(4)
    for _ in range(4000):
        counts[clipped(4, 1 - 0.0625).start] += 1  # a side of one
    assert (counts / 4000).tolist() == pytest.approx([0.25] * 4, abs=0.03)


def test_with_mixup_the_loss_has_every_pair_with_its_share(fixed, monkeypatch):
    """Inputs and loss are those of one plugin applied to what the other made, whichever comes first."""
    fixed(0.75, 2, 2)
    for plugins in ([Mixup(), Cutmix(probability=1.0)], [Cutmix(probability=1.0), Mixup()]):
        monkeypatch.setattr(torch, "randint", lambda high, size: torch.tensor(2))
        seen = train(plugins, (images(4, 4), torch.tensor([0.0, 16.0])))
        # Cut: sums 4 and 12; mixed with lam 0.75: 6 and 10 (the order does not matter, both are linear).
        assert seen["batch"][0].flatten(1).sum(1).tolist() == [6, 10]
        # The pairs are the same reversal, so the own target has 0.75 * 0.75 + 0.25 * 0.25 of each.
        own, other = (6 + 6) / 2, (10 + 10) / 2
        assert seen["loss"] == pytest.approx(0.625 * own + 0.375 * other)


@pytest.mark.parametrize(
    "batch", [(torch.ones(2, 3), torch.ones(2)), (torch.ones(2, 3, 3), torch.ones(2, 4, 4), torch.ones(2))]
)
def test_it_needs_images(batch):
    with pytest.raises(UsageError, match="cutmix needs images"):
        train([Cutmix(probability=1.0)], batch)
