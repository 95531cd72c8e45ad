"""How a vector is written into fewer bytes: begin with `codec.py`; `cpu.py` and `cuda.py` are its passes over memory.

`ddp_hook.py` is TernGrad's synchronous form, whose mean travels as `levels.py` says; `shared.py` is the same in one
process.
"""
