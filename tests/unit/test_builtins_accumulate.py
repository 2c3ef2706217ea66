"""Accumulation: windows, their means, whatever cuts or interrupts them."""

from fractions import Fraction

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from trainhooks import OptionError, SkipEpoch, SkipStep, Trainer, UsageError, hookimpl
from trainhooks_builtins import AMP, Accumulate, Checkpoint, Clip, Evaluation


class Weights:
    """Records the weight of the toy model after each update."""

    def __init__(self):
        self.seen = []

    @hookimpl
    def after_update(self, trainer):
        self.seen.append(trainer.model.w.item())


class Unsized:
    """A loader without length."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


@pytest.fixture
def updates(make_trainer):
    """Return a function that trains the toy model on values and returns the weight after each update."""

    def run(accumulate, values, *plugins, sized=True, **arguments):
        weights = Weights()
        trainer = make_trainer([accumulate, weights, *plugins], values=values, **arguments)
        if not sized:
            trainer.loaders["train"] = Unsized(trainer.loaders["train"])
        run.trainer = trainer
        run.planned = None
        trainer.train()
        run.planned = trainer.total_updates
        return weights.seen

    return run


def windows_of(values, steps):
    return [values[i : i + steps] for i in range(0, len(values), steps)]


def weights_after(windows):
    """Return the weight after each update by the mean of a window, from 0 with rate 1."""
    weight, seen = Fraction(0), []
    for window in windows:
        weight -= Fraction(sum(window), len(window))
        seen.append(float(weight))
    return seen


class TestWindows:
    def test_updates_with_the_mean_of_each_window(self, updates):
        assert updates(Accumulate(2), [1.0, 3.0, 5.0, 7.0]) == [-2.0, -8.0]

    @pytest.mark.parametrize("sized", [True, False])
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
    @given(values=st.lists(st.integers(-9, 9), min_size=1, max_size=8), steps=st.integers(1, 5), epochs=st.integers(1, 3))
    def test_windows_begin_and_end_with_each_epoch(self, updates, sized, values, steps, epochs):
        seen = updates(Accumulate(steps), values, max_epochs=epochs, sized=sized)
        assert seen == pytest.approx(weights_after(windows_of(values, steps) * epochs), abs=1e-12)
        assert updates.trainer.update == epochs * -(-len(values) // steps)
        if sized:
            assert updates.planned == updates.trainer.update

    def test_drop_forgets_what_is_left_at_the_end_of_an_epoch(self, updates):
        assert updates(Accumulate(3, partial="drop"), [1.0, 2.0, 3.0, 9.0], max_epochs=2) == [-2.0, -4.0]
        assert updates.planned == 2

    @pytest.mark.parametrize(
        ("steps", "said"), [(3, True), ({0: 5, 1: 3}, True), (2, False), ({0: 5, 1: 2}, False), ({1: 5}, False)]
    )
    def test_drop_with_epochs_that_are_shorter_than_any_window_is_said(self, updates, messages, steps, said):
        updates(Accumulate(steps, partial="drop"), [1.0, 2.0], max_epochs=2)
        count = "5" if steps == {1: 5} else "3"
        sentence = f"accumulate: an epoch has 2 steps and an update takes {count}, so with partial = 'drop' there is no update"
        assert (sentence in messages()) == said
        assert bool(updates.trainer.update) != said

    @pytest.mark.parametrize(
        ("steps", "most", "last"),
        [(3, 1, 3), ({0: 1, 2: 3}, 5, 3), ({0: 1, 2: 3}, 4, None), ({0: 5, 1: 2}, 9, None)],  # 2 steps an epoch
    )
    def test_drop_with_updates_that_never_come_is_refused(self, updates, steps, most, last):
        if last is None:
            updates(Accumulate(steps, partial="drop"), [1.0, 2.0], max_updates=most)
            assert updates.trainer.update == most
            return
        sentence = (
            f"accumulate.partial = 'drop': an update takes {last} steps and an epoch has 2, so max_updates = {most} is never "
            "reached; use partial = 'flush' or fewer steps, or give max_epochs"
        )
        with pytest.raises(UsageError) as caught:
            updates(Accumulate(steps, partial="drop"), [1.0, 2.0], max_updates=most)
        assert str(caught.value) == sentence
        assert updates.trainer.step == 0

    @pytest.mark.parametrize("limit", [{"max_epochs": 3}, {"max_steps": 5}])
    def test_but_not_where_another_limit_ends_the_run(self, updates, limit):
        updates(Accumulate(3, partial="drop"), [1.0, 2.0], max_updates=1, **limit)
        assert updates.trainer.update == 0

    def test_the_steps_may_change_from_epoch_to_epoch(self, updates):
        seen = updates(Accumulate({0: 1, 1: 2, 3: 4}), [1.0, 3.0, 5.0, 7.0], max_epochs=4)
        windows = [[1], [3], [5], [7], [1, 3], [5, 7], [1, 3], [5, 7], [1, 3, 5, 7]]
        assert seen == weights_after(windows)
        assert updates.planned == len(windows)

    def test_before_the_first_epoch_of_a_schedule_every_step_is_an_update(self):
        accumulate = Accumulate({2: 4})
        assert [accumulate.steps_in(epoch) for epoch in range(4)] == [1, 1, 4, 4]

    def test_max_steps_ends_with_an_update_of_what_is_there(self, updates):
        assert updates(Accumulate(3), [1.0, 2.0, 3.0, 4.0, 8.0, 9.0], max_steps=5) == [-2.0, -8.0]
        assert updates.planned == 2

    def test_max_steps_with_drop_leaves_it_out(self, updates):
        assert updates(Accumulate(3, partial="drop"), [1.0, 2.0, 3.0, 4.0], max_steps=4) == [-2.0]
        assert updates.planned == 1

    def test_max_updates_counts_updates(self, updates):
        assert updates(Accumulate(3), [1.0, 2.0, 3.0] * 4, max_updates=2) == [-2.0, -4.0]
        assert updates.trainer.step == 6

    def test_intervals_count_updates(self, updates):
        class Every:
            def __init__(self):
                self.steps = []

            @hookimpl
            def after_step(self, trainer):
                if trainer.every_n_updates(2):
                    self.steps.append(trainer.step + 1)

        every = Every()
        updates(Accumulate(2), [1.0] * 7, every)
        assert every.steps == [4, 7]

    def test_one_step_an_update_costs_nothing(self, make_trainer):
        trainer = make_trainer([Accumulate(1, weight="reported")])
        trainer.train()
        assert trainer.update == 10
        assert not any(trainer.manager.has(hook) for hook in ("update_due", "train_step", "backward", "gradients_ready"))
        assert not any(trainer.manager.has(hook) for hook in ("compute_loss", "scale_loss", "after_train_epoch"))


class Dropper:
    """Raises ``SkipStep`` in one hook for batches of one value; in ``backward`` when the work is done, else before."""

    def __init__(self, hook, value):
        def look(batch):
            self.batch = batch.item()
            refuse()

        def refuse():
            if self.batch == value:
                message = "not this one"
                raise SkipStep(message)

        def before(batch):
            look(batch)
            return (yield)

        def before_part():
            refuse()
            return (yield)

        def after_part():
            done = yield
            refuse()
            return done

        def remember(batch):
            self.batch = batch.item()
            return (yield)

        whole = {"prepare_batch": before, "before_step": look}
        parts = {"backward": after_part, "gradients_ready": refuse, "clip_gradients": refuse}
        function = whole.get(hook) or parts.get(hook, before_part)
        setattr(self, hook, hookimpl(function, wrapper=function not in (look, refuse), specname=hook))
        if hook not in whole:
            self.train_step = hookimpl(remember, wrapper=True, specname="train_step")


EARLY = ["prepare_batch", "before_step", "compute_loss", "scale_loss"]


class TestDroppedSteps:
    @pytest.mark.parametrize("hook", EARLY)
    def test_a_step_that_is_dropped_does_not_count(self, updates, hook):
        seen = updates(Accumulate(3), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], Dropper(hook, 2.0))
        assert seen == pytest.approx(weights_after([[1, 3, 4], [5, 6, 7]]), rel=1e-12)

    @pytest.mark.parametrize("hook", EARLY)
    @pytest.mark.parametrize("sized", [True, False])
    def test_the_last_of_an_epoch_leaves_its_window_to_the_end(self, updates, hook, sized):
        seen = updates(Accumulate(4), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], Dropper(hook, 7.0), max_epochs=2, sized=sized)
        assert seen == pytest.approx(weights_after([[1, 2, 3, 4], [5, 6]] * 2), rel=1e-12)

    @pytest.mark.parametrize("hook", EARLY)
    def test_with_drop_it_is_forgotten(self, updates, hook):
        seen = updates(Accumulate(4, partial="drop"), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], Dropper(hook, 7.0), max_epochs=2)
        assert seen == pytest.approx(weights_after([[1, 2, 3, 4]] * 2), rel=1e-12)

    def test_a_step_that_has_touched_the_gradients_takes_its_window_along(self, updates):
        seen = updates(Accumulate(3), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], Dropper("backward", 2.0))
        assert seen == pytest.approx(weights_after([[3, 4, 5], [6, 7]]), rel=1e-12)

    @pytest.mark.parametrize("hook", ["gradients_ready", "clip_gradients"])
    def test_so_does_an_update_that_is_dropped(self, updates, hook):
        seen = updates(Accumulate(3), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], Dropper(hook, 3.0))
        assert seen == pytest.approx(weights_after([[4, 5, 6], [7]]), rel=1e-12)

    def test_an_update_at_the_end_of_an_epoch_can_be_dropped_too(self, updates, messages):
        class Refuse:
            @hookimpl
            def gradients_ready(self, trainer):
                if trainer.epoch == 0:
                    message = "no"
                    raise SkipStep(message)

        seen = updates(Accumulate(4), [1.0, 2.0, 9.0], Dropper("prepare_batch", 9.0), Refuse(), max_epochs=2)
        assert seen == [-1.5]
        assert "accumulate: the update at the end of epoch 0 was dropped: no" in messages()

    def test_an_epoch_that_is_ended_early_closes_its_window(self, updates):
        class Enough:
            @hookimpl
            def before_step(self, batch):
                if batch.item() == 3:
                    message = "enough"
                    raise SkipEpoch(message)

        assert updates(Accumulate(4), [1.0, 2.0, 3.0], Enough(), max_epochs=2) == [-1.5, -3.0]

    def test_an_exception_within_a_step_ends_the_window(self, updates):
        class Once:
            raised = False

            @hookimpl(wrapper=True)
            def backward(self, trainer):
                done = yield
                if trainer.step == 2 and not self.raised:
                    self.raised = True
                    message = "broken"
                    raise RuntimeError(message)
                return done

        with pytest.raises(RuntimeError, match="broken"):
            updates(Accumulate(2), [1.0, 2.0, 4.0, 6.0], Once())
        trainer = updates.trainer  # weight -1.5; the third batch failed with its gradient added
        assert trainer.step == 2
        trainer.train()
        assert trainer.model.w.item() == -6.5


class StopAt:
    def __init__(self, step):
        self.step = step

    @hookimpl
    def after_step(self, trainer):
        if trainer.step + 1 == self.step:
            trainer.stop("test")


class Net(nn.Module):
    """An embedding with sparse gradients and a linear layer, so that both kinds are there; one parameter is never used."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3, sparse=True)
        self.linear = nn.Linear(3, 1)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, tokens):
        return self.linear(self.embedding(tokens).mean(1)).square().mean()


