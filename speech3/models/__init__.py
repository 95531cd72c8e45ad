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
        AcousticModel as AcousticModel,
        OnlineNetwork as OnlineNetwork,
        Reconstruction as Reconstruction,
        SmoothedCrossEntropy as SmoothedCrossEntropy,
        cross_entropy as cross_entropy,
        logits as logits,
        masked_cross_entropy as masked_cross_entropy,
    )
    from speech3.models.groups import (
        GroupLasso as GroupLasso,
        has_units as has_units,
        used_units as used_units,
        without_units as without_units,
    )
    from speech3.models.info import (
        ModelInfo as ModelInfo,
        describe_model as describe_model,
        features_of_model as features_of_model,
        layer_table as layer_table,
        layers_of as layers_of,
        model_facts as model_facts,
        model_info as model_info,
        parameters_of as parameters_of,
        per_cent as per_cent,
        workers_in_words as workers_in_words,
    )
    from speech3.models.layers import (
        BF16_WORTH_IT as BF16_WORTH_IT,
        BatchNorm as BatchNorm,
        bf16_over_float32 as bf16_over_float32,
        gemm_library as gemm_library,
        use_gemm_library as use_gemm_library,
    )
    from speech3.models.lstm import Lstm as Lstm
    from speech3.models.onnx import OnnxNetwork as OnnxNetwork, to_onnx as to_onnx
    from speech3.models.registry import (
        build as build,
        load_network as load_network,
        load_networks as load_networks,
        network_tensors as network_tensors,
        refuse_mean as refuse_mean,
        save_mean as save_mean,
    )
    from speech3.models.split import (
        SplitCrossEntropy as SplitCrossEntropy,
        check_split as check_split,
        split_model as split_model,
    )
else:
    __getattr__ = door(__file__)
