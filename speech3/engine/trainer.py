"""Checks a training config, opens the backends that it asks for, and runs them through the epochs.

Every run has a backend of one worker, which computes the warm start, or everything for plain SGD; unless that is all,
it also has the backend named by the key `world`. Backends are imported when they are opened: Ray and PyTorch's
distributed package take seconds to import. Messages name keys of the config's `training`.

Axes: M minibatches of an epoch.
"""

import copy
import importlib.util
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from speech3.config import CodecConfig, SimulationConfig, TrainingConfig
from speech3.engine.backends.one_process import OneWorker, Simulated, Synchronous, Times
from speech3.engine.interface import USED, Backend, BuildOn, Progress, Rate, WorkerParts
from speech3.engine.papers.sandblaster import Sandblaster
from speech3.engine.papers.sandblaster_workers import Virtual
from speech3.errors import MachineError, SettingError, TrainingError
from speech3.runtime import available_jobs

_SIMULATED = {"ddp": "synchronous", "shared": "asgd", "cluster": "asgd", "sandblaster": "sandblaster"}  # by backend
_CODECS = ("none", "bf16", "ternary", "topk", "rows")
_SHARED_SCALE = ("none", "ternary")  # codecs of synchronous training, which sends back the mean of the gradients
# Training stops if at least this number of an epoch's minibatches, and more than this share of them, are refused.
_FEW_REFUSED, _MAX_REFUSED = 20, 0.05


def simulated_strategy(training: TrainingConfig) -> str:
    """The value of `training.simulation.strategy` that simulates the config's own backend."""
    return _SIMULATED.get(training.world, training.simulation.strategy)


def times_of(simulation: SimulationConfig, workers: int) -> Times:
    """The times on the virtual clock of `workers` workers; `compute_s` and `sync_s` must be set."""
    compute_s, sync_s = simulation.compute_s, simulation.sync_s
    assert compute_s is not None and sync_s is not None
    return Times(
        compute_s if isinstance(compute_s, tuple) else (compute_s,) * workers,
        sync_s,
        simulation.jitter,
        failures=simulation.failures,
        restart_s=simulation.restart_s,
        bandwidth=simulation.bandwidth or math.inf,
        latency_s=simulation.latency_s,
    )


def open_backends(
    training: TrainingConfig,
    parts: WorkerParts,
    build: BuildOn,
    *,
    clock: Times | None = None,
    split: Sequence[nn.Module] = (),
) -> tuple[OneWorker, Backend | None]:
    """Open the backend of one worker and the config's backend; the latter is None for backend sgd.

    Parameters
    ----------
    parts
        Parts of a worker in this process, for the backend of one worker. The config's backend gets a copy of the model.
    build
        Makes the parts of a worker in a process of its own.
    clock
        The times on the virtual clock; needed by backend simulated only.
    split
        The slices of the model that the members of a replica hold; needed with `model_partitions` only.
    """
    momentum = training.server.momentum if training.asynchronous else training.momentum
    here: dict[str, Any] = {"workers": training.workers, "device": training.device, "codec": training.codec}
    if training.world == "sgd":
        return OneWorker(parts, momentum=momentum), None
    another = replace(parts, model=copy.deepcopy(parts.model))
    if training.world == "simulated":
        assert clock is not None
        alone = Synchronous(parts, replace(clock, compute_s=clock.compute_s[:1]), momentum=momentum)
        return alone, _simulated(training, another, clock)
    one = OneWorker(parts, momentum=momentum)
    match training.world:
        case "shared":
            from speech3.engine.backends.shared import Shared

            return one, Shared(build, another, training.server, split=split, **here)
        case "sandblaster":
            from speech3.engine.papers.sandblaster_workers import Processes

            processes = partial(Processes, build, device=training.device)
            return one, Sandblaster(processes, another, training.lbfgs, workers=training.workers)
        case "cluster":
            from speech3.engine.backends.cluster import Cluster

            return one, Cluster(build, another, training.server, **here, address=training.cluster.address)
        case "ddp":
            from speech3.engine.backends.ddp import Ddp

            return one, Ddp(build, **here, momentum=momentum)


