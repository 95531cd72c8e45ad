"""The directory of a call of `fit`, from which the same call resumes: its last checkpoint."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speech3.engine.world import Progress, ShardReport
from speech3.errors import Speech3Error
from speech3.io import load_tensors, save_tensors
from speech3.runtime import explained_disk_errors, locked_directory

_KIND = "fit-checkpoint"
_STATES = "states_M"


@dataclass
class Saved:
    """The state of a training, within an epoch or at its beginning.

    Attributes
    ----------
    tensors
        Parameters and optimizer state.
    states_M
        What became of each minibatch of the epoch.
    done
        Progress of the epoch.
    history
        The results of the epochs before it.
    stopped
        Whether a callback ended training.
    """

    tensors: dict[str, Tensor]
    states_M: np.ndarray
    done: Progress = field(default_factory=Progress)
    history: list[dict[str, Any]] = field(default_factory=list)
    stopped: bool = False


@dataclass(frozen=True)
class FitDirectory:
    """The directory; `identity` are the arguments that must be the same when training is resumed."""

    path: Path
    identity: Mapping[str, Any]

    @property
    def checkpoint(self) -> Path:
        """The last state."""
        return self.path / "checkpoint.safetensors"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the directory against a second process; the lock is released if this one is killed.

        Raises
        ------
        Speech3Error
            Another process is training there, or the directory cannot be made.
        """
        with locked_directory(self.path, f"out={self.path}: another process is training there; give another out"):
            yield

    def load(self) -> Saved | None:
        """The last state; None if there is none.

        Raises
        ------
        Speech3Error
            It is damaged, or of a training with other arguments.
        """
        if not self.checkpoint.exists():
            return None
        arrays, about = load_tensors(self.checkpoint, _KIND)
        mine = json.loads(json.dumps(dict(self.identity)))
        for name, value in about["identity"].items():
            if mine.get(name) != value:
                raise Speech3Error(
                    f"out={self.path}: holds a training with {name}={_short(value)}, and this one has "
                    f"{_short(mine.get(name))}; give another out, or remove that directory (workers, epochs and device "
                    f"may differ)"
                )
        states_M = arrays.pop(_STATES)
        done = {**about["done"], "shards": tuple(ShardReport(**report) for report in about["done"]["shards"])}
        done["staleness"] = tuple(done["staleness"])
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return Saved(tensors, states_M, Progress(**done), about["history"], about["stopped"])

    def save(self, saved: Saved) -> None:
        """Write a state in the place of the last one."""
        arrays = {name: tensor.cpu().numpy() for name, tensor in saved.tensors.items()}
        about = {
            "kind": _KIND, "identity": dict(self.identity), "done": asdict(saved.done), "history": saved.history,
            "stopped": saved.stopped,
        }  # fmt: skip
        with explained_disk_errors(self.path):
            save_tensors(self.checkpoint, {**arrays, _STATES: saved.states_M}, about)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
