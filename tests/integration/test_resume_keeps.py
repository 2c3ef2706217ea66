"""What a resumed run keeps of the one before it: requests, gradients, rates, best values. Each is compared with an uninterrupted run."""

import json
import shutil

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from trainhooks import CheckpointError, MissingPartError, Trainer, hookimpl
from trainhooks.best import Best
from trainhooks.differences import setting_differences
from trainhooks.position import _counts_batches
from trainhooks_builtins import (
    AMP,
    LR,
    SWA,
    Accumulate,
    Checkpoint,
    Evaluation,
    FindBatchSize,
    MetricsLog,
    Momentum,
    Plateau,
    WeightDecay,
)  # fmt: skip
from trainhooks_builtins._checkpoint_files import is_pinned
from trainhooks_builtins._gradients import restore, saved

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it


class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return (self.w - x).pow(2).mean()


class Calls:
    """Calls a function of the trainer in a hook once ``step`` steps are done; in ``after_step`` the running one counts."""

    def __init__(self, hook, step, call):
        self.hook, self.step, self.call = hook, step, call
        for name in ("after_step", "eval_step"):
            if name != hook:
                vars(self)[name] = None

    @hookimpl
    def after_step(self, trainer):
        if trainer.step + 1 == self.step:
            self.call(trainer)

    @hookimpl(tryfirst=True)
    def eval_step(self, trainer):
        if trainer.step == self.step and self.call is not None:
            call, self.call = self.call, None
            call(trainer)
        return {"loss": torch.zeros(())}


def interrupts(trainer):
    trainer.interrupt(KeyboardInterrupt(), "the test")


def make(folder, *plugins, **arguments):
    """Return a trainer of one number, with 4 batches in an epoch and 2 of an evaluation."""
    model = Scalar()
    batches = [torch.tensor([float(i)]) for i in range(4)]
    return Trainer(
        model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loaders={"train": batches, "val": batches[:2]}, plugins=plugins,
        autoload=False, device="cpu", work_dir=folder, **{"max_epochs": 2} | arguments,
    )  # fmt: skip


def kept(folder):
    return {int(path.name[5:]): is_pinned(path) for path in sorted((folder / "checkpoints").glob("step-*"))}


