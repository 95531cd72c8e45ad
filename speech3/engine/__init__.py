"""The asynchronous training engine: how workers and a parameter server update the parameters of a model.

It knows nothing about speech and prints nothing (only `fit` shows progress): it is given a model, a source of
minibatches and a loss.

Begin with `server.py` and `shard.py`, which together are the algorithm. `push.py` is what a shard sends to the server,
`rule.py` the server's update, `pool.py` the queue of minibatches, `ledger.py` the record of what became of each
minibatch, and `server_memory.py` the memory that all processes share. A *world* is a way to run the workers; three
worlds run the same shards: `shared.py` (processes on one host, which may be groups that share a model: `replicas/`),
`simulate.py` (one process with a virtual clock) and `cluster/` (several hosts). `workers.py` starts, watches and
replaces the worker processes of a host. `wire.py` encodes what passes between shard and server with one of the
`codecs/` (gradient compression). `one_worker.py`, `ddp.py` and `synchronous.py` are the baselines, `sandblaster/` is
distributed L-BFGS, and `throughput.py` predicts frames per second without training. `opening.py` opens the world that a
config names, and `trainer.py` runs it through the epochs.

To train a model of your own, call `fit` (`fitting.py`). `sources.py` looks at its dataset, `items.py` and `stream.py`
make minibatches of it, `loading.py` reads them ahead, and `torch_optimizer.py` is a worker's optimizer of
`torch.optim`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from speech3.engine.fitting import FitResult, fit

__all__ = ["FitResult", "fit"]


def __getattr__(name: str) -> object:
    # `fitting` is imported only on first use: every process of the engine imports this package, and few need `fit`.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from speech3.errors import check_platform

    check_platform()
    from speech3.engine import fitting

    return getattr(fitting, name)
