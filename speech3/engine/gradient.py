"""How a worker computes the gradient of one minibatch: device, precision, both passes, clipping, CUDA graphs.

PyTorch's own default precision on a GPU is mixed: convolutions round their inputs to tf32 (10 bits of mantissa), matrix
products do not. Here either both do or neither does, and no other module sets this.

With CUDA graphs, both passes are recorded once and replayed for every minibatch of the same kind: the host makes one
call instead of some hundred kernel launches. The model's Python code runs only during the recording, so a graph is
replayed only for minibatches that equal the recorded one in everything except the values of tensors. Its gradient is
valid until the next one is computed. Each replay draws random numbers from the current state of the generator.
"""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from speech3.config import TrainingConfig
from speech3.engine.flat import trained
from speech3.engine.interface import (
    Loss,
    Microbatches,
    Passes,
    Progress,
    Results,
    Source,
    Targets,
    WorkerParts,
    each_tensor,
    minibatch_seed,
    seed_generators,
    tensors,
)
from speech3.errors import MachineError, SettingError, Speech3Error

_WARM = 3  # minibatches of a kind computed before recording it, in which libraries choose kernels and allocate memory
_KINDS = 8  # most kinds of minibatches to record; usually there is one, and another for the last minibatch of an epoch


def use_threads(count: int) -> None:
    """Have PyTorch use `count` threads, and zeros for denormal numbers (float32 below 1e-38).

    A CPU needs some hundred cycles for an operation on a denormal. The gradient averages of inactive units decay to
    denormals, and Muon's matrix products spread them: in epoch 18 of an LF-MMI run, updates took three times as long.
    The setting holds for this thread and those started after it, so with `count` above 1 some may still compute with
    denormals.
    """
    torch.set_num_threads(count)
    torch.set_flush_denormal(True)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Context of `use_threads`."""
    before, smallest = torch.get_num_threads(), torch.finfo(torch.float32).smallest_normal
    flushed = not torch.tensor(smallest).div(2).item()
    use_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(flushed)


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Context in which float32 products and convolutions on GPUs have the precision ``training.precision``."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    use_precision(name)
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def use_precision(name: str) -> None:
    """Set the precision for the rest of a worker's process."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name == "tf32"