def net_trainer(plugins, **arguments):
    torch.manual_seed(3)
    model = Net()
    optimizers = {
        "sparse": torch.optim.SparseAdam(model.embedding.parameters(), lr=0.1),
        "dense": torch.optim.Adam([*model.linear.parameters(), model.unused], lr=0.1),
    }
    torch.manual_seed(4)
    batches = [torch.randint(0, 5, (2, 4)) for _ in range(10)]
    arguments.setdefault("max_epochs", 2)
    return Trainer(model, optimizer=optimizers, loaders={"train": batches}, plugins=plugins, autoload=False, **arguments)


def same(one, other):
    return all(
        torch.equal(a, b) for a, b in zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    )


class TestStopAndResume:
    @pytest.mark.parametrize("partial", ["flush", "drop"])
    @pytest.mark.parametrize("step", [1, 4, 6, 9, 10, 13])
    def test_a_run_that_was_stopped_within_a_window_goes_on_as_if_it_had_not_been(self, tmp_path, step, partial):
        whole = net_trainer([Accumulate(4, partial)])
        whole.train()
        first = net_trainer([Accumulate(4, partial), Checkpoint(), StopAt(step)], work_dir=tmp_path)
        assert first.train().status == "stopped"
        second = net_trainer([Accumulate(4, partial), Checkpoint()], work_dir=tmp_path)
        second.train(resume="auto")
        assert (second.step, second.update) == (whole.step, whole.update)
        assert same(whole, second)

    @pytest.mark.parametrize("cut", range(1, 12))
    def test_what_is_evaluated_and_saved_by_updates_is_the_same(self, make_trainer, tmp_path, cut):
        """Six of seven batches are trained, so the end of an epoch makes every third update; saved after each step."""

        class Notes:
            def __init__(self):
                self.done = []

            @hookimpl
            def before_step(self, trainer):
                if trainer.batch_index == 6:
                    message = "not this one"
                    raise SkipStep(message)

            @hookimpl
            def after_eval(self, trainer, metrics):
                self.done.append(("evaluated", trainer.step, trainer.update, metrics["val/loss"]))

            @hookimpl
            def after_save(self, trainer, kind):
                if kind == "pinned":
                    self.done.append(("saved", trainer.step, trainer.update))

        def run(name, steps, resume=None):
            notes = Notes()
            plugins = [
                *(Accumulate(4), Evaluation(every_updates=2, at_end=False), Checkpoint(every_updates=2, keep=0)),
                *(Checkpoint(pin_every_steps=1), notes, StopAt(steps)),
            ]
            values = [float(x) for x in range(1, 8)]
            trainer = make_trainer(plugins, values=values, val=(1.0,), max_epochs=2, work_dir=tmp_path / name)
            trainer.train(resume=resume)
            return trainer, notes.done

        whole, done = run("whole", 99)
        first = run("cut", cut)[1]
        trainer, rest = run("cut", 99, resume="auto")
        assert first + rest == done
        assert [one[1:3] for one in done if one[0] == "evaluated"] == [(6, 2), (12, 4)]
        assert torch.equal(trainer.model.w, whole.model.w)

    def test_so_does_one_in_the_same_process(self):
        whole = net_trainer([Accumulate(4)])
        whole.train()
        trainer = net_trainer([Accumulate(4), StopAt(6)])
        trainer.train()
        trainer.train()
        assert same(whole, trainer)

    def test_the_weights_of_the_window_are_restored_too(self, make_trainer, tmp_path):
        def trainer(*plugins):
            made = make_trainer(
                [Accumulate(4, weight="reported"), Checkpoint(), *plugins], values=[2.0, 8.0], work_dir=tmp_path
            )
            made.loaders["train"] = [torch.tensor(x, dtype=torch.float64) for x in ([8.0], [2.0, 2.0, 2.0], [1.0])]
            return made

        class Report:
            @hookimpl
            def compute_loss(self, trainer, batch):
                return {"loss": trainer.model(batch), "weight": torch.tensor(len(batch))}

        trainer(Report(), StopAt(2)).train()
        resumed = trainer(Report())
        resumed.train(resume="auto")
        assert resumed.model.w.item() == -15 / 5

    def test_a_checkpoint_between_windows_holds_no_gradients(self, tmp_path):
        trainer = net_trainer([Accumulate(2), Checkpoint(), StopAt(4)], work_dir=tmp_path)
        trainer.train()
        assert "accumulate/gradients" not in trainer.state_dict()

    def test_gradients_that_are_missing_are_said_to_be_lost(self, tmp_path, messages):
        class Forget:
            @hookimpl
            def on_load(self, state):
                del state["accumulate/gradients"]

        net_trainer([Accumulate(4), Checkpoint(), StopAt(6)], work_dir=tmp_path).train()
        trainer = net_trainer([Forget(), Accumulate(4), Checkpoint()], work_dir=tmp_path)
        trainer.train(resume="auto", max_steps=10)
        lost = "accumulate: the gradients of the window of 2 steps are lost: the checkpoint does not have them"
        assert lost in messages()
        assert trainer.update == 2  # one after step 4, one of steps 7 to 10

    def test_a_window_of_a_run_that_accumulated_is_not_added_to_the_first_step_of_one_that_does_not(
        self, make_trainer, tmp_path, messages
    ):
        def trainer(*plugins):
            return make_trainer([*plugins, Checkpoint()], values=[1.0, 2.0, 4.0, 8.0], work_dir=tmp_path)

        trainer(Accumulate(4), StopAt(3)).train()
        resumed = trainer(Accumulate(1))
        resumed.train(resume="auto")
        assert resumed.model.w.item() == -8
        lost = "accumulate: the gradients of the window of 3 steps are lost: every step is an update now"
        assert lost in messages()

    def test_a_state_in_memory_may_be_used_twice(self):
        first = net_trainer([Accumulate(4), StopAt(6)])
        first.train()
        import copy

        state = copy.deepcopy(first.state_dict())

        class Load:
            @hookimpl
            def load_checkpoint(self):
                return copy.deepcopy(state) | {"accumulate/gradients": state["accumulate/gradients"]}

        ends = []
        for _ in range(2):
            again = net_trainer([Accumulate(4), Load()])
            again.train(resume=__file__)
            ends.append(again)
        assert same(*ends)


