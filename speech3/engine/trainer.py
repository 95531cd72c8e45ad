"""The training loop: it runs worlds through the minibatches of one epoch after another.

The minibatches of the warm start are computed by the world of one worker, the others by the world that the config
names. The caller iterates over an epoch, and can save, evaluate, report or stop between two items.

Axes: M minibatches of an epoch.
"""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from speech3.config import TrainingConfig
from speech3.engine.one_worker import OneWorker
from speech3.engine.world import USED, Progress, Rate, World
from speech3.errors import Speech3Error

# Training stops if at least this number of an epoch's minibatches, and more than this share of them, are refused.
_FEW_REFUSED, _MAX_REFUSED = 20, 0.05


class Trainer:
    """The state of training, and the worlds that advance it.

    Parameters
    ----------
    one
        The world of one worker, which computes the warm start, and everything if there is no other world.
    warm_start
        Length of the warm start in epochs.

    Attributes
    ----------
    tensors
        The state that was taken last; when no world is running, the next minibatch starts from it.
    states_M
        int32: what became of each minibatch of the epoch, in that state (`speech3.engine.world`).
    done
        Progress of the epoch, in that state.
    """

    def __init__(self, one: OneWorker, world: World | None, warm_start: float = 0.0) -> None:
        self.one, self.world = one, world
        self.minibatches = len(one.parts.source)
        self.warm_minibatches = round(warm_start * self.minibatches)
        self.tensors = one.snapshot().tensors
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Begin an epoch, with every minibatch waiting."""
        self.states_M, self.done = np.zeros(self.minibatches, np.int32), Progress()
        self._at_work: tuple[World, Progress, int] | None = None

    def resume(self, tensors: dict[str, Tensor], states_M: np.ndarray, done: Progress) -> None:
        """Continue from a state inside an epoch."""
        self.tensors, self.states_M, self.done = tensors, states_M, done

    def epoch(self, rate: Rate, seconds: float = 0.0) -> Iterator[Progress]:
        """Compute the rest of an epoch that began after `seconds` of training; yields its progress.

        Raises
        ------
        Speech3Error
            Too many minibatches were refused, or the parameters are not finite; also whatever the worlds raise.
        """
        warm = self.warm_minibatches - (rate.epoch - 1) * self.minibatches
        for world, upto in ((self.one, min(warm, self.minibatches)), (self.world or self.one, self.minibatches)):
            if upto <= 0 or (self.states_M[:upto] < 0).all():
                continue
            self._at_work = world, self.done, upto
            world.load(self.tensors, seconds + self.done.seconds)
            states_M = self.states_M.copy()
            states_M[upto:] = USED  # minibatches that this world must not compute
            for done in world.epoch(rate.epoch, states_M, rate):
                progress = self._at_work[1] + done
                self._check_refused(progress, rate)
                yield progress
            self.take()

    def take(self) -> None:
        """Take the newest consistent state from the world that is running, without stopping its workers.

        Raises
        ------
        Speech3Error
            A value of the state is not finite.
        """
        if self._at_work is not None:
            world, before, upto = self._at_work
            snapshot = world.snapshot()
            if not snapshot.finite:
                raise Speech3Error(
                    "the parameters, or the running means of normalisation, are no longer finite: the learning rate is "
                    "most likely too high, or the data contain NaN; lower training.learning_rate, or repair the data"
                )
            self.tensors, self.done = snapshot.tensors, before + snapshot.progress
            self.states_M[:upto] = np.minimum(snapshot.states_M[:upto], 0)

    def _check_refused(self, progress: Progress, rate: Rate) -> None:
        refused, total = progress.refused, self.minibatches
        if refused == total or (refused >= _FEW_REFUSED and refused > _MAX_REFUSED * total):
            raise Speech3Error(
                f"epoch {rate.epoch}: {refused} of {total} minibatches were refused (a loss or a push that is not "
                f"finite, or one longer than training.asgd.max_push): the learning rate ({rate.base:g}) is most likely "
                f"too high, or the data contain NaN; lower training.learning_rate, or set "
                f"training.asgd.push_scale=1/workers or training.gradient_clip=1, and start again"
            )


def rate_of(learning_rate: float, epoch: int, minibatches: int, training: TrainingConfig) -> Rate:
    """The learning rate in `epoch` (from 1) by the schedule of the config, whose base is `learning_rate`."""
    decay = training.final_rate ** (1 / training.max_epochs) if training.schedule == "exponential" else 1.0
    last = training.max_epochs if training.schedule == "cosine" else 0
    return Rate(learning_rate, epoch, minibatches, training.warmup, decay, last)
