"""How parameters move. Nothing of speech: handed a model, a source of minibatches and a loss, and no printing.

A shard draws a minibatch, computes its gradient and steps (`sgd.py`); parameters live in one flat vector (`flat.py`).
"""
