"""From a config to the world that trains it, and what a world cannot have: workers without a core or a GPU."""

import copy
import importlib.util
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from speech3.config import SimulationConfig, TrainConfig, TrainingConfig
from speech3.engine.one_worker import OneWorker
from speech3.engine.sandblaster.virtual import Virtual
from speech3.engine.sandblaster.world import Sandblaster
from speech3.engine.simulate import Simulated, Times, measure
from speech3.engine.synchronous import Synchronous
from speech3.engine.world import Parts, World
from speech3.errors import Speech3Error
from speech3.io.atomic import read_json, write_json
from speech3.io.parallel import available_jobs
from speech3.io.progress import say
from speech3.training.parts import BuildParts, slices

_CODECS = ("none", "bf16", "ternary", "topk")
_SHARED_SCALE = ("none", "ternary")  # the codecs of gradients whose mean is sent back


_SIMULATED = {"ddp": "synchronous", "shared": "asgd", "cluster": "asgd", "sandblaster": "sandblaster"}  # by world


def own_method(training: TrainingConfig) -> str:
    """What `training.simulation.method` stands for the config's own way to train, on the virtual clock."""
    return _SIMULATED.get(training.world, training.simulation.method)


def check_workers(config: TrainConfig) -> None:
    """Refuse more workers than there are cores or GPUs, and fewer than the world needs.

    Raises
    ------
    Speech3Error
        Names the keys and what this machine has.
    """
    training = config.training
    world, workers = training.world, training.workers
    if world == "sgd" and workers > 1:
        raise Speech3Error(
            f"training.workers={workers}: world sgd has one; choose shared, ddp or simulated (--world), or --workers 1"
        )
    _check_partitions(training)
    if world == "cluster":
        _check_cluster(training)
    here = world in ("shared", "ddp", "sandblaster") or (world == "cluster" and training.cluster.address is None)
    on_cores = here and not training.device.startswith("cuda")
    if on_cores and workers > available_jobs():
        raise Speech3Error(
            f"training.workers={workers}: this machine has {available_jobs()} cores for us; use fewer workers, or "
            f"study more of them with --world simulated"
        )
    if world == "ddp" and training.device.startswith("cuda") and workers > torch.cuda.device_count():
        raise Speech3Error(
            f"training.workers={workers}: ddp needs a GPU for each, here are {torch.cuda.device_count()}"
        )
    if world == "simulated":
        _check_simulation(training.simulation, workers)
    codecs = {"ddp": _SHARED_SCALE, "shared": _CODECS, "cluster": _CODECS, "simulated": _CODECS}.get(world, ("none",))
    if world == "simulated" and workers > 1:  # one worker, which has nobody to send to, is in every simulation
        codecs = {"asgd": _CODECS, "synchronous": _SHARED_SCALE}.get(training.simulation.method, ("none",))
    if training.codec.down != "float32" and codecs != _CODECS:
        raise Speech3Error(
            f"training.codec.down={training.codec.down}: only shards fetch, in world shared, in cluster, and in "
            f"simulated where training.simulation.method is asgd; take it away"
        )
    if training.codec.kind not in codecs:
        raise Speech3Error(
            f"training.codec={training.codec.kind}: here is only {' and '.join(codecs)}; there are others in "
            f"world shared, in cluster, in simulated asgd (training.simulation.method), and in both kinds of "
            f"synchronous training: ddp and simulated (ternary)"
        )
    if _lbfgs(training) and training.gradient_clip is not None:
        raise Speech3Error(
            f"training.gradient_clip={training.gradient_clip:g}: a gradient that was cut down is not that of the loss, "
            f"and the line search of sandblaster needs it; take it away"
        )


