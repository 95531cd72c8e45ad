"""The ways to run the workers; each computes the minibatches of an epoch and reports progress (`interface.Backend`).

`one_process.py`: one worker (sgd), and synchronous workers and asynchronous shards on a virtual clock. `shared.py`:
shards as processes on this host, which `processes.py` starts, watches and replaces. `ddp.py`: PyTorch's data
parallelism. `cluster.py`: shards and server on the nodes of a Ray cluster.
"""
