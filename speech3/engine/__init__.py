"""The asynchronous training engine: how workers and a parameter server move the parameters of a model.

It knows nothing of speech and prints nothing: it is given a model, a source of minibatches and a loss.

Begin with `server.py` and `shard.py`, which together are the algorithm. `push.py` is what a shard sends to the server,
`rule.py` the server's update, `pool.py` the queue of minibatches, `ledger.py` the record of what became of each
minibatch, `server_memory.py` the memory that all processes share. Two worlds drive the same shards: `shared.py`
(processes on one host) and `simulate.py` (one process with a virtual clock). `wire.py` codes what passes between shard
and server, by one of the `codecs/`. In `replicas/` each worker is a group of processes that share a model; `cluster/`
runs workers and server on several hosts. `sgd.py`, `ddp.py` and `synchronous.py` are the baselines, `sandblaster/` is
distributed L-BFGS, and `throughput.py` predicts frames per second without training. `opening.py` opens the worlds that
a config asks for, and `trainer.py` drives them through the epochs.

To train a model of your own, call `fit` (`fitting.py`).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from speech3.engine.fitting import FitResult, fit

__all__ = ["FitResult", "fit"]


def __getattr__(name: str) -> object:
    # Imported when it is asked for: every process of the engine imports this package, few need that.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from speech3.errors import check_platform

    check_platform()
    from speech3.engine import fitting

    return getattr(fitting, name)
