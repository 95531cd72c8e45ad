"""From a config to the world that trains it, and what a world cannot have: workers without a core or a GPU."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from speech3.config import SimulationConfig, TrainConfig
from speech3.engine.sgd import OneWorker
from speech3.engine.simulate import Simulated, Times, measure
from speech3.engine.synchronous import Synchronous
from speech3.engine.world import Parts, World
from speech3.errors import Speech3Error
from speech3.io.atomic import read_json, write_json
from speech3.io.parallel import available_jobs
from speech3.io.progress import say
from speech3.training.parts import BuildParts

_CODECS = ("none", "bf16", "ternary", "topk")


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
    on_cores = world in ("shared", "ddp", "sandblaster") and not training.device.startswith("cuda")
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
    codecs = {"ddp": ("none", "ternary"), "shared": _CODECS, "simulated": _CODECS}.get(world, ("none",))
    if world == "simulated" and training.simulation.synchronous and workers > 1:
        codecs = ("none",)  # one worker, which has nobody to send to, is in every simulation
    if training.codec.down != "float32" and codecs != _CODECS:
        raise Speech3Error(
            f"training.codec.down={training.codec.down}: only shards fetch, in world shared, and in simulated "
            f"unless it is synchronous; take it away"
        )
    if training.codec.kind not in codecs:
        raise Speech3Error(
            f"training.codec={training.codec.kind}: here is only {' and '.join(codecs)}; there are others in "
            f"world shared, in simulated unless it is synchronous, and in ddp (ternary)"
        )
    if world == "sandblaster" and training.gradient_clip is not None:
        raise Speech3Error(
            f"training.gradient_clip={training.gradient_clip:g}: a gradient that was cut down is not that of the loss, "
            f"and the line search of world sandblaster needs it; take it away"
        )


def asynchronous(config: TrainConfig) -> bool:
    """Do shards push to a server, and not step together?"""
    training = config.training
    return training.world == "shared" or (training.world == "simulated" and not training.simulation.synchronous)


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
    if training.world == "sandblaster" and lbfgs.batches * lbfgs.iterations > minibatches:
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
    steps = {"momentum": training.momentum, "weight_decay": training.weight_decay}

    def another() -> Parts:
        return replace(parts, model=copy.deepcopy(parts.model))

    match training.world:
        case "sgd":
            return OneWorker(parts, **steps), None
        case "simulated":
            clock = _times(simulation_of(config, times, another), training.workers)
            alone = Synchronous(parts, replace(clock, compute_s=clock.compute_s[:1]), **steps)
            if training.simulation.synchronous:
                return alone, Synchronous(another(), clock, **steps)
            return alone, Simulated(
                another(), training.asgd, clock, weight_decay=training.weight_decay, codec=training.codec
            )  # fmt: skip
        case "shared":
            from speech3.engine.shared import Shared

            return OneWorker(parts, **steps), Shared(
                build, another(), training.asgd, workers=training.workers, device=training.device,
                weight_decay=training.weight_decay, codec=training.codec,
            )  # fmt: skip
        case "sandblaster":
            from speech3.engine.sandblaster import Sandblaster

            return OneWorker(parts, **steps), Sandblaster(
                build, another(), training.lbfgs, workers=training.workers, device=training.device,
                weight_decay=training.weight_decay,
            )  # fmt: skip
        case "ddp":
            from speech3.engine.ddp import Ddp

            return OneWorker(parts, **steps), Ddp(
                build, workers=training.workers, device=training.device, codec=training.codec, **steps
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
    return Times(each, sync_s, simulation.jitter, simulation.failures, simulation.restart_s)


def _check_simulation(given: SimulationConfig, workers: int) -> None:
    if isinstance(given.compute_s, tuple) and len(given.compute_s) != workers:
        raise Speech3Error(
            f"training.simulation.compute_s: {len(given.compute_s)} times for training.workers={workers}; give one for "
            f"all, or one each"
        )
    if given.synchronous and given.failures:
        raise Speech3Error(
            "training.simulation.failures: a worker that dies ends training where all step together; take it away, or "
            "training.simulation.synchronous"
        )
    for worker, _ in given.failures:
        if not 0 <= worker < workers:
            raise Speech3Error(f"training.simulation.failures: no worker {worker} of {workers}; they count from 0")


def with_workers(config: TrainConfig, workers: int, **changes: object) -> TrainConfig:
    """The config with another number of workers, and other changes to its training."""
    return config.model_copy(update={"training": config.training.model_copy(update={"workers": workers, **changes})})
