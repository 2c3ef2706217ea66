"""Metrics that are no mean of batches: objects that ``eval_step`` returns, and ``Evaluation(metrics=...)``.

Reference values come from scikit-learn, computed once over the whole set.
"""

import gc
import math
import weakref

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    BinaryAUROC,
    BinaryAveragePrecision,
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

from trainhooks import DataError, OptionError, SkipStep, Trainer, UsageError, hookimpl
from trainhooks_builtins import Checkpoint, Evaluation


class Median:
    """A metric of one's own: no base class, no device."""

    def __init__(self):
        self.values, self.resets, self.computed = [], 0, 0

    def update(self, predictions, target):
        self.values += (predictions - target).abs().flatten().tolist()

    def compute(self):
        self.computed += 1
        return float(np.median(self.values))

    def reset(self):
        self.values = []
        self.resets += 1


class Gives:
    """Returns an object that the output of each batch has, updated with the batch."""

    def __init__(self, measure, name="measure", fails_at=None):
        self.measure, self.output_name, self.fails_at, self.batches = measure, name, fails_at, 0

    @hookimpl
    def eval_step(self, batch):
        self.batches += 1
        self.measure.update(batch, torch.zeros_like(batch))
        if self.batches == self.fails_at:
            raise OSError("no data")
        return {"mean": batch.mean(), self.output_name: self.measure}


class Result:
    """Computes what it is told."""

    def __init__(self, result):
        self.result = result

    def update(self, *_):
        pass

    def compute(self):
        return self.result

    def reset(self):
        pass


def classification(sizes=(4, 4, 3), classes=3, seed=0):
    """Return batches of scores and labels, and all of them in one."""
    generator = torch.Generator().manual_seed(seed)
    batches = [(torch.randn(n, classes, generator=generator), torch.randint(classes, (n,), generator=generator)) for n in sizes]
    return batches, tuple(torch.cat(parts) for parts in zip(*batches, strict=True))


def evaluator(batches, plugins, model=None, loss=cross_entropy, **arguments):
    return Trainer(model or nn.Identity(), loss=loss, loaders={"val": batches}, plugins=plugins, autoload=False, **arguments)


