"""The asynchronous training engine: how workers and a parameter server update the parameters of a model.

It knows nothing about speech and prints nothing (only `fit` shows progress): it is given a model, a source of
minibatches and a loss (`WorkerParts`), and would train any PyTorch model. Read the algorithm in `shard.py`,
`server.py`, `server_optimizer.py` and `pool.py`, in this order; README.md says what the other files are for.

`fit` trains a model of your own. `speech3 train` makes the parts of a worker itself, checks its config
(`check_workers`, `check_epoch`), opens the backends that the config names (`open_backends`), and runs them with
`Trainer`, which yields `Progress`. `Times` and `measure` are the clock of a simulation; `throughputs` predicts frames
per second without training.
"""
# ruff: noqa: F401

import ast
import importlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from speech3.errors import check_platform

if TYPE_CHECKING:
    from speech3.engine.backends.processes import Unkillable
    from speech3.engine.backends.simulated import measure
    from speech3.engine.backends.synchronous import OneWorker, Times
    from speech3.engine.codecs.mean import check_levels
    from speech3.engine.fitting.fit import fit
    from speech3.engine.fitting.results import EpochResult, FitResult, StepResult
    from speech3.engine.gradient import CudaGraphs, autocast_of, device_of, precision, threads, use_precision
    from speech3.engine.interface import Backend, Loss, Progress, ShardReport, Snapshot, Source, WorkerParts, shares
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


@cache
def _modules() -> dict[str, str]:
    """The module of each name that is imported above."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    found = [node for block in tree.body if isinstance(block, ast.If) for node in block.body]
    return {each.name: node.module or "" for node in found if isinstance(node, ast.ImportFrom) for each in node.names}


def __getattr__(name: str) -> object:
    # Imported on first use: PyTorch takes seconds to import, and every process of the engine imports this package.
    if name not in _modules():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_platform()
    return getattr(importlib.import_module(_modules()[name]), name)
