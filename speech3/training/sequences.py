"""MMI and sMBR: their chunks and loss for every family of networks, and what they cannot be used for.

Axes: S senones.
"""

from dataclasses import replace
from pathlib import Path

import torch

from speech3.config import LstmConfig, TdnnConfig, TrainConfig, TrainingConfig
from speech3.engine.world import Loss
from speech3.errors import Speech3Error
from speech3.features.masks import SpecAugment
from speech3.features.warp import FrequencyWarp
from speech3.frames.chunks import ChunkInputs, Chunks
from speech3.frames.packed import PackedFrames
from speech3.frames.spliced import Steps, Windows
from speech3.io.atomic import read_json
from speech3.models import build
from speech3.sequence.discriminative import Discriminative
from speech3.sequence.senones import senone_graph
from speech3.training.priors import log_priors

CHUNK = 150  # frames of a chunk
_SETTLING = 50  # frames before a chunk, from which a recurrent network's state comes


def sequence_loss(training: TrainingConfig, frames: PackedFrames) -> Discriminative:
    """The loss, whose denominator is estimated on the alignment of `frames`."""
    keys = training.discriminative
    graph = senone_graph(frames.senones_N, frames.offsets_U1, frames.num_senones, keys.longer_histories)
    return Discriminative(
        graph, log_priors(frames.counts_S), training.sequence or CHUNK, training.objective == "smbr",
        keys.acoustic_scale, keys.boost, keys.leak, keys.cross_entropy,
    )  # fmt: skip


def criterion_of(loss: Loss) -> Loss:
    """MMI and sMBR alone, without boost and cross-entropy, by which epochs are compared; other losses as they are."""
    return replace(loss, boost=0.0, cross_entropy=0.0) if isinstance(loss, Discriminative) else loss


def sequence_chunks(
    config: TrainConfig, frames: PackedFrames, device: torch.device, warp: FrequencyWarp | None,
    masks: SpecAugment | None,
) -> Chunks:  # fmt: skip
    """Minibatches of chunks, as inputs of the config's network, with a senone for each frame."""
    model, training = config.model, config.training
    network, chunk = build(model, frames.dim, 1, seed=0), training.sequence or CHUNK
    left, right = network.left_context, network.right_context
    inputs: Windows | Steps | type[ChunkInputs] = Windows(left + 1 + right)
    if isinstance(model, TdnnConfig):
        inputs = ChunkInputs
    elif isinstance(model, LstmConfig):
        inputs = Steps(left + 1 + right, _SETTLING, model.delay, model.lookahead)
        left, right = left + _SETTLING, right + model.delay + model.lookahead
    return Chunks(
        frames, left=left, right=right, chunk=chunk, streams=max(1, round(training.minibatch / chunk)), subsampling=1,
        seed=config.seed, device=device, warp=warp, masks=masks, inputs=inputs,
    )  # fmt: skip


def check_sequences(config: TrainConfig) -> None:
    """Refuse keys that do not fit MMI and sMBR.

    Raises
    ------
    Speech3Error
        The message names the keys.
    """
    training = config.training
    key = f"training.objective={training.objective}"
    if config.init is None:
        raise Speech3Error(
            f"{key}: continues a network that was trained by cross-entropy; give it with --init (or the key init)"
        )
    if (subsampling := read_json(Path(config.hmm) / "hmm.json").get("subsampling", 1)) != 1:
        raise Speech3Error(
            f"{key}: needs senones at every frame, but {config.hmm} has one score per {subsampling} frames; give the "
            f"HMM of the network's senones, or train with training.objective=lfmmi"
        )
    if training.sequence == 0:
        raise Speech3Error(f"training.sequence=0: {key} needs chunks of one length; use {CHUNK}, or remove it")
    if training.model_partitions > 1:
        raise Speech3Error(f"{key}: not for training.model_partitions={training.model_partitions}; set it to 1")
    if training.cuda_graph:
        raise Speech3Error(f"{key}: cannot be recorded as a CUDA graph; set training.cuda_graph=false")
    if training.chunk_frames:
        raise Speech3Error(
            f"training.chunk_frames={training.chunk_frames}: only minibatches of windows are shuffled within chunks, "
            f"and {key} has none; remove it"
        )
