"""The loop of every training: worlds through the minibatches of one epoch after another.

Of an epoch the warm start's minibatches are computed by the world of one worker, the others by the world that was asked
for. Who drives it looks between two items of the iterator: saves, evaluates, tells people, or stops.

Axes: M minibatches of an epoch.
"""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from speech3.config import TrainingConfig
from speech3.engine.one_worker import OneWorker
from speech3.engine.world import USED, Progress, Rate, World
from speech3.errors import Speech3Error

_FEW_REFUSED, _MAX_REFUSED = 20, 0.05  # minibatches of an epoch, and as a share of it, beyond which training stops


class Trainer:
    """The state of a training, and the worlds that move it on.

    Parameters
    ----------
    one
        Does the warm start, and everything where there is no other world.
    warm_start
        Epochs of it.

    Attributes
    ----------
    tensors
        The state that was taken last: from it the next minibatch is computed where no world is at work.
    states_M
        What became of each minibatch of the epoch, in that state.
    done
        The epoch so far, in that state.
    """

    def __init__(self, one: OneWorker, world: World | None, warm_start: float = 0.0) -> None:
        self.one, self.world = one, world
        self.minibatches = len(one.parts.source)
        self.warm_minibatches = round(warm_start * self.minibatches)
        self.tensors = one.snapshot().tensors
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Nothing of it is done yet."""
        self.states_M, self.done = np.zeros(self.minibatches, np.int32), Progress()
        self._at_work: tuple[World, Progress, int] | None = None

    def resume(self, tensors: dict[str, Tensor], states_M: np.ndarray, done: Progress) -> None:
        """Begin from such a state, inside an epoch."""
        self.tensors, self.states_M, self.done = tensors, states_M, done

    def epoch(self, rate: Rate, seconds: float = 0.0) -> Iterator[Progress]:
        """Compute the rest of an epoch, begun after so many seconds of training; yields how far it is.

        Raises
        ------
        Speech3Error
            More than a few minibatches were refused, or all of them; what the worlds raise.
        """
        warm = self.warm_minibatches - (rate.epoch - 1) * self.minibatches
        for world, upto in ((self.one, min(warm, self.minibatches)), (self.world or self.one, self.minibatches)):
            if upto <= 0 or (self.states_M[:upto] < 0).all():
                continue
            self._at_work = world, self.done, upto
            world.load(self.tensors, seconds + self.done.seconds)
            states_M = self.states_M.copy()
            states_M[upto:] = USED  # not this world's
            for done in world.epoch(rate.epoch, states_M, rate):
                progress = self._at_work[1] + done
                self._check_refused(progress, rate)
                yield progress
            self.take()

    def take(self) -> None:
        """The newest whole state of the world that is at work becomes that of the training; nobody is stopped."""
        if self._at_work is not None:
            world, before, upto = self._at_work
            snapshot = world.snapshot()
            if not snapshot.finite:
                raise Speech3Error(
                    "the parameters, or the running means of normalisation, are not finite any more: the learning rate "
                    "is most likely too high, or the data hold NaN; lower training.learning_rate, or mend the data"
                )
            self.tensors, self.done = snapshot.tensors, before + snapshot.progress
            self.states_M[:upto] = np.minimum(snapshot.states_M[:upto], 0)

    def _check_refused(self, progress: Progress, rate: Rate) -> None:
        refused, total = progress.refused, self.minibatches
        if refused == total or (refused >= _FEW_REFUSED and refused > _MAX_REFUSED * total):
            raise Speech3Error(
                f"epoch {rate.epoch}: {refused} of {total} minibatches were refused (a loss or a push that is not "
                f"finite, or one longer than training.asgd.max_push): the learning rate ({rate.base:g}) is most likely "
                f"too high, or the data hold NaN; lower training.learning_rate or training.asgd.push_scale, and begin "
                f"again"
            )


def rate_of(learning_rate: float, epoch: int, minibatches: int, training: TrainingConfig) -> Rate:
    """The learning rate in `epoch` (from 1), by the schedule of the config, where it begins with `learning_rate`."""
    decay = training.final_rate ** (1 / training.max_epochs) if training.schedule == "exponential" else 1.0
    last = training.max_epochs if training.schedule == "cosine" else 0
    return Rate(learning_rate, epoch, minibatches, training.warmup, decay, last)