class Reporting:
    """Reports how many tokens a batch has, as a number or as a tensor."""

    def __init__(self, tensor, named=True):
        self.tensor, self.named = tensor, named

    @hookimpl
    def compute_loss(self, trainer, batch):
        weight = torch.tensor(batch.numel()) if self.tensor else batch.numel()
        loss = trainer.model(batch)
        return {"loss": loss, "weight": weight} if self.named else {"a": loss / 2, "b": loss / 2, "weight": weight}


def reporting(make_trainer, batches, accumulate, *plugins, **arguments):
    trainer = make_trainer([accumulate, *plugins], **arguments)
    trainer.loaders["train"] = [torch.tensor(batch, dtype=torch.float64) for batch in batches]
    trainer.train()
    return trainer.model.w.item()


class TestReportedWeights:
    @pytest.mark.parametrize("tensor", [True, False])
    @pytest.mark.parametrize("named", [True, False])
    def test_the_update_is_the_mean_over_all_tokens(self, make_trainer, tensor, named):
        batches = [[8.0], [2.0, 2.0, 2.0], [5.0, 7.0]]
        end = reporting(make_trainer, batches, Accumulate(2, weight="reported"), Reporting(tensor, named))
        assert end == pytest.approx(-14 / 4 - 6, rel=1e-12)

    @pytest.mark.parametrize("tensor", [True, False])
    def test_steps_of_weight_0_change_nothing(self, make_trainer, tensor):
        class Nothing(Reporting):
            @hookimpl
            def compute_loss(self, trainer, batch):
                return {"loss": trainer.model(batch), "weight": torch.tensor(0) if self.tensor else 0}

        assert reporting(make_trainer, [[8.0], [2.0]], Accumulate(2, weight="reported"), Nothing(tensor)) == 0

    def test_a_batch_of_tokens_equals_its_parts(self, make_trainer):
        parts = [[1.0, 2.0], [4.0], [7.0, 1.0, 3.0]]
        one = [[x for part in parts for x in part]]
        split = reporting(make_trainer, parts, Accumulate(3, weight="reported"), Reporting(tensor=True))
        assert split == pytest.approx(reporting(make_trainer, one, Accumulate(1)), rel=1e-12)

    def test_an_evaluation_in_between_does_not_matter(self, make_trainer):
        class Evaluate:
            @hookimpl(tryfirst=True)
            def after_step(self, trainer):
                trainer.evaluate("val")

        batches = [[8.0], [2.0, 2.0, 2.0]]
        accumulate = Accumulate(2, weight="reported")
        end = reporting(make_trainer, batches, accumulate, Reporting(tensor=True), Evaluate(), val=[[1.0, 2.0, 3.0, 4.0, 5.0]])
        assert end == -3.5

    def test_a_loss_without_weight_is_refused(self, make_trainer):
        with pytest.raises(UsageError, match="compute_loss reports no weight; return"):
            make_trainer([Accumulate(2, weight="reported")]).train()

    @pytest.mark.parametrize("steps", [1, 2])
    def test_so_is_a_train_step_that_has_none(self, make_trainer, steps):
        class Own:
            @hookimpl
            def train_step(self, trainer, batch, update_due):
                loss = trainer.model(batch)
                loss.backward()
                if update_due:
                    trainer.update_parameters()
                return {"loss": loss}

        with pytest.raises(UsageError, match="compute_loss reports no weight; return"):
            make_trainer([Own(), Accumulate(2, weight="reported")], max_steps=steps).train()

    def test_an_object_may_report_it(self, make_trainer):
        class Result:
            def __init__(self, loss, weight):
                self.loss, self.weight = loss, weight

        class Report:
            @hookimpl
            def compute_loss(self, trainer, batch):
                return Result(trainer.model(batch), batch.numel())

        end = reporting(make_trainer, [[8.0], [2.0, 2.0, 2.0]], Accumulate(2, weight="reported"), Report())
        assert end == -3.5


