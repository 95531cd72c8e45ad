"""`fit`: the engine as one call, for any PyTorch model.

Read `fit.py` first; `arguments.py` checks what the caller passes, `dataset.py` turns the caller's data into
minibatches, and `loading.py` reads them ahead in other processes.
"""
