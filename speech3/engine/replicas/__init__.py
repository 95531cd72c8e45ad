"""Replicas: workers that are groups of processes, each with a slice of a large model (Dean et al. 2012).

`group.py` is the group of processes, `slices.py` splits the model's vector; world shared (`../shared.py`) runs them.
"""
