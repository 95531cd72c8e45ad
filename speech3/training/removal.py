"""Group lasso in a run: the keys that do not fit it, the units left after each epoch, and the smaller network.

A unit is removed at the end of training only, because its weights may grow again until then.
"""

from typing import Any

import torch
from torch import nn

from speech3.config import ModelConfig, TrainConfig
from speech3.errors import Speech3Error
from speech3.models import AcousticModel, build
from speech3.models.groups import has_units, used_units, without_units


def check_group_lasso(config: TrainConfig) -> None:
    """Refuse models and methods of training in which group lasso cannot remove units.

    Raises
    ------
    Speech3Error
        The message names the keys.
    """
    training, model = config.training, config.model
    key = f"training.group_lasso={training.group_lasso:g}"
    if not has_units(model):
        raise Speech3Error(
            f"{key}: removes hidden units or cells of layers that are not normalised over them (set "
            f"model.normalization or cell_normalization to batch or none), and this {model.family} has none; "
            f"remove the key"
        )
    if training.schedule == "halving":
        raise Speech3Error(
            f"{key}: with training.schedule=halving an epoch that raises the held-out loss is undone, but removing "
            f"units raises it; choose cosine or exponential"
        )
    if training.pushes_gradients:
        raise Speech3Error(f"{key}: is applied to the shards' own parameters; set training.asgd.local_updates=true")
    if training.model_partitions > 1:
        raise Speech3Error(
            f"{key}: each of training.model_partitions={training.model_partitions} processes has only some of a unit's "
            f"weights; set it to 1 and more training.workers"
        )
    if training.by_sandblaster:
        raise Speech3Error(f"{key}: not with sandblaster, which takes no steps of its own; choose another world")


def units_left(config: TrainConfig, model: nn.Module) -> dict[str, Any]:
    """For the record of an epoch: ``units``, the number of units of each layer that are still read; {} without lasso.

    Raises
    ------
    Speech3Error
        None is left in some layer.
    """
    if not config.training.group_lasso:
        return {}
    assert isinstance(model, AcousticModel)
    left = {layer: int(used_U.sum()) for layer, used_U in used_units(model).items()}
    if gone := [layer for layer, count in left.items() if not count]:
        raise Speech3Error(
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
