"""What a worker computes with: the model of a config with its packed frames. Built once in every process."""

from dataclasses import dataclass
from pathlib import Path

import torch

from speech3.config import FeatureConfig, TrainConfig, parse, read_yaml
from speech3.engine.world import Parts
from speech3.features.augment import FrequencyWarp, frequency_warp
from speech3.frames.minibatches import Minibatches
from speech3.frames.packed import PackedFrames, open_packed
from speech3.io.malloc import keep_freed_memory
from speech3.models import build
from speech3.models.linear import use
from speech3.models.loss import cross_entropy


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
        return make_parts(self.config, open_packed(Path(self.config.data) / "train.frames"), torch.device(device))


def make_parts(config: TrainConfig, frames: PackedFrames, device: torch.device) -> Parts:
    """Model, minibatches and loss for frames that are open already."""
    model = build(config.model, frames.dim, frames.num_senones, config.seed)
    model.set_input_statistics(torch.from_numpy(frames.mean_F.copy()), torch.from_numpy(frames.variance_F.copy()))
    source = minibatches(config, frames, device, warp(config, frames))
    return Parts(model.to(device), source, cross_entropy, config.seed)


def minibatches(
    config: TrainConfig, frames: PackedFrames, device: torch.device, warp: FrequencyWarp | None
) -> Minibatches:
    """The minibatches of a packed file as the config wants them."""
    return Minibatches(
        frames, left=config.model.left_context, right=config.model.right_context, seed=config.seed, device=device,
        minibatch=config.training.minibatch, warp=warp, chunk_frames=config.training.chunk_frames,
    )  # fmt: skip


def warp(config: TrainConfig, frames: PackedFrames) -> FrequencyWarp | None:
    """The augmentation that the config asks for, if any; errors as of `frequency_warp`."""
    most = config.training.frequency_warp
    if not most:
        return None
    path = Path(config.data) / "features.yaml"
    return frequency_warp(parse(FeatureConfig, read_yaml(path), path), frames.dim, most)
