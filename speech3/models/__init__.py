"""Acoustic models: windows of frames in, senone logits out. One file per family, one registry, no training.

A model (`speech3.models.base.AcousticModel`) has ``left_context``, ``right_context``, ``feat_dim``, ``num_senones``. It
takes (B, W, F) float32 or, if it is recurrent, `speech3.frames.chunks.SequenceInputs`. A time-delay network takes
chunks with their context, with LSTM cells `speech3.frames.chunks.RecurrentChunks`, and may have fewer outputs than
frames (`subsampling`).
"""

from speech3.models.base import AcousticModel, logits
from speech3.models.registry import build, load_network, network_tensors

__all__ = ["AcousticModel", "build", "load_network", "logits", "network_tensors"]
