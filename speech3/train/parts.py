"""The parts of a worker, built once in every process: the model of a config, its minibatches and its loss.

Also: the teacher of LF-MMI; the priors of senones, which turn posteriors into scaled likelihoods; and the smaller
network that group lasso leaves. Units are removed only at the end of training, since their weights may grow again until
then.

Axes: S senones, U utterances (U1: and the end of the last), U units of a layer.
"""

import copy
import hashlib
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from speech3.config import (
    FeatureConfig,
    LstmConfig,
    ModelConfig,
    TrainConfig,
    TrainingConfig,
    check_frequencies,
    parse,
    read_yaml,
)
from speech3.engine import Loss, WorkerParts, use_precision, use_threads, worker_parts
from speech3.errors import MismatchError, MissingError, SettingError, TrainingError
from speech3.frames import (
    Chunks,
    FrequencyWarp,
    Minibatches,
    PackedFrames,
    Pretraining,
    Sequences,
    SpecAugment,
    WholeUtterances,
    default_chunk,
    frequency_warp,
    open_packed,
    spec_augment,
    verify_once,
)
from speech3.hmm import Hmm, PdfsOnly, load_hmm, load_outputs, output_difference
from speech3.io import DENOMINATOR_FILE, FEATURES_FILE, HMM_FILE, MODEL_FILE, TREE_FILE
from speech3.models import (
    AcousticModel,
    GroupLasso,
    Lstm,
    Reconstruction,
    SmoothedCrossEntropy,
    build,
    cross_entropy,
    load_networks,
    masked_cross_entropy,
    use_gemm_library,
    used_units,
    without_units,
)
from speech3.runtime import keep_freed_memory, read_json
from speech3.sequence import (
    AlignmentNumerators,
    Discriminative,
    LfMmi,
    TranscriptNumerators,
    load_denominator,
    senone_graph,
    silence_senones,
)
from speech3.train.checks import of_chunks

Source = Minibatches | Sequences | Chunks | Pretraining
_TEACHING = 0.7  # recipes/minilibri/RESULTS.md; other shares were not tried
_BETWEEN_SEEDS = 1_000_003  # members of a replica differ in their seeds: each draws dropout for its own units


def units_left(config: TrainConfig, model: nn.Module) -> dict[str, Any]:
    """For the record of an epoch: ``units``, the number of units of each layer that are still read; {} without lasso.

    Raises an error if none is left in some layer.
    """
    if not config.training.group_lasso:
        return {}
    assert isinstance(model, AcousticModel)
    left = {layer: int(used_U.sum()) for layer, used_U in used_units(model).items()}
    if gone := [layer for layer, count in left.items() if not count]:
        raise TrainingError(
            f"training.group_lasso={config.training.group_lasso:g}: emptied layer {', '.join(gone)} (of "
            f"{len(left)} layers); lower it, or lower model.layers"
        )
    return {"units": list(left.values())}


def smaller(config: ModelConfig, model: nn.Module) -> tuple[ModelConfig, AcousticModel]:
    """The network without the units that nothing reads, and its config."""
    assert isinstance(model, AcousticModel)
    small, tensors = without_units(config, model, used_units(model))
    network = build(small, model.feat_dim, model.num_senones, seed=0).to(model.shift_F.device)
    network.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})
    return small, network


class Teacher:
    """The mean of the outputs of the networks in a model directory, for the chunks of a minibatch of `student`.

    Raises Speech3Error: a network has other outputs, reads more values of a frame than there are, or other frames.
    """

    def __init__(
        self, directory: Path, student: AcousticModel, frames: PackedFrames, config: TrainConfig, device: torch.device
    ) -> None:
        key = f"training.lfmmi.teacher={directory}"
        if not (directory / MODEL_FILE).is_file():
            raise MissingError(f"{key}: has no model.safetensors; pass the directory of a trained model")
        if differ := output_difference(load_outputs(directory), load_outputs(Path(config.hmm))):
            raise MismatchError(f"{key}: {differ} (those of {config.hmm}); pass a model with the outputs of this run")
        self._networks: list[tuple[AcousticModel, int]] = []
        for network, _, about in load_networks(directory).values():
            if about["feat_dim"] > frames.dim:
                raise MismatchError(
                    f"{key}: reads {about['feat_dim']} values of a frame, but {frames.path} has {frames.dim}; pass a"
                    " model with features of this run"
                )
            if isinstance(network, Lstm) or isinstance(student, Lstm):
                raise MismatchError(f"{key}: neither the teacher nor the network may be recurrent; choose others")
            there, here = (
                f"{each.left_context} frames before an output and {each.right_context} after it, with an output for"
                f" every {each.subsampling}"
                for each in (network, student)
            )
            if there != here:
                raise MismatchError(f"{key}: reads {there}, this network {here}; pass a model that reads as many")
            self._networks.append((network.to(device), about["feat_dim"]))
        self._autocast = torch.autocast(device.type, torch.bfloat16, enabled=config.training.precision == "bf16")

    @torch.no_grad()
    def __call__(self, inputs: Any) -> Tensor:
        with self._autocast:
            outputs = [
                network(inputs._replace(feats_BTF=inputs.feats_BTF[:, :, :dim])) for network, dim in self._networks
            ]
        firsts = [each[0] if isinstance(each, tuple) else each for each in outputs]  # without their second outputs
        return torch.stack([each.float() for each in firsts]).mean(0)