class OwnStep:
    """A train_step that adds up two losses, through the stages or past them."""

    def __init__(self, staged):
        self.staged = staged

    @hookimpl
    def train_step(self, trainer, batch, update_due):
        if trainer.gradients_spent:
            trainer.optimizer.zero_grad()
            trainer.gradients_spent = False
        for factor in (1, 2):
            loss = factor * trainer.model(batch)
            if self.staged:
                loss = trainer.hooks.scale_loss(trainer=trainer, loss=loss, update_due=update_due)
                trainer.hooks.backward(trainer=trainer, loss=loss, update_due=update_due)
            else:
                loss.backward()
        if update_due:
            trainer.update_parameters()
        return {"loss": loss}


class TestLoopsOfTheUser:
    @pytest.mark.parametrize("staged", [True, False])
    def test_a_train_step_with_two_losses_is_divided_once(self, updates, staged):
        assert updates(Accumulate(3), [1.0, 2.0, 3.0, 4.0], OwnStep(staged)) == [-6.0, -18.0]

    def test_a_train_step_that_updates_by_itself_counts_its_updates(self, make_trainer):
        class Own:
            @hookimpl
            def train_step(self, trainer, batch, update_due):
                loss = trainer.model(batch) / 2
                loss.backward()
                if update_due:
                    trainer.optimizer.step()
                    trainer.optimizer.zero_grad()
                return {"loss": loss}

        trainer = make_trainer([Own(), Accumulate(2)], values=[1.0, 3.0, 5.0, 7.0])
        trainer.train()
        assert (trainer.update, trainer.model.w.item()) == (2, -8.0)

    def test_another_rule_for_updates_still_has_its_mean(self, updates):
        class Rule:
            phase = "bookkeeping"  # asked first

            @hookimpl
            def update_due(self, trainer):
                return trainer.step in (0, 3)

        assert updates(Accumulate(5), [1.0, 2.0, 4.0, 6.0], Rule()) == [-1.0, -5.0]


