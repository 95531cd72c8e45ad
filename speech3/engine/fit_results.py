"""What `fit` returns, and what its callbacks get."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EpochResult:
    """The results of one epoch.

    Attributes
    ----------
    seconds
        Training time; with `simulate`, on the virtual clock, where a minibatch takes one second by default.
    loss, accuracy
        Means over the items used, measured before the update by each minibatch; accuracy is None without classes.
    used, stale, refused
        Numbers of minibatches; those that were stale or refused did not change the parameters.
    returned, restarts
        Number of minibatches that workers had not finished when they died, and that others computed; number of workers
        that were replaced.
    staleness
        Number of used minibatches for each staleness of their push, from 0; empty if there is no server.
    shares
        Share of the minibatches that each worker computed; empty for plain SGD and synchronous SGD.
    note
        A remark on how the epoch ended; may be empty.
    validation_loss, validation_accuracy
        Means over the items of `validation` with the parameters at the end of the epoch; None without it.
    """

    epoch: int
    seconds: float
    loss: float
    accuracy: float | None
    used: int
    stale: int
    refused: int
    returned: int
    restarts: int
    staleness: tuple[int, ...]
    shares: tuple[float, ...]
    note: str
    validation_loss: float | None = None
    validation_accuracy: float | None = None


@dataclass(frozen=True)
class StepResult:
    """The progress of an epoch, as `on_step` gets it.

    Attributes
    ----------
    step, steps
        Minibatches of the epoch that are done, and all of them.
    seconds
        Training time of the epoch so far.
    loss, accuracy
        Means over the items that were used in the epoch so far; accuracy is None without classes.
    """

    epoch: int
    step: int
    steps: int
    seconds: float
    loss: float
    accuracy: float | None


@dataclass(frozen=True)
class FitResult:
    """The results of `fit`, epoch by epoch.

    Attributes
    ----------
    stopped
        Whether a callback ended training.
    """

    strategy: str
    workers: int
    history: tuple[EpochResult, ...]
    stopped: bool = False

    @property
    def seconds(self) -> float:
        """Training time of all epochs."""
        return sum(epoch.seconds for epoch in self.history)

    @property
    def dropped(self) -> int:
        """Minibatches that did not change the parameters: too stale, or refused."""
        return sum(epoch.stale + epoch.refused for epoch in self.history)

    @property
    def restarts(self) -> int:
        """Number of workers that died and were replaced."""
        return sum(epoch.restarts for epoch in self.history)