def log_priors(counts_S: np.ndarray) -> np.ndarray:
    """Natural logarithms of the senones' relative frequencies, float32 (S,); one is added to each count."""
    smoothed_S = counts_S.astype(np.float64) + 1
    return np.log(smoothed_S / smoothed_S.sum()).astype(np.float32)


def sequence_loss(training: TrainingConfig, frames: PackedFrames, outputs: Hmm | PdfsOnly) -> Discriminative:
    """The loss, its denominator estimated on the alignment of `frames`; `outputs` knows which senones are silence."""
    keys = training.discriminative
    graph = senone_graph(frames.senones_N, frames.offsets_U1, frames.num_senones, keys.extra_lm_states)
    silence_S = silence_senones(outputs) if isinstance(outputs, Hmm) else None
    scales = keys.acoustic_scale, keys.boost, keys.leaky_hmm_coefficient, keys.cross_entropy
    return Discriminative(graph, log_priors(frames.counts_S), training.objective == "smbr", *scales, silence_S)


def criterion_of(loss: Loss) -> Loss:
    """The loss by which epochs are compared: without label smoothing, boost and the cross-entropy of MMI and sMBR."""
    if isinstance(loss, Discriminative):
        return replace(loss, boost=0.0, cross_entropy=0.0)
    return cross_entropy if isinstance(loss, SmoothedCrossEntropy) else loss


@dataclass(frozen=True)
class BuildParts:
    """Builds the parts of a worker on a device; can be pickled for other processes.

    `library`: the one for matrix products (`speech3.models.layers`), so that all workers of a run round alike.
    """

    config: TrainConfig
    library: str

    def __call__(self, device: str) -> WorkerParts:
        """Build the parts, with the same initial random parameters in every process."""
        keep_freed_memory()
        use_threads(self.config.training.threads)
        use_gemm_library(self.library)
        use_precision(self.config.training.precision)
        frames, on = open_packed(Path(self.config.frames) / "train.frames"), torch.device(device)
        return make_parts(self.config, frames, on, member=self.config.training.model_partitions > 1)


def make_parts(config: TrainConfig, frames: PackedFrames, device: torch.device, *, member: bool = False) -> WorkerParts:
    """Model, minibatches and loss for packed frames that are already open.

    `member`: the default group of `torch.distributed` is a replica of which this process is a member: it gets only its
    own units of the model.
    """
    model, seed = build(config.model, frames.dim, num_outputs(config, frames), config.seed), config.seed
    loss = _loss(config, frames)
    if isinstance(loss, Reconstruction):
        model.with_hidden = True
    model.set_input_statistics(torch.from_numpy(frames.mean_F.copy()), torch.from_numpy(frames.variance_F.copy()))
    if member:
        model, loss, seed = _own_units(model, device, config.seed)
    source = minibatches(config, frames, device, *augmentation(config, frames), train=True)
    penalty = config.training.group_lasso
    proximal = partial(GroupLasso, penalty) if penalty else None
    return worker_parts(config.training, model.to(device), source, loss, seed, proximal=proximal)


def open_frames(config: TrainConfig, out: Path) -> dict[str, PackedFrames]:
    """Open a run's packed frames, ``train`` and ``heldout``; `out` is the run's directory.

    Raises Speech3Error: frames are missing, damaged or empty, or do not match each other, the network or the model
    directory ``config.hmm``.
    """
    expected = num_labels(config)
    packed = {name: open_packed(Path(config.frames) / f"{name}.frames") for name in ("train", "heldout")}
    for frames in packed.values():
        verify_once(frames, out / "verified.json")
        if frames.num_senones != expected:
            kind = {
                "senones": "senones",
                "phones": "labels (two for each of its phones, and two more)",
                "words": "labels (two for each of its words)",
            }[config.training.labels]
            raise MismatchError(
                f"{frames.path}: labelled with {frames.num_senones} senones, but {config.hmm} has {expected} {kind}; "
                f"pack it again with this model's alignment"
            )
        if frames.dim != packed["train"].dim:
            raise MismatchError(
                f"{frames.path}: {frames.dim} feature bins, but train.frames has {packed['train'].dim}; pack both with "
                f"the same features"
            )
    if (features := Path(config.frames) / FEATURES_FILE).exists():
        check_frequencies(config.model, parse(FeatureConfig, read_yaml(features), features), str(features))
    return packed


