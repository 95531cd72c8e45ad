"""How parameters move. Nothing of speech: handed a model, a source of minibatches and a loss, and no printing.

Begin with `server.py` and `shard.py`: together they are the algorithm. `push.py` is what the one brings to the other,
`rule.py` the server's step, `pool.py` says who has which minibatch, `ledger.py` what became of it, `board.py` is the
memory that all see. Two worlds drive the same shards: `shared.py` (processes on one host) and `simulate.py` (one
process, a virtual clock). `wire.py` sends what passes between shard and server, by one of `codecs/`. `replicas/` makes
of each worker a group of processes that share a model, `cluster/` takes workers and server to other hosts. `sgd.py`,
`ddp.py`, `synchronous.py` are what all that is compared with, `sandblaster/` is L-BFGS over workers of the same kinds,
`throughput.py` counts frames a second where nothing is trained. `opening.py` opens worlds from a config, `trainer.py`
drives them through the epochs.

For models of your own there is one call, `fit` (`fitting.py`).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from speech3.engine.fitting import FitResult, fit

__all__ = ["FitResult", "fit"]


def __getattr__(name: str) -> object:
    # Imported when it is asked for: every process of the engine imports this package, few need that.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from speech3.engine import fitting

    return getattr(fitting, name)
