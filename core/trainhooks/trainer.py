"""``Trainer``: what a script holds, and what hooks see."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from . import inference, loop
from .assembly import Assembly, claim
from .checked_state import WITH_WEIGHTS, check_names, check_state, is_registered
from .data import check_loader
from .driver import Driver
from .elsewhere import Elsewhere, known_arguments
from .errors import PluginNotFoundError, UsageError
from .given import check_options, check_parts
from .interruption import find_wait
from .manager import Plugin, plugin_name
from .project import load_project
from .session import Session
from .settings import complete_config, make_settings
from .stateful import Stateful, restore
from .suggest import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch
    from torch import nn, optim

    from .config import Config
    from .state import Outcome
    from .types import Batch, Metrics, StateDict

log = logging.getLogger("trainhooks")


class Engine:
    """The engine's own implementations of all stages, as a plugin that is always asked last."""


for _module in (loop, inference):
    for _name, _function in vars(_module).items():
        if hasattr(_function, "trainhooks_impl"):
            setattr(Engine, _name, staticmethod(_function))


_READERS = tuple(function.__code__ for function in (loop.train_epoch, inference.evaluate, inference.predict))


class Trainer(Driver):
    """Trains, evaluates and predicts; every stage of it is a hook.

    Args:
        model: What is trained; moved to the device. Without it ``make_model`` is asked.
        loss: ``loss(model(*inputs), target)`` is minimised for batches ``(inputs..., target)``. Without it the model returns
            its loss.
        optimizer: One, or a mapping of named ones. Without it ``make_optimizer`` is asked.
        loaders: Iterables of batches by split. Splits that are not here are asked of ``make_loader``.
        max_epochs: Epochs after which training ends; the first limit reached counts.
        max_steps: Steps after which training ends.
        max_updates: Updates after which training ends.
        steps_per_epoch: Batches in an epoch, for endless loaders.
        device: ``"auto"`` takes an accelerator where there is one.
        seed: Seeds torch, NumPy and Python when the first run begins, before the model is made.
        work_dir: Where the run writes; without it nothing is written to disk.
        plugins: Modules, instances, classes (instantiated once for this trainer), names of installed plugins, ``"no:NAME"``.
        options: Options by plugin name.
        conf: A project file (``trainconf.py``), as path or module.
        config: Where to read settings from: a TOML file, or a directory with ``pyproject.toml`` or ``trainhooks.toml``.
        autoload: Whether installed plugins take part without being named, or the names of those that do.
        name: Of the run.
        log_every_steps: Steps between flushes of what was logged, while somebody reports it.
        report_timeout_s: How long reporters may take at the end.
        overwrite: Replace a former run in ``work_dir``; removes only what trainhooks made.
        skip_failed: Go on without plugins that are broken.
        strict_plugins: Refuse to resume with other plugins than the checkpoint was made with.

    Raises:
        UsageError: Settings, options or names are wrong.
        PluginError: A plugin or the project file is broken.
    """

    if not TYPE_CHECKING:  # a checker is to refuse them
        fit = Elsewhere("trainer.train()")
        validate, test = Elsewhere("trainer.evaluate()"), Elsewhere("trainer.evaluate('test')")

    @known_arguments
    def __init__(
        self,
        model: nn.Module | None = None,
        *,
        loss: Callable[..., Any] | None = None,
        optimizer: optim.Optimizer | Mapping[str, optim.Optimizer] | None = None,
        loaders: Mapping[str, Iterable[Batch]] | None = None,
        max_epochs: int | None = None,
        max_steps: int | None = None,
        max_updates: int | None = None,
        steps_per_epoch: int | None = None,
        device: str | torch.device | None = None,
        seed: int | None = None,
        work_dir: str | Path | None = None,
        plugins: Sequence[Any] = (),
        options: Mapping[str, Mapping[str, Any]] | None = None,
        conf: str | Path | Any = None,
        config: str | Path | Config | None = None,
        autoload: bool | list[str] = True,
        name: str | None = None,
        log_every_steps: int | None = None,
        report_timeout_s: float | None = None,
        overwrite: bool = False,
        skip_failed: bool = False,
        strict_plugins: bool = False,
    ) -> None:
        given = {
            "max_epochs": max_epochs,
            "max_steps": max_steps,
            "max_updates": max_updates,
            "steps_per_epoch": steps_per_epoch,
            "device": str(device) if device is not None else None,
            "seed": seed,
            "work_dir": work_dir,
            "name": name,
            "log_every_steps": log_every_steps,
            "report_timeout_s": report_timeout_s,
        }
        if isinstance(plugins, str) or not isinstance(plugins, Iterable):
            message = f"plugins must be a list such as [EMA(), 'lr'], not {plugins!r}"
            raise UsageError(message)
        if options is not None:
            check_options(options)
        plugins = list(plugins)
        words = [plugin for plugin in plugins if isinstance(plugin, str)]
        self.config = complete_config(config, given, options or {}, words, autoload=autoload)
        super().__init__(make_settings(self.config.settings))
        check_parts(model, loss, optimizer)
        if model is not None:
            self.model = model
        self.loss = loss
        if loaders is not None and not isinstance(loaders, Mapping):
            message = f"loaders must be a mapping such as {{'train': ..., 'val': ...}}, not {type(loaders).__name__}"
            raise UsageError(message)
        for split, loader in (loaders or {}).items():
            if loader is not None:
                check_loader(loader, f"loaders[{split!r}] is")
                self.loaders[split] = loader
        if optimizer is not None:
            self.take_optimizer(optimizer)
        self.overwrite, self.strict_plugins = overwrite, strict_plugins
        self._configured = False

        self.manager.owner = weakref.ref(self)
        self.manager.set_engine(Engine)
        weakref.finalize(self, self.manager.close).atexit = False
        project = load_project(Path(conf)) if isinstance(conf, str | Path) else conf
        objects = [plugin for plugin in plugins if not isinstance(plugin, str)]
        assembly = Assembly(self.manager, self.config, objects, project, skip_failed)
        assembly.register()
        self.plugin_records = assembly.records
        for plugin in self.manager.plugins.values():
            claim(plugin, self)
            self._register_state(plugin)

    # --- Running ---

    def train(
        self,
        *,
        resume: str | Path | None = None,
        max_epochs: int | None = None,
        max_steps: int | None = None,
        max_updates: int | None = None,
    ) -> Outcome:
        """Train until a limit is reached; a second call goes on from the counters.

        Args:
            resume: A checkpoint, or ``"auto"`` for the newest one in ``work_dir``, if there is any.
            max_epochs: A new limit, as are the next two.
            max_steps: See there.
            max_updates: See there.

        Returns:
            How it ended. Exceptions propagate after everything has been cleaned up.

        Raises:
            UsageError: No limit is set, or ``resume`` cannot be done.
        """
        if self.session is not None:
            message = "train() was called while this trainer is running; use another Trainer for a nested run"
            raise UsageError(message)
        for name, value in (("max_epochs", max_epochs), ("max_steps", max_steps), ("max_updates", max_updates)):
            if value is not None:
                setattr(self, name, value)
        self.stop_reason = self._stop_after_epoch = None
        self._evaluated = {}
        self.count_failed_step()
        session = Session(self, training=True, resume=_fixed(resume))
        session.run(session.train)
        assert self.outcome is not None  # noqa: S101 - the session has set it
        return self.outcome

    def evaluate(self, split: str = "val", *, checkpoint: str | Path | None = None) -> Metrics:
        """Evaluate one split; inside a run it is part of that run, otherwise it is one of its own.

        Args:
            split: Which loader.
            checkpoint: Restore this first.

        Returns:
            Metrics, named ``split/name``.
        """
        if self.session is not None:
            return self.run_evaluation(split)
        session, checkpoint = Session(self, training=False), _fixed(checkpoint)
        return session.run(lambda: session.restored(checkpoint, lambda: self.run_evaluation(split)))

    def predict(self, split: str = "test", *, checkpoint: str | Path | None = None) -> Any:
        """Predict one split.

        Args:
            split: Which loader.
            checkpoint: Restore this first.

        Returns:
            The outputs, one for each batch, on the host; what a wrapper of ``predict`` makes of them.
        """
        if self.session is not None:
            return self.hooks.predict(trainer=self, split=split)
        session, checkpoint = Session(self, training=False), _fixed(checkpoint)
        return session.run(lambda: session.restored(checkpoint, lambda: self.hooks.predict(trainer=self, split=split)))

    def _leave_wait(self, *, patient: bool) -> None:
        wait = find_wait(sys._getframe(), _READERS)
        interruption = self.interruption
        if wait is None or interruption is None or (patient and not wait.on_workers):
            return
        if wait.reader.f_locals.get("trainer") is not self:
            return
        if wait.reader.f_code is loop.train_epoch.__code__:
            interruption.exact = wait.on_workers
        elif not self._may_leave_evaluation:
            return
        raise interruption.error

    # --- Plugins ---

    @property
    def plugins(self) -> Mapping[str, Any]:
        """The active plugins by name, in call order."""
        return MappingProxyType({name: plugin.object for name, plugin in self.manager.plugins.items()})

    def register(self, plugin: Any, name: str | None = None) -> str:
        """Add a plugin; it gets ``configure`` and ``setup`` at once if their time has passed.

        Returns:
            Its name.

        Raises:
            PluginValidationError: It has faults.
        """
        if isinstance(plugin, type):
            plugin = plugin()
        if (known := self.manager.find(plugin)) is not None:
            return known.name
        if isinstance(plugin, str) or not isinstance(name, str | None):
            what = f"register({plugin!r})" if isinstance(plugin, str) else f"register(..., name={name!r})"
            message = f"{what}: give a module, a class or an instance, and a text as its name; Trainer(plugins=['ema']) takes installed ones by name"
            raise UsageError(message)
        new = Plugin(
            self.manager.free_name(name or plugin_name(plugin)),
            plugin,
            index=len(self.manager.plugins),
            on_error=getattr(plugin, "on_error", "raise"),
            insists=getattr(plugin, "on_error", None) == "raise",
        )
        claim(new, self)
        self.manager.add(new)
        try:
            self._begin(new)
        except BaseException:
            if new.name in self.manager.plugins:
                self.unregister(new.name)
            raise
        self.plan_attention()
        return new.name

    def _begin(self, new: Plugin) -> None:
        """Give a plugin that comes late what the others had."""
        self._register_state(new)
        if self._configured or (self.session is not None and self.session.configuring):
            self.manager.call_each("configure", [new], {"trainer": self})
        if self.session is not None and self.session.set_up:
            self.session.set_up_plugin(new)
            self.add_reporter(new)

    def unregister(self, name: str) -> Any:
        """Take a plugin out, by name or object; it gets ``teardown`` if it was set up.

        Raises:
            PluginNotFoundError: No such plugin is active.
        """
        plugin = self.manager.find(name)
        if plugin is None:
            message = f"no active plugin is named {name!r}{suggestion(str(name), self.manager.plugins)}"
            raise PluginNotFoundError(message)
        self.manager.remove(plugin.name)
        self.forget_plugin(plugin, reason="unregistered")
        return plugin.object

    @contextmanager
    def using(self, plugin: Any) -> Iterator[Any]:
        """Have a plugin for the calls inside a ``with`` block; it is gone afterwards, whatever happens."""
        known = self.manager.find(plugin) is not None
        name = self.register(plugin)
        try:
            yield self.plugins[name]
        finally:
            if not known and name in self.manager.plugins:
                self.unregister(name)

    def call_others(self, hook: str, plugin: Any, **arguments: Any) -> Any:
        """Ask the implementations of a stage that come after ``plugin``'s own: the way to repeat a stage.

        Args:
            hook: Name of the stage.
            plugin: The calling plugin, by object or name.
            arguments: Of the hook, without ``trainer``.
        """
        return self.manager.call_others(hook, plugin, {"trainer": self, **arguments})

    def update_parameters(self) -> bool:
        """Do the second half of a step, for a ``train_step`` of one's own, when an update is due and gradients are complete.

        Calls ``gradients_ready``, ``clip_gradients``, ``optimizer_step`` and, if that updated the parameters,
        ``after_update``; the next step of the engine's own clears the gradients.

        Returns:
            Whether the parameters were updated.
        """
        return loop.update_parameters(self)

    def forget_plugin(self, plugin: Plugin, reason: str = "disabled after an error") -> None:
        """Drop the state of a plugin that was taken out and tear it down."""
        self.stateful.pop(f"plugins/{plugin.name}", None)
        if self.session is not None:
            outcome = self.make_outcome("stopped", reason)
            self.session.tear_down_plugin(plugin, outcome)
            if self.reporter is not None:
                self.reporter.remove(plugin, outcome)

    def _register_state(self, plugin: Plugin) -> None:
        if isinstance(plugin.object, Stateful) and not isinstance(plugin.object, type):
            key = f"plugins/{plugin.name}"
            self.stateful[key] = plugin.object
            if key in self._restored:
                restore(plugin.object, self._restored.pop(key))

    # --- State ---

    def state_dict(self) -> StateDict:
        """Return everything that a checkpoint holds, as plain values and tensors, after ``on_save``."""
        self.peek()
        if self.reporter is not None:
            self._pass_media_on()  # a resumed run does not log them again
            self.reporter.catch_up()  # what was logged before a checkpoint should be on disk when it is
        state: StateDict = {
            **self.stateful.state_dict(),
            "run": self.save_counters(),
            "metrics": self.log_state(),
            "rng": self._restored.get("rng") or self.rng.state_dict(),
            "loader": self.position.state_dict(self.loaders.get("train")),
            "evaluated": dict(self._evaluated),
            "plugin_lock": self.plugin_lock(),
            "settings": self.given_settings(),
        }
        if self.hooks.on_save is not None:
            self.hooks.on_save(trainer=self, state=state)
        check_state(state)  # what could not be resumed from is not to be saved
        return state

    def load_state_dict(self, state: StateDict, *, weights_only: bool = False) -> None:
        """Restore what ``state_dict`` returned, each object in place, after ``on_load``.

        Args:
            state: It is not kept but for what later plugins may ask for.
            weights_only: Restore the model and plugins, not the optimizer and the place in the run.
        """
        if self.hooks.on_load is not None:
            self.hooks.on_load(trainer=self, state=state)
        check_state(state, WITH_WEIGHTS if weights_only else None)
        check_names(state, self.stateful.keys(), model=self.model, weights_only=weights_only)
        skipped = [key for key in state if weights_only and key.startswith("optimizers/")]
        missing = self.stateful.load_state_dict({key: value for key, value in state.items() if key not in skipped})
        self.stateful.waiting = {key: value for key, value in state.items() if key not in self.stateful and is_registered(key)}
        missing = [name for name in missing if name not in skipped and not (weights_only and name.startswith("optimizers/"))]
        if missing:
            known = all(name.startswith("plugins/") for name in missing)  # the difference of the plugins is said anyway
            level = logging.INFO if known or weights_only else logging.WARNING
            log.log(level, "of these the checkpoint has no state, so they begin anew: %s", ", ".join(missing))
        self._restored = {key: value for key, value in state.items() if key.startswith("plugins/")}
        self._restored = {key: value for key, value in self._restored.items() if key not in self.stateful}
        if weights_only and self._restored:
            names = ", ".join(key.removeprefix("plugins/") for key in self._restored)
            log.info("the checkpoint has the state of plugins that are not active: %s; -p NAME lets one take part", names)
        self.load_counters(state["run"])
        if weights_only:
            self._eval_requests, self._checkpoint_request = {}, None
        else:
            self.load_log_state(state["metrics"])
            self._restored["rng"] = state["rng"]
            self.position.load_state_dict(state["loader"])
            self._evaluated = dict(state["evaluated"])
            self.gradients_spent = True


def _fixed(path: str | Path | None) -> str | Path | None:
    """Return the path of what is there such that it means the same wherever a hook changes the working directory to."""
    return Path(path).absolute() if isinstance(path, str | Path) and path and path != "auto" and Path(path).exists() else path
