"""The engine as one call, for any PyTorch model: `fit`.

It makes the parts of a worker from a model, a dataset and a loss, opens the worlds of a strategy, and runs them with
`Trainer`, as `speech3 train` does. In addition it checks the caller's arguments, writes the trained parameters into the
caller's model however training ends, and makes errors name the arguments.
"""

import copy
import errno
import math
import multiprocessing
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from multiprocessing.reduction import ForkingPickler
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from speech3.config import TrainingConfig
from speech3.engine.checks import check_epoch, check_workers
from speech3.engine.device import autocast_of, device_of, precision, threads, use_precision
from speech3.engine.flat import trained
from speech3.engine.gradient import Diverged
from speech3.engine.items import Items, MeanLoss, classified_right
from speech3.engine.opening import asynchronous, open_worlds, times_of
from speech3.engine.recorded import Recorder
from speech3.engine.strategies import config_of
from speech3.engine.trainer import Trainer, rate_of
from speech3.engine.workers import Unkillable
from speech3.engine.world import Parts, Progress, shares
from speech3.errors import Speech3Error, listed
from speech3.io.interrupt import deferred_interrupt
from speech3.io.malloc import keep_freed_memory
from speech3.io.parallel import available_jobs

_TRIES = 20  # minibatches tried at the start to find parameters that are never used


@dataclass(frozen=True)
class EpochResult:
    """The results of one epoch.

    Attributes
    ----------
    seconds
        Training time; with `simulate`, on the virtual clock, where a minibatch takes one second by default.
    loss, accuracy
        Means over the items used, measured before the update by each minibatch; accuracy is None without classes.
    used, stale, refused
        Numbers of minibatches; those that were stale or refused did not change the parameters.
    returned, restarts
        Number of minibatches that workers had not finished when they died, and that others computed; number of workers
        that were replaced.
    staleness
        Number of used minibatches for each staleness of their push, from 0; empty if there is no server.
    shares
        Share of the minibatches that each worker computed; empty for plain SGD and synchronous SGD.
    note
        A remark on how the epoch ended; may be empty.
    """

    epoch: int
    seconds: float
    loss: float
    accuracy: float | None
    used: int
    stale: int
    refused: int
    returned: int
    restarts: int
    staleness: tuple[int, ...]
    shares: tuple[float, ...]
    note: str


@dataclass(frozen=True)
class FitResult:
    """The results of `fit`, epoch by epoch."""

    strategy: str
    workers: int
    history: tuple[EpochResult, ...]

    @property
    def seconds(self) -> float:
        """Training time of all epochs."""
        return sum(epoch.seconds for epoch in self.history)

    @property
    def dropped(self) -> int:
        """Minibatches that did not change the parameters: too stale, or refused."""
        return sum(epoch.stale + epoch.refused for epoch in self.history)

    @property
    def restarts(self) -> int:
        """Number of workers that died and were replaced."""
        return sum(epoch.restarts for epoch in self.history)