def _simulated(training: TrainingConfig, parts: WorkerParts, clock: Times) -> Backend:
    """The backend of virtual workers that train with the configured strategy."""
    match training.simulation.strategy:
        case "asgd":
            return Simulated(parts, training.server, clock, codec=training.codec)
        case "synchronous":
            return Synchronous(parts, clock, momentum=training.momentum, codec=training.codec)
        case "sandblaster":
            own = replace(parts, model=copy.deepcopy(parts.model))
            return Sandblaster(partial(Virtual, parts, clock), own, training.lbfgs, workers=training.workers)


def check_workers(training: TrainingConfig) -> None:
    """Refuse more workers than cores (in backend ddp, than GPUs), and settings that the backend does not support.

    Raises `Speech3Error`: the message names the keys and what this machine has.
    """
    # Workers and what each needs of this machine.
    world, workers = training.world, training.workers
    if world == "sgd" and workers > 1:
        raise SettingError(
            f"training.workers={workers}: world sgd has one; choose shared, ddp or simulated (--world), or set "
            f"--workers 1"
        )
    _check_partitions(training)
    _check_precision(training)
    if world == "cluster":
        _check_cluster(training)
    here = world in ("shared", "ddp", "sandblaster") or (world == "cluster" and training.cluster.address is None)
    # Each worker needs a core, or in ddp a GPU of its own.
    on_cores = here and not training.device.startswith("cuda")
    if on_cores and workers > available_jobs():
        raise MachineError(
            f"training.workers={workers}: this machine has {available_jobs()} cores for training; use fewer workers, "
            f"or simulate more of them with --world simulated"
        )
    if world == "ddp" and training.device.startswith("cuda") and workers > torch.cuda.device_count():
        raise MachineError(
            f"training.workers={workers}: ddp needs a GPU for each; this machine has {torch.cuda.device_count()}, so "
            f"use no more workers than that"
        )
    if world == "ddp" and training.device.startswith("cuda:") and workers > 1:
        raise MachineError(
            f"training.device={training.device}: that is one GPU, and ddp needs one for each of "
            f"training.workers={workers}; use cuda, or one worker"
        )
    if world == "simulated":
        _check_simulation(training.simulation, workers)
    # The codecs that the backend supports, in both directions.
    codecs = {"ddp": _SHARED_SCALE, "shared": _CODECS, "cluster": _CODECS, "simulated": _CODECS}.get(world, ("none",))
    if world == "simulated" and workers > 1:  # a single worker sends nothing
        codecs = {"asgd": _CODECS, "synchronous": _SHARED_SCALE}.get(training.simulation.strategy, ("none",))
    if training.codec.down != "float32" and codecs != _CODECS:
        raise SettingError(
            f"training.codec.down={training.codec.down}: only shards fetch parameters, that is, workers of the worlds "
            f"shared, cluster, and simulated with training.simulation.strategy=asgd; remove it"
        )
    if training.codec.kind not in codecs:
        raise SettingError(
            f"training.codec={training.codec.kind}: this world supports only {' and '.join(codecs)}; all codecs work "
            f"in world shared, in cluster, and in simulated with training.simulation.strategy=asgd; ternary also works "
            f"in ddp, and in simulated with training.simulation.strategy=synchronous"
        )
    # Keys of the optimizer that contradict each other.
    _check_codec(training.codec)
    if training.asynchronous and 0 < training.asgd.momentum != training.momentum > 0:
        raise SettingError(
            f"training.momentum={training.momentum:g} and training.asgd.momentum={training.asgd.momentum:g}: "
            f"asynchronous workers have one momentum, that of the server; remove one of them"
        )
    # L-BFGS has its own steps.
    if training.by_sandblaster and (training.optimizer != "sgd" or training.momentum):
        raise SettingError(
            "training.optimizer and training.momentum: sandblaster is L-BFGS, whose workers take no steps of their "
            "own; remove them"
        )
    if training.by_sandblaster and training.gradient_clip is not None:
        raise SettingError(
            f"training.gradient_clip={training.gradient_clip:g}: the line search of sandblaster needs the true "
            f"gradient of the loss, not a clipped one; remove it"
        )


def _check_codec(codec: CodecConfig) -> None:
    used = {"kind", "down", *(["share"] if codec.kind == "topk" else [])}
    if "ternary" in (codec.kind, codec.down):
        used |= {"clip", "bucket", "float_below", "float_last"}
    for name, key in CodecConfig.model_fields.items():
        if name not in used and (value := getattr(codec, name)) != key.default:
            owner = "topk" if name == "share" else "ternary"
            raise SettingError(
                f"training.codec.{name}={value:g}: has no effect with training.codec.kind={codec.kind}; remove it, or "
                f"set training.codec.kind={owner}"
            )


