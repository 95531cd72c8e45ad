"""Binds frames, model and engine into a training run: schedule, held-out accuracy, checkpoints, metrics."""

from speech3.training.run import train

__all__ = ["train"]