def _check_partitions(training: TrainingConfig) -> None:
    """Refuse groups of processes where there are none, or more of them than there are cores or GPUs."""
    partitions, gpus, jobs = training.model_partitions, torch.cuda.device_count(), available_jobs()
    on_gpus, processes = training.device.startswith("cuda"), training.workers * training.model_partitions
    if partitions > 1 and training.world != "shared":
        raise Speech3Error(
            f"training.model_partitions={partitions}: only the workers of world shared are groups of processes, not "
            f"those of {training.world}; set training.world=shared (one worker will do), or take it away"
        )
    if partitions > 1 and not on_gpus and processes > jobs:
        raise Speech3Error(
            f"training.model_partitions={partitions} with training.workers={training.workers}: these are {processes} "
            f"processes, and this machine has {jobs} cores for us; lower one of the two"
        )
    if on_gpus and partitions > max(1, gpus):
        raise Speech3Error(
            f"training.model_partitions={partitions}: each needs a GPU of its own, and here are {gpus}; use as many"
        )


def _lbfgs(training: TrainingConfig) -> bool:
    simulated = training.world == "simulated" and training.simulation.method == "sandblaster"
    return training.world == "sandblaster" or simulated


def _check_cluster(training: TrainingConfig) -> None:
    if importlib.util.find_spec("ray") is None:
        raise Speech3Error("training.world=cluster: needs Ray, which is not installed; `pip install speech3[cluster]`")
    if training.device not in ("cpu", "cuda"):
        raise Speech3Error(
            f"training.device={training.device}: in world cluster it is Ray that gives each shard its GPU; use cuda"
        )
    if training.asgd.lock_free:
        raise Speech3Error(
            "training.asgd.lock_free=true: in world cluster a partition does one thing at a time, and nobody holds a "
            "lock; take it away"
        )


def asynchronous(config: TrainConfig) -> bool:
    """Do shards push to a server, and not step together?"""
    training = config.training
    simulated = training.world == "simulated" and training.simulation.method == "asgd"
    return training.world in ("shared", "cluster") or simulated


def check_epoch(config: TrainConfig, minibatches: int, warm_start: float) -> None:
    """Refuse what an epoch is too small for, and asynchronous training that would never be: a warm start too long.

    Parameters
    ----------
    minibatches
        In an epoch.
    warm_start
        In epochs, as it will be: none where training begins with a trained model.

    Raises
    ------
    Speech3Error
        Names the keys.
    """
    training, asgd, lbfgs = config.training, config.training.asgd, config.training.lbfgs
    if _lbfgs(training) and lbfgs.batches * lbfgs.iterations > minibatches:
        raise Speech3Error(
            f"training.lbfgs: batches={lbfgs.batches} with iterations={lbfgs.iterations} each, but an epoch has only "
            f"{minibatches} minibatches of {training.minibatch} frames, and every iteration stands for some; lower "
            f"them, or training.minibatch"
        )
    if not asynchronous(config):
        return
    if warm_start >= training.max_epochs:
        raise Speech3Error(
            f"training.asgd.warm_start={warm_start:g}: that is all of training.max_epochs={training.max_epochs}, and "
            f"nothing is left for world {training.world}; shorten it (0.25, say), or train longer"
        )
    if asgd.sync_every > minibatches:
        raise Speech3Error(
            f"training.asgd.sync_every={asgd.sync_every}: an epoch has only {minibatches} minibatches of "
            f"{training.minibatch} frames, so no shard would sync; lower it, or training.minibatch"
        )


