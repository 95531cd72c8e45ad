"""Shards and server partitions on the nodes of a Ray cluster.

Begin with `coordinator.py`. `actors.py` are the shards and partitions and their messages; `remote.py` connects to Ray
and is the coordinator's view of the partitions. Nothing else may import this package, since Ray is an optional
dependency.
"""
