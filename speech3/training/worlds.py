"""The worlds of a run, and the times of the virtual clock, measured if the config does not give them."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from speech3.config import SimulationConfig, TrainConfig
from speech3.engine import Backend, OneWorker, Times, WorkerParts, measure, open_backends, times_of
from speech3.io.atomic import read_json, write_json
from speech3.io.progress import say
from speech3.training.parts import BuildParts, slices


def open_worlds(
    config: TrainConfig, times: Path, parts: WorkerParts, build: BuildParts
) -> tuple[OneWorker, Backend | None]:
    """Open the worlds of a run, as `speech3.engine.open_backends`, for packed frames.

    Parameters
    ----------
    times
        File of measured times, which a resumed simulation reuses.
    """
    training, clock = config.training, None
    if training.world == "simulated":
        clock = _clock(config, times, lambda: replace(parts, model=copy.deepcopy(parts.model)))
    split = slices(config, parts.model) if training.model_partitions > 1 else ()
    return open_backends(training, parts, build, clock=clock, split=split)


def _clock(config: TrainConfig, path: Path, parts: Callable[[], WorkerParts]) -> Times:
    clock = times_of(simulation_of(config, path, parts), config.training.workers)
    say(f"virtual clock: {', '.join(f'{s * 1e3:.2f}' for s in sorted(set(clock.compute_s)))} ms per minibatch, "
        f"{clock.sync_s * 1e3:.2f} ms per sync")  # fmt: skip
    return clock


def simulation_of(config: TrainConfig, path: Path, parts: Callable[[], WorkerParts]) -> SimulationConfig:
    """The config of the virtual clock; times that it lacks are measured, and stored at `path` for a resumed run."""
    given = config.training.simulation
    if given.compute_s is not None and given.sync_s is not None:
        return given
    if not path.exists():
        compute_s, sync_s = measure(parts(), config.training.server, codec=config.training.codec)
        write_json(path, {"compute_s": compute_s, "sync_s": sync_s})
    measured = {key: seconds for key, seconds in read_json(path).items() if getattr(given, key) is None}
    return given.model_copy(update=measured)


def with_workers(config: TrainConfig, workers: int, **changes: object) -> TrainConfig:
    """A copy of the config with another number of workers, and other changes to its training."""
    return config.model_copy(update={"training": config.training.model_copy(update={"workers": workers, **changes})})
