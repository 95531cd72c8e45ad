"""Acoustic models: windows of frames in, senone logits out. One file a family, one registry; no training.

A model has ``left_context``, ``right_context``, ``feat_dim``, ``num_senones`` and takes (B, W, F) float32.
"""

from speech3.models.registry import build, load_network, logits, network_tensors

__all__ = ["build", "load_network", "logits", "network_tensors"]
