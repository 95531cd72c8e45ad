"""The mean of the parameters after the last epochs, a candidate for the result of a run.

Steps of constant size end in a different place around a minimum after each epoch; the mean of these places has a lower
loss than most of them (Polyak and Juditsky 1992; Izmailov et al. 2018, "Averaging weights leads to wider optima and
better generalization"; Kaldi combines the models of the last iterations of chain training, too). It is another network,
so the statistics of batch normalisation are estimated again, by passing minibatches through it.

The parameters of each epoch are a file of their own beside the checkpoints, so these do not grow.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from speech3.engine import WorkerParts
from speech3.errors import Speech3Error
from speech3.io.checkpoint import load_tensors
from speech3.io.progress import progress
from speech3.models.layers import BatchNorm

KIND = "nn-epoch"
_MINIBATCHES = 100  # for the statistics of batch normalisation


def mean_of(paths: Sequence[Path]) -> dict[str, np.ndarray]:
    """The mean of the tensors of some files, summed in float64.

    Raises
    ------
    Speech3Error
        A file is damaged, or two have different tensors; the message names it.
    """
    first, _ = load_tensors(paths[0], KIND)
    sums = {name: np.asarray(array, np.float64) for name, array in first.items()}
    for path in paths[1:]:
        tensors, _ = load_tensors(path, KIND)
        if {name: array.shape for name, array in tensors.items()} != {n: a.shape for n, a in first.items()}:
            raise Speech3Error(
                f"{path}: cannot be averaged with {paths[0].name}: it has other tensors, so it is of another model; "
                f"begin again with --restart"
            )
        for name, array in tensors.items():
            sums[name] = sums[name] + array
    return {name: np.asarray(total / len(paths), first[name].dtype) for name, total in sums.items()}


@torch.no_grad()
def estimate_statistics(model: nn.Module, parts: WorkerParts, epoch: int) -> None:
    """Set the statistics of batch normalisation to their means over the first minibatches of an epoch.

    Everything else computes as in evaluation: without dropout, as in Kaldi's ``RecomputeStats``, and without changing
    parameters.
    """
    norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
    if not norms:
        return
    model.eval()
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
    count = min(_MINIBATCHES, len(parts.source))
    for number in progress(range(count), count, "statistics of the mean"):
        for norm in norms:
            norm.momentum = 1 / (number + 1)  # the running mean is then the mean of all minibatches so far
        model(parts.source.draw(epoch, number)[0])
    for norm, momentum in zip(norms, before, strict=True):
        norm.momentum = momentum
    model.eval()
