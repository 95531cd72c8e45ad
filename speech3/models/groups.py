"""Units that group lasso removes from a network in training, and the smaller network without them.

Group lasso (Yuan and Lin 2006; Wen et al. 2016, "Learning structured sparsity in deep neural networks") adds to the
loss the penalty times the sum over units of sqrt(n) |w|, where w are the n weights with which the next layers read a
unit. A proximal step after each step of the optimizer, w = w max(0, 1 - rate penalty sqrt(n) / |w|), makes useless
weights exactly zero; a unit that nothing reads is removed with all weights that compute it. With momentum m a penalty
has 1 - m of its effect; with AdamW it is measured against steps of about the learning rate.

The units are those of fully connected hidden layers; LSTM cells (Wen et al. 2018; a cell of a bidirectional layer is a
pair); and those of the bottlenecks of factored time-delay layers, the rank of a layer's matrix.

Axes: U units of a layer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from speech3.config import DnnConfig, LstmConfig, ModelConfig, TdnnConfig
from speech3.models.base import AcousticModel
from speech3.models.dnn import Hidden
from speech3.models.lstm import Lstm, RecurrentLayer
from speech3.models.tdnn import Tdnn

# Share of the largest norm in a layer below which a unit counts as removed. With one worker its weights are exactly
# zero; with several, whose own copies become zero at different times, the pushes may not add up to exactly zero.
_NOTHING = 0.01


@dataclass(frozen=True)
class Along:
    """The axis of a tensor along which the units of a layer lie, `times` times over."""

    name: str
    axis: int
    times: int = 1


@dataclass(frozen=True)
class Units:
    """The units of one layer.

    `made`: parameters and buffers that compute the units. `read`: weights of the next layers that read them, which are
    the groups of the penalty.
    """

    layer: str
    made: tuple[Along, ...]
    read: tuple[Along, ...]


def has_units(config: ModelConfig) -> bool:
    """Whether units of such a network can be removed: not with layer normalisation, which is over all units."""
    if isinstance(config, LstmConfig):
        return config.cell_normalization != "layer"
    if isinstance(config, DnnConfig):
        return config.layers > 0 and config.normalization != "layer"
    return isinstance(config, TdnnConfig)


def units_of(model: AcousticModel) -> tuple[Units, ...]:
    """The units of each layer that can be removed, in the order of computation."""
    if isinstance(model, Tdnn):
        return tuple(_bottleneck(f"layers.{number}") for number in range(len(model.layers)))
    outputs = [f"{name}.weight" for name in model.logit_layers if hasattr(model, name)]
    if isinstance(model, Lstm):
        return tuple(_cells(model, number, outputs) for number in range(len(model.layers)))
    layers = model.get_submodule("layers")
    assert isinstance(layers, Hidden)
    found = []
    for number in range(len(layers.hidden)):
        names = [f"layers.hidden.{number}.weight", f"layers.hidden.{number}.bias"]
        names += _of_units(layers.norms[number], f"layers.norms.{number}")
        last = number == len(layers.hidden) - 1
        readers = outputs if last else [f"layers.hidden.{number + 1}.weight"]
        made, read = (Along(name, 0) for name in names), (Along(name, 1) for name in readers)
        found.append(Units(f"layers.hidden.{number}", tuple(made), tuple(read)))
    return tuple(found)


def _of_units(norm: nn.Module, name: str) -> list[str]:
    """Names of the tensors of a normalisation layer that have a value for each unit."""
    return [f"{name}.{key}" for key, tensor in norm.state_dict().items() if tensor.ndim]


def _cells(model: Lstm, number: int, outputs: Sequence[str]) -> Units:
    """Without a projection the next layer reads the cells, and so do their own gates."""
    name, layer = f"layers.{number}", model.layers[number]
    assert isinstance(layer, RecurrentLayer)
    directions = [f"{name}.ahead", *([f"{name}.back"] if model.bidirectional else [])]
    made = [Along(f"{each}.{key}", 0, 4) for each in directions for key in ("weight_ih", "weight_hh", "bias")]
    if layer.ahead.weight_peep is not None:
        made += [Along(f"{each}.weight_peep", 1) for each in directions]
    if layer.ahead.weight_hr is not None:
        return Units(name, tuple(made), tuple(Along(f"{each}.weight_hr", 1) for each in directions))
    made += [Along(each, 0, len(directions)) for each in _of_units(model.norms[number], f"norms.{number}")]
    later = [f"layers.{number + 1}.{each.rpartition('.')[2]}.weight_ih" for each in directions]
    if number == len(model.layers) - 1:
        later = ["after.hidden.0.weight"] if len(model.after.hidden) else list(outputs)
    own = [Along(f"{each}.weight_hh", 1) for each in directions]
    return Units(name, tuple(made), (*own, *(Along(each, 1, len(directions)) for each in later)))


def _bottleneck(layer: str) -> Units:
    """Each unit is read at two time steps, so the next matrix has two columns for it."""
    return Units(layer, (Along(f"{layer}.linear.weight", 1),), (Along(f"{layer}.affine.weight", 1, times=2),))


class GroupLasso:
    """The proximal step for the parameters of a model, in place."""

    def __init__(self, penalty: float, model: AcousticModel) -> None:
        self.penalty, parameters = penalty, dict(model.named_parameters())
        self.layers = [[(parameters[each.name], each) for each in units.read] for units in units_of(model)]

    @torch.no_grad()
    def __call__(self, learning_rate: float) -> None:
        """Move all groups towards zero, by the penalty times the learning rate."""
        for readers in self.layers:
            views = [_units_last(weight, along) for weight, along in readers]
            norm_U = _norms(views)
            size = sum(view.numel() for view in views) / len(norm_U)
            threshold = learning_rate * self.penalty * size**0.5
            scale_U = (1 - threshold / norm_U.clamp(min=torch.finfo(norm_U.dtype).tiny)).clamp_(min=0)
            for view in views:
                view *= scale_U


def _units_last(weight: Tensor, along: Along) -> Tensor:
    """A view (rows, times, U) of a weight whose columns are units."""
    assert along.axis == 1
    return weight.unflatten(1, (along.times, -1))


def _norms(views: Sequence[Tensor]) -> Tensor:
    """The norm of each unit's weights (U,); vector_norm takes ten times as long over the first axes."""
    return torch.stack([view.square().sum((0, 1)) for view in views]).sum(0).sqrt()


