"""Shards and server partitions on the nodes of a Ray cluster.

Begin with `world.py`, the coordinator, and `actors.py`, the shards and partitions. `messages.py` defines what they send
each other, `remote.py` is the coordinator's view of the server, and `nodes.py` connects to a Ray cluster or starts one.
No other module may import this package, since Ray is an optional dependency.
"""
