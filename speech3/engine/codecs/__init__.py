"""Gradient compression by codecs, which write a vector in fewer bytes.

Begin with `codec.py`; `cpu.py` and `cuda.py` are its kernels. `ddp_hook.py` is the synchronous form of TernGrad, in
which the mean is coded as `levels.py` describes; `mean.py` computes the same in one process.
"""
