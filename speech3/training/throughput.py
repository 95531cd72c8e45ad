"""Predicted frames per second of 1 to hundreds of workers with float32 and with ternary gradients."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from speech3.config import ModelConfig, TrainConfig, load_preset
from speech3.engine import Conclusion, Costs, Point, check_levels, conclusions, device_of, measure_costs, throughputs
from speech3.errors import Speech3Error
from speech3.frames.packed import open_packed
from speech3.io.progress import say
from speech3.models.base import AcousticModel
from speech3.models.info import layers_of
from speech3.models.linear import product
from speech3.training.checks import with_precision
from speech3.training.parts import BuildParts, make_parts
from speech3.training.simulation import refuse_split

BYTES_PER_GIGABIT = 1e9 / 8


@dataclass(frozen=True)
class Network:
    """A network and its measured costs.

    Attributes
    ----------
    connected
        Share of its parameters that are used once per frame: those of fully connected layers and LSTM cells, not those
        of convolutions.
    """

    name: str
    parameters: int
    connected: float
    costs: Costs


@dataclass(frozen=True)
class Throughput:
    """The prediction of the performance model, and its inputs."""

    device: str
    workers: tuple[int, ...]
    gigabits: tuple[float, ...]
    networks: tuple[Network, ...]
    points: tuple[Point, ...]
    conclusions: tuple[Conclusion, ...]


def throughput(
    config: TrainConfig, workers: Sequence[int], gigabits: Sequence[float], models: Sequence[str] = ()
) -> Throughput:
    """Measure networks on the config's frames and device, and apply the performance model.

    The performance model is in `speech3.engine.papers.throughput`.

    Parameters
    ----------
    config
        The keys of its codec are used for the ternary code, whatever its kind; `simulation.latency_s` is used, too.
    gigabits
        Bandwidths of each worker's link, in Gbit/s.
    models
        Presets of ``conf/models``; none: the config's model.

    Raises
    ------
    Speech3Error
        Fewer workers than one, or more than the levels of ternary codes allow; a bandwidth that is not above 0 and
        finite; a model that is split, unknown or does not match the frames; no such device; missing frames. All of
        these are raised before the first network is measured.
    """
    if not workers or min(workers) < 1:
        raise Speech3Error(f"--throughput {','.join(map(str, workers))}: give numbers of at least 1, as in 1,2,4,512")
    try:
        check_levels(max(workers))
    except Speech3Error as error:
        raise Speech3Error(f"--throughput: {error}") from error
    if not gigabits or not all(0 < each < math.inf for each in gigabits):
        given = ",".join(f"{each:g}" for each in gigabits)
        raise Speech3Error(f"--gigabits {given}: give finite numbers of Gbit/s above 0, as in 1,10")
    refuse_split(config)
    device_of(config.training.device)
    config = with_precision(config, None)
    workers, gigabits = sorted(set(workers)), sorted(set(gigabits))
    codec = config.training.codec.model_copy(update={"kind": "ternary"})
    networks = []
    for name, chosen in _configs(config, models).items():
        say(f"{name}: measuring the time of a minibatch, and of the coding for each number of workers")
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
    """The config of each network; builds each once, so that errors are raised before any network is measured."""
    chosen = {name: load_preset(ModelConfig, "models", name) for name in models} or {"model": config.model}
    configs = {name: config.model_copy(update={"model": model}) for name, model in chosen.items()}
    frames = open_packed(Path(config.frames) / "train.frames")
    for name, each in configs.items():
        try:
            make_parts(each, frames, torch.device("cpu"))
        except Speech3Error as error:
            raise Speech3Error(f"{name}: {error}") from error
    return configs
