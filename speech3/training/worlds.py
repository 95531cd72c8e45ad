"""From a config to the world that trains it, and what a world cannot have: workers without a core or a GPU."""

from collections.abc import Callable
from pathlib import Path

import torch

from speech3.config import SimulationConfig, TrainConfig
from speech3.engine.simulate import Simulated, Times, measure
from speech3.engine.synchronous import Synchronous
from speech3.engine.world import Parts, World
from speech3.errors import Speech3Error
from speech3.io.atomic import read_json, write_json
from speech3.io.parallel import available_jobs
from speech3.io.progress import say
from speech3.training.parts import BuildParts


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
        raise Speech3Error(f"training.workers={workers}: world sgd has one; choose shared, ddp or simulated (--world)")
    if world in ("shared", "ddp") and not training.device.startswith("cuda") and workers > available_jobs():
        raise Speech3Error(
            f"training.workers={workers}: this machine has {available_jobs()} cores for us; use fewer workers, or "
            f"study more of them with --world simulated"
        )
    if world == "ddp" and training.device.startswith("cuda") and workers > torch.cuda.device_count():
        raise Speech3Error(
            f"training.workers={workers}: ddp needs a GPU for each, here are {torch.cuda.device_count()}"
        )


def open_world(
    config: TrainConfig, directory: Path, parts: Callable[[], Parts], build: BuildParts
) -> World | None:  # fmt: skip
    """The world of `config`; none for plain SGD, which every run has anyhow.

    Parameters
    ----------
    directory
        Of the run: measured times are kept there, so a resumed simulation goes on with them.
    parts
        Makes a worker's parts in this process.
    """
    training = config.training
    match training.world:
        case "sgd":
            return None
        case "simulated":
            times = _times(config, directory / "simulation.json", parts)
            if training.simulation.synchronous:
                return Synchronous(
                    parts(), times, momentum=training.momentum, weight_decay=training.weight_decay
                )  # fmt: skip
            return Simulated(parts(), training.asgd, times, weight_decay=training.weight_decay)
        case "shared":
            from speech3.engine.shared import Shared

            return Shared(
                build, parts(), training.asgd, workers=training.workers, device=training.device,
                weight_decay=training.weight_decay,
            )  # fmt: skip
        case "ddp":
            from speech3.engine.ddp import Ddp

            return Ddp(build, parts(), workers=training.workers, device=training.device,
                       momentum=training.momentum, weight_decay=training.weight_decay)  # fmt: skip


def _times(config: TrainConfig, path: Path, parts: Callable[[], Parts]) -> Times:
    training, given = config.training, config.training.simulation
    compute_s, sync_s = given.compute_s, given.sync_s
    if compute_s is None or sync_s is None:
        if not path.exists():
            measured = measure(parts(), training.asgd)
            write_json(path, {"compute_s": measured[0], "sync_s": measured[1]})
        measured_s = read_json(path)
        compute_s = measured_s["compute_s"] if compute_s is None else compute_s
        sync_s = measured_s["sync_s"] if sync_s is None else sync_s
    each = compute_s if isinstance(compute_s, tuple) else (compute_s,) * training.workers
    if len(each) != training.workers:
        raise Speech3Error(
            f"training.simulation.compute_s: {len(each)} times for {training.workers} workers; give one, or one each"
        )
    _check_failures(given, training.workers)
    say(f"virtual clock: {', '.join(f'{s * 1e3:.2f}' for s in sorted(set(each)))} ms a minibatch, "
        f"{sync_s * 1e3:.2f} ms a sync")  # fmt: skip
    return Times(each, sync_s, given.jitter, given.failures, given.restart_s)


def _check_failures(given: SimulationConfig, workers: int) -> None:
    for worker, _ in given.failures:
        if not 0 <= worker < workers:
            raise Speech3Error(f"training.simulation.failures: worker {worker} of {workers}; they count from 0")


def with_workers(config: TrainConfig, workers: int, **changes: object) -> TrainConfig:
    """The config with another number of workers, and other changes to its training."""
    return config.model_copy(update={"training": config.training.model_copy(update={"workers": workers, **changes})})