def _check_partitions(training: TrainingConfig) -> None:
    """Refuse model partitions in backends without replicas, more processes than cores, more partitions than GPUs."""
    partitions, gpus, jobs = training.model_partitions, torch.cuda.device_count(), available_jobs()
    on_gpus, processes = training.device.startswith("cuda"), training.workers * training.model_partitions
    if partitions > 1 and training.world != "shared":
        raise SettingError(
            f"training.model_partitions={partitions}: only the workers of world shared can be groups of processes, "
            f"not those of {training.world}; set training.world=shared (one worker is enough), or remove it"
        )
    if partitions > 1 and not on_gpus and processes > jobs:
        raise MachineError(
            f"training.model_partitions={partitions} with training.workers={training.workers}: these are {processes} "
            f"processes, and this machine has {jobs} cores for training; lower one of the two"
        )
    if on_gpus and partitions > max(1, gpus):
        raise MachineError(
            f"training.model_partitions={partitions}: each partition needs its own GPU, and this machine has "
            f"{gpus}; use no more partitions than GPUs"
        )


def _check_precision(training: TrainingConfig) -> None:
    """Refuse precisions and CUDA graphs where they would have no effect, and in backends that do not support them."""
    key = f"training.precision={training.precision}"
    if training.precision == "tf32" and not training.device.startswith("cuda"):
        raise MachineError(f"{key}: needs a GPU; on {training.device} use float32 or bf16")
    if training.cuda_graph and not training.device.startswith("cuda"):
        raise MachineError(f"training.cuda_graph=true: needs a GPU; on {training.device} set it to false")
    if training.cuda_graph and (training.world not in ("sgd", "shared", "cluster") or training.model_partitions > 1):
        raise SettingError(
            "training.cuda_graph=true: works only in worlds sgd, shared and cluster without training.model_partitions, "
            "where each worker computes its minibatches alone; set it to false"
        )
    if training.precision == "bf16" and training.by_sandblaster:
        raise SettingError(
            f"{key}: the line search of sandblaster compares losses that differ by less than the rounding error of "
            f"bf16; use float32"
        )
    if training.precision == "bf16" and training.model_partitions > 1:
        raise SettingError(
            f"{key} with training.model_partitions={training.model_partitions}: the members of a replica exchange "
            f"float32; use training.precision=float32, or one partition"
        )


def _check_cluster(training: TrainingConfig) -> None:
    if importlib.util.find_spec("ray") is None:
        raise MachineError("training.world=cluster: needs Ray, which is not installed; `pip install speech3[cluster]`")
    if training.device not in ("cpu", "cuda"):
        raise SettingError(
            f"training.device={training.device}: in world cluster, Ray assigns each shard its GPU; use cuda"
        )


def check_epoch(training: TrainingConfig, minibatches: int, warm_start: float) -> None:
    """Refuse settings for which an epoch is too small, and a warm start that leaves no asynchronous training.

    `minibatches` are those of an epoch; `warm_start` is in epochs, 0 if training begins with a trained model.
    """
    asgd, lbfgs = training.asgd, training.lbfgs
    if training.by_sandblaster and lbfgs.batches * lbfgs.iterations > minibatches:
        raise SettingError(
            f"training.lbfgs: batches={lbfgs.batches} with iterations={lbfgs.iterations} each, but an epoch has only "
            f"{minibatches} minibatches (training.minibatch={training.minibatch}), and every iteration needs at least "
            f"one; lower them, or training.minibatch"
        )
    if not training.asynchronous:
        return
    if warm_start >= training.max_epochs:
        raise SettingError(
            f"training.asgd.warm_start={warm_start:g}: warm start lasts the whole run "
            f"(training.max_epochs={training.max_epochs}); shorten it (to 0.25, for example), or train longer"
        )
    if asgd.sync_every > minibatches:
        raise SettingError(
            f"training.asgd.sync_every={asgd.sync_every}: an epoch has only {minibatches} minibatches "
            f"(training.minibatch={training.minibatch}), so shards would push only at its end; lower it, or "
            f"training.minibatch"
        )