class TestObjectsInTheOutput:
    @given(st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=4), min_size=1, max_size=5))
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_is_computed_over_the_whole_set(self, make_trainer, values):
        """Whatever the batches are: the median of the absolute values of all; the mean beside it is weighted."""
        trainer = make_trainer([Gives(Median())])
        trainer.loaders["val"] = [torch.tensor(one, dtype=torch.float64) for one in values]
        flat = [value for one in values for value in one]
        metrics = trainer.evaluate("val")
        assert metrics["val/measure"] == np.median(np.abs(flat))
        assert metrics["val/mean"] == pytest.approx(math.fsum(flat) / len(flat), abs=1e-9)

    def test_each_evaluation_begins_with_nothing(self, make_trainer):
        median = Median()
        trainer = make_trainer([Gives(median)], val=(1.0, 3.0))
        trainer.loaders["test"] = [torch.tensor([10.0])]
        found = [trainer.evaluate(split)[f"{split}/measure"] for split in ("val", "val", "test", "val")]
        assert found == [2.0, 2.0, 10.0, 2.0]
        assert median.computed == 4
        assert median.values == []

    def test_what_was_updated_in_between_does_not_count(self, make_trainer):
        median = Median()
        trainer = make_trainer([Gives(median)], val=(1.0, 3.0))
        trainer.evaluate("val")
        median.update(torch.tensor([1000.0] * 9), torch.zeros(9))
        assert trainer.evaluate("val")["val/measure"] == 2.0

    def test_one_that_failed_leaves_nothing(self, make_trainer):
        median = Median()
        trainer = make_trainer([Gives(median, fails_at=2)], val=(100.0, 3.0))
        with pytest.raises(OSError, match="no data"):
            trainer.evaluate("val")
        assert median.values == []
        assert median.computed == 0
        trainer.loaders["val"] = [torch.tensor([1.0])]
        assert trainer.evaluate("val")["val/measure"] == 1.0

    def test_listeners_get_the_value_and_may_look_at_the_object(self, make_trainer):
        seen = []

        class Looks:
            @hookimpl
            def after_eval(self, metrics):
                seen.append((metrics["val/measure"], list(median.values)))

        median = Median()
        make_trainer([Gives(median), Looks()], val=(1.0, 3.0)).evaluate("val")
        assert seen == [(2.0, [1.0, 3.0])]

    def test_best_and_checkpoint_follow_it(self, make_trainer, tmp_path):
        class Score(Median):
            def compute(self):
                return self.scores.pop(0)

        score = Score()
        score.scores = [0.2, 0.9, 0.4]
        plugins = [
            Evaluation(every_steps=1, monitor="val/f1"),
            Gives(score, "f1"),
            Checkpoint(every_epochs=0, keep=1, best="val/f1", at_end=False),
        ]
        trainer = make_trainer(plugins, val=(1.0,), max_steps=3, work_dir=tmp_path / "run")
        trainer.train()
        assert (plugins[0].best.value, plugins[0].best.step) == (0.9, 2)
        assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000002"]

    def test_torchmetrics(self):
        batches, (scores, labels) = classification()
        f1 = MulticlassF1Score(3, average="macro")

        class Measures:
            @hookimpl
            def eval_step(self, batch):
                f1.update(*batch)
                return {"f1": f1}

        metrics = evaluator(batches, [Measures()]).evaluate("val")
        expected = f1_score(labels, scores.argmax(1), average="macro")
        assert metrics == {"val/f1": pytest.approx(expected, abs=1e-6)}
        each = [f1_score(y, x.argmax(1), average="macro", labels=[0, 1, 2], zero_division=0) for x, y in batches]
        assert abs(np.average(each, weights=[4, 4, 3]) - expected) > 0.003  # the mean of batches would have been wrong
        assert f1.update_count == 0

    def test_a_mapping_is_flattened(self):
        """torchmetrics hashes and compares in ways of its own, so objects are told apart by identity."""
        batches, (scores, labels) = classification()
        both = MetricCollection(
            {"macro": MulticlassF1Score(3, average="macro"), "micro": MulticlassF1Score(3, average="micro")}
        )

        class Measures:
            @hookimpl
            def eval_step(self, batch):
                both.update(*batch)
                return {"f1": both}

        metrics = evaluator(batches, [Measures()]).evaluate("val")
        expected = {f"val/f1_{how}": f1_score(labels, scores.argmax(1), average=how) for how in ("macro", "micro")}
        assert metrics == pytest.approx(expected, abs=1e-6)

    @pytest.mark.parametrize(
        ("result", "expected"),
        [
            (0.5, {"val/measure": 0.5}),
            (3, {"val/measure": 3.0}),
            (True, {"val/measure": 1.0}),
            (np.float32(0.5), {"val/measure": 0.5}),
            (torch.tensor(0.5), {"val/measure": 0.5}),
            (torch.tensor([[0.5]]), {"val/measure": 0.5}),
            ({"a": 1, "b": {"c": torch.tensor(2)}}, {"val/measure_a": 1.0, "val/measure_b_c": 2.0}),
        ],
    )
    def test_results(self, make_trainer, result, expected):
        assert {**make_trainer([Gives(Result(result))], val=(1.0,)).evaluate("val")} == {"val/mean": 1.0, **expected}

    @pytest.mark.parametrize(
        ("result", "described"),
        [
            (torch.ones(3), r"a tensor of shape \(3,\)"),
            (torch.ones(0), r"a tensor of shape \(0,\)"),
            (None, "NoneType"),
            ("high", "str"),
            ({}, "an empty mapping"),
            ({"per_class": torch.ones(3)}, "dict"),
        ],
    )
    def test_what_is_no_number_is_named(self, make_trainer, result, described):
        trainer = make_trainer([Gives(Result(result), "auc")], val=(1.0,))
        with pytest.raises(UsageError, match=rf"compute\(\) of Result 'auc' gave {described}; a metric is one number"):
            trainer.evaluate("val")

    def test_a_confusion_matrix_is_no_metric(self):
        batches, _ = classification()
        plugin = Evaluation(metrics={"confusion": MulticlassConfusionMatrix(3)})
        with pytest.raises(UsageError, match=r"MulticlassConfusionMatrix 'confusion' gave a tensor of shape \(3, 3\)"):
            evaluator(batches, [plugin]).evaluate("val")

    def test_what_is_no_number_beside_numbers_is_left_out_and_said_once(self, make_trainer, messages):
        """torchmetrics' mean average precision gives the classes beside its numbers."""
        mean_ap = Result({"map": torch.tensor(0.25), "classes": torch.tensor([0, 1, 2])})
        trainer = make_trainer([Gives(mean_ap, "box"), Evaluation(every_steps=1)], val=(1.0,), max_steps=3)
        assert trainer.train().metrics["val/box_map"] == 0.25
        assert "val/box_classes" not in trainer.metrics
        said = [text for text in messages() if "left out" in text]
        assert said == ["metrics that are no number are left out: box_classes (a tensor of shape (3,))"]

    def test_another_object_in_each_batch(self, make_trainer):
        class New:
            @hookimpl
            def eval_step(self):
                return {"median": Median()}

        with pytest.raises(UsageError, match="returned another Median as 'median' than before"):
            make_trainer([New()], val=(1.0, 2.0)).evaluate("val")

    def test_two_of_one_name(self, make_trainer):
        class Two:
            @hookimpl
            def eval_step(self):
                return {"f1_macro": 0.5, "f1": measure}

        measure = Result({"macro": 0.7})
        with pytest.raises(UsageError, match="two metrics the name 'f1_macro'"):
            make_trainer([Two()], val=(1.0,)).evaluate("val")

    def test_classes_and_results_of_other_libraries_are_no_measures(self, make_trainer):
        class Lazy:
            def compute(self):
                raise AssertionError("it has no reset, so it is no metric")

        class Two:
            @hookimpl
            def eval_step(self):
                return {"lazy": Lazy(), "type": Median, "loss": 1.0}

        assert make_trainer([Two()], val=(1.0,)).evaluate("val") == {"val/loss": 1.0}

    def test_no_batches_no_value(self, make_trainer):
        median = Median()

        class Filter:
            @hookimpl(wrapper=True)
            def prepare_batch(self):
                yield
                raise SkipStep("none")

        with pytest.raises(DataError, match="dropped all of its 1 batches"):
            make_trainer([Gives(median), Filter()], val=(1.0,)).evaluate("val")
        assert median.computed == 0

    def test_the_trainer_is_freed(self, make_trainer):
        trainer = make_trainer([Gives(Median())], val=(1.0,))
        trainer.evaluate("val")
        gc.collect()
        gc.disable()
        try:
            gone = weakref.ref(trainer)
            del trainer
            assert gone() is None
        finally:
            gc.enable()


