"""Methods from papers that need code of their own.

`sandblaster.py` (L-BFGS) with `sandblaster_vectors.py` and `sandblaster_workers.py`, and `replicas.py` (a model split
over processes) are from Dean et al. 2012; `throughput.py` is TernGrad's performance model (Wen et al. 2017).
"""
