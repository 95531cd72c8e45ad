"""How parameters move. Nothing of speech: handed a model, a source of minibatches and a loss, and no printing.

Begin with `server.py` and `shard.py`: together they are the algorithm. `push.py` is what the one brings to the other,
`rule.py` the server's step, `pool.py` says who has which minibatch, `board.py` is the memory that all see. Two worlds
drive the same shards: `shared.py` (processes on one host) and `simulate.py` (one process, a virtual clock); `replay.py`
runs again in one process what `shared.py` recorded. `wire.py` sends what passes between shard and server, by one of
`codecs/`. `replicas/` makes of each worker a group of processes that share a model, `cluster/` takes workers and server
to other hosts. `sgd.py`, `ddp.py`, `synchronous.py` are what all that is compared with, `sandblaster/` is L-BFGS over
workers of the same kinds, `throughput.py` counts frames a second where nothing is trained.
"""
