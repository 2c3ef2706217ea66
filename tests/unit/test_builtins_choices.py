"""Options that are one of a few words, of plugins that are made in Python, where nobody but they themselves checks them."""

import pytest

from trainhooks import OptionError
from trainhooks_builtins import EarlyStopping, Evaluation, FindBatchSize, FindLR, NanGuard, Predictions, Spike, TimeLimit


@pytest.mark.parametrize(
    ("plugin", "options", "message"),
    [
        (EarlyStopping, {"mode": "lower"}, "mode = 'lower': must be one of auto, min, max"),
        (EarlyStopping, {"nan": "raise"}, "nan = 'raise': must be one of count, stop"),
        (EarlyStopping, {"keep_on": "cpu"}, "keep_on = 'cpu': must be one of host, device"),
        (Evaluation, {"mode": "higher"}, "mode = 'higher': must be one of auto, min, max"),
        (Evaluation, {"splits": "val"}, r"splits = 'val': must be a list such as \['val'\]"),
        (Evaluation, {"metrics": [1]}, "metrics is a list: give a mapping of names to objects"),
        (NanGuard, {"action": "ignore"}, "action = 'ignore': must be one of raise, stop, skip"),
        (Spike, {"action": "skip"}, "action = 'skip': must be one of warn, stop, raise"),
        (Spike, {"method": "ema"}, "method = 'ema': must be one of median, mean"),
        (TimeLimit, {"hours": 1, "at": "update"}, "at = 'update': must be one of step, epoch"),
        (Predictions, {"format": "json"}, "format = 'json': must be one of auto, csv, parquet"),
        (FindLR, {"mode": "log"}, "mode = 'log': must be one of exponential, linear"),
        (FindLR, {"suggest": "best"}, "suggest = 'best': must be one of valley, steepest, minimum"),
        (FindBatchSize, {"mode": "linear"}, "mode = 'linear': must be one of power, binsearch"),
    ],
)
def test_another_word_is_refused(plugin, options, message):
    with pytest.raises(OptionError, match=message):
        plugin(**options)