def _check_simulation(given: SimulationConfig, workers: int) -> None:
    if isinstance(given.compute_s, tuple) and len(given.compute_s) != workers:
        raise SettingError(
            f"training.simulation.compute_s: {len(given.compute_s)} times for training.workers={workers}; set one for "
            f"all workers, or one for each worker"
        )
    if given.strategy == "synchronous" and given.failures:
        raise SettingError(
            "training.simulation.failures: a worker that dies ends synchronous training, where all step together; "
            "remove it, or set training.simulation.strategy=asgd"
        )
    for worker, _ in given.failures:
        if not 0 <= worker < workers:
            raise SettingError(
                f"training.simulation.failures: no worker {worker} of {workers}; workers are numbered from 0"
            )


class Trainer:
    """The state of training, and the backends that advance it.

    `one` computes the warm start, and everything if there is no other backend. `tensors` is the state that was taken
    last, from which the next minibatch starts when no backend is running. In that state, `states_M` (int32) says what
    became of each minibatch of the epoch (`speech3.engine.interface`), and `done` is its progress.
    """

    def __init__(self, one: OneWorker, backend: Backend | None, warm_start: float = 0.0) -> None:
        self.one, self.backend = one, backend
        self.minibatches = len(one.parts.source)
        self.warm_minibatches = round(warm_start * self.minibatches)
        self.tensors = one.snapshot().tensors
        self.begin_epoch()

    def begin_epoch(self) -> None:
        self.states_M, self.done = np.zeros(self.minibatches, np.int32), Progress()
        self._at_work: tuple[Backend, Progress, int] | None = None

    def resume(self, tensors: dict[str, Tensor], states_M: np.ndarray, done: Progress) -> None:
        self.tensors, self.states_M, self.done = tensors, states_M, done

    def epoch(self, rate: Rate, seconds: float = 0.0) -> Iterator[Progress]:
        """Compute the rest of an epoch that began after `seconds` of training; yields its progress.

        Raises `Speech3Error` if too many minibatches were refused, or the parameters are not finite; also whatever the
        backends raise.
        """
        warm = self.warm_minibatches - (rate.epoch - 1) * self.minibatches
        for backend, upto in ((self.one, min(warm, self.minibatches)), (self.backend or self.one, self.minibatches)):
            if upto <= 0 or (self.states_M[:upto] < 0).all():
                continue
            self._at_work = backend, self.done, upto
            backend.load(self.tensors, seconds + self.done.seconds)
            states_M = self.states_M.copy()
            states_M[upto:] = USED  # minibatches that this backend must not compute
            for done in backend.epoch(rate.epoch, states_M, rate):
                progress = self._at_work[1] + done
                self._check_refused(progress, rate)
                yield progress
            self.take()

    def take(self) -> None:
        """Take the newest consistent state from the backend that is running, without stopping its workers.

        Raises `Speech3Error` if a value of the state is not finite.
        """
        if self._at_work is not None:
            backend, before, upto = self._at_work
            snapshot = backend.snapshot()
            if not snapshot.finite:
                raise TrainingError(
                    "the parameters, or the running means of normalisation, are no longer finite: the learning rate is "
                    "most likely too high, or the data contain NaN; lower training.learning_rate, or repair the data"
                )
            self.tensors, self.done = snapshot.tensors, before + snapshot.progress
            # Assigned (s + 1) becomes WAITING (0): it is not in these parameters, so a resumed run computes it again.
            self.states_M[:upto] = np.minimum(snapshot.states_M[:upto], 0)

    def _check_refused(self, progress: Progress, rate: Rate) -> None:
        refused, total = progress.refused, self.minibatches
        if refused == total or (refused >= _FEW_REFUSED and refused > _MAX_REFUSED * total):
            raise TrainingError(
                f"epoch {rate.epoch}: {refused} of {total} minibatches were refused (a loss or a push that is not "
                f"finite, or one longer than training.asgd.max_push): the learning rate ({rate.base:g}) is most likely "
                f"too high, or the data contain NaN; lower training.learning_rate, or set "
                f"training.asgd.push_scale=1/workers or training.gradient_clip=1, and start again"
            )


def rate_of(learning_rate: float, epoch: int, minibatches: int, training: TrainingConfig) -> Rate:
    """The learning rate in `epoch` (from 1) by the schedule of the config, whose base is `learning_rate`."""
    decay = training.final_rate ** (1 / training.max_epochs) if training.schedule == "exponential" else 1.0
    last = training.max_epochs if training.schedule == "cosine" else 0
    return Rate(learning_rate, epoch, minibatches, training.warmup, decay, last)