def open_worlds(config: TrainConfig, times: Path, parts: Parts, build: BuildParts) -> tuple[OneWorker, World | None]:
    """The world of one worker, which does the warm start and all of plain SGD, and the world of `config` besides.

    Parameters
    ----------
    times
        Where measured times are kept, so a resumed simulation goes on with them.
    parts
        A worker's in this process: the first's. Others here get copies of its model, and the same minibatches.
    """
    training = config.training
    steps: dict[str, Any] = {"momentum": training.momentum, "weight_decay": training.weight_decay}

    def another() -> Parts:
        return replace(parts, model=copy.deepcopy(parts.model))

    match training.world:
        case "sgd":
            return OneWorker(parts, **steps), None
        case "simulated":
            clock = _times(simulation_of(config, times, another), training.workers)
            alone = Synchronous(parts, replace(clock, compute_s=clock.compute_s[:1]), **steps)
            return alone, _simulated(training, another, clock)
        case "shared" if training.model_partitions > 1:
            from speech3.engine.replicas.world import Replicas

            return OneWorker(parts, **steps), Replicas(
                build, another(), slices(config, parts.model), training.asgd, workers=training.workers,
                device=training.device, weight_decay=training.weight_decay, codec=training.codec,
            )  # fmt: skip
        case "shared":
            from speech3.engine.shared import Shared

            return OneWorker(parts, **steps), Shared(
                build, another(), training.asgd, workers=training.workers, device=training.device,
                weight_decay=training.weight_decay, codec=training.codec,
            )  # fmt: skip
        case "sandblaster":
            from speech3.engine.sandblaster.processes import Processes

            return OneWorker(parts, **steps), Sandblaster(
                partial(Processes, build, device=training.device), another(), training.lbfgs,
                workers=training.workers, weight_decay=training.weight_decay,
            )  # fmt: skip
        case "cluster":
            from speech3.engine.cluster.world import Cluster

            return OneWorker(parts, **steps), Cluster(
                build, another(), training.asgd, workers=training.workers, device=training.device,
                weight_decay=training.weight_decay, codec=training.codec, address=training.cluster.address,
            )  # fmt: skip
        case "ddp":
            from speech3.engine.ddp import Ddp

            return OneWorker(parts, **steps), Ddp(
                build, workers=training.workers, device=training.device, codec=training.codec, **steps
            )  # fmt: skip


def _simulated(training: TrainingConfig, another: Callable[[], Parts], clock: Times) -> World:
    """The world of virtual workers that train by the configured method."""
    match training.simulation.method:
        case "asgd":
            return Simulated(
                another(), training.asgd, clock, weight_decay=training.weight_decay, codec=training.codec
            )  # fmt: skip
        case "synchronous":
            return Synchronous(
                another(), clock, momentum=training.momentum, weight_decay=training.weight_decay, codec=training.codec
            )  # fmt: skip
        case "sandblaster":
            return Sandblaster(
                partial(Virtual, another(), clock), another(), training.lbfgs, workers=training.workers,
                weight_decay=training.weight_decay,
            )  # fmt: skip


def simulation_of(config: TrainConfig, path: Path, parts: Callable[[], Parts]) -> SimulationConfig:
    """The virtual clock's data; what is not given is measured, and kept at `path` for who goes on."""
    given = config.training.simulation
    if given.compute_s is not None and given.sync_s is not None:
        return given
    if not path.exists():
        compute_s, sync_s = measure(parts(), config.training.asgd, codec=config.training.codec)
        write_json(path, {"compute_s": compute_s, "sync_s": sync_s})
    measured = {key: seconds for key, seconds in read_json(path).items() if getattr(given, key) is None}
    return given.model_copy(update=measured)


def _times(simulation: SimulationConfig, workers: int) -> Times:
    compute_s, sync_s = simulation.compute_s, simulation.sync_s
    assert compute_s is not None and sync_s is not None  # `simulation_of` has seen to it
    each = compute_s if isinstance(compute_s, tuple) else (compute_s,) * workers
    say(f"virtual clock: {', '.join(f'{s * 1e3:.2f}' for s in sorted(set(each)))} ms a minibatch, "
        f"{sync_s * 1e3:.2f} ms a sync")  # fmt: skip
    return Times(
        each, sync_s, simulation.jitter, simulation.failures, simulation.restart_s,
        simulation.bandwidth or math.inf, simulation.latency_s,
    )  # fmt: skip


def _check_simulation(given: SimulationConfig, workers: int) -> None:
    if isinstance(given.compute_s, tuple) and len(given.compute_s) != workers:
        raise Speech3Error(
            f"training.simulation.compute_s: {len(given.compute_s)} times for training.workers={workers}; give one for "
            f"all, or one each"
        )
    if given.method == "synchronous" and given.failures:
        raise Speech3Error(
            "training.simulation.failures: a worker that dies ends training where all step together; take it away, or "
            "training.simulation.method=synchronous"
        )
    for worker, _ in given.failures:
        if not 0 <= worker < workers:
            raise Speech3Error(f"training.simulation.failures: no worker {worker} of {workers}; they count from 0")


def with_workers(config: TrainConfig, workers: int, **changes: object) -> TrainConfig:
    """The config with another number of workers, and other changes to its training."""
    return config.model_copy(update={"training": config.training.model_copy(update={"workers": workers, **changes})})
