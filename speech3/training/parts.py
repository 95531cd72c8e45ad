"""What a worker computes with: the model of a config with its packed frames. Built once in every process."""

import copy
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from speech3.config import FeatureConfig, LstmConfig, TrainConfig, parse, read_yaml
from speech3.engine.world import Loss, Parts
from speech3.errors import Speech3Error
from speech3.features.masks import SpecAugment, spec_augment
from speech3.features.warp import FrequencyWarp, frequency_warp
from speech3.frames.minibatches import Minibatches
from speech3.frames.packed import PackedFrames, open_packed
from speech3.frames.sequences import Sequences
from speech3.io.malloc import keep_freed_memory
from speech3.models import AcousticModel, build
from speech3.models.linear import use
from speech3.models.loss import cross_entropy

_BETWEEN_SEEDS = 1_000_003  # of the members of a replica: each draws dropout for its own units


@dataclass(frozen=True)
class BuildParts:
    """Builds the parts of a worker on a device; picklable, for other processes.

    Attributes
    ----------
    product
        The library of `speech3.models.linear`: all workers of a run round alike.
    """

    config: TrainConfig
    product: str

    def __call__(self, device: str) -> Parts:
        """The model with its first random parameters, the same in every process."""
        keep_freed_memory()
        torch.set_num_threads(self.config.training.threads)
        use(self.product)
        frames, on = open_packed(Path(self.config.data) / "train.frames"), torch.device(device)
        return make_parts(self.config, frames, on, member=self.config.training.model_partitions > 1)


def make_parts(config: TrainConfig, frames: PackedFrames, device: torch.device, *, member: bool = False) -> Parts:
    """Model, minibatches and loss for frames that are open already.

    Parameters
    ----------
    member
        The process's default group of `torch.distributed` is a replica: of the model it gets its units only.
    """
    model, seed = build(config.model, frames.dim, frames.num_senones, config.seed), config.seed
    loss: Loss = cross_entropy
    model.set_input_statistics(torch.from_numpy(frames.mean_F.copy()), torch.from_numpy(frames.variance_F.copy()))
    if member:
        model, loss, seed = _own_units(model, device, config.seed)
    source = minibatches(config, frames, device, *augmentation(config, frames))
    return Parts(model.to(device), source, loss, seed, config.training.gradient_clip or math.inf)


def _own_units(model: AcousticModel, device: torch.device, seed: int) -> tuple[AcousticModel, Loss, int]:
    import torch.distributed as dist  # with what is imported here, two seconds that only members of replicas spend
    from torch.distributed.device_mesh import DeviceMesh

    from speech3.models.split import SplitCrossEntropy, split

    assert dist.group.WORLD is not None
    mesh = DeviceMesh.from_group(dist.group.WORLD, device.type)
    rank, loss = mesh.get_local_rank(), SplitCrossEntropy(mesh, model.num_senones)
    return split(model, rank, mesh.size(), mesh), loss, seed + rank * _BETWEEN_SEEDS


def slices(config: TrainConfig, model: nn.Module) -> list[nn.Module]:
    """The whole model as members of a replica have it, each on its device; their sizes alone are of use.

    Raises
    ------
    Speech3Error
        It cannot be split, or into fewer parts only: `speech3.models.split.check_split`.
    """
    from speech3.models.split import split

    assert isinstance(model, AcousticModel)
    members, on_gpus = config.training.model_partitions, config.training.device.startswith("cuda")
    return [
        split(copy.deepcopy(model), rank, members, None).to(f"cuda:{rank}" if on_gpus else "cpu")
        for rank in range(members)
    ]


def check_partitions(config: TrainConfig, frames: PackedFrames) -> None:
    """Refuse a model that cannot be split so before anything is written; errors as of `slices`."""
    if config.training.model_partitions > 1:
        from speech3.models.split import check_split

        model = build(config.model, frames.dim, frames.num_senones, config.seed)
        check_split(model, config.training.model_partitions)


def minibatches(
    config: TrainConfig, frames: PackedFrames, device: torch.device, warp: FrequencyWarp | None = None,
    masks: SpecAugment | None = None,
) -> Minibatches | Sequences:  # fmt: skip
    """The minibatches of a packed file as the config wants them: windows, or chunks for a recurrent model.

    Raises
    ------
    Speech3Error
        A chunk that ends before its first output.
    """
    model, training = config.model, config.training
    if not isinstance(model, LstmConfig):
        return Minibatches(
            frames, left=model.left_context, right=model.right_context, seed=config.seed, device=device,
            minibatch=training.minibatch, warp=warp, masks=masks, chunk_frames=training.chunk_frames,
        )  # fmt: skip
    sequence = training.sequence_of(model)
    if 0 < sequence <= model.delay:
        raise Speech3Error(
            f"training.sequence={sequence}: a chunk must be longer than model.delay={model.delay}, or its "
            f"first output comes after its end; make it longer ({4 * model.delay}, say), or the delay shorter"
        )
    lengths_U = np.diff(frames.offsets_U1) + model.delay
    chunk = sequence or int(lengths_U.max())
    mean = sequence or float(lengths_U.mean())
    return Sequences(
        frames, left=model.left_context, right=model.right_context, chunk=chunk, delay=model.delay,
        lookahead=model.lookahead, streams=max(1, round(training.minibatch / mean)), seed=config.seed, device=device,
        warp=warp, masks=masks,
    )  # fmt: skip


def augmentation(config: TrainConfig, frames: PackedFrames) -> tuple[FrequencyWarp | None, SpecAugment | None]:
    """The augmentation that the config asks for, if any; errors as of `frequency_warp` and `spec_augment`."""
    training, features = config.training, None
    if training.frequency_warp or training.frequency_masks:
        path = Path(config.data) / "features.yaml"
        features = parse(FeatureConfig, read_yaml(path), path)
    warp = None
    if features and training.frequency_warp:
        warp = frequency_warp(features, frames.dim, training.frequency_warp)
    return warp, spec_augment(training, features, torch.from_numpy(frames.mean_F.copy()))
