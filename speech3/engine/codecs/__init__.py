"""Gradient compression by codecs, which write a vector in fewer bytes.

Begin with `codec.py`; `cpu.py` and `cuda.py` are its kernels. `mean.py` is the synchronous form of TernGrad: the mean
of several workers' ternary gradients, in one process or as a communication hook of PyTorch's DDP.
"""
