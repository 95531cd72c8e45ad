"""Frames with their senones, packed into one memory-mapped file, and the minibatches gathered from it. No training."""
