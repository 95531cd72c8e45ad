"""A training run: binds frames, model and engine; schedule, held-out accuracy, checkpoints, metrics."""

from speech3.train.run import train

__all__ = ["train"]
