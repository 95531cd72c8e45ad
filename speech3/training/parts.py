"""What a worker computes with: the model of a config with its packed frames. Built once in every process."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from speech3.config import FeatureConfig, LstmConfig, TrainConfig, parse, read_yaml
from speech3.engine.world import Parts
from speech3.errors import Speech3Error
from speech3.features.masks import SpecAugment, spec_augment
from speech3.features.warp import FrequencyWarp, frequency_warp
from speech3.frames.minibatches import Minibatches
from speech3.frames.packed import PackedFrames, open_packed
from speech3.frames.sequences import Sequences
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
    source = minibatches(config, frames, device, *augmentation(config, frames))
    return Parts(model.to(device), source, cross_entropy, config.seed, config.training.gradient_clip or math.inf)


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
