"""Frames a second of 1 to hundreds of workers, float32 against ternary gradients, for networks of a corpus's size."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from speech3.config import ModelConfig, TrainConfig, load_preset
from speech3.engine.codecs.levels import check_levels
from speech3.engine.device import device_of
from speech3.engine.throughput import Conclusion, Costs, Point, conclusions, measure_costs, throughputs
from speech3.errors import Speech3Error
from speech3.frames.packed import open_packed
from speech3.io.progress import say
from speech3.models.base import AcousticModel
from speech3.models.info import layers_of
from speech3.models.linear import product
from speech3.training.parts import BuildParts, make_parts
from speech3.training.simulation import refuse_split

BYTES_PER_GIGABIT = 1e9 / 8


@dataclass(frozen=True)
class Network:
    """A network, as it was measured.

    Attributes
    ----------
    connected
        Share of its parameters that are in fully connected layers, not in convolutions: used once a frame. Cells of
        LSTMs are among them.
    """

    name: str
    parameters: int
    connected: float
    costs: Costs


@dataclass(frozen=True)
class Throughput:
    """The model's answer, and what it was fed."""

    device: str
    workers: tuple[int, ...]
    gigabits: tuple[float, ...]
    networks: tuple[Network, ...]
    points: tuple[Point, ...]
    conclusions: tuple[Conclusion, ...]


def throughput(
    config: TrainConfig, workers: Sequence[int], gigabits: Sequence[float], models: Sequence[str] = ()
) -> Throughput:
    """Measure networks on the config's frames and device, and apply `speech3.engine.throughput`'s model.

    Parameters
    ----------
    config
        Its codec's keys are those of the ternary code, whatever its kind; its `simulation.latency_s` counts, too.
    gigabits
        Per second, of each worker's link.
    models
        Presets of ``conf/models``; none: the config's model.

    Raises
    ------
    Speech3Error
        Fewer workers than one, or more than ternary codes can be added up for; a bandwidth that is not above 0 and
        finite, a split model, an unknown one or one that these frames cannot feed, no such device, missing frames. All
        that before the first network is measured.
    """
    if not workers or min(workers) < 1:
        raise Speech3Error(f"--throughput {','.join(map(str, workers))}: at least one worker each, as in 1,2,4,512")
    try:
        check_levels(max(workers))
    except Speech3Error as error:
        raise Speech3Error(f"--throughput: {error}") from error
    if not gigabits or not all(0 < each < math.inf for each in gigabits):
        given = ",".join(f"{each:g}" for each in gigabits)
        raise Speech3Error(f"--gigabits {given}: give gigabits per second above 0, as 1,10; at 0 nothing ever arrives")
    refuse_split(config)
    device_of(config.training.device)
    workers, gigabits = sorted(set(workers)), sorted(set(gigabits))
    codec = config.training.codec.model_copy(update={"kind": "ternary"})
    networks = []
    for name, chosen in _configs(config, models).items():
        say(f"{name}: measuring a minibatch, and the coding for each number of workers")
        parts = BuildParts(chosen, product())(config.training.device)
        assert isinstance(parts.model, AcousticModel)
        layers = layers_of(copy.deepcopy(parts.model).cpu())
        total = sum(layer.parameters for layer in layers)
        shared = sum(layer.parameters for layer in layers if layer.kind == "convolution")
        networks.append(Network(name, total, 1 - shared / total, measure_costs(parts, codec, workers)))
    points = throughputs(
        {each.name: each.costs for each in networks}, workers, [each * BYTES_PER_GIGABIT for each in gigabits],
        config.training.simulation.latency_s,
    )  # fmt: skip
    found = conclusions(points, {each.name: each.connected for each in networks})
    return Throughput(
        config.training.device, tuple(workers), tuple(gigabits), tuple(networks), tuple(points), tuple(found)
    )  # fmt: skip


def _configs(config: TrainConfig, models: Sequence[str]) -> dict[str, TrainConfig]:
    """The config of each network. Each was built once, so that none is refused when others have been measured."""
    chosen = {name: load_preset(ModelConfig, "models", name) for name in models} or {"model": config.model}
    configs = {name: config.model_copy(update={"model": model}) for name, model in chosen.items()}
    frames = open_packed(Path(config.data) / "train.frames")
    for name, each in configs.items():
        try:
            make_parts(each, frames, torch.device("cpu"))
        except Speech3Error as error:
            raise Speech3Error(f"{name}: {error}") from error
    return configs
