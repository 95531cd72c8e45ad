"""CUDA graphs: forward and backward passes are recorded once and replayed for every minibatch of the same shape.

The host then starts a minibatch with one call instead of some hundred kernel launches, each of which takes longer than
a GPU needs for a small kernel. A graph uses fixed memory: a minibatch is copied to where the recorded one was, and its
gradient is valid only until the next one is computed. A graph also has fixed operations: the model's Python code runs
only once, during the recording. So a recording is replayed only for minibatches that equal the recorded one in
everything except the values of its tensors: shapes, types, and other inputs of the model, such as the position of a
chunk in its utterance. Where these keep changing (sequences), minibatches are computed directly, and a warning says so.

Each replay draws random numbers from the current state of the generator, so dropout is the same as without a graph.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from speech3.engine.items import Targets, each_tensor
from speech3.engine.world import Results, Work
from speech3.errors import Speech3Error

_WARM = 3  # minibatches of a kind computed before recording it, in which libraries choose kernels and allocate memory
_KINDS = 8  # most kinds of minibatches to record; usually there is one, and another for the last minibatch of an epoch


@dataclass(frozen=True, eq=False)
class _Recording:
    inputs: Any
    targets: Any
    replay: Callable[[], Results]


@dataclass(eq=False)
class Recorder:
    """The recordings of a worker's minibatches; a recorder is used in one process, and must be empty when pickled.

    Attributes
    ----------
    pool
        The memory that all its graphs share, since only one of them computes at a time.
    """

    seen: Counter[Hashable] = field(default_factory=Counter)
    recordings: dict[Hashable, _Recording] = field(default_factory=dict)
    pool: Any = None

    def __call__(self, work: Work, inputs: Any, targets: Any, place: Hashable) -> Results:
        """Compute the results of a minibatch, by replaying a recording if there is one.

        Parameters
        ----------
        work
            Starts the forward and backward passes; it must not wait for results of the device.
        place
            What else must be equal for a recording to be valid: the address of the parameters, and how `work` computes.

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
            recording = self.recordings[kind] = self._record(work, inputs, targets)
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
                f"training.cuda_graph=true: {_KINDS} minibatches were of different kinds (in shapes or other inputs of "
                f"the model), so further kinds are computed without a graph; CUDA graphs suit models of windows, such "
                f"as dnn and cnn; for this model, set it to false",
                RuntimeWarning, stacklevel=4,
            )  # fmt: skip
        return self.seen[kind] > _WARM

    def _record(self, work: Work, inputs: Any, targets: Any) -> _Recording:
        inputs, targets = each_tensor(inputs, torch.clone), each_tensor(targets, torch.clone)
        device = next(tensor.device for tensor in tensors(inputs))
        if self.pool is None and device.type == "cuda":
            self.pool = torch.cuda.graph_pool_handle()
        try:
            return _Recording(inputs, targets, capture(lambda: work(inputs, targets), device, self.pool))
        except torch.OutOfMemoryError as error:
            raise Speech3Error(
                f"training.cuda_graph=true: {device} has too little memory to record a minibatch, since a recording "
                f"keeps the memory of its passes; make training.minibatch smaller, or set it to false"
            ) from error
        except RuntimeError as error:
            raise Speech3Error(
                f"training.cuda_graph=true: the model or the loss cannot be recorded, most likely because it waits for "
                f"the GPU (.item(), .cpu(), indexing by a mask): {str(error).splitlines()[0]}; set it to false"
            ) from error


def capture(work: Callable[[], Results], device: torch.device, pool: Any = None) -> Callable[[], Results]:
    """Record the operations that `work` starts on this GPU, without running them; the returned function runs them.

    The graph's memory comes from `pool`, or is its own.
    """
    with torch.cuda.device(device):  # else the stream of another GPU would be recorded, and the graph be empty
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.Stream()):
            results = work()

    def replay() -> Results:
        with torch.cuda.device(device):
            graph.replay()
        return results

    return replay


def tensors(values: Any) -> list[Tensor]:
    """All tensors in nested values, in order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    each_tensor(values, note)
    return found


def described(values: Any) -> Hashable:
    """A key of everything in nested values except the values of tensors; unhashable objects are equal if identical."""
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