class TestSameAsLargeBatches:
    """A micro-batches of 2 against batches of 2 A, the last window and batch being smaller."""

    class Average:
        def __init__(self):
            self.weights = None

        @hookimpl
        def after_update(self, trainer):
            now = [p.detach().clone() for p in trainer.model.parameters()]
            self.weights = now if self.weights is None else [0.9 * a + 0.1 * b for a, b in zip(self.weights, now, strict=True)]

    class Schedule:
        @hookimpl
        def before_train(self, trainer):
            self.apply(trainer, 0)

        @hookimpl
        def after_update(self, trainer):
            self.apply(trainer, trainer.update + 1)

        def apply(self, trainer, update):
            trainer.optimizer.param_groups[0]["lr"] = 0.1 * (1 - update / trainer.total_updates)

    def train(self, size, steps, optimizer, dtype=torch.float64, plugins=(), max_norm=0.2):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)
        x, y = torch.randn(22, 4).to(dtype), torch.randn(22, 2).to(dtype)
        average, clip = self.Average(), Clip(max_norm)
        trainer = Trainer(
            model,
            loss=nn.functional.mse_loss,
            optimizer=optimizer(model.parameters()),
            loaders={"train": list(zip(x.split(size), y.split(size), strict=True))},
            max_epochs=3,
            plugins=[Accumulate(steps), clip, self.Schedule(), average, *plugins],
            autoload=False,
        )
        trainer.train()
        return trainer, [p.detach() for p in model.parameters()] + average.weights

    @pytest.mark.parametrize("steps", [2, 3, 4, 5, 20])
    @pytest.mark.parametrize("name", ["SGD", "AdamW"])
    def test_gives_the_same_weights(self, steps, name):
        def optimizer(parameters):
            return torch.optim.SGD(parameters, 0.1, momentum=0.9) if name == "SGD" else torch.optim.AdamW(parameters, 0.1)

        one, large = self.train(2 * steps, 1, optimizer)
        other, small = self.train(2, steps, optimizer)
        assert one.update == other.update == one.total_updates == other.total_updates
        for a, b in zip(large, small, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)

    def test_in_bfloat16_it_differs_by_its_rounding_only(self):
        """Autocast and windows do not get in each other's way: two runs in bfloat16 differ by its rounding.

        Every operation in bfloat16, which has 8 bits, rounds by a relative u = 2**-8 at most. Forward, two linear layers round
        input, weights and result; backward the same for the gradients of each: some 12 roundings, so that each gradient is within
        12 u of the exact one, in terms of norms, and those of two runs within 24 u of each other. With plain SGD an update then
        moves two runs apart by 24 u times its rate times the norm of its gradient. These add up over the run, to first order: at
        this rate the loss does not blow up differences. The bound is a tenth of the way, so that a window that was divided twice,
        or not at all, would not pass.
        """

        class Way:
            length = 0.0

            @hookimpl(wrapper=True)
            def clip_gradients(self, trainer):
                norm = yield
                self.length += trainer.optimizer.param_groups[0]["lr"] * norm.item()
                return norm

        def optimizer(parameters):
            return torch.optim.SGD(parameters, 0.1)

        way = Way()
        one, large = self.train(4, 1, optimizer, torch.float32, [AMP()], max_norm=9.0)
        other, small = self.train(2, 2, optimizer, torch.float32, [AMP()], max_norm=9.0)
        _, exact = self.train(4, 1, optimizer, torch.float64, [way], max_norm=9.0)
        assert one.update == other.update == 18
        bound = 24 * 2**-8 * way.length
        for a, b, c in zip(large, small, exact, strict=True):
            assert (a - b).norm() <= bound
            assert 0 < (b.double() - c).norm() <= bound  # it was computed in bfloat16 indeed


