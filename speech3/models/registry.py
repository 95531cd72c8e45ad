"""Builds a model from a config, and reads it back from its file.

Axes: F feature bins, S senones.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from speech3.config import ModelConfig, parse
from speech3.errors import FormatError, MismatchError
from speech3.io import MODEL_FILE, load_tensors, read_about, save_tensors
from speech3.models.base import AcousticModel
from speech3.models.cnn import Cnn
from speech3.models.dnn import Dnn
from speech3.models.lstm import Lstm
from speech3.models.tdnn import Tdnn, TdnnLstm

MEAN = "mean"  # kind of a file with several networks, whose scores are averaged
Network = tuple[AcousticModel, np.ndarray, dict[str, Any]]  # with its log priors (S,) and its metadata

FAMILIES: dict[str, Callable[..., AcousticModel]] = {
    "dnn": Dnn,
    "cnn": Cnn,
    "lstm": Lstm,
    "tdnn": Tdnn,
    "cnn_tdnn": Tdnn,
    "tdnn_lstm": TdnnLstm,
}


def build(config: ModelConfig, feat_dim: int, num_senones: int, seed: int) -> AcousticModel:
    """A model with random parameters for F feature bins per frame (without context); equal arguments make equal
    parameters.

    An error says how the features do not fit the model, for instance that a kernel is larger than its input.
    """
    return FAMILIES[config.family](config, feat_dim, num_senones, torch.Generator().manual_seed(seed))


def network_tensors(model: nn.Module) -> dict[str, np.ndarray]:
    """Parameters and buffers by name, as they are stored.

    PyTorch's count of minibatches in a BatchNorm layer is stored as 0: nothing is computed from it, every worker has
    its own, and a resumed run counts from zero.
    """
    arrays = {name: tensor.detach().cpu().numpy().copy() for name, tensor in model.state_dict().items()}
    return {
        name: np.zeros_like(array) if name.endswith("num_batches_tracked") else array for name, array in arrays.items()
    }


def load_network(directory: Path | str) -> Network:
    """Read the model that `speech3.train.train` wrote, in evaluation mode.

    Returns the model, its log priors (S,) float32 (natural logarithms), and the metadata of the file.

    Raises Speech3Error: the file is missing or cut short, its tensors are not those of the model it describes, or it
    holds several networks.
    """
    path = Path(directory) / MODEL_FILE
    refuse_mean(path, read_about(path))
    return _network(path, *load_tensors(path, "nn"))


def load_networks(directory: Path | str) -> dict[str, Network]:
    """The networks of a model directory: those whose scores are averaged by name, or the only one as ``""``."""
    path = Path(directory) / MODEL_FILE
    if read_about(path).get("kind") != MEAN:
        return {"": load_network(directory)}
    tensors, about = load_tensors(path)
    found = {}
    for name, each in about["members"].items():
        prefix = f"{name}."
        own = {key.removeprefix(prefix): array for key, array in tensors.items() if key.startswith(prefix)}
        found[name] = _network(path, own, each)
    return found


def save_mean(path: Path, networks: Sequence[Path]) -> None:
    """Write the networks of several model directories into one file, for the mean of their scores.

    Each is called as its directory. They have the same senones; those that read fewer features read the first ones.
    """
    tensors, members = dict[str, np.ndarray](), dict[str, Any]()
    for network in networks:
        own, members[network.name] = load_tensors(network / MODEL_FILE, "nn")
        tensors |= {f"{network.name}.{name}": array for name, array in own.items()}
    seconds = sum(about.get("seconds", 0.0) for about in members.values())
    save_tensors(path, tensors, {"kind": MEAN, "members": members, "seconds": seconds})


def refuse_mean(path: Path, about: dict[str, Any]) -> None:
    if about.get("kind") == MEAN:
        raise FormatError(f"{path}: holds the networks {' and '.join(about['members'])}; pass the directory of one")


def _network(path: Path, tensors: dict[str, np.ndarray], about: dict[str, Any]) -> Network:
    if missing := {"model", "feat_dim", "num_senones"} - about.keys():
        raise MismatchError(
            f"{path}: its metadata lacks {', '.join(sorted(missing))}; it was written by another version of speech3,"
            " train the model again"
        )
    model = build(parse(ModelConfig, about["model"], path), about["feat_dim"], about["num_senones"], seed=0)
    log_prior_S = tensors.pop("log_prior", np.empty(0))
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: array.shape for name, array in tensors.items()}
    if found != expected or log_prior_S.shape != (about["num_senones"],):
        wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise MismatchError(f"{path}: tensors are not those of the model it describes ({', '.join(wrong)})")
    model.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})
    return model.eval(), log_prior_S, about
