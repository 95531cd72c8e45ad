"""Sandblaster: distributed L-BFGS over server partitions and workers (Dean et al. 2012, section 4.2).

Begin with `lbfgs.py`, the coordinator's algorithm, which works with scalars only, and `world.py`, which runs it.
`partition.py` holds the operations that partitions apply to their slices of the vectors, `portions.py` assigns portions
of a gradient to workers. `worker_group.py` defines the workers: `processes.py` on this host, or `virtual.py` on the
simulator's clock.
"""