def test_a_scalar_that_its_owner_changes_in_place_is_averaged_as_it_was(make_trainer):
    class Counts:
        def __init__(self):
            self.seen = torch.zeros(())

        @hookimpl
        def eval_step(self):
            self.seen += 1
            return {"seen": self.seen}

    assert make_trainer([Counts()], val=(1.0,) * 3).evaluate("val") == {"val/seen": 2.0}  # the mean of 1, 2, 3


class TestOutputsOfTheEnginesStep:
    def seen(self, trainer):
        outputs = []

        class Sees:
            @hookimpl
            def after_eval_step(self, output):
                outputs.append(output)

        with trainer.using(Sees()):
            metrics = trainer.evaluate("val")
        return outputs, metrics

    def test_without_a_second_forward_pass(self):
        class Counts(nn.Module):
            calls = 0

            def forward(self, x):
                self.calls += 1
                return 2 * x

        batches, _ = classification()
        trainer = evaluator(batches, [], Counts())
        outputs, metrics = self.seen(trainer)
        assert trainer.model.calls == 3
        assert all(
            torch.equal(one["outputs"], 2 * x) and one["target"] is y for one, (x, y) in zip(outputs, batches, strict=True)
        )
        assert list(metrics) == ["val/loss"]
        assert trainer.loss is cross_entropy

    def test_a_replaced_compute_loss_that_calls_the_loss_function(self):
        class Unpacks:
            @hookimpl
            def compute_loss(self, trainer, batch):
                return trainer.loss(trainer.model(batch["image"]), batch["kind"])

        batches, _ = classification()
        named = [{"image": x, "kind": y} for x, y in batches]
        outputs, _ = self.seen(evaluator(named, [Unpacks()]))
        assert [
            (one["outputs"] is batch["image"], one["target"] is batch["kind"])
            for one, batch in zip(outputs, named, strict=True)
        ]

    def test_nothing_where_it_is_not_clear_or_not_known(self):
        class Twice:
            @hookimpl
            def compute_loss(self, trainer, batch):
                x, y = batch
                return trainer.loss(x, y) + trainer.loss(2 * x, y)

        class Own:
            @hookimpl
            def compute_loss(self, trainer, batch):
                return cross_entropy(*batch)

        batches, _ = classification()
        for plugin in (Twice(), Own()):
            outputs, _ = self.seen(evaluator(batches, [plugin]))
            assert [list(one) for one in outputs] == [["loss"]] * 3

    def test_a_wrapper_still_gets_the_loss_alone(self):
        class Adds:
            @hookimpl(wrapper=True)
            def compute_loss(self):
                loss = yield
                return loss + 1

        batches, (x, y) = classification(sizes=(5,))
        outputs, metrics = self.seen(evaluator(batches, [Adds()]))
        assert metrics == {"val/loss": pytest.approx(cross_entropy(x, y).item() + 1)}
        assert outputs[0]["outputs"] is batches[0][0]

    def test_names_that_compute_loss_gives_go_first(self):
        class Names:
            @hookimpl
            def compute_loss(self, trainer, batch):
                return {"loss": trainer.loss(*batch), "outputs": "mine"}

        outputs, _ = self.seen(evaluator(classification()[0], [Names()]))
        assert [one["outputs"] for one in outputs] == ["mine"] * 3

    def test_scalars_do_not_become_metrics(self):
        """A sample alone, not in a batch: its output and target are scalars."""
        trainer = evaluator([(torch.tensor(1.0), torch.tensor(3.0))], [], loss=nn.functional.mse_loss)
        assert trainer.evaluate("val") == {"val/loss": 4.0}

    def test_the_loss_function_is_put_back_after_an_error_and_keeps_its_attributes(self):
        class Reads:
            @hookimpl
            def compute_loss(self, trainer):
                assert trainer.loss.reduction == "mean"
                raise OSError("no data")

        loss = nn.CrossEntropyLoss()
        trainer = evaluator(classification()[0], [Reads()], loss=loss)
        with pytest.raises(OSError, match="no data"):
            trainer.evaluate("val")
        assert trainer.loss is loss


