"""Methods from papers that need code of their own.

`sandblaster.py` (L-BFGS) with `sandblaster_workers.py`, and `replicas.py` (a model split over processes) are from Dean
et al. 2012; `terngrad.py` is the synchronous form of TernGrad and its performance model (Wen et al. 2017).
"""
