"""Workers that are groups of processes, each with a slice of the model: begin with `world.py`, then `group.py`.

`slices.py` puts slices together into the whole model's vector, and takes them from it.
"""
