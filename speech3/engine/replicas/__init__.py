"""Model parallelism: each worker is a replica, a group of processes that hold slices of the model.

Begin with `world.py`, then `group.py`. `slices.py` splits the whole model's vector into slices and joins them again.
"""
