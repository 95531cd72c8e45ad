"""The learning rate from epoch to epoch, and inside one.

``halving`` is "newbob" (QuickNet; Kaldi's nnet1 steps/nnet/train_scheduler.sh): a constant rate until held-out
accuracy gains less than ``halve_below`` in an epoch, then half of the rate before in every epoch, until the gain is
below ``stop_below``. An epoch that makes the model worse is taken back. ``exponential`` falls from the first rate to
``final_rate`` of it over all epochs (Senior, Heigold, Ranzato and Yang 2013); ``cosine`` falls to zero at their end
(Loshchilov and Hutter 2017), and its last epoch is the result, since all before it were at higher rates; ``constant``
stays. With ``warmup`` each rises from a tenth first.
"""

from dataclasses import dataclass

from speech3.config import TrainingConfig
from speech3.engine.world import Rate


@dataclass(frozen=True)
class Schedule:
    """Where a run stands.

    Attributes
    ----------
    learning_rate
        Of the epoch to come, without warm-up and exponential decay.
    best_accuracy, best_epoch
        Held-out frame accuracy of the best epoch so far; -1 and 0 before the first.
    """

    learning_rate: float
    halving: bool = False
    done: bool = False
    best_accuracy: float = -1.0
    best_epoch: int = 0


def advance(schedule: Schedule, epoch: int, accuracy: float, config: TrainingConfig) -> Schedule:
    """The schedule after `epoch` (from 1) reached held-out `accuracy`."""
    gain = accuracy - max(schedule.best_accuracy, 0.0)
    better = accuracy > schedule.best_accuracy or config.schedule == "cosine"
    halving = config.schedule == "halving" and (schedule.halving or gain < config.halve_below)
    return Schedule(
        learning_rate=schedule.learning_rate / 2 if halving else schedule.learning_rate,
        halving=halving,
        done=epoch >= config.max_epochs or (schedule.halving and gain < config.stop_below),
        best_accuracy=accuracy if better else schedule.best_accuracy,
        best_epoch=epoch if better else schedule.best_epoch,
    )


def rate_of(schedule: Schedule, epoch: int, minibatches: int, config: TrainingConfig) -> Rate:
    """The learning rate during `epoch` (from 1)."""
    decay = config.final_rate ** (1 / config.max_epochs) if config.schedule == "exponential" else 1.0
    last = config.max_epochs if config.schedule == "cosine" else 0
    return Rate(schedule.learning_rate, epoch, minibatches, config.warmup, decay, last)
