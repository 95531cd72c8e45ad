"""`fit`: the engine as one call, for any PyTorch model.

Read `fit.py` first; `arguments.py` checks what the caller passes, `dataset.py` turns the caller's data into
minibatches, `loading.py` reads them ahead in other processes, and `results.py` is what the caller gets.
"""