@torch.no_grad()
def used_units(model: AcousticModel) -> dict[str, Tensor]:
    """Which units of each layer are read by a later one, as booleans (U,), by the layer's name."""
    parameters = dict(model.named_parameters())
    found = {}
    for units in units_of(model):
        norm_U = _norms([_units_last(parameters[each.name], each) for each in units.read])
        found[units.layer] = norm_U > _NOTHING * norm_U.max()
    return found


def without_units(
    config: ModelConfig, model: AcousticModel, used: Mapping[str, Tensor]
) -> tuple[ModelConfig, dict[str, np.ndarray]]:
    """The config and the tensors of the network without unused units; `used` as from `used_units`."""
    tensors = {name: tensor.detach().cpu().numpy() for name, tensor in model.state_dict().items()}
    for units in units_of(model):
        kept_U = used[units.layer].cpu().numpy()
        for each in (*units.made, *units.read):
            tensors[each.name] = np.compress(np.tile(kept_U, each.times), tensors[each.name], axis=each.axis)
    key = "widths"
    if isinstance(config, TdnnConfig | LstmConfig):
        key = "bottlenecks" if isinstance(config, TdnnConfig) else "layer_cells"
    sizes = tuple(int(kept_U.sum()) for kept_U in used.values())
    return config.model_copy(update={key: sizes}), tensors
