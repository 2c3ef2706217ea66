"""The built-in plugins, each found through the same entry-point group as everybody else's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .accumulate import Accumulate as Accumulate
    from .amp import AMP as AMP
    from .checkpoint import Checkpoint as Checkpoint
    from .clip import Clip as Clip
    from .closure import Closure as Closure
    from .compile import Compile as Compile
    from .console import Console as Console
    from .crash_report import CrashReport as CrashReport
    from .cutmix import Cutmix as Cutmix
    from .early_stopping import EarlyStopping as EarlyStopping
    from .ema import EMA as EMA
    from .evaluation import Evaluation as Evaluation
    from .find_batch_size import FindBatchSize as FindBatchSize
    from .find_lr import FindLR as FindLR
    from .freeze import Freeze as Freeze
    from .freeze_gc import FreezeGC as FreezeGC
    from .grad_norms import GradNorms as GradNorms
    from .hook_time import HookTime as HookTime
    from .lr import LR as LR
    from .lr_monitor import LRMonitor as LRMonitor
    from .memory import Memory as Memory
    from .metrics_log import MetricsLog as MetricsLog
    from .mixup import Mixup as Mixup
    from .momentum import Momentum as Momentum
    from .nan_guard import NanGuard as NanGuard
    from .plateau import Plateau as Plateau
    from .precise_bn import PreciseBN as PreciseBN
    from .predictions import Predictions as Predictions
    from .profiler import Profiler as Profiler
    from .progress import Progress as Progress
    from .remote_monitor import RemoteMonitor as RemoteMonitor
    from .run_store import RunStore as RunStore
    from .sampler import Sampler as Sampler
    from .seed import Seed as Seed
    from .signals import Signals as Signals
    from .slurm import Slurm as Slurm
    from .spike import Spike as Spike
    from .starvation import Starvation as Starvation
    from .summary import Summary as Summary
    from .swa import SWA as SWA
    from .sync_buffers import SyncBuffers as SyncBuffers
    from .throughput import Throughput as Throughput
    from .time_limit import TimeLimit as TimeLimit
    from .timer import Timer as Timer
    from .weight_decay import WeightDecay as WeightDecay

__all__ = [
    "AMP",
    "EMA",
    "LR",
    "SWA",
    "Accumulate",
    "Checkpoint",
    "Clip",
    "Closure",
    "Compile",
    "Console",
    "CrashReport",
    "Cutmix",
    "EarlyStopping",
    "Evaluation",
    "FindBatchSize",
    "FindLR",
    "Freeze",
    "FreezeGC",
    "GradNorms",
    "HookTime",
    "LRMonitor",
    "Memory",
    "MetricsLog",
    "Mixup",
    "Momentum",
    "NanGuard",
    "Plateau",
    "PreciseBN",
    "Predictions",
    "Profiler",
    "Progress",
    "RemoteMonitor",
    "RunStore",
    "Sampler",
    "Seed",
    "Signals",
    "Slurm",
    "Spike",
    "Starvation",
    "Summary",
    "SyncBuffers",
    "Throughput",
    "TimeLimit",
    "Timer",
    "WeightDecay",
]

_MODULES = {
    "AMP": "amp",
    "Accumulate": "accumulate",
    "Checkpoint": "checkpoint",
    "Clip": "clip",
    "Closure": "closure",
    "Compile": "compile",
    "Console": "console",
    "CrashReport": "crash_report",
    "Cutmix": "cutmix",
    "EMA": "ema",
    "EarlyStopping": "early_stopping",
    "Evaluation": "evaluation",
    "FindBatchSize": "find_batch_size",
    "FindLR": "find_lr",
    "Freeze": "freeze",
    "FreezeGC": "freeze_gc",
    "GradNorms": "grad_norms",
    "HookTime": "hook_time",
    "LR": "lr",
    "LRMonitor": "lr_monitor",
    "Memory": "memory",
    "MetricsLog": "metrics_log",
    "Mixup": "mixup",
    "Momentum": "momentum",
    "NanGuard": "nan_guard",
    "Plateau": "plateau",
    "PreciseBN": "precise_bn",
    "Predictions": "predictions",
    "Profiler": "profiler",
    "Progress": "progress",
    "RemoteMonitor": "remote_monitor",
    "RunStore": "run_store",
    "SWA": "swa",
    "Sampler": "sampler",
    "Seed": "seed",
    "Signals": "signals",
    "Slurm": "slurm",
    "Spike": "spike",
    "Starvation": "starvation",
    "Summary": "summary",
    "SyncBuffers": "sync_buffers",
    "Throughput": "throughput",
    "TimeLimit": "time_limit",
    "Timer": "timer",
    "WeightDecay": "weight_decay",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
