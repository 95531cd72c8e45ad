"""Acoustic models: windows of frames in, senone logits out. One file per family, one registry, no training.

A model (`speech3.models.base.AcousticModel`) has ``left_context``, ``right_context``, ``feat_dim``, ``num_senones``. It
takes (B, W, F) float32 or, if it is recurrent, `speech3.frames.chunks.SequenceInputs`. A time-delay network takes
chunks with their context, with LSTM cells `speech3.frames.chunks.RecurrentChunks`, and may have fewer outputs than
frames (`subsampling`).
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.models.base import (
        AcousticModel,
        Reconstruction,
        SmoothedCrossEntropy,
        cross_entropy,
        logits,
        masked_cross_entropy,
    )
    from speech3.models.groups import GroupLasso, has_units, used_units, without_units
    from speech3.models.info import (
        ModelInfo,
        describe_model,
        features_of_model,
        layer_table,
        layers_of,
        model_facts,
        model_info,
        parameters_of,
        per_cent,
        workers_in_words,
    )
    from speech3.models.layers import BF16_WORTH_IT, BatchNorm, bf16_over_float32, gemm_library, use_gemm_library
    from speech3.models.lstm import Lstm
    from speech3.models.online import OnlineNetwork
    from speech3.models.onnx import OnnxNetwork, to_onnx
    from speech3.models.registry import build, load_network, load_networks, network_tensors, refuse_mean, save_mean
    from speech3.models.split import SplitCrossEntropy, check_split, split_model
else:
    __getattr__ = door(__file__)

__all__ = [
    "BF16_WORTH_IT",
    "AcousticModel",
    "BatchNorm",
    "GroupLasso",
    "Lstm",
    "ModelInfo",
    "OnlineNetwork",
    "OnnxNetwork",
    "Reconstruction",
    "SmoothedCrossEntropy",
    "SplitCrossEntropy",
    "bf16_over_float32",
    "build",
    "check_split",
    "cross_entropy",
    "describe_model",
    "features_of_model",
    "gemm_library",
    "has_units",
    "layer_table",
    "layers_of",
    "load_network",
    "load_networks",
    "logits",
    "masked_cross_entropy",
    "model_facts",
    "model_info",
    "network_tensors",
    "parameters_of",
    "per_cent",
    "refuse_mean",
    "save_mean",
    "split_model",
    "to_onnx",
    "use_gemm_library",
    "used_units",
    "without_units",
    "workers_in_words",
]
