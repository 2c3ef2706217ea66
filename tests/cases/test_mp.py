"""MP: several processes. Here what one process can show: the samplers of all ranks, one after the other."""

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from trainhooks import hookimpl
from trainhooks_builtins import Checkpoint, Sampler


class Order:
    def __init__(self):
        self.seen = []

    @hookimpl
    def before_step(self, batch):
        self.seen.append(int(batch[0]))


class TestMP05:
    """set_epoch forgotten: 2 ranks, shuffle, 3 epochs of 4 batches; torch's permutation of an epoch is that of 5 + epoch."""

    ORDERS = [torch.randperm(8, generator=torch.Generator().manual_seed(5 + epoch)).tolist() for epoch in range(3)]

    def order(self, make_trainer, rank, batched, *, plugins, resume=None, **arguments):
        order = Order()
        trainer = make_trainer([order, *plugins], device="cpu", **{"max_epochs": 3, **arguments})
        dataset = TensorDataset(torch.arange(8, dtype=torch.float64))
        sampler = DistributedSampler(dataset, num_replicas=2, rank=rank, shuffle=True, seed=5)
        how = {"batch_sampler": BatchSampler(sampler, 1, drop_last=False)} if batched else {"sampler": sampler}
        trainer.loaders["train"] = DataLoader(dataset, collate_fn=lambda samples: samples[0][0].reshape(1), **how)
        trainer.train(resume=resume)
        return order.seen

    @pytest.mark.parametrize("batched", [False, True])
    def test_mp_05_orders(self, make_trainer, batched):
        seen = [self.order(make_trainer, rank, batched, plugins=[Sampler()]) for rank in range(2)]
        for epoch, expected in enumerate(self.ORDERS):
            part = slice(4 * epoch, 4 * epoch + 4)
            assert [order[part] for order in seen] == [expected[0::2], expected[1::2]]
            assert {sample for order in seen for sample in order[part]} == set(range(8))
        assert len({tuple(order) for order in self.ORDERS}) == 3

    @pytest.mark.parametrize("cut", [4, 6, 8, 11])
    def test_mp_05_resumed(self, make_trainer, tmp_path, cut):
        settings = {"work_dir": tmp_path / "run"}
        first = self.order(make_trainer, 1, False, plugins=[Sampler(), Checkpoint()], max_steps=cut, **settings)
        rest = self.order(make_trainer, 1, False, plugins=[Sampler(), Checkpoint()], resume="auto", **settings)
        assert first + rest == [sample for order in self.ORDERS for sample in order[1::2]]

    def test_mp_05_without_the_plugin(self, make_trainer):
        """What the plugin is for: torch gives the same order in every epoch."""
        seen = self.order(make_trainer, 0, False, plugins=[])
        assert seen == self.ORDERS[0][0::2] * 3

    def test_mp_05_custom_sampler(self, make_trainer):
        class Custom:
            def __init__(self):
                self.epochs = []

            def set_epoch(self, epoch):
                self.epochs.append(epoch)

            def __len__(self):
                return 4

            def __iter__(self):
                return iter(range(4))

        sampler = Custom()
        trainer = make_trainer([Sampler()], device="cpu", max_epochs=3)
        dataset = TensorDataset(torch.arange(4, dtype=torch.float64))
        trainer.loaders["train"] = DataLoader(dataset, sampler=sampler)
        trainer.train()
        assert sampler.epochs == [0, 1, 2]