def device_of(name: str) -> torch.device:
    """The device with this name; raises `Speech3Error` if this machine does not have it."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingError(f"device {name!r}: no such kind of device; use cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise MachineError(f"device {name!r}: training runs only on cpu and cuda; use one of these")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        usable = f"use cuda:0 to cuda:{count - 1}" if count > 1 else "use cuda:0" if count else "use cpu"
        raise MachineError(f"device {name!r}: PyTorch finds {count or 'no'} GPU{'s' * (count != 1)} here; {usable}")
    return device


def worker_parts(
    training: TrainingConfig, model: nn.Module, source: Source, loss: Loss, seed: int, **more: Any
) -> WorkerParts:
    """The parts of a worker with the settings of a config; `more` are further fields, or replace these."""
    settings: dict[str, Any] = {
        "max_norm": training.gradient_clip or math.inf,
        "optimizer": training.optimizer,
        "betas": training.betas,
        "weight_decay": training.weight_decay,
        "autocast": torch.bfloat16 if training.precision == "bf16" else None,
        "cuda_graphs": CudaGraphs() if training.cuda_graph else None,
    }
    return WorkerParts(model, source, loss, seed, **(settings | more))


def use_device(name: str) -> None:
    """Make a GPU the current one of this process, a worker; otherwise libraries would use the first GPU as well."""
    if name.startswith("cuda"):
        torch.cuda.set_device(name)


def device_for(device: str, worker: int) -> str:
    """The device of a worker: ``cuda`` distributes workers over all GPUs; any other device is the same for all."""
    return f"cuda:{worker % torch.cuda.device_count()}" if device == "cuda" else device


@dataclass(eq=False)
class Step:
    """Results of one minibatch before the update; on a GPU it may still be under way, and whoever reads them waits."""

    frames: int
    results: Tensor  # float64 on the host: mean loss, number classified correctly and, if computed, gradient's norm
    copied: torch.cuda.Event | None = None  # recorded on the GPU when `results` are there; None if they are
    left_out: int = 0  # number of further frames that the loss could not use

    @classmethod
    def started(cls, frames: int, results: Tensor, left_out: int = 0) -> "Step":
        """The step whose results the device is computing; one transfer to pinned memory, for which nobody waits yet."""
        if not results.is_cuda:
            return cls(frames, results, left_out=left_out)
        with torch.cuda.device(results.device):
            there = results.to("cpu", non_blocking=True)
            return cls(frames, there, torch.cuda.current_stream().record_event(), left_out)

    def __reduce__(self) -> tuple[Any, ...]:
        return Step, (self.frames, torch.tensor(self.read, dtype=torch.float64), None, self.left_out)

    @cached_property
    def read(self) -> list[float]:
        if self.copied is not None:
            self.copied.synchronize()
        return self.results.tolist()

    @property
    def known(self) -> bool:
        """Whether reading the results does not wait."""
        return self.copied is None or self.copied.query()

    @property
    def loss(self) -> float:
        return self.read[0]

    @property
    def correct(self) -> int:
        return int(self.read[1])

    @property
    def progress(self) -> Progress:
        """The progress that using the minibatch is."""
        loss_sum = self.loss * self.frames
        return Progress(used=1, frames=self.frames, loss_sum=loss_sum, correct=self.correct, left_out=self.left_out)

    @property
    def finite(self) -> bool:
        """Whether the loss and, where it was computed, the norm of the gradient are finite."""
        loss, _, *norm = self.read
        return all(map(math.isfinite, (loss, *norm)))


def gradient(
    parts: WorkerParts, epoch: int, number: int, *, check: bool = True, drawn: tuple[Any, Any] | None = None
) -> tuple[Step, tuple[Tensor, ...]]:
    """Draw a minibatch and compute its gradient (the mean over its frames, clipped), one tensor per parameter.

    On a GPU this starts the work and returns; whoever reads the step waits for it.

    Parameters
    ----------
    check
        Whether to check that the gradient is finite. False where its effect is checked later, as the server checks a
        push: the check takes 1 to 2 % of the time of a small network's minibatch. With clipping it is done anyway.
    drawn
        The minibatch, if it is already drawn.

    The gradient must not be used if `step.finite` is false. With CUDA graphs it is valid only until the next
    gradient is computed.
    """
    inputs, targets = drawn or parts.source.draw(epoch, number)
    seed_generators(minibatch_seed(parts.seed, epoch, number), parts.device)
    work = partial(_passes, parts, check)
    if parts.cuda_graphs is None:
        results, g = work(inputs, targets)
    else:
        results, g = parts.cuda_graphs(
            work, inputs, targets, (next(parts.model.parameters()).data_ptr(), check), parts.model.buffers
        )
    return Step.started(len(targets), results, getattr(targets, "left_out", 0)), g


def _passes(parts: WorkerParts, check: bool, inputs: Any, targets: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Start both passes; returns loss, number correct and the norm if computed, as one tensor, and the gradient."""
    total, correct, g = (
        _of_microbatches(parts, inputs) if isinstance(inputs, Microbatches) else _of(parts, inputs, targets)
    )
    results = [total.detach(), correct]
    if check or parts.max_norm < math.inf:
        results.append(clip(g, parts.max_norm, parts.group.norm if parts.group else torch.nn.utils.get_total_norm))
    return stacked_scalars(results), g


def _of(parts: WorkerParts, inputs: Any, targets: Any) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    total, correct = loss_of(parts, inputs, targets)
    # A model may leave out parameters in some minibatches (LayerDrop, mixtures of experts): their gradient is zero.
    with _explained(parts, inputs):
        return total, correct, torch.autograd.grad(total, trained(parts.model), materialize_grads=True)


