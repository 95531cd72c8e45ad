"""From a config to a model, from a model to its file and back, and the scoring of whole utterances.

Axes: T frames of an utterance, W context window, F feature bins, S senones.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from speech3.config import ModelConfig, parse
from speech3.errors import Speech3Error
from speech3.frames.resident import window_indices
from speech3.io.checkpoint import load_tensors
from speech3.models.dnn import Dnn

FAMILIES: dict[str, type[Dnn]] = {"dnn": Dnn}

_SCORED_AT_A_TIME = 1024  # frames: bounds the memory of the spliced windows, and keeps one shape for oneDNN's cache


def build(config: ModelConfig, feat_dim: int, num_senones: int, seed: int) -> Dnn:
    """A model with random parameters; equal arguments give equal parameters.

    Parameters
    ----------
    feat_dim
        F, feature bins a frame (without context).
    num_senones
        S, outputs.
    """
    return FAMILIES[config.family](config, feat_dim, num_senones, torch.Generator().manual_seed(seed))


def network_tensors(model: nn.Module) -> dict[str, np.ndarray]:
    """Parameters and buffers by name, as they are stored.

    PyTorch's count of the minibatches that a BatchNorm layer saw is stored as 0: nothing is computed with it, every
    worker has its own, and a run that was killed counts anew.
    """
    arrays = {name: tensor.detach().cpu().numpy().copy() for name, tensor in model.state_dict().items()}
    return {
        name: np.zeros_like(array) if name.endswith("num_batches_tracked") else array for name, array in arrays.items()
    }


def load_network(directory: Path | str) -> tuple[Dnn, np.ndarray, dict[str, Any]]:
    """Read the model that `speech3.training.train` wrote, ready for scoring.

    Returns
    -------
    model, log_prior_S, about
        The log priors are float32, natural logarithms; `about` is what the file says of itself.

    Raises
    ------
    Speech3Error
        The file is missing, cut short, or its tensors are not those of the model it describes.
    """
    path = Path(directory) / "model.safetensors"
    tensors, about = load_tensors(path, "nn")
    if missing := {"model", "feat_dim", "num_senones"} - about.keys():
        raise Speech3Error(
            f"{path}: does not say its {', '.join(sorted(missing))}; written by another version of speech3"
        )
    model = build(parse(ModelConfig, about["model"], path), about["feat_dim"], about["num_senones"], seed=0)
    log_prior_S = tensors.pop("log_prior", np.empty(0))
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: array.shape for name, array in tensors.items()}
    if found != expected or log_prior_S.shape != (about["num_senones"],):
        wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise Speech3Error(f"{path}: tensors are not those of the model it describes ({', '.join(wrong)})")
    model.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})
    return model.eval(), log_prior_S, about


@torch.no_grad()
def logits(model: Dnn, feats_TF: Tensor) -> Tensor:
    """Senone logits (T, S) of one utterance, edge frames repeated beyond its ends, in constant memory for windows.

    Raises
    ------
    Speech3Error
        `feats_TF` has another number of feature bins than the model was trained on.
    """
    if feats_TF.ndim != 2 or feats_TF.shape[1] != model.feat_dim:
        raise Speech3Error(
            f"features of shape {tuple(feats_TF.shape)}, but the model was trained on {model.feat_dim} bins a frame; "
            f"extract them with the model's own feature preset"
        )
    length = len(feats_TF)
    logits_TS = feats_TF.new_empty((length, model.num_senones), dtype=torch.float32)
    was_training = model.training
    model.eval()
    first, last = (torch.tensor([frame], device=feats_TF.device) for frame in (0, length - 1))
    for start in range(0, length, _SCORED_AT_A_TIME):
        stop = min(start + _SCORED_AT_A_TIME, length)
        centers_B = torch.arange(start, stop, device=feats_TF.device)
        windows = window_indices(centers_B, first, last, model.left_context, model.right_context)
        logits_TS[start:stop] = model(feats_TF[windows].float())
    model.train(was_training)
    return logits_TS