class TestRequests:
    @pytest.mark.parametrize(
        ("hook", "evaluates", "at"),
        [("after_step", 0, 2), ("after_step", 2, 2), ("eval_step", 2, 2)],
        ids=["no evaluation", "before the evaluation", "in the evaluation"],
    )
    def test_a_checkpoint_that_is_to_be_pinned_is_when_its_step_is_interrupted(self, tmp_path, hook, evaluates, at):
        def plugins():
            more = [Evaluation(every_steps=evaluates)] if evaluates else []
            return [Checkpoint(every_epochs=0, pin_every_steps=2, keep=1), *more]

        make(tmp_path / "whole", *plugins(), max_epochs=1, max_steps=3).train()
        assert kept(tmp_path / "whole") == {2: True, 3: False}
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "run", *plugins(), Calls(hook, at, interrupts), max_epochs=1, max_steps=3).train()
        assert kept(tmp_path / "run") == {2: True}
        make(tmp_path / "run", *plugins(), max_epochs=1, max_steps=3).train(resume="auto")
        assert kept(tmp_path / "run") == {2: True, 3: False}

    def test_a_fork_of_it_pins_the_checkpoint_that_follows_the_owed_evaluation(self, tmp_path):
        def plugins():
            return [Checkpoint(every_epochs=0, keep=1), Evaluation(every_steps=2)]

        asks = Calls("after_step", 2, lambda trainer: trainer.request_checkpoint("pinned"))
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "run", *plugins(), asks, Calls("eval_step", 2, interrupts)).train()
        make(tmp_path / "fork", *plugins()).train(resume=tmp_path / "run")
        assert kept(tmp_path / "fork") == {2: True, 8: False}

    def test_a_failed_evaluation_does_not_cost_the_pin(self, tmp_path):
        def fails(trainer):
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            make(
                tmp_path, Checkpoint(every_epochs=0, pin_every_steps=2), Evaluation(every_steps=2), Calls("eval_step", 2, fails)
            ).train()
        assert kept(tmp_path) == {2: True}

    @pytest.mark.parametrize("every_steps", [0, 1])
    def test_a_stop_at_the_end_of_the_epoch_outlives_an_interruption(self, tmp_path, every_steps):
        def plugins():
            return [
                Checkpoint(every_steps=every_steps),
                Calls("after_step", 2, lambda trainer: trainer.stop("enough", at="epoch")),
            ]

        whole = make(tmp_path / "whole", *plugins()).train()
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "run", *plugins(), Calls("after_step", 3, interrupts)).train()
        resumed = make(tmp_path / "run", *plugins()).train(resume="auto")
        assert (whole.status, whole.reason, whole.step) == ("stopped", "enough", 4)
        assert resumed == whole
        assert make(tmp_path / "run", *plugins()).train(resume="auto").step == 8  # it ended by it, and is trained further

    def test_a_stop_that_was_asked_for_in_the_last_step_ends_a_run_that_was_killed_before_the_epoch_was_closed(self, tmp_path):
        asks = Calls("after_step", 4, lambda trainer: trainer.stop("enough", at="epoch"))
        make(tmp_path, Checkpoint(every_steps=1, at_end=False, keep=0), asks).train()
        saves = Checkpoint(every_steps=1, at_end=False)
        assert make(tmp_path, saves).train(resume="auto").step == 8
        assert kept(tmp_path) == {7: False, 8: False}

    def test_another_stop_within_the_epoch_leaves_it_to_come(self, tmp_path):
        asks = Calls("after_step", 2, lambda trainer: trainer.stop("enough", at="epoch"))
        make(tmp_path, Checkpoint(), asks, Calls("after_step", 3, lambda trainer: trainer.stop("time is up"))).train()
        resumed = make(tmp_path, Checkpoint()).train(resume="auto")
        assert (resumed.reason, resumed.step) == ("enough", 4)

    def test_one_at_the_end_of_the_epoch_that_ends_it_is_not_left_for_the_next(self, tmp_path):
        asks = Calls("after_step", 2, lambda trainer: trainer.stop("enough", at="epoch"))
        make(tmp_path, Checkpoint(), asks, Calls("after_step", 4, lambda trainer: trainer.stop("time is up"))).train()
        assert make(tmp_path, Checkpoint(), max_epochs=3).train(resume="auto").step == 12


