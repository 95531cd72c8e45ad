"""L-BFGS over partitions and workers: begin with `lbfgs.py`, the algorithm, which sees no vector, and `world.py`.

`partition.py` is what partitions do with vectors, `portions.py` who computes which portion of a gradient; the workers are
in `worker_group.py`: `processes.py` of this host, or `virtual.py`, on the simulator's clock.
"""