def _loss(config: TrainConfig, frames: PackedFrames) -> Loss:
    if config.pretraining:
        masked = config.pretraining.task == "masked"
        return masked_cross_entropy if masked else Reconstruction(config.pretraining.sparsity)
    if config.training.of_sequences:
        return sequence_loss(config.training, frames, load_outputs(Path(config.hmm)))
    if config.training.objective == "lfmmi":
        lfmmi = config.training.lfmmi
        teaching = _TEACHING if lfmmi.teaching is None else lfmmi.teaching
        return LfMmi(load_denominator(config.hmm), lfmmi.leaky_hmm_coefficient, lfmmi.cross_entropy, lfmmi.l2, teaching)
    smoothing = config.training.label_smoothing
    return SmoothedCrossEntropy(smoothing) if smoothing else cross_entropy


def num_labels(config: TrainConfig) -> int:
    """Number of different labels of the packed frames: the senones, or for LF-MMI two for each phone or word."""
    if config.training.labels == "words":
        return 2 * len(load_hmm(config.hmm).lexicon.by_word)
    about = read_json(Path(config.hmm) / HMM_FILE)
    if config.training.objective == "lfmmi":
        return 2 * len(about["phones"]) + 2
    return int(about["pdfs"])


def outputs_identity(config: TrainConfig) -> dict[str, str]:
    """What identifies the outputs of an LF-MMI run; for senones the labels of the frames identify them."""
    if config.training.objective != "lfmmi":
        return {}
    files = (HMM_FILE, TREE_FILE, DENOMINATOR_FILE)
    content = b"".join((Path(config.hmm) / name).read_bytes() for name in files)
    identity = {"outputs": hashlib.sha256(content).hexdigest()[:16]}
    if (teacher := config.training.lfmmi.teacher) is not None:
        identity["teacher"] = hashlib.sha256((Path(teacher) / MODEL_FILE).read_bytes()).hexdigest()[:16]
    return identity


def num_outputs(config: TrainConfig, frames: PackedFrames) -> int:
    """Number of outputs of the network: senones that label the frames, or for LF-MMI pdfs of the denominator."""
    if config.training.objective == "lfmmi":
        return int(read_json(Path(config.hmm) / HMM_FILE)["pdfs"])
    return frames.num_senones


def _own_units(model: AcousticModel, device: torch.device, seed: int) -> tuple[AcousticModel, Loss, int]:
    import torch.distributed as dist  # these imports take two seconds, which only members of replicas spend
    from torch.distributed.device_mesh import DeviceMesh

    from speech3.models import SplitCrossEntropy, split_model

    assert dist.group.WORLD is not None
    mesh = DeviceMesh.from_group(dist.group.WORLD, device.type)
    rank, loss = mesh.get_local_rank(), SplitCrossEntropy(mesh, model.num_senones)
    return split_model(model, rank, mesh.size(), mesh), loss, seed + rank * _BETWEEN_SEEDS


def slices(config: TrainConfig, model: nn.Module) -> list[nn.Module]:
    """The model split into the members of a replica, each on its device; only their sizes are used. Errors:
    `check_split`.
    """
    from speech3.models import split_model

    assert isinstance(model, AcousticModel)
    members, on_gpus = config.training.model_partitions, config.training.device.startswith("cuda")
    return [
        split_model(copy.deepcopy(model), rank, members, None).to(f"cuda:{rank}" if on_gpus else "cpu")
        for rank in range(members)
    ]


def check_partitions(config: TrainConfig, frames: PackedFrames) -> None:
    """Refuse a model that cannot be split as the config says, before anything is written; errors as for `slices`."""
    if config.training.model_partitions > 1:
        from speech3.models import check_split

        model = build(config.model, frames.dim, frames.num_senones, config.seed)
        check_split(model, config.training.model_partitions)


def minibatches(
    config: TrainConfig,
    frames: PackedFrames,
    device: torch.device,
    warp: FrequencyWarp | None = None,
    masks: SpecAugment | None = None,
    *,
    train: bool = False,
) -> Source:
    """The minibatches of a packed file: of windows, of consecutive chunks for recurrent networks, or of single chunks.

    `train`: ``training.speeds`` applies.

    Raises Speech3Error: a chunk ends before its first output, or is not a multiple of ``model.subsampling``.
    """
    model, training = config.model, config.training
    drawn: dict[str, Any] = {"seed": config.seed, "device": device, "warp": warp, "masks": masks}
    source: Minibatches | Chunks
    if of_chunks(config):
        source = _chunks(config, frames, train=train, **drawn)
    elif isinstance(model, LstmConfig):
        return _sequences(model, training, frames, **drawn)
    else:
        drawn |= {"minibatch": training.minibatch, "chunk_frames": training.chunk_frames, "sharers": _sharers(training)}
        source = Minibatches(frames, left=model.left_context, right=model.right_context, **drawn)
    return source if config.pretraining is None else Pretraining(source, frames, config.pretraining, config.seed)