class TestOptions:
    @pytest.mark.parametrize("steps", [0, -1, 2.5, True, {}, {0: 0}, {-1: 2}, {0: 2.5}, "2"])
    def test_steps_must_make_sense(self, steps):
        with pytest.raises(OptionError, match=r"must be a whole number, 1 or more, or a mapping of epochs"):
            Accumulate(steps)

    def test_words_must_be_known(self):
        with pytest.raises(OptionError, match=r"partial = 'keep': must be 'flush' or 'drop'"):
            Accumulate(2, partial="keep")
        with pytest.raises(OptionError, match=r"weight = 'tokens': must be 'mean' or 'reported'"):
            Accumulate(2, weight="tokens")

    @pytest.mark.parametrize(("given_", "steps"), [(3, 3), ({"0": 2, "4": 8}, 8), ({0: 2, 4: 8}, 8)])
    def test_options_of_a_file_fit(self, make_trainer, given_, steps):
        trainer = make_trainer(["accumulate"], options={"accumulate": {"steps": given_}})
        assert trainer.plugins["accumulate"].steps_in(5) == steps


def test_it_says_what_is_planned(make_trainer, messages):
    make_trainer([Accumulate({0: 2, 2: 4})], values=(1.0,) * 7, max_epochs=3).train()
    assert "accumulate: an update takes 2, 4 from epoch 2 on steps, 10 updates in all" in messages()
