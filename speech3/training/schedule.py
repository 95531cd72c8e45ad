"""The learning rate from epoch to epoch; `speech3.engine.trainer.rate_of` is that inside one.

``halving`` is "newbob" (QuickNet) as in Kaldi's nnet1 (steps/nnet/train_scheduler.sh): a constant rate until held-out
cross-entropy falls by less than ``halve_below`` of itself in an epoch, then half of the rate before in every epoch,
until it falls by less than ``stop_below``. An epoch that makes the model worse is taken back. ``exponential`` falls
from the first rate to ``final_rate`` of it over all epochs (Senior, Heigold, Ranzato and Yang 2013); ``cosine`` falls
to zero at their end (Loshchilov and Hutter 2017); ``constant`` stays. With ``warmup`` each rises from a tenth first.

The best epoch is that of the lowest held-out loss; of a cosine it is the last, for all before it were at higher rates.
Frame accuracy may still rise while cross-entropy does, too: the model then is surer of its errors, which costs words.
"""

import math
from dataclasses import dataclass

from speech3.config import TrainingConfig

_LEAST = 1e-9  # of a cross-entropy that something is divided by


@dataclass(frozen=True)
class Schedule:
    """Where a run stands.

    Attributes
    ----------
    learning_rate
        Of the epoch to come, without warm-up and exponential decay.
    best_loss, best_epoch
        Held-out cross-entropy of the best epoch so far; infinity and 0 before the first.
    """

    learning_rate: float
    halving: bool = False
    done: bool = False
    best_loss: float = math.inf
    best_epoch: int = 0


def advance(schedule: Schedule, epoch: int, loss: float, config: TrainingConfig) -> Schedule:
    """The schedule after `epoch` (from 1) reached the held-out cross-entropy `loss`, in nats per frame."""
    best, better = schedule.best_loss, loss < schedule.best_loss or config.schedule == "cosine"
    gain = 1.0 if math.isinf(best) else (best - loss) / max(best, _LEAST)
    halving = config.schedule == "halving" and (schedule.halving or gain < config.halve_below)
    return Schedule(
        learning_rate=schedule.learning_rate / 2 if halving else schedule.learning_rate,
        halving=halving,
        done=epoch >= config.max_epochs or (schedule.halving and gain < config.stop_below),
        best_loss=loss if better else best,
        best_epoch=epoch if better else schedule.best_epoch,
    )
