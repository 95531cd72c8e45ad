"""How parameters move. Nothing of speech: handed a model, a source of minibatches and a loss, and no printing.

Begin with `server.py` and `shard.py`: together they are the algorithm. `rule.py` is the server's step, `pool.py` says
who has which minibatch, `board.py` is the memory that all see. Two worlds drive the same shards: `shared.py` (processes
on one host) and `simulate.py` (one process, a virtual clock); `replay.py` runs again in one process what `shared.py`
recorded; `sgd.py`, `ddp.py`, `synchronous.py` are what they are compared with.
"""