def _sequences(model: LstmConfig, training: TrainingConfig, frames: PackedFrames, **drawn: Any) -> Sequences:
    sequence = training.sequence_of(model)
    inside = training.targets_inside
    if 0 < sequence <= model.delay and not inside:
        raise SettingError(
            f"training.sequence={sequence}: a chunk must be longer than model.delay={model.delay}, or its "
            f"first output comes after its end; make it longer ({4 * model.delay}, say), or reduce the delay"
        )
    lengths_U = np.diff(frames.offsets_U1) + (0 if inside else model.delay)
    return Sequences(
        frames,
        left=model.left_context,
        right=model.right_context,
        chunk=sequence or int(lengths_U.max()),
        streams=max(1, round(training.minibatch / (sequence or float(lengths_U.mean())))),
        delay=model.delay,
        lookahead=model.lookahead,
        targets_inside=inside,
        **drawn,
    )


def _sharers(training: TrainingConfig) -> int:
    """Number of processes that each hold the frames on the same GPU: the shards, and the one of the warm start."""
    if training.world in ("sgd", "simulated"):
        return 1
    if training.world == "cluster":
        return 2  # a shard has a GPU of its own
    gpus = max(1, torch.cuda.device_count()) if training.device == "cuda" else 1
    return -(-training.workers * training.model_partitions // gpus) + 1


def _chunks(config: TrainConfig, frames: PackedFrames, *, train: bool, **drawn: Any) -> Chunks:
    training, lfmmi = config.training, config.training.lfmmi
    network = build(config.model, frames.dim, 1, seed=0)
    step = network.subsampling
    chunk = default_chunk(np.diff(frames.offsets_U1), step) if training.sequence is None else training.sequence
    if not chunk:
        raise SettingError(
            "training.sequence=0: whole utterances are for networks that carry a state from chunk to chunk; here"
            " minibatches are of single chunks of one length: remove it, or set a chunk length"
        )
    if chunk < step or chunk % step:
        raise SettingError(
            f"training.sequence={chunk}: a chunk must be a multiple of model.subsampling={step} frames; use "
            f"{max(1, round(chunk / step)) * step}"
        )
    right, warm_up = network.right_context, None
    if isinstance(network, Lstm):
        right += step * max(network.delay, network.lookahead)
        warm_up = 0 if training.labels == "words" else step * -(-training.chunk_context // step)
    drawn |= {"left": network.left_context, "right": right, "warm_up": warm_up, "subsampling": step}
    if train:
        drawn["speeds"] = training.speeds
        if lfmmi.teacher is not None:
            drawn["teacher"] = Teacher(Path(lfmmi.teacher), network, frames, config, drawn["device"])
    if training.labels == "words":
        targets = TranscriptNumerators(load_denominator(config.hmm), load_hmm(config.hmm), lfmmi.leaky_hmm_coefficient)
        return WholeUtterances(frames, minibatch=training.minibatch, targets=targets, **drawn)
    aligned = None
    if training.objective == "lfmmi":
        aligned = AlignmentNumerators(
            load_denominator(config.hmm), chunk, step, lfmmi.tolerance, lfmmi.leaky_hmm_coefficient
        )
    streams = max(1, round(training.minibatch / chunk))
    return Chunks(frames, chunk=chunk, streams=streams, targets=aligned, **drawn)


def augmentation(config: TrainConfig, frames: PackedFrames) -> tuple[FrequencyWarp | None, SpecAugment | None]:
    """The augmentation in the config, if any; errors as for `frequency_warp` and `spec_augment`."""
    training, features, adapted = config.training, None, getattr(config.model, "adapted", 0)
    if training.frequency_warp or training.frequency_masks or training.speeds or adapted:
        path = Path(config.frames) / FEATURES_FILE
        if not path.exists():
            raise MissingError(
                f"{path}: no such file, but training.frequency_warp, frequency_masks and speeds need to know the "
                f"features; pack the frames again with speech3 pack, or set these keys to 0, 0 and []"
            )
        features = parse(FeatureConfig, read_yaml(path), path)
    warp = None
    if features and (training.frequency_warp or training.speeds):
        key = "" if training.frequency_warp else f"training.speeds={list(training.speeds)}"
        warp = frequency_warp(features, frames.dim, training.frequency_warp, key)
    return warp, spec_augment(training, features, torch.from_numpy(frames.mean_F.copy()))
