"""The learning rate from epoch to epoch; `speech3.engine.trainer.rate_of` gives the rate within an epoch.

``halving`` is "newbob" (QuickNet) as in Kaldi's nnet1 (steps/nnet/train_scheduler.sh): the rate is constant until
held-out cross-entropy decreases by less than ``halve_below`` (relative) in an epoch; then it is halved in every epoch
until cross-entropy decreases by less than ``stop_below``. An epoch that makes the model worse is undone.
``exponential`` decays from the first rate to ``final_rate`` of it over all epochs (Senior, Heigold, Ranzato and Yang
2013); ``cosine`` decays to zero at their end (Loshchilov and Hutter 2017); ``constant`` does not change. With
``warmup`` each first rises from a tenth of its value.

The best epoch is the one with the lowest held-out loss, not the highest frame accuracy, which may still rise while
cross-entropy rises: the model is then more confident in its errors, which costs word accuracy. For LF-MMI with
``cosine`` the last epoch counts as the best: all others had higher rates, and most of the held-out loss comes from
phone sequences that were not seen in training. So it does with group lasso, which removes units at the cost of the
loss.
"""

import math
from dataclasses import dataclass

from speech3.config import TrainingConfig

_LEAST = 1e-9  # lower bound of a cross-entropy used as a divisor


@dataclass(frozen=True)
class Schedule:
    """The state of the schedule.

    Attributes
    ----------
    learning_rate
        Rate of the next epoch, without warm-up and decay.
    best_loss, best_epoch
        Held-out loss of the best epoch so far; infinity and 0 before the first.
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
