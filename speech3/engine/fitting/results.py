"""What `fit` returns, what its callbacks get, and the directory from which the same call resumes."""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speech3.engine.interface import Progress, ShardReport, shares
from speech3.errors import OccupiedError
from speech3.io import load_tensors, save_tensors
from speech3.runtime import explained_disk_errors, locked_directory

_KIND = "fit-checkpoint"
_STATES = "states_M"
RATES = "learning rates of the schedule"  # in the identity: a digest of those of each epoch
_UNKNOWN = "not recorded, by another version of speech3"


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
        return sum(epoch.seconds for epoch in self.history)

    @property
    def dropped(self) -> int:
        """Minibatches that did not change the parameters: too stale, or refused."""
        return sum(epoch.stale + epoch.refused for epoch in self.history)

    @property
    def restarts(self) -> int:
        """Number of workers that died and were replaced."""
        return sum(epoch.restarts for epoch in self.history)


@dataclass
class Saved:
    """The state of a training, within an epoch or at its beginning."""

    tensors: dict[str, Tensor]  # parameters and optimizer state
    states_M: np.ndarray  # what became of each minibatch of the epoch
    done: Progress = field(default_factory=Progress)  # progress of the epoch
    history: list[dict[str, Any]] = field(default_factory=list)  # the results of the epochs before it
    stopped: bool = False  # whether a callback ended training


@dataclass(frozen=True)
class FitDirectory:
    """The directory; `identity` are the arguments that must be the same when training is resumed."""

    path: Path
    identity: Mapping[str, Any]

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    def alone(self) -> AbstractContextManager[None]:
        """Lock the directory against a second process; the lock is released if this one is killed.

        Raises `Speech3Error` if another process is training there, or the directory cannot be made.
        """
        return locked_directory(self.path, f"out={self.path}: another process is training there; choose another out")

    def load(self) -> Saved | None:
        """The last state; None if there is none.

        Raises `Speech3Error` if it is damaged, or of a training with other arguments.
        """
        if not self.checkpoint.exists():
            return None
        arrays, about = load_tensors(self.checkpoint, _KIND)
        there, mine = about["identity"], json.loads(json.dumps(dict(self.identity)))
        for name in [*there, *(name for name in mine if name not in there)]:
            its, ours = _different(name, there.get(name, _UNKNOWN), mine.get(name, _UNKNOWN))
            if its != ours:
                raise OccupiedError(
                    f"out={self.path}: holds a training with {name}={_short(its)}, and this one has {_short(ours)}; "
                    f"choose another out, or remove that directory (workers, epochs and device may differ)"
                )
        states_M = arrays.pop(_STATES)
        done = {**about["done"], "shards": tuple(ShardReport(**report) for report in about["done"]["shards"])}
        done["staleness"] = tuple(done["staleness"])
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return Saved(tensors, states_M, Progress(**done), about["history"], about["stopped"])

    def save(self, saved: Saved) -> None:
        arrays = {name: tensor.cpu().numpy() for name, tensor in saved.tensors.items()}
        about: dict[str, Any] = {"kind": _KIND, "identity": dict(self.identity), "done": asdict(saved.done)}
        about |= {"history": saved.history, "stopped": saved.stopped}
        with explained_disk_errors(self.path):
            save_tensors(self.checkpoint, {**arrays, _STATES: saved.states_M}, about)


def _different(name: str, there: Any, here: Any) -> tuple[Any, Any]:
    """Two values of the identity; of lists, what follows the part at the beginning that is the same."""
    if not (isinstance(there, list) and isinstance(here, list)):
        return there, here
    if name == RATES:  # another number of epochs is no difference
        epochs = min(len(there), len(here))
        there, here = there[:epochs], here[:epochs]
    same = next((at for at, (one, two) in enumerate(zip(there, here, strict=False)) if one != two), None)
    same = min(len(there), len(here)) if same is None else same
    return there[same:], here[same:]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def epoch_result_of_saved(values: Mapping[str, Any]) -> EpochResult:
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return EpochResult(**{**values, **lists})


def means(done: Progress, *, classes: bool) -> tuple[float, float | None]:
    """Mean loss, and accuracy if there are classes."""
    frames = max(1, done.frames)
    return done.loss_sum / frames, done.correct / frames if classes else None


def epoch_result(epoch: int, done: Progress, *, classes: bool) -> EpochResult:
    loss, accuracy = means(done, classes=classes)
    same = ("seconds", "used", "stale", "refused", "returned", "restarts", "staleness", "note")
    values: dict[str, Any] = {name: getattr(done, name) for name in same}
    return EpochResult(epoch=epoch, loss=loss, accuracy=accuracy, shares=shares(done.shards), **values)
