"""The ways to run the workers; each computes the minibatches of an epoch and reports progress (`interface.Backend`).

`synchronous.py`: one worker (sgd), and synchronous workers on a virtual clock. `simulated.py`: asynchronous shards on a
virtual clock. `shared.py`: shards as processes on this host, which `processes.py` starts, watches and replaces.
`ddp.py`: PyTorch's data parallelism. `cluster/`: shards and server on the nodes of a Ray cluster.
"""
