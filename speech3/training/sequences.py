"""MMI and sMBR: their loss, whose denominator is estimated on the frames, and the keys that do not fit them."""

from dataclasses import replace
from pathlib import Path

from speech3.config import TrainConfig, TrainingConfig
from speech3.engine import Loss
from speech3.errors import Speech3Error
from speech3.frames.packed import PackedFrames
from speech3.hmm.model import Hmm, PdfsOnly, load_outputs
from speech3.io.atomic import read_json
from speech3.io.progress import say
from speech3.models.loss import SmoothedCrossEntropy, cross_entropy
from speech3.sequence.discriminative import Discriminative
from speech3.sequence.senones import senone_graph, silence_senones
from speech3.training.priors import log_priors


def sequence_loss(training: TrainingConfig, frames: PackedFrames, outputs: Hmm | PdfsOnly) -> Discriminative:
    """The loss, whose denominator is estimated on the alignment of `frames`.

    Parameters
    ----------
    outputs
        What the senones are, of which some are silence; that is not known for `PdfsOnly`.
    """
    keys = training.discriminative
    graph = senone_graph(frames.senones_N, frames.offsets_U1, frames.num_senones, keys.longer_histories)
    return Discriminative(
        graph, log_priors(frames.counts_S), training.objective == "smbr", keys.acoustic_scale, keys.boost, keys.leak,
        keys.cross_entropy, silence_senones(outputs) if isinstance(outputs, Hmm) else None,
    )  # fmt: skip


def criterion_of(loss: Loss) -> Loss:
    """The loss by which epochs are compared: without label smoothing, boost and the cross-entropy of MMI and sMBR."""
    if isinstance(loss, Discriminative):
        return replace(loss, boost=0.0, cross_entropy=0.0)
    return cross_entropy if isinstance(loss, SmoothedCrossEntropy) else loss


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
    if training.objective == "smbr" and training.discriminative.boost:
        raise Speech3Error(
            f"training.discriminative.boost={training.discriminative.boost:g}: only for training.objective=mmi; set it "
            f"to 0"
        )
    if training.sequence == 0:
        raise Speech3Error(f"training.sequence=0: {key} needs chunks of one length; use 150, or remove it")
    if isinstance(load_outputs(Path(config.hmm)), PdfsOnly):
        say(f"{key}: {config.hmm} does not say which senones are silence, so silence counts like speech")
    if training.cuda_graph:
        raise Speech3Error(f"{key}: cannot be recorded as a CUDA graph; set training.cuda_graph=false")