def fit(
    model: nn.Module, dataset: Any, loss: Callable[[Any, Any], Tensor], *, strategy: str = "asgd",
    workers: int | None = None, epochs: int = 10, minibatch: int = 256, learning_rate: float = 0.1, seed: int = 1,
    device: str = "cpu", simulate: bool = False, options: Mapping[str, Any] | None = None,
) -> FitResult:  # fmt: skip
    """Train a PyTorch model with any of the engine's strategies; the model has the trained parameters afterwards.

    Workers are processes that import the calling script: call `fit` under ``if __name__ == "__main__":``, and define
    model, dataset and loss in a file, not in a notebook. They are pickled; tensors in them pass through shared memory.

    Parameters
    ----------
    model
        Called with the inputs of a minibatch. Its parameters are float32; those with ``requires_grad=False`` are not
        changed. It also receives the trained buffers (batch normalisation). It is trained in training mode, except
        modules in evaluation mode (frozen batch normalisation), which stay in it; if all are, all are trained. Its
        modes are the same afterwards. Parameters that a minibatch does not use (LayerDrop, mixtures of experts) get a
        gradient of zero.
    dataset
        Has a length, and items that are pairs (input, target): tensors, numbers, arrays, or nested tuples and
        dictionaries of them. PyTorch's generator is seeded for every minibatch, for datasets that augment at random.
    loss
        Maps outputs and targets of a minibatch to a scalar tensor, the mean over its items. It has no parameters of its
        own to train.
    strategy
        One of `speech3.engine.strategies.STRATEGIES`: ``sgd``, ``ddp``, or a preset of ``conf/training``, which sets
        workers, server and codec; the preset's learning rate and schedule were chosen for speech and are not used.
    workers
        Number of workers; None: that of the preset (1 for ``sgd``), or 2 for ``ddp``.
    minibatch
        Items in a minibatch; the last one of an epoch may be smaller.
    learning_rate
        Constant, unless `options` contain a schedule.
    seed
        Seed of the order of items and of each minibatch's random numbers, such as dropout; the caller's generators are
        not changed. With one worker or with `simulate`, the same seed gives the same parameters.
    device
        ``cpu``; ``cuda``: workers are distributed over all GPUs; ``cuda:N``.
    simulate
        Use one process and a virtual clock for any number of workers: real gradients, the same result every time.
    options
        Other keys of a config's ``training`` (`speech3.config.TrainingConfig`) that `strategies.OPTIONS` names:
        ``{"momentum": 0.9, "asgd": {"push_scale": "1/workers"}, "simulation": {"failures": [[1, 20.0]]}}``.

    Raises
    ------
    Speech3Error
        An argument, an item of the dataset or the loss is unusable, training diverged, or a worker died repeatedly; the
        message says which and what to do. `model` then has the parameters after the last finished epoch or warm start.
    KeyboardInterrupt
        Ctrl-C was pressed; `model` has the newest published parameters.
    """
    training = config_of(
        strategy, options or {}, simulate=simulate, workers=workers, max_epochs=epochs, minibatch=minibatch,
        learning_rate=learning_rate, device=device,
    )  # fmt: skip
    with (
        _as_arguments(),
        torch.random.fork_rng(_gpus(training)),
        threads(training.threads),
        precision(training.precision),
        deferred_interrupt() as interrupt,
        ExitStack() as opened,
    ):
        _check(model, dataset, training, seed)
        _check_loss(loss)
        build = Build(_copied(model), dataset, loss, training, seed)
        classes = _try_out(build.parts(training.device))
        trainer = _open(build, opened)
        history: list[EpochResult] = []
        try:
            for epoch in range(1, epochs + 1):
                rate = rate_of(learning_rate, epoch, trainer.minibatches, training)
                for _ in trainer.epoch(rate, sum(done.seconds for done in history)):
                    if interrupt:
                        raise KeyboardInterrupt
                history.append(_result(epoch, trainer.done, classes=classes))
                trainer.begin_epoch()
                if interrupt:
                    raise KeyboardInterrupt
        except (KeyboardInterrupt, Unkillable):
            trainer.take()
            raise
        except Diverged as error:
            raise _with_items(error, build.source(torch.device("cpu"))) from None
        finally:
            _write_back(trainer, model)
    return FitResult(strategy, training.workers, tuple(history))


@dataclass(frozen=True, eq=False)
class Build:
    """Makes the parts of a worker, in any process; can be pickled if model, dataset and loss can."""

    model: nn.Module
    dataset: Any
    loss: Callable[[Any, Any], Tensor]
    training: TrainingConfig
    seed: int

    def __call__(self, device: str) -> Parts:
        """Make the parts in a worker's own process."""
        keep_freed_memory()
        torch.set_num_threads(self.training.threads)
        use_precision(self.training.precision)
        return self.parts(device)

    def parts(self, device: str) -> Parts:
        """Make the parts with a copy of the model, since the original may be in memory shared with another process."""
        training, on = self.training, torch.device(device)
        loss = copy.deepcopy(self.loss).to(on) if isinstance(self.loss, nn.Module) else self.loss
        return Parts(
            copy.deepcopy(self.model).to(on), self.source(on), MeanLoss(loss), self.seed,
            training.gradient_clip or math.inf, optimizer=training.optimizer, betas=training.betas,
            autocast=autocast_of(training), recorder=Recorder() if training.cuda_graph else None,
            evaluated=_evaluated(self.model), skips=True,
        )  # fmt: skip

    def source(self, device: torch.device) -> Items:
        """The source of minibatches on a device."""
        return Items(self.dataset, self.training.minibatch, self.seed, device)