def _of_microbatches(parts: WorkerParts, inputs: Microbatches) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """The same of a minibatch in portions: means over its items, whatever the sizes of the portions."""
    items = sum(len(targets) for _, targets in inputs.microbatches)
    sums: list[Tensor] = []
    for number, (microbatch, targets) in enumerate(inputs.microbatches):
        total, correct, g = _of(parts, microbatch, targets)
        share = len(targets) / items
        if number:
            sums = [sums[0] + share * total.detach(), sums[1] + correct, *sums[2:]]
            torch._foreach_add_(sums[2:], g, alpha=share)
        else:
            sums = [share * total.detach(), correct, *(share * each for each in g)]
    return sums[0], sums[1], tuple(sums[2:])


def loss_of(parts: WorkerParts, inputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """The loss of a minibatch and the number classified correctly.

    The model computes in the precision of `parts`; the loss always gets float32 outputs.
    """
    with (
        _explained(parts, inputs),
        torch.autocast(parts.device.type, parts.autocast, enabled=True) if parts.autocast else nullcontext(),
    ):
        outputs = parts.model(inputs)
    if parts.autocast is None:
        return parts.loss(outputs, targets)
    return parts.loss(each_tensor(outputs, lambda y: y.float() if y.dtype == parts.autocast else y), targets)


@contextmanager
def _explained(parts: WorkerParts, inputs: Any) -> Iterator[None]:
    """Errors of the model in this block become those for the user, if the parts have any."""
    try:
        yield
    except (Speech3Error, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        if parts.explained is None or recording():
            raise
        raise parts.explained(error, inputs) from error


def recording() -> bool:
    """Whether a CUDA graph is being recorded: whoever records it says what cannot be recorded."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def stacked_scalars(scalars: Sequence[Tensor]) -> Tensor:
    """Combine scalars of any type into one float64 tensor on the device of the first, for a single transfer."""
    return torch.stack([scalar.to(scalars[0].device, torch.float64) for scalar in scalars])


@torch.no_grad()
def clip(
    g: Sequence[Tensor], max_norm: float, norm: Callable[[Sequence[Tensor]], Tensor] = torch.nn.utils.get_total_norm
) -> Tensor:
    """Clip a gradient to the norm `max_norm`, in place (Pascanu et al. 2013).

    Returns the norm before clipping, a scalar on the gradient's device; the host does not wait for it. It is not finite
    if a value of the gradient is not; the gradient is then left unchanged.
    """
    length = norm(g)
    if max_norm < math.inf:
        shrink = torch.where(length.isfinite(), (max_norm / length).clamp(max=1.0), 1.0)
        for each in g:
            each.mul_(shrink)
    return length


class Diverged(Speech3Error):
    """A loss or a gradient is not finite, in a backend without a server that could refuse the push."""

    def __init__(self, epoch: int, number: int, loss: float, rate: float) -> None:
        what = f"the gradient is not finite (the loss is {loss:g})" if math.isfinite(loss) else f"the loss is {loss}"
        super().__init__(
            f"epoch {epoch}, minibatch {number}: {what}; the learning rate ({rate:g}) is most likely too high, or the "
            f"data contain NaN: lower training.learning_rate or repair the data, and start again"
        )
        self.epoch, self.number = epoch, number


@dataclass(frozen=True, eq=False)
class _Graph:
    inputs: Any
    targets: Any
    replay: Callable[[], Results]


@dataclass(eq=False)
class CudaGraphs:
    """The CUDA graphs of a worker's minibatches, for use in one process; must be empty when pickled."""

    seen: Counter[Hashable] = field(default_factory=Counter)
    graphs: dict[Hashable, _Graph] = field(default_factory=dict)
    # The memory that all its graphs share, since only one of them computes at a time, and the stream on which they are
    # recorded: blocks that a recording frees are reused only on the same stream.
    pool: Any = None
    stream: Any = None

    def __call__(
        self, work: Passes, inputs: Any, targets: Any, place: Hashable, buffers: Callable[[], Iterable[Tensor]]
    ) -> Results:
        """Compute the results of a minibatch, by replaying a graph if there is one.

        Parameters
        ----------
        work
            Starts the forward and backward passes; it must not wait for results of the device.
        place
            What else must be equal for a graph to be valid: the address of the parameters, and how `work` computes.
        buffers
            Returns the model's buffers: the passes must change them in place, since a replay runs no Python.

        Raises
        ------
        Speech3Error
            The model or the loss cannot be recorded.
        """
        kind = (place, described(inputs), described(targets))
        graph = self.graphs.get(kind)
        if graph is None:
            if not self._due(kind):
                return work(inputs, targets)
            graph = self.graphs[kind] = self._capture(work, inputs, targets, buffers)
        for there, here in zip(tensors((graph.inputs, graph.targets)), tensors((inputs, targets)), strict=True):
            there.copy_(here)
        return graph.replay()

    def _due(self, kind: Hashable) -> bool:
        if kind not in self.seen and len(self.seen) == _KINDS:
            return False
        self.seen[kind] += 1
        if len(self.seen) == _KINDS and self.seen[kind] == 1:
            warnings.warn(
                f"training.cuda_graph=true: {_KINDS} minibatches were of different kinds (in shapes or other inputs of "
                f"the model), so further kinds are computed without a graph; CUDA graphs suit models of windows, such "
                f"as dnn and cnn; for this model, set it to false",
                RuntimeWarning,
                stacklevel=4,
            )
        return self.seen[kind] > _WARM

    def _capture(self, work: Passes, inputs: Any, targets: Any, buffers: Callable[[], Iterable[Tensor]]) -> _Graph:
        inputs, targets = each_tensor(inputs, torch.clone), each_tensor(targets, torch.clone)
        device = next(tensor.device for tensor in tensors(inputs))
        if self.pool is None and device.type == "cuda":
            self.pool = torch.cuda.graph_pool_handle()
            self.stream = torch.cuda.Stream(device)
        before = list(buffers())  # the tensors, since a tensor that is freed may leave its identity to the next
        try:
            graph = _Graph(inputs, targets, capture(lambda: work(inputs, targets), device, self.pool, self.stream))
        except torch.OutOfMemoryError as error:
            raise MachineError(
                f"training.cuda_graph=true: {device} has too little memory to record a minibatch, since a recording "
                f"keeps the memory of its passes; make training.minibatch smaller, or set it to false"
            ) from error
        except RuntimeError as error:
            raise SettingError(
                f"training.cuda_graph=true: the model or the loss cannot be recorded, most likely because it waits for "
                f"the GPU (.item(), .cpu(), indexing by a mask): {str(error).splitlines()[0]}; set it to false"
            ) from error
        after = list(buffers())
        if len(after) != len(before) or any(a is not b for a, b in zip(before, after, strict=True)):
            raise SettingError(
                "training.cuda_graph=true: the model puts another tensor in the place of a buffer, which a recording"
                " cannot repeat; change the buffer in place (copy_, mul_, add_), or set it to false"
            )
        return graph


def capture(
    work: Callable[[], Results], device: torch.device, pool: Any = None, stream: Any = None
) -> Callable[[], Results]:
    """Record the operations that `work` starts on this GPU, without running them; the returned function runs them.

    The graph's memory comes from `pool`, or is its own; it is recorded on `stream`, or on one of its own.
    """
    with torch.cuda.device(device):  # else the stream of another GPU would be recorded, and the graph be empty
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as one of a DataLoader that pins memory, may go on allocating meanwhile.
        there = torch.cuda.graph(
            graph, pool=pool, stream=stream or torch.cuda.Stream(), capture_error_mode="thread_local"
        )
        with there:
            results = work()

    def replay() -> Results:
        with torch.cuda.device(device):
            graph.replay()
        return results

    return replay


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
