"""The asynchronous training engine: how workers and a parameter server update the parameters of a model.

It knows nothing about speech and prints nothing (only `fit` shows progress): it is given a model, a source of
minibatches and a loss (`WorkerParts`), and would train any PyTorch model. Read the algorithm in `shard.py`,
`server.py`, `server_optimizer.py` and `pool.py`, in this order; README.md says what the other files are for.

`fit` trains a model of your own. `speech3 train` makes the parts of a worker itself, checks its config
(`check_workers`, `check_epoch`), opens the backends that the config names (`open_backends`), and runs them with
`Trainer`, which yields `Progress`. `Times` and `measure` are the clock of a simulation; `throughputs` predicts frames
per second without training.
"""

from typing import TYPE_CHECKING

from speech3.errors import check_platform
from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.engine.backends.processes import Unkillable
    from speech3.engine.backends.simulated import measure
    from speech3.engine.backends.synchronous import OneWorker, Times
    from speech3.engine.codecs.mean import check_levels
    from speech3.engine.fitting.fit import fit
    from speech3.engine.fitting.results import EpochResult, FitResult, StepResult
    from speech3.engine.gradient import device_of, precision, threads, use_precision, use_threads, worker_parts
    from speech3.engine.interface import Backend, Loss, Progress, ShardReport, WorkerParts, shares
    from speech3.engine.papers.throughput import (
        LEVEL,
        Conclusion,
        Costs,
        Point,
        conclusions,
        measure_costs,
        throughputs,
    )
    from speech3.engine.trainer import (
        Trainer,
        asynchronous,
        check_epoch,
        check_workers,
        open_backends,
        rate_of,
        simulated_method,
        times_of,
    )
else:
    _public = door(__file__)

    def __getattr__(name: str) -> object:
        if name in __all__:
            check_platform()
        return _public(name)


__all__ = [
    "LEVEL",
    "Backend",
    "Conclusion",
    "Costs",
    "EpochResult",
    "FitResult",
    "Loss",
    "OneWorker",
    "Point",
    "Progress",
    "ShardReport",
    "StepResult",
    "Times",
    "Trainer",
    "Unkillable",
    "WorkerParts",
    "asynchronous",
    "check_epoch",
    "check_levels",
    "check_workers",
    "conclusions",
    "device_of",
    "fit",
    "measure",
    "measure_costs",
    "open_backends",
    "precision",
    "rate_of",
    "shares",
    "simulated_method",
    "threads",
    "throughputs",
    "times_of",
    "use_precision",
    "use_threads",
    "worker_parts",
]