class TestDeclared:
    def test_accuracy_and_f1(self):
        batches, (scores, labels) = classification()
        plugin = Evaluation(metrics={"accuracy": MulticlassAccuracy(3, average="micro"), "f1": MulticlassF1Score(3)})
        metrics = evaluator(batches, [plugin]).evaluate("val")
        assert metrics == {
            "val/loss": pytest.approx(cross_entropy(scores, labels).item()),
            "val/accuracy": pytest.approx((scores.argmax(1) == labels).double().mean().item()),
            "val/f1": pytest.approx(f1_score(labels, scores.argmax(1), average="macro"), abs=1e-6),
        }

    def test_curves(self):
        generator = torch.Generator().manual_seed(5)
        batches = [
            (torch.randn(n, generator=generator), torch.randint(2, (n,), generator=generator).float()) for n in (7, 7, 2)
        ]
        scores, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))

        class AsInt:
            """torchmetrics wants whole numbers where the loss wants floats."""

            @hookimpl(wrapper=True)
            def eval_step(self):
                output = yield
                return {**output, "target": output["target"].int()}

        plugin = Evaluation(metrics={"auc": BinaryAUROC(), "ap": BinaryAveragePrecision()})
        trainer = evaluator(batches, [plugin, AsInt()], loss=binary_cross_entropy_with_logits)
        metrics = trainer.evaluate("val")
        assert metrics["val/auc"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-6)
        assert metrics["val/ap"] == pytest.approx(average_precision_score(labels, scores), abs=1e-6)

    def test_every_split_and_every_evaluation_for_itself(self):
        batches, _ = classification()
        right = [(nn.functional.one_hot(y, 3).float(), y) for _, y in batches]
        plugin = Evaluation(metrics={"accuracy": MulticlassAccuracy(3, average="micro")})
        trainer = evaluator(batches, [plugin])
        trainer.loaders["test"] = right
        assert trainer.evaluate("test")["test/accuracy"] == 1.0
        first = trainer.evaluate("val")
        assert 0 < first["val/accuracy"] < 1
        assert trainer.evaluate("test")["test/accuracy"] == 1.0
        assert trainer.evaluate("val") == first

    def test_best_while_training(self, messages):
        """One weight for each class: SGD moves the bias towards the only label there is."""
        model = nn.Linear(2, 3)
        nn.init.zeros_(model.weight)
        with torch.no_grad():
            model.bias.copy_(torch.tensor([1.0, 0.0, 0.0]))
        data = [(torch.zeros(4, 2), torch.full((4,), 2))] * 4
        plugin = Evaluation(every_steps=1, monitor="val/accuracy", at_start=True, metrics={"accuracy": MulticlassAccuracy(3)})
        Trainer(
            model,
            loss=cross_entropy,
            optimizer=torch.optim.SGD(model.parameters(), lr=5.0),
            loaders={"train": data, "val": data},
            plugins=[plugin],
            max_epochs=1,
            autoload=False,
        ).train()
        assert (plugin.best.value, plugin.best.step) == (1.0, 1)
        assert "best val/accuracy (max): 1 at step 1" in messages()

    @pytest.mark.parametrize(
        ("output", "uses"),
        [
            ({"preds": "p", "logits": "l", "outputs": "o"}, "l"),
            ({"outputs": "o", "preds": "p"}, "p"),
            ({"outputs": "o"}, "o"),
        ],
    )
    def test_which_predictions(self, output, uses):
        seen = []

        class Sees(Median):
            def update(self, predictions, target):
                seen.append((predictions, target))

            def compute(self):
                return 0.0

        class Returns:
            @hookimpl
            def eval_step(self):
                return output

        evaluator([(1, 2, "t")], [Evaluation(metrics={"sees": Sees()}), Returns()]).evaluate("val")
        assert seen == [(uses, "t")]

    @pytest.mark.parametrize(
        ("output", "batch"),
        [
            ({"target": "t", "labels": "l"}, ("x", "y")),
            ({"labels": "t"}, ("x", "y")),
            ({}, ("x", "t")),
            ({}, {"x": 1, "target": "t"}),
            ({}, {"x": 1, "labels": "t"}),
            ({}, {"x": 1, "label": "t"}),
        ],
    )
    def test_which_target(self, output, batch):
        seen = []

        class Sees(Median):
            def update(self, predictions, target):
                seen.append(target)

            def compute(self):
                return 0.0

        class Returns:
            @hookimpl
            def eval_step(self):
                return {"logits": "p", **output}

        evaluator([batch], [Evaluation(metrics={"sees": Sees()}), Returns()]).evaluate("val")
        assert seen == ["t"]

    def test_a_model_that_computes_its_loss(self):
        """As those of Hugging Face do: a mapping with ``loss`` and ``logits``, labels among the inputs."""

        class Own(nn.Module):
            def forward(self, x, labels):
                return {"loss": cross_entropy(x, labels), "logits": x}

        batches, (scores, labels) = classification()
        named = [{"x": x, "labels": y} for x, y in batches]
        plugin = Evaluation(metrics={"accuracy": MulticlassAccuracy(3, average="micro")})
        metrics = evaluator(named, [plugin], Own(), loss=None).evaluate("val")
        assert metrics["val/accuracy"] == pytest.approx((scores.argmax(1) == labels).double().mean().item())

    def test_half_precision_is_measured_in_single(self):
        seen = []

        class Sees(Median):
            def update(self, predictions, target):
                seen.append((predictions.dtype, target.dtype))

            def compute(self):
                return 0.0

        class Half(nn.Module):
            def forward(self, x):
                return x.bfloat16()

        evaluator(classification()[0], [Evaluation(metrics={"sees": Sees()})], Half()).evaluate("val")
        assert seen == [(torch.float32, torch.int64)] * 3

    def test_nothing_to_measure(self, make_trainer):
        plugin = Evaluation(metrics={"median": Median()})
        with pytest.raises(
            UsageError, match=r"no predictions in what eval_step returned \(loss\); return them as one of logits"
        ):
            make_trainer([plugin], val=(1.0,)).evaluate("val")

        class Returns:
            @hookimpl
            def eval_step(self):
                return {"logits": torch.ones(2)}

        with pytest.raises(UsageError, match="no target in what eval_step returned, nor in the batch"):
            make_trainer([Evaluation(metrics={"median": Median()}), Returns()], val=(1.0,)).evaluate("val")

    def test_a_value_of_the_same_name(self):
        class Own:
            @hookimpl
            def eval_step(self, batch):
                return {"accuracy": 0.5, "logits": batch[0]}

        trainer = evaluator(classification()[0], [Evaluation(metrics={"accuracy": MulticlassAccuracy(3)}), Own()])
        with pytest.raises(UsageError, match="eval_step returns a value 'accuracy' of its own"):
            trainer.evaluate("val")

    def test_two_instances_measure_once(self):
        outer, inner = Median(), Median()
        plugins = [Evaluation(metrics={"median": outer}), Evaluation(metrics={"median": inner})]
        batches = [(torch.tensor([3.0]), torch.tensor([1.0]))] * 3
        assert evaluator(batches, plugins, loss=nn.functional.mse_loss).evaluate("val")["val/median"] == 2.0
        assert (outer.values, outer.computed, inner.values, inner.computed) == ([], 0, [], 1)

    def test_one_that_fails_in_the_first_batch_leaves_nothing(self):
        class Picky(Median):
            armed = True

            def update(self, predictions, target):
                super().update(predictions, target)
                if self.armed:
                    self.armed = False
                    raise ValueError("shapes differ")

        picky = Picky()
        trainer = evaluator(
            [(torch.tensor([3.0]), torch.tensor([1.0]))], [Evaluation(metrics={"m": picky})], loss=nn.functional.mse_loss
        )
        with pytest.raises(ValueError, match="shapes differ"):
            trainer.evaluate("val")
        assert picky.values  # nobody but the plugin knows of it yet
        trainer.loaders["val"] = [(torch.tensor([8.0]), torch.tensor([1.0]))]
        assert trainer.evaluate("val")["val/m"] == 7.0

    def test_are_moved_to_the_device(self):
        class Moves(Median):
            to_device = None

            def to(self, device):
                self.to_device = device

        moves = Moves()
        trainer = evaluator([(torch.ones(1), torch.ones(1))], [Evaluation(metrics={"m": moves})], loss=nn.functional.mse_loss)
        trainer.evaluate("val")
        assert moves.to_device == trainer.device

    def test_nothing_of_them_in_a_checkpoint(self):
        plugin = Evaluation(metrics={"accuracy": MulticlassAccuracy(3)})
        assert set(plugin.state_dict()) == {"best", "done", "updates"}

    @pytest.mark.parametrize(
        ("metric", "message"),
        [
            (MulticlassAccuracy, r"metrics\['x'\] is the class MulticlassAccuracy: give an object with"),
            (len, r"metrics\['x'\] is builtin_function_or_method without update\(\)"),
            ("torchmetrics:AUROC", r"metrics\['x'\] is str without update\(\)"),
            (type("NoReset", (), {"update": len, "compute": len})(), r"metrics\['x'\] is NoReset without reset\(\)"),
        ],
    )
    def test_what_cannot_measure_is_refused_at_once(self, metric, message):
        with pytest.raises(OptionError, match=message):
            Evaluation(metrics={"x": metric})

    def test_costs_nothing_without(self):
        plugin = Evaluation()
        assert (plugin.setup, plugin.before_eval, plugin.eval_step, plugin.after_step) == (None,) * 4
