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
from speech3.runtime.door import door, names_of

if TYPE_CHECKING:
    from speech3.engine.backends.one_process import OneWorker as OneWorker, Times as Times, measure as measure
    from speech3.engine.backends.processes import Unkillable as Unkillable
    from speech3.engine.fitting.fit import fit as fit
    from speech3.engine.fitting.results import (
        EpochResult as EpochResult,
        FitResult as FitResult,
        StepResult as StepResult,
    )
    from speech3.engine.gradient import (
        device_of as device_of,
        precision as precision,
        threads as threads,
        use_precision as use_precision,
        use_threads as use_threads,
        worker_parts as worker_parts,
    )
    from speech3.engine.interface import (
        Backend as Backend,
        Loss as Loss,
        Progress as Progress,
        ShardReport as ShardReport,
        WorkerParts as WorkerParts,
        shares as shares,
    )
    from speech3.engine.papers.terngrad import (
        LEVEL as LEVEL,
        Conclusion as Conclusion,
        Costs as Costs,
        ThroughputPoint as ThroughputPoint,
        check_levels as check_levels,
        conclusions as conclusions,
        measure_costs as measure_costs,
        throughputs as throughputs,
    )
    from speech3.engine.trainer import (
        Trainer as Trainer,
        check_epoch as check_epoch,
        check_workers as check_workers,
        open_backends as open_backends,
        rate_of as rate_of,
        simulated_strategy as simulated_strategy,
        times_of as times_of,
    )
else:
    _public = door(__file__)

    def __getattr__(name: str) -> object:
        if name in names_of(__file__):
            check_platform()
        return _public(name)