def _evaluated(model: nn.Module) -> tuple[str, ...]:
    """The modules that the caller has put into evaluation mode; none if it is the whole model, fresh from a test."""
    names = tuple(name for name, module in model.named_modules() if not module.training)
    return names if len(names) < len(list(model.modules())) else ()


def _gpus(training: TrainingConfig) -> list[int]:
    """The GPUs whose generators are seeded here."""
    return list(range(torch.cuda.device_count())) if training.device.startswith("cuda") else []


def _check(model: nn.Module, dataset: Any, training: TrainingConfig, seed: int) -> None:
    """Refuse arguments that make training impossible, at all or with this number of workers."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise Speech3Error(
            "fit was called by one of its own worker processes, when that imported your script: put the call under "
            '`if __name__ == "__main__":`'
        )
    device_of(training.device)
    if seed < 0:
        raise Speech3Error(f"seed={seed}: must be at least 0")
    _check_model(model)
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise Speech3Error(
            f"dataset: a {type(dataset).__name__} has no length or cannot be indexed; use a map-style dataset, with "
            f"__len__ and __getitem__"
        )
    if not len(dataset):
        raise Speech3Error("dataset: is empty; there is nothing to train on")
    workers, minibatches = training.workers, -(-len(dataset) // training.minibatch)
    if workers > minibatches:
        raise Speech3Error(
            f"workers={workers}: an epoch has only {minibatches} minibatches ({len(dataset)} items by "
            f"minibatch={training.minibatch}); use fewer workers, or smaller minibatches"
        )
    on_cores = training.world not in ("sgd", "simulated") and not training.device.startswith("cuda")
    if on_cores and workers > available_jobs():
        raise Speech3Error(
            f"workers={workers}: this machine has {available_jobs()} cores for training; use fewer workers, or "
            f"simulate more of them with simulate=True"
        )
    check_workers(training)
    check_epoch(training, minibatches, _warm_start(training))


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise Speech3Error(f"model: a {type(model).__name__} is not a torch.nn.Module")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise Speech3Error(f"model: {name} has no shape yet; call the model once with an input of the dataset")
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise Speech3Error(f"model: {name} is {parameter.dtype}; the engine trains float32: use model.float()")
    if not trained(model):
        raise Speech3Error("model: has no parameter with requires_grad=True; there is nothing to train")


def _check_loss(loss: Any) -> None:
    """Refuse a loss with parameters to train: only those of the model are trained."""
    for module in _modules_of(loss):
        if names := [name for name, parameter in module.named_parameters() if parameter.requires_grad]:
            raise Speech3Error(
                f"loss: {listed([f'{type(module).__name__}.{name}' for name in names], 5)} would not be trained, as "
                f"only the parameters of the model are; make {type(module).__name__} a part of the model, which then "
                f"returns what it computes, or freeze its parameters (requires_grad_(False))"
            )


def _modules_of(function: Any, seen: tuple[Any, ...] = ()) -> Iterator[nn.Module]:
    """The modules that a loss is made of: itself, its attributes, or what a method, partial or closure refers to."""
    if isinstance(function, nn.Module):
        yield function
        return
    within = [getattr(function, "__self__", None), *getattr(function, "__dict__", {}).values()]
    within += [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _filled(cell)]
    if isinstance(function, partial):
        within += [function.func, *function.args, *function.keywords.values()]
    for each in within:
        if isinstance(each, nn.Module | partial | FunctionType | MethodType) and each not in seen:
            yield from _modules_of(each, (*seen, function))


def _filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # the name has no value yet
        return False


def _warm_start(training: TrainingConfig) -> float:
    return training.asgd.warm_start if asynchronous(training) else 0.0


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model).cpu()
    except Exception as error:
        raise Speech3Error(_no_copy("model", error)) from error


def _no_copy(name: str, error: Exception) -> str:
    return (
        f"{name}: cannot be copied to other processes ({type(error).__name__}: {error}); define its class or function "
        f"at the top of a file, not as a lambda, and keep open files, locks and similar objects out of it"
    )


def _try_out(parts: Parts) -> bool:
    """Compute the first minibatch before any process is started; `parts` must not be used again.

    Returns
    -------
    classes
        Whether accuracy can be measured.

    Raises
    ------
    Speech3Error
        An item or the loss is faulty.
    """
    names = [name for name, parameter in parts.model.named_parameters() if parameter.requires_grad]
    unused, classes, tried = set(names), False, 0
    parts.begin_training()
    while unused and tried < min(_TRIES, len(parts.source)):
        inputs, targets = parts.source.draw(1, tried)
        outputs = parts.model(inputs)
        total, _ = parts.loss(outputs, targets)
        gradients = torch.autograd.grad(total, trained(parts.model), allow_unused=True)
        unused -= {name for name, g in zip(names, gradients, strict=True) if g is not None}
        classes, tried = classified_right(outputs, targets.stacked) is not None, tried + 1
    if unused:
        warnings.warn(
            f"model: in {tried} minibatches, the loss did not depend on {listed(sorted(unused), 5)}; freeze parameters "
            f"that are not to be trained (requires_grad_(False))",
            RuntimeWarning, stacklevel=3,
        )  # fmt: skip
    return classes


def _open(build: Build, opened: ExitStack) -> Trainer:
    training, parts = build.training, build.parts(build.training.device)
    clock = times_of(training.simulation, training.workers) if training.world == "simulated" else None
    try:
        one, world = open_worlds(training, parts, build, clock=clock)
    except Speech3Error as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
            raise Speech3Error(
                "dataset: copying it to the workers needs an open file for each of its tensors, more than this system "
                "allows (ulimit -n); allow more, or use few large tensors, as in torch.utils.data.TensorDataset"
            ) from cause
        raise
    except Exception as error:
        for name in ("model", "dataset", "loss"):
            try:
                ForkingPickler.dumps(getattr(build, name))
            except Exception as why:
                raise Speech3Error(_no_copy(name, why)) from error
        raise
    if world:
        opened.callback(world.close)
    return Trainer(one, world, _warm_start(training))


def _result(epoch: int, done: Progress, *, classes: bool) -> EpochResult:
    frames = max(1, done.frames)
    return EpochResult(
        epoch, done.seconds, done.loss_sum / frames, done.correct / frames if classes else None, done.used, done.stale,
        done.refused, done.returned, done.restarts, done.staleness, shares(done.shards), done.note,
    )  # fmt: skip


@torch.no_grad()
def _write_back(trainer: Trainer, model: nn.Module) -> None:
    """Write the trainer's last state into the caller's model."""
    trainer.one.sgd.parameters.load(trainer.tensors["parameters"])
    own = trainer.one.parts.model
    for there, here in zip(
        chain(own.parameters(), own.buffers()), chain(model.parameters(), model.buffers()), strict=True
    ):
        here.copy_(there)


def _with_items(error: Diverged, source: Items) -> Speech3Error:
    """The error, naming the minibatch's items that are not finite: the caller knows items, not minibatches."""
    found = source.not_finite(error.epoch, error.number)
    return Speech3Error(
        f"{error}; not finite in the dataset: items {listed(map(str, found), 5)}" if found else str(error)
    )


@contextmanager
def _as_arguments() -> Iterator[None]:
    """Make errors name the arguments and `options` of `fit`: the engine's errors name keys of ``training``."""
    try:
        yield
    except Speech3Error as error:
        text = re.sub(r"(?<![\w./])training\.(max_(?=epochs\b))?(?=[a-z])", "", str(error))
        raise Speech3Error(text) from error.__cause__
