"""Forward and backward pass recorded once as a CUDA graph, and replayed for every minibatch of the same shape.

The host then starts a minibatch by one call in place of some hundred, each of which takes it longer than a GPU needs
for a small kernel. A graph is of fixed memory: a minibatch is copied to where the recorded one lay, and its gradient is
good until the next one is computed. It is also of fixed operations: what a model does in Python is done once, while it
is recorded. So a minibatch is only replayed if all that is handed to the model but the values of tensors is as it was:
shapes, types, and whatever else comes along, such as the place of a chunk in its utterance. Where that varies all the
time (sequences), everything is computed directly, and a warning says so.

Random numbers are those of the generator's state at each replay, so dropout is the same as without a graph.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from speech3.engine.items import Targets, each_tensor
from speech3.errors import Speech3Error

Results = tuple[Tensor, tuple[Tensor, ...]]  # what is told of a minibatch, and its gradient
Work = Callable[[Any, Any], Results]

_WARM = 3  # minibatches computed directly before one is recorded: libraries choose kernels and take memory meanwhile
_KINDS = 8  # of minibatches; a corpus has one, and another for the last of an epoch


@dataclass(frozen=True, eq=False)
class _Recording:
    inputs: Any
    targets: Any
    replay: Callable[[], Results]


@dataclass(eq=False)
class Recorder:
    """What of a worker's minibatches is recorded. It belongs to one process, and is handed to it empty."""

    seen: Counter[Hashable] = field(default_factory=Counter)
    recordings: dict[Hashable, _Recording] = field(default_factory=dict)

    def __call__(self, work: Work, inputs: Any, targets: Any, place: Hashable) -> Results:
        """The results of a minibatch.

        Parameters
        ----------
        work
            Starts forward and backward pass; it waits for nothing that the device computes.
        place
            What else a recording is only good for: where the parameters lie, and how `work` computes.

        Raises
        ------
        Speech3Error
            The model or the loss cannot be recorded.
        """
        kind = (place, described(inputs), described(targets))
        recording = self.recordings.get(kind)
        if recording is None:
            if not self._due(kind):
                return work(inputs, targets)
            recording = self.recordings[kind] = _record(work, inputs, targets)
        for there, here in zip(
            [*tensors(recording.inputs), *tensors(recording.targets)], [*tensors(inputs), *tensors(targets)],
            strict=True,
        ):  # fmt: skip
            there.copy_(here)
        return recording.replay()

    def _due(self, kind: Hashable) -> bool:
        if kind not in self.seen and len(self.seen) == _KINDS:
            return False
        self.seen[kind] += 1
        if len(self.seen) == _KINDS and self.seen[kind] == 1:
            warnings.warn(
                f"training.cuda_graph=true: {_KINDS} minibatches were of different kinds (shapes, or what else a model "
                f"is given with them), so those of other kinds are computed without a graph; it is for models of "
                f"windows, such as dnn and cnn: set it to false",
                RuntimeWarning, stacklevel=4,
            )  # fmt: skip
        return self.seen[kind] > _WARM


def _record(work: Work, inputs: Any, targets: Any) -> _Recording:
    inputs, targets = each_tensor(inputs, torch.clone), each_tensor(targets, torch.clone)
    try:
        return _Recording(inputs, targets, capture(lambda: work(inputs, targets)))
    except RuntimeError as error:
        raise Speech3Error(
            f"training.cuda_graph=true: the model or the loss cannot be recorded, most likely because it waits for the "
            f"GPU (.item(), .cpu(), indexing by a mask): {str(error).splitlines()[0]}; set it to false"
        ) from error


def capture(work: Callable[[], Results]) -> Callable[[], Results]:
    """Record what it starts on the GPU, without computing it; the function that is returned computes it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = work()

    def replay() -> Results:
        graph.replay()
        return results

    return replay


def tensors(values: Any) -> list[Tensor]:
    """Those in it, in order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    each_tensor(values, note)
    return found


def described(values: Any) -> Hashable:
    """All of it but the values of its tensors; of what cannot be compared, which object it is."""
    match values:
        case Tensor():
            return tuple(values.shape), values.dtype, values.device
        case Targets():
            return described(values.stacked), values.items
        case Mapping():
            return tuple((key, described(value)) for key, value in values.items())
        case tuple() | list():
            return tuple(map(described, values))
        case Hashable():
            return values
    return id(values)
