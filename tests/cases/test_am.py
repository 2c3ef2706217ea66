"""AM: gradients that are not finite. A CPU scaler; an update that is skipped is none, so "it i" is step i here."""

import math

import pytest
import torch

from trainhooks import TrainingError, hookimpl
from trainhooks_builtins import AMP, EMA, LR, Clip


class TestAM01:
    """A skipped update must not advance anything."""

    def test_am_01_schedule_average_and_counter_stay(self, make_trainer):
        weights, skipped = [], []

        class Look:
            @hookimpl
            def after_step(self, trainer):
                weights.append(trainer.model.w.item())

            @hookimpl
            def report_metrics(self, records):
                skipped.extend(record.values["amp/skipped"] for record in records if "amp/skipped" in record.values)

        ema, lr = EMA(decay=0.5), LR("constant")
        trainer = make_trainer(
            [Look(), AMP("float16", growth_interval=3), ema, lr],
            values=[math.inf] + [1.0] * 7,
            start=1.0,
            lr=0.1,
            log_every_steps=1,
        )
        trainer.train()
        assert weights == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3], rel=1e-12)
        assert (trainer.step, trainer.update) == (8, 7)
        assert ema.averagings == 7
        assert skipped == [1.0] + [0.0] * 7

    def test_am_01_the_rate_of_the_next_update_is_still_the_first(self, make_trainer):
        rates = []

        class Rate:
            @hookimpl
            def after_update(self, trainer):
                rates.append(trainer.optimizer.param_groups[0]["lr"])

        lr = LR("linear", total_updates=8)
        make_trainer([Rate(), AMP("float16"), lr], values=[math.inf] + [1.0] * 7).train()
        assert rates == pytest.approx([1 - u / 8 for u in range(7)])


class TestAM02:
    """Clipping comes after unscaling."""

    class Own:
        """A clip of the user's."""

        @hookimpl
        def clip_gradients(self, trainer):
            norm = torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
            trainer.log("grad_norm", norm)
            return norm

    @pytest.mark.parametrize("clip", [Clip, Own])
    @pytest.mark.parametrize("first", [True, False])
    def test_am_02_gradients_and_norm_are_without_the_scale(self, make_trainer, clip, first):
        amp = AMP("float16", init_scale=65536.0)
        trainer = make_trainer([clip(), amp] if first else [amp, clip()], values=[10.0])
        trainer.train()
        assert trainer.model.w.item() == pytest.approx(-1.0, abs=1e-6)
        assert trainer.metrics["grad_norm"] == 10.0


class TestAM04:
    """Every update is skipped."""

    def test_am_04_the_run_fails_after_20(self, make_trainer):
        trainer = make_trainer([AMP("float16")], values=[math.inf] * 200, max_steps=200)
        with pytest.raises(TrainingError) as caught:
            trainer.train()
        assert caught.value.exit_code == 1
        assert "20 updates in a row were skipped" in str(caught.value)
        assert "the scale is 0.0625, no update was finite" in str(caught.value)
        assert (trainer.step, trainer.outcome.status) == (19, "failed")

    def test_am_04_the_last_finite_update_is_named(self, make_trainer):
        trainer = make_trainer([AMP("float16")], values=[1.0] * 5 + [math.inf] * 195, max_steps=200)
        with pytest.raises(TrainingError, match="the last finite update was number 5"):
            trainer.train()

    def test_am_04_so_does_the_command(self, command):
        conf = command.conf.replace("[torch.ones(1)] * 5", "[torch.full((1,), torch.inf)] * 200")
        options = ("--set", "max_epochs=1", "--set", "device=cpu", "-o", "amp.dtype=float16")
        code, _, err = command("train", *options, conf=conf)
        assert code == 1
        assert "20 updates in a row were skipped" in err
        assert "the scale is 0.0625" in err