class Two(nn.Module):
    """Two layers of the same shape, so that nothing tells them apart but their names."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x))).pow(2).mean()


class Unfreezes:
    """Gives the second layer to the optimizer before step 4, in the middle of a window of 3."""

    @hookimpl
    def before_step(self, trainer):
        if trainer.step == 4 and len(trainer.optimizer.param_groups) == 1:
            trainer.optimizer.add_param_group({"params": list(trainer.model.b.parameters()), "lr": 0.2})


def train_two(folder, plugins, *, swap=False, resume=None, both=True):
    """Train 8 steps and return the weights, the rates and the momenta by the names of the layers."""
    torch.manual_seed(0)
    model = Two()
    groups = [{"params": model.a.parameters(), "lr": 0.1}, {"params": model.b.parameters(), "lr": 0.01}]
    groups = groups if both else groups[:1]
    batches = [torch.linspace(-1, 1 + i, 12).view(4, 3) for i in range(7)]
    trainer = Trainer(
        model, optimizer=torch.optim.SGD(groups[::-1] if swap else groups, momentum=0.9), loaders={"train": batches},
        plugins=[*plugins, Checkpoint(every_steps=1, keep=0)], autoload=False, device="cpu", work_dir=folder, max_steps=8,
    )  # fmt: skip
    trainer.train(resume=resume)
    owner = {id(one): name for name, one in model.named_parameters()}
    rates = {owner[id(group["params"][0])]: group["lr"] for group in trainer.optimizer.param_groups}
    moments = {owner[id(one)]: state["momentum_buffer"] for one, state in trainer.optimizer.state.items()}
    return {"weights": dict(model.state_dict()), "rates": rates, "moments": moments}


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def made(name, options):
    def make_scheduler(optimizer):
        return getattr(torch.optim.lr_scheduler, name)(optimizer, **options)

    return make_scheduler


def in_sequence(optimizer):
    schedulers = torch.optim.lr_scheduler
    parts = [schedulers.LambdaLR(optimizer, lambda epoch: 0.9**epoch), schedulers.PolynomialLR(optimizer, 9)]
    return schedulers.SequentialLR(optimizer, parts, [6])


class TestGroupsInAnotherOrder:
    @pytest.mark.parametrize("swap", [False, True], ids=["same order", "other order"])
    @pytest.mark.parametrize(
        "plugins",
        [
            lambda: [Accumulate(3)],
            lambda: [LR(torch_scheduler=made("LambdaLR", {"lr_lambda": lambda epoch: 0.9**epoch}))],
            lambda: [LR(torch_scheduler=made("ExponentialLR", {"gamma": 0.9}))],
            lambda: [LR(torch_scheduler=made("CyclicLR", {"base_lr": [0.1, 0.01], "max_lr": [0.5, 0.05], "step_size_up": 3}))],
            lambda: [LR(torch_scheduler=in_sequence)],
            lambda: [SWA(start_epoch=0, lr=0.5, anneal_epochs=5)],
        ],
        ids=["accumulate", "LambdaLR", "ExponentialLR", "CyclicLR", "SequentialLR", "swa"],
    )
    def test_gradients_and_rates_stay_with_their_parameters(self, tmp_path, plugins, swap):
        whole = train_two(tmp_path / "whole", plugins())
        for step in (4, 5):
            resume = tmp_path / f"whole/checkpoints/step-{step:08d}"
            assert same(train_two(tmp_path / f"from {step}", plugins(), swap=swap, resume=resume), whole)

    def test_gradients_of_an_older_checkpoint_are_found_by_their_places(self):
        model = Two()
        optimizers = {"optimizer": torch.optim.SGD([{"params": [one]} for one in model.parameters()])}
        gradients = {f"optimizer/{i}/0": torch.full_like(one, i) for i, one in enumerate(model.parameters())}
        assert restore(optimizers, model, gradients)
        assert [one.grad.flatten()[0].item() for one in model.parameters()] == [0, 1, 2, 3]

    def test_a_parameter_that_the_model_does_not_have_is_known_by_its_place(self):
        model, other = Two(), nn.Parameter(torch.zeros(2))
        optimizers = {"first": torch.optim.SGD([*model.a.parameters(), other])}
        other.grad = torch.ones(2)
        model.a.bias.grad = torch.ones(3)
        gradients = saved(optimizers, model)
        assert sorted(gradients) == ["a.bias", "first/0/2"]
        other.grad = model.a.bias.grad = None
        assert restore(optimizers, model, gradients)
        assert other.grad.tolist() == [1, 1]

    @pytest.mark.parametrize("plugins", [lambda: [Accumulate(3)], lambda: [SWA(start_epoch=0, lr=0.5)]], ids=["acc", "swa"])
    def test_a_group_that_joins_within_a_window_begins_there(self, tmp_path, plugins):
        def run(folder, **resume):
            return train_two(folder, [*plugins(), Unfreezes()], both=False, **resume)

        whole = run(tmp_path / "whole")
        for step in range(1, 8):
            assert same(run(tmp_path / f"from {step}", resume=tmp_path / f"whole/checkpoints/step-{step:08d}"), whole), step


class Numbers(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.tensor(float(index))


class Counted(IterableDataset):
    """Gives the numbers; with ``own`` it keeps its place itself, in samples."""

    def __init__(self, own=False):
        self.at = 0
        if own:
            self.state_dict = lambda: {"at": self.at}
            self.load_state_dict = lambda state: setattr(self, "at", state["at"])

    def __iter__(self):
        while self.at < 12:
            self.at += 1
            yield torch.tensor(float(self.at - 1))
        self.at = 0


class Seen:
    def __init__(self):
        self.batches = []

    @hookimpl
    def after_step(self, batch):
        self.batches.append([int(x) for x in batch])


def batches_of(folder, loader, **resume):
    seen = Seen()
    trainer = make(folder, seen, Checkpoint(every_steps=1, keep=0), max_epochs=1)
    trainer.loaders["train"] = loader
    trainer.train(**resume)
    return seen.batches


def own_batches(size):
    return DataLoader(Numbers(), batch_sampler=BatchSampler(SequentialSampler(range(12)), size, drop_last=False))


def kept_by_torchdata(size):
    return StatefulDataLoader(Counted(own=True), size)


def counted_by_torchdata(size):
    return StatefulDataLoader(Counted(), size)


def sampled_by_torchdata(size):
    return StatefulDataLoader(Numbers(), size)


def batched_for_torchdata(size):
    return StatefulDataLoader(Numbers(), batch_sampler=BatchSampler(SequentialSampler(range(12)), size, drop_last=False))


class TestAnotherBatchSize:
    def test_of_a_batch_sampler(self, tmp_path, caplog):
        assert batches_of(tmp_path, own_batches(4))[:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        with caplog.at_level("WARNING", "trainhooks"):
            after = batches_of(tmp_path, own_batches(3), resume=tmp_path / "checkpoints/step-00000002")
        assert after == [[6, 7, 8], [9, 10, 11]]  # 8 samples are 2 batches of 3, and 2 samples more
        assert "batch_size saved 4, given 3, using 3" in caplog.text
        assert "the loader now has batches of 3: 2 of its samples are trained twice" in caplog.text

    def test_what_an_older_checkpoint_did_not_know_is_no_difference(self, tmp_path):
        trainer = make(tmp_path, Checkpoint())
        trainer.loaders["train"] = own_batches(4)
        settings = trainer.given_settings()
        assert settings["batch_size"] == 4
        assert setting_differences(trainer, {"settings": {**settings, "batch_size": None}}) == []

    @pytest.mark.parametrize("before", [4, 2])
    @pytest.mark.parametrize("loader", [kept_by_torchdata, sampled_by_torchdata])
    def test_of_a_loader_whose_state_counts_samples(self, tmp_path, caplog, loader, before):
        done = batches_of(tmp_path, loader(before))[:2]
        with caplog.at_level("WARNING", "trainhooks"):
            after = batches_of(tmp_path, loader(3), resume=tmp_path / "checkpoints/step-00000002")
        assert sum(done + after, []) == list(range(12))
        assert (
            f"2 batches of {before} into an epoch, the loader now has batches of 3: it goes on where its own state says"
            in caplog.text
        )
        assert "twice" not in caplog.text

    @pytest.mark.parametrize("loader", [counted_by_torchdata, batched_for_torchdata])
    def test_of_a_loader_whose_state_counts_batches_is_refused(self, tmp_path, loader):
        batches_of(tmp_path, loader(4))
        resume = tmp_path / "checkpoints/step-00000002"
        with pytest.raises(CheckpointError, match="2 batches of 4 into an epoch, .* with batches of 2 .* give batch_size=4"):
            batches_of(tmp_path, loader(2), resume=resume)
        assert batches_of(tmp_path, loader(4), resume=resume) == [[8, 9, 10, 11]]

    @pytest.mark.parametrize(
        ("dataset", "iterator", "sampler", "counts"),
        [
            ({"at": 2}, None, None, False),
            (None, {"at": 2}, None, False),
            (None, None, {"samples_yielded": 4}, True),
        ],
    )
    def test_with_workers_over_an_iterable(self, dataset, iterator, sampler, counts):
        fetcher = {"fetcher_ended": False, "dataset_iter_state": iterator}
        workers = {f"worker_{i}": {"worker_id": i, "dataset_state": dataset, "fetcher_state": fetcher} for i in range(2)}
        main = {"_sampler_iter_state": sampler, "_index_sampler_state": None, "_sampler_iter_yielded": 2}
        snapshot = {"_snapshot": {"_main_snapshot": main, "_worker_snapshots": workers}, "_steps_since_snapshot": 0}
        assert _counts_batches(snapshot) == counts
        assert _counts_batches(snapshot | {"_steps_since_snapshot": 1})

    def test_the_state_of_somebody_elses_loader_is_not_judged(self):
        assert not _counts_batches({"at": 2})
        assert not _counts_batches(7)


class TestWorkersOutOfOrder:
    @pytest.mark.parametrize(("in_order", "folder"), [(False, "run"), (True, "run"), (False, None)])
    def test_it_is_said_once_where_checkpoints_are_written(self, tmp_path, caplog, in_order, folder):
        trainer = make(tmp_path / folder if folder else None, Checkpoint())
        trainer.loaders["train"] = DataLoader(Numbers(), 4, num_workers=1, in_order=in_order)
        with caplog.at_level("WARNING", "trainhooks"):
            trainer.train()
        said = caplog.text.count("the train loader gives batches as they are ready (in_order=False)")
        assert said == (not in_order and folder is not None)


class Measures:
    """Gives the values of an evaluation by the step."""

    def __init__(self, values):
        self.values = values

    @hookimpl
    def eval_step(self, trainer):
        return {name: torch.tensor(float(values[trainer.step])) for name, values in self.values.items()}


class TestAnotherMetric:
    VALUES = {"m": {2: 0.5, 4: 0.4, 6: 0.3, 8: 0.2}, "err": {2: 98, 4: 96, 6: 94, 8: 92}}  # noqa: RUF012

    @pytest.mark.parametrize(("monitor", "mode"), [("val/err", "auto"), ("val/m", "max")])
    def test_plateau_begins_anew(self, tmp_path, caplog, monitor, mode):
        """The first value is the best, whatever that of the other metric was: 0.4, or 0.01 * 98 would never be beaten."""

        def plateau(monitor, mode):
            return Plateau(monitor, mode=mode, patience=0, factor=0.5)

        evaluation = Evaluation(every_steps=2)
        make(tmp_path, plateau("val/m", "auto"), evaluation, Measures(self.VALUES), Checkpoint(), max_steps=4).train()
        caplog.clear()
        one = plateau(monitor, mode)
        trainer = make(tmp_path, one, Evaluation(every_steps=2), Measures(self.VALUES), Checkpoint(), max_steps=8)
        with caplog.at_level("WARNING", "trainhooks"):
            trainer.train(resume="auto")
        assert "plateau: starting anew, the checkpoint watched val/m (min)" in caplog.text
        better = mode == "auto"  # 94 and 92 for err; 0.3 for m, and 0.2 is worse as mode is max
        assert one.best == pytest.approx(92 if better else 0.3)
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 if better else 0.05)

    def test_plateau_goes_on_with_the_same(self, tmp_path):
        one = Plateau("val/m", patience=3)
        one.load_state_dict({"best": 0.5, "bad": 1, "cooling": 0})  # of a checkpoint that does not say what was watched
        assert (one.best, one.bad) == (0.5, 1)
        other = Plateau("val/m", patience=3)
        other.load_state_dict(one.state_dict())
        assert (other.best, other.bad) == (0.5, 1)

    def test_the_best_of_another_direction_begins_anew(self, caplog):
        lowest, highest = Best("val/m", "min"), Best("val/m", "max")
        lowest.update(0.7, 6)
        with caplog.at_level("WARNING", "trainhooks"):
            highest.load_state_dict(lowest.state_dict())
        assert highest.value is None
        assert "the best val/m (max) begins anew, the checkpoint has that of val/m (min)" in caplog.text
        again = Best("val/m", "min")
        again.load_state_dict({"metric": "val/m", "value": 0.7, "step": 6})
        assert (again.value, again.step) == (0.7, 6)


class TestAFolderOfItsOwn:
    def test_a_complete_run_leaves_its_checkpoint_there(self, tmp_path):
        make(tmp_path / "run", Checkpoint()).train()
        make(tmp_path / "fork", Checkpoint()).train(resume=tmp_path / "run")
        assert kept(tmp_path / "fork") == {8: False}
        assert make(tmp_path / "fork", Checkpoint(), max_epochs=3).train(resume="auto").step == 12
        assert kept(tmp_path / "run") == {4: False, 8: False}

    def test_the_best_is_that_of_what_it_has(self, tmp_path):
        """0.9 at step 4 is the best of the other run; here it is 0.8, and then nothing is better."""
        values = {"accuracy": {2: 0.5, 4: 0.9, 6: 0.8, 8: 0.7}}

        def plugins():
            return [
                Evaluation(every_steps=2),
                Measures(values),
                Checkpoint(every_epochs=0, best="val/accuracy", keep=1, at_end=False),
            ]

        make(tmp_path / "run", *plugins()).train()
        assert kept(tmp_path / "run") == {4: False}
        fork = make(tmp_path / "fork", *plugins())
        fork.train(resume=tmp_path / "run")
        assert kept(tmp_path / "fork") == {6: False}
        assert fork.plugins["checkpoint"].best.value == pytest.approx(0.8)
        make(tmp_path / "run", *plugins()).train(resume="auto")
        assert kept(tmp_path / "run") == {4: False}

    def test_one_that_was_removed_meanwhile_is_not_counted_on(self, tmp_path):
        make(tmp_path, Checkpoint(keep=0)).train()
        path = shutil.move(tmp_path / "checkpoints/step-00000008", tmp_path / "checkpoints/away")
        make(tmp_path, Checkpoint()).train(resume=path)
        assert kept(tmp_path) == {4: False, 8: False}

    def test_behind_a_link(self, tmp_path):
        (tmp_path / "disk").mkdir()
        (tmp_path / "run").mkdir()
        (tmp_path / "run/checkpoints").symlink_to(tmp_path / "disk")
        make(tmp_path / "run", Checkpoint()).train()
        saves = Saves()
        make(tmp_path / "run", Checkpoint(), saves).train(resume="auto")
        assert saves.kinds == []


class Saves:
    def __init__(self):
        self.kinds = []

    @hookimpl
    def after_save(self, kind):
        self.kinds.append(kind)


def test_updates_that_were_skipped_since_the_last_flush_are_counted_on(tmp_path):
    """The second of 8 is: at step 8, where all are logged, the count is 1 and the scale was halved once."""

    class Infinite:
        @hookimpl(wrapper=True)
        def compute_loss(self, trainer):
            loss = yield
            return loss * float("inf") if trainer.step == 1 else loss

    def logged(folder, *more, **resume):
        plugins = [AMP("float16", init_scale=8.0), Infinite(), MetricsLog(), Checkpoint(every_steps=4), *more]
        make(folder, *plugins, max_epochs=None, max_steps=8, steps_per_epoch=8, log_every_steps=8).train(**resume)
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        return [(row["step"], row["amp/skipped"], row["amp/scale"]) for row in rows if "amp/skipped" in row]

    whole = logged(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        logged(tmp_path / "run", Calls("after_step", 3, interrupts))
    assert logged(tmp_path / "run", resume="auto") == whole
    assert sum(skipped for _, skipped, _ in whole) == 1
    assert whole[-1][2] == 4.0


def one_cycle(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=8)


class TestTheSameScript:
    @pytest.mark.parametrize(
        "plugins",
        [
            lambda: [Momentum("linear", end=0.5)],
            lambda: [Momentum("linear", base=0.8, end=0.5)],
            lambda: [WeightDecay("linear", base=0.1)],
            lambda: [WeightDecay("linear")],
            lambda: [LR("linear", base=0.3)],
            lambda: [LR(torch_scheduler=one_cycle)],
            lambda: [SWA(start_epoch=0, lr=0.5, anneal_epochs=0)],
            lambda: [Evaluation(every_steps=1), Plateau(patience=0, min_delta=9.0, min_lr=0.05)],
            lambda: [Evaluation(every_steps=1), Plateau(patience=0, min_delta=9.0, factor=0.5), SWA(start_epoch=1, lr=0.5)],
        ],
        ids=["momentum", "base momentum", "base decay", "decay", "base lr", "OneCycleLR", "swa", "plateau", "plateau, swa"],
    )
    @pytest.mark.parametrize("kind", ["SGD", "Adam"])
    def test_no_difference_is_said(self, tmp_path, caplog, plugins, kind):
        def run(**resume):
            trainer = make(tmp_path, *plugins(), Checkpoint(every_steps=1, keep=0))
            parameters, more = trainer.model.parameters(), {"weight_decay": 0.01}
            more |= {"momentum": 0.9} if kind == "SGD" else {}
            trainer.take_optimizer(getattr(torch.optim, kind)(parameters, lr=0.1, **more))
            with caplog.at_level("WARNING", "trainhooks"):
                trainer.train(**resume)

        run()
        for step in (3, 6):
            run(resume=tmp_path / f"checkpoints/step-{step:08d}")
        assert "resumed with other settings" not in caplog.text

    def test_a_difference_still_is(self, tmp_path, caplog):
        first = make(tmp_path, Momentum("linear", end=0.5), LR("linear"), Checkpoint())
        first.take_optimizer(torch.optim.Adam(first.model.parameters(), lr=0.1))
        first.train()
        trainer = make(tmp_path, Momentum("linear", end=0.5), LR("linear"), Checkpoint(), max_epochs=3)
        trainer.take_optimizer(torch.optim.Adam(trainer.model.parameters(), lr=0.2, betas=(0.8, 0.99)))
        with caplog.at_level("WARNING", "trainhooks"):
            trainer.train(resume="auto")
        assert "lr saved 0.1, given 0.2, using 0.1" in caplog.text
        assert "betas saved (0.9, 0.999), given (0.8, 0.99), using (0.9, 0.999)" in caplog.text

    def test_a_momentum_that_torchs_scheduler_leaves_alone_is_compared(self, tmp_path, caplog):
        for momentum, arguments in ((0.9, {}), (0.8, {"max_epochs": 3})):
            trainer = make(tmp_path, LR(torch_scheduler=made("ExponentialLR", {"gamma": 0.9})), Checkpoint(), **arguments)
            trainer.take_optimizer(torch.optim.SGD(trainer.model.parameters(), lr=0.1, momentum=momentum))
            with caplog.at_level("WARNING", "trainhooks"):
                trainer.train(resume="auto")
        assert "momentum saved 0.9, given 0.8, using 0.9" in caplog.text

    def test_a_batch_size_that_was_found(self, tmp_path, caplog):
        def run(finds, **resume):
            trainer = make(tmp_path, *finds, Checkpoint())
            trainer.loaders["train"] = DataLoader(Numbers(), 2)
            with caplog.at_level("WARNING", "trainhooks"):
                trainer.train(**resume)

        run([FindBatchSize(max_size=4, margin=0.0)])
        run([FindBatchSize(max_size=4, margin=0.0)], resume="auto")
        assert "batch_size saved" not in caplog.text
        run([], resume="auto")
        assert "batch_size saved 4, given 2, using 2" in caplog.text


class TestOwedEvaluations:
    @pytest.mark.parametrize(
        ("plugins", "val", "why"),
        [
            (list, True, "the plugin 'evaluation' was taken out"),
            (list, False, "the plugin 'evaluation' was taken out"),
            (lambda: [Evaluation()], False, "it has no loader any more"),
        ],
    )
    def test_one_is_given_up(self, tmp_path, caplog, plugins, val, why):
        def fails(trainer):
            raise ValueError("a mistake in the metric")

        with pytest.raises(ValueError, match="a mistake"):
            make(tmp_path, Evaluation(every_steps=2), Checkpoint(), Calls("eval_step", 2, fails)).train()
        trainer = make(tmp_path, *plugins(), Checkpoint())
        if not val:
            del trainer.loaders["val"]
        with caplog.at_level("WARNING", "trainhooks"):
            assert trainer.train(resume="auto").step == 8
        assert f"the evaluation of 'val' that the checkpoint owes is given up: {why}" in caplog.text
        caplog.clear()
        make(tmp_path, *plugins(), Checkpoint(), max_epochs=3).train(resume="auto")
        assert "given up" not in caplog.text

    def test_one_that_is_asked_for_again_is_not(self, tmp_path):
        class Asks:
            @hookimpl
            def before_train(self, trainer):
                trainer.request_eval("val")

        def fails(trainer):
            raise ValueError("a mistake in the metric")

        with pytest.raises(ValueError, match="a mistake"):
            make(tmp_path, Evaluation(every_steps=2), Checkpoint(), Calls("eval_step", 2, fails)).train()
        trainer = make(tmp_path, Asks(), Checkpoint())
        del trainer.loaders["val"]
        with pytest.raises(MissingPartError, match="no loader for split 'val'"):
            trainer.train(resume="auto")
