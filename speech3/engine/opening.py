"""Opens the worlds that a training config asks for.

Every run has a world of one worker, which computes the warm start, or everything for plain SGD; unless that is all, it
also has the world named by the key `world`. Worlds are imported when they are opened: Ray and PyTorch's distributed
package take seconds to import.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from speech3.config import SimulationConfig, TrainingConfig
from speech3.engine.one_worker import OneWorker
from speech3.engine.sandblaster.virtual import Virtual
from speech3.engine.sandblaster.world import Sandblaster
from speech3.engine.simulate import Simulated, Times
from speech3.engine.synchronous import Synchronous
from speech3.engine.world import BuildOn, Parts, World

_SIMULATED = {"ddp": "synchronous", "shared": "asgd", "cluster": "asgd", "sandblaster": "sandblaster"}  # by world


def own_method(training: TrainingConfig) -> str:
    """The value of `training.simulation.method` that simulates the config's own world."""
    return _SIMULATED.get(training.world, training.simulation.method)


def asynchronous(training: TrainingConfig) -> bool:
    """Whether training is asynchronous: shards push to a server, each in its own time."""
    simulated = training.world == "simulated" and training.simulation.method == "asgd"
    return training.world in ("shared", "cluster") or simulated


def times_of(simulation: SimulationConfig, workers: int) -> Times:
    """The times on the virtual clock of `workers` workers; `compute_s` and `sync_s` must be set."""
    compute_s, sync_s = simulation.compute_s, simulation.sync_s
    assert compute_s is not None and sync_s is not None
    return Times(
        compute_s if isinstance(compute_s, tuple) else (compute_s,) * workers, sync_s, simulation.jitter,
        simulation.failures, simulation.restart_s, simulation.bandwidth or math.inf, simulation.latency_s,
    )  # fmt: skip


def open_worlds(
    training: TrainingConfig, parts: Parts, build: BuildOn, *, clock: Times | None = None,
    split: Sequence[nn.Module] = (),
) -> tuple[OneWorker, World | None]:  # fmt: skip
    """Open the world of one worker and the config's world; the latter is None for world sgd.

    Parameters
    ----------
    parts
        Parts of a worker in this process, for the world of one worker. The config's world gets a copy of the model.
    build
        Makes the parts of a worker in a process of its own.
    clock
        The times on the virtual clock; needed by world simulated only.
    split
        The slices of the model that the members of a replica hold; needed with `model_partitions` only.

    Raises
    ------
    Speech3Error
        Whatever the worlds raise.
    """
    momentum = training.server.momentum if asynchronous(training) else training.momentum
    steps: dict[str, Any] = {"momentum": momentum, "weight_decay": training.weight_decay}
    pushes: dict[str, Any] = {"weight_decay": training.weight_decay, "codec": training.codec}
    here: dict[str, Any] = {"workers": training.workers, "device": training.device}

    def another() -> Parts:
        return replace(parts, model=copy.deepcopy(parts.model))

    match training.world:
        case "sgd":
            return OneWorker(parts, **steps), None
        case "simulated":
            assert clock is not None
            alone = Synchronous(parts, replace(clock, compute_s=clock.compute_s[:1]), **steps)
            return alone, _simulated(training, another(), clock)
        case "shared":
            from speech3.engine.shared import Shared

            return OneWorker(parts, **steps), Shared(build, another(), training.server, split=split, **here, **pushes)
        case "sandblaster":
            from speech3.engine.sandblaster.processes import Processes

            return OneWorker(parts, **steps), Sandblaster(
                partial(Processes, build, device=training.device), another(), training.lbfgs,
                workers=training.workers, weight_decay=training.weight_decay,
            )  # fmt: skip
        case "cluster":
            from speech3.engine.cluster.world import Cluster

            return OneWorker(parts, **steps), Cluster(
                build, another(), training.server, **here, **pushes, address=training.cluster.address
            )  # fmt: skip
        case "ddp":
            from speech3.engine.ddp import Ddp

            return OneWorker(parts, **steps), Ddp(build, **here, **steps, codec=training.codec)


def _simulated(training: TrainingConfig, parts: Parts, clock: Times) -> World:
    """The world of virtual workers that train with the configured method."""
    steps: dict[str, Any] = {"weight_decay": training.weight_decay, "codec": training.codec}
    match training.simulation.method:
        case "asgd":
            return Simulated(parts, training.server, clock, **steps)
        case "synchronous":
            return Synchronous(parts, clock, momentum=training.momentum, **steps)
        case "sandblaster":
            return Sandblaster(
                partial(Virtual, parts, clock), replace(parts, model=copy.deepcopy(parts.model)), training.lbfgs,
                workers=training.workers, weight_decay=training.weight_decay,
            )  # fmt: skip
