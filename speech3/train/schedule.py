"""The learning rate from epoch to epoch, and the mean of the parameters after the last epochs.

``halving`` is "newbob" as in Kaldi's nnet1 (steps/nnet/train_scheduler.sh): once held-out cross-entropy decreases by
less than ``halve_below`` (relative) in an epoch, the rate is halved in every epoch until it decreases by less than
``stop_below``; an epoch that makes the model worse is undone. ``exponential`` decays to ``final_rate`` of the first
rate (Senior et al. 2013), ``cosine`` to zero (Loshchilov and Hutter 2017). With ``warmup`` each rises from a tenth
first. The best epoch is the one with the lowest held-out loss (frame accuracy may still rise while the model becomes
more confident in its errors); for LF-MMI with ``cosine``, and with group lasso, the last one.

The mean of the parameters after the last epochs is a candidate for the result (Polyak and Juditsky 1992; Izmailov et
al. 2018). It is another network, so its statistics of batch normalisation are estimated anew.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from speech3.config import TrainingConfig
from speech3.engine import WorkerParts
from speech3.errors import MismatchError
from speech3.io import load_tensors
from speech3.models import BatchNorm
from speech3.runtime import progress

_LEAST = 1e-9  # lower bound of a cross-entropy used as a divisor
KIND = "nn-epoch"
_MINIBATCHES = 100  # for the statistics of batch normalisation


@dataclass(frozen=True)
class Schedule:
    """The state of the schedule: the rate of the next epoch, without warm-up and decay, and the best epoch so far (0:
    none).
    """

    learning_rate: float
    halving: bool = False
    done: bool = False
    best_loss: float = math.inf
    best_epoch: int = 0


def advance(schedule: Schedule, epoch: int, loss: float, config: TrainingConfig) -> Schedule:
    """The schedule after `epoch` (counted from 1) ended with held-out `loss`."""
    best, better = schedule.best_loss, loss < schedule.best_loss or config.last_is_best
    gain = 1.0 if math.isinf(best) else (best - loss) / max(best, _LEAST)
    halving = config.schedule == "halving" and (schedule.halving or gain < config.halve_below)
    return Schedule(
        learning_rate=schedule.learning_rate / 2 if halving else schedule.learning_rate,
        halving=halving,
        done=epoch >= config.max_epochs or (schedule.halving and gain < config.stop_below),
        best_loss=loss if better else best,
        best_epoch=epoch if better else schedule.best_epoch,
    )


def mean_of(paths: Sequence[Path]) -> dict[str, np.ndarray]:
    """The mean of the tensors of some files, summed in float64; an error names a file that is damaged or has other
    tensors.
    """
    first, _ = load_tensors(paths[0], KIND)
    sums = {name: np.asarray(array, np.float64) for name, array in first.items()}
    for path in paths[1:]:
        tensors, _ = load_tensors(path, KIND)
        if {name: array.shape for name, array in tensors.items()} != {n: a.shape for n, a in first.items()}:
            raise MismatchError(
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
