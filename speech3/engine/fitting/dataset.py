"""The caller's data and loss in the engine's form: sources of minibatches, and the mean loss.

A map-style dataset is read in a different order in each epoch (`Items`). An `IterableDataset` can only be read from the
beginning (`Stream`): each worker reads the whole stream and computes those minibatches that it draws; the others it
skips. So the stream must be the same for every worker, which it is if it draws random numbers only from the generators
of PyTorch, NumPy and Python: they are seeded when a pass begins, and belong to the stream from then on. Numbers of
minibatches are drawn in ascending order; if a worker dies, another begins the pass again to compute what is left.

Axes: B items of a minibatch, C classes.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, default_collate

from speech3.engine.fitting.loading import (
    Loaders,
    Randomness,
    WithParent,
    check_copies,
    may_start_processes,
    order_of,
    seeded,
    seeded_loader,
)
from speech3.engine.gradient import recording
from speech3.engine.interface import Microbatches, Targets, each_tensor, minibatch_seed, tensors
from speech3.errors import SettingError, Speech3Error, listed
from speech3.runtime import to_device

LABELS = "labels"  # the entry of a minibatch of named tensors that is its target, as in Hugging Face's models
_END = object()
_CLASSES = torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64  # other types have no order
MINIBATCH = 256
Collate = Callable[[list[Any]], Any]
_STEPS = (
    "steps_per_epoch: is for an IterableDataset, whose length may be unknown; an epoch of any other dataset is one "
    "pass over it, so remove it (and train more epochs)"
)


class Named(dict[str, Any]):
    """The inputs of a minibatch that was a dictionary: keyword arguments of the model."""


class ByName(nn.Module):
    """Calls a model with the entries of a minibatch as keyword arguments, as Hugging Face's models are called."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Mapping[str, Any]) -> Any:
        return self.model(**inputs)


@dataclass(frozen=True)
class Reader:
    """How items become a minibatch; without `collate_fn`, tensors are stacked."""

    collate_fn: Callable[[list[Any]], Any] | None = None
    own_loss: bool = False  # whether the model computes the loss, so that it needs the labels

    def batch(self, items: list[Any], indices_B: Sequence[int]) -> Any:
        """The minibatch of these items: a pair (inputs, targets), or a mapping."""
        if self.collate_fn is not None:
            try:
                return self.collate_fn(items)
            except Exception as error:
                raise SettingError(
                    f"collate_fn raised {type(error).__name__} for items {listed(map(str, indices_B), 5)} of the "
                    f"dataset: {error}; it gets a list of items and returns a pair (inputs, targets), or a dictionary"
                ) from error
        if isinstance(items[0], Mapping):
            return _stacked(items, "entries", indices_B)
        inputs, targets = zip(*items, strict=True)
        return _stacked(inputs, "inputs", indices_B), _stacked(targets, "targets", indices_B)

    def parts(self, batch: Any, items: int | None) -> tuple[Any, Targets]:
        """Inputs and targets of a minibatch; if the number of items is None, it is that of the first tensor."""
        if isinstance(batch, Mapping):
            inputs: Any = Named(batch)
            if not self.own_loss and LABELS not in inputs:
                raise SettingError(
                    f"the minibatches have the entries {', '.join(map(str, inputs))}, but not {LABELS!r}, which is the "
                    f"target for the loss; name it so (collate_fn can), or leave loss out if the model returns a loss"
                )
            targets = inputs.get(LABELS) if self.own_loss else inputs.pop(LABELS)
        elif isinstance(batch, tuple | list) and len(batch) == 2:
            inputs, targets = batch
        else:
            long = f" of length {len(batch)}" if isinstance(batch, tuple | list) else ""
            raise SettingError(
                f"a minibatch is a {type(batch).__name__}{long}; it must be a pair (inputs, targets), where either may "
                f"be a tuple or a dictionary, or a dictionary with {LABELS!r}: pass collate_fn a function that returns "
                f"one"
            )
        return inputs, Targets(targets, _count(batch) if items is None else items)


@dataclass(eq=False)
class Items:
    """Minibatches of a map-style dataset, in a different order in each epoch.

    Items are pairs (input, target), which PyTorch's ``default_collate`` stacks separately (tensors, numbers, arrays,
    and tuples and dictionaries of them); or dictionaries; or whatever `reader.collate_fn` accepts. The last minibatch
    may be smaller. The generators of PyTorch, NumPy and Python are seeded before the items of a minibatch are read, so
    the dataset draws the same random numbers whichever process reads them.
    """

    dataset: Any
    minibatch: int
    seed: int
    device: torch.device  # the device to which minibatches are copied
    reader: Reader = Reader()
    microbatches: int = 1  # number of parts of `minibatch` items in which the gradient of a minibatch is computed
    loader: DataLoader[Any] | None = None  # its sampler chooses the items of each minibatch, in place of `minibatch`
    loaders: int = 0  # number of processes that read minibatches before they are needed
    ahead: int = 0  # number of minibatches that are read before they are needed
    _pool: Loaders | None = field(default=None, init=False, repr=False)
    _reading: dict[tuple[int, int], Any] = field(default_factory=dict, init=False, repr=False)
    _expected: deque[tuple[int, int]] = field(default_factory=deque, init=False, repr=False)
    _order: tuple[int, list[list[int]]] = field(default=(0, []), init=False, repr=False)

    @property
    def rows(self) -> None: ...

    def __len__(self) -> int:
        batches = -(-len(self.dataset) // self.minibatch) if self.loader is None else len(self.loader)
        return -(-batches // self.microbatches)

    def draw(self, epoch: int, number: int) -> tuple[Any, Targets]:
        reading = self._reading.pop((epoch, number), None)
        found = self.read(epoch, number) if reading is None or self._pool is None else self._pool.result(reading)
        if self._expected:
            self._read_ahead()
        return joined([moved(*self.reader.parts(batch, items), self.device) for batch, items in found])

    def expect(self, epoch: int, numbers: Iterable[int]) -> None:
        """Say which minibatches will be drawn next, in this order, so that they can be read before they are needed."""
        self._expected = deque(key for key in self._expected if key[0] == epoch)
        self._expected.extend((epoch, number) for number in numbers)
        self._reading = {key: reading for key, reading in self._reading.items() if key[0] == epoch}
        self._read_ahead()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def _read_ahead(self) -> None:
        if self._pool is None:
            init = None if self.loader is None else self.loader.worker_init_fn
            alone = replace(self, ahead=0, loaders=0)
            self._pool = Loaders(alone.read, self.dataset, self.loaders, init, self.seed)
        while self._expected and len(self._reading) < self.ahead:
            key = self._expected.popleft()
            try:
                self._reading[key] = self._pool.submit(*key)
            except Speech3Error:
                raise
            except Exception as error:
                check_copies(self._copied, error)
                raise

    @property
    def _copied(self) -> dict[str, Any]:
        """What processes that read get a copy of, by the names of the arguments."""
        init = None if self.loader is None else self.loader.worker_init_fn
        return {"worker_init_fn": init, "collate_fn": self.reader.collate_fn, "dataset": (self.dataset, self.loader)}

    def read(self, epoch: int, number: int) -> list[tuple[Any, int | None]]:
        """The portions of a minibatch in the host's memory, each with its number of items if that is known."""
        microbatches = self._microbatches(epoch, number)  # a sampler has a seed of its own
        with seeded(minibatch_seed(self.seed, epoch, number)):
            return [self._portion(indices_B) for indices_B in microbatches]

    def _portion(self, indices_B: list[int]) -> tuple[Any, int | None]:
        if self._whole:
            return self._item(indices_B[0]), None
        return self.reader.batch([self._item(index) for index in indices_B], indices_B), len(indices_B)

    def indices(self, epoch: int, number: int) -> list[int]:
        return [index for indices_B in self._microbatches(epoch, number) for index in indices_B]

    def not_finite(self, epoch: int, number: int) -> list[int]:
        """The indices of those items of a minibatch that contain NaN or infinity."""
        return [index for index in self.indices(epoch, number) if not _finite(self._item(index))]

    @property
    def _whole(self) -> bool:
        return self.loader is not None and self.loader.batch_sampler is None

    def _microbatches(self, epoch: int, number: int) -> list[list[int]]:
        first = number * self.microbatches
        if self.loader is not None:
            if self._order[0] != epoch:
                self._order = epoch, order_of(self.loader, minibatch_seed(self.seed, epoch, 0))
            return self._order[1][first : first + self.microbatches]
        order, stop = _order(self.seed, epoch, len(self.dataset)), (first + self.microbatches) * self.minibatch
        indices = order[first * self.minibatch : stop].tolist()
        return [indices[start : start + self.minibatch] for start in range(0, len(indices), self.minibatch)]

    def _item(self, index: int) -> Any:
        try:
            item = self.dataset[index]
        except Exception as error:
            raise SettingError(
                f"dataset[{index}] raised {type(error).__name__}: {error}; repair that item, or leave it out "
                f"(torch.utils.data.Subset)"
            ) from error
        pair = isinstance(item, tuple | list) and len(item) == 2
        if self.reader.collate_fn is None and not self._whole and not isinstance(item, Mapping) and not pair:
            raise SettingError(
                f"dataset[{index}] is of type {type(item).__name__}; it must be a pair (input, target) or a "
                f"dictionary, or collate_fn must make minibatches of such items"
            )
        return item


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, items: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(items)


def joined(microbatches: Sequence[tuple[Any, Targets]]) -> tuple[Any, Targets]:
    """A minibatch of its portions: itself if there is one."""
    if len(microbatches) == 1:
        return microbatches[0]
    return Microbatches(tuple(microbatches)), Targets(None, sum(len(targets) for _, targets in microbatches))


def moved(inputs: Any, targets: Targets, device: torch.device) -> tuple[Any, Targets]:
    there = partial(to_device, device=device)
    return each_tensor(inputs, there), each_tensor(targets, there)


def _count(values: Any) -> int:
    """Number of items of a minibatch: the length of its first tensor."""
    return next((len(tensor) for tensor in tensors(values) if tensor.dim()), 1)


def _stacked(values: Sequence[Any], name: str, indices_B: Sequence[int]) -> Any:
    try:
        return default_collate(list(values))
    except Exception as error:
        raise SettingError(
            f"the {name} of items {listed(map(str, indices_B), 5)} of the dataset cannot be stacked into a minibatch"
            f" ({error}); make them tensors of one shape, for example by padding them in a collate_fn, or use "
            f"minibatch=1"
        ) from error


def _finite(values: Any) -> bool:
    match values:
        case Tensor():
            return bool(torch.isfinite(values).all())
        case float() | np.floating() | np.ndarray():
            return np.asarray(values).dtype.kind not in "fc" or bool(np.isfinite(values).all())
        case Mapping():
            return all(map(_finite, values.values()))
        case tuple() | list():
            return all(map(_finite, values))
    return True


@dataclass(frozen=True)
class MeanLoss:
    """The caller's loss in the engine's form, which also returns how many items are classified correctly."""

    loss: Callable[[Any, Any], Tensor] | None  # None: the model returns the loss itself
    minibatch: int = 1  # items in all minibatches but the last

    def __call__(self, outputs: Any, targets: Targets) -> tuple[Tensor, Tensor]:
        """The loss, and how many of the items are classified correctly; 0 where there are no classes."""
        value, right = self.measure(outputs, targets)
        if not value.requires_grad:
            raise SettingError(
                "the loss has no gradient: it was computed without the model's outputs, or they were detached "
                "(.item(), .detach(), torch.no_grad()); compute it from the outputs with PyTorch operations"
            )
        return value, value.new_zeros((), dtype=torch.int64) if right is None else right

    def measure(self, outputs: Any, targets: Targets) -> tuple[Tensor, Tensor | None]:
        """The loss, which needs no gradient, and how many items are classified correctly; None without classes."""
        value = _entry(outputs, "loss") if self.loss is None else self._of(outputs, targets.stacked)
        if self.loss is None and value is None:
            raise SettingError(
                f"loss: was left out, but the model returned a {type(outputs).__name__} without an entry or attribute "
                f"'loss'; pass a loss, or let the model return a dictionary with one"
            )
        found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        if not isinstance(value, Tensor) or value.dim():
            raise SettingError(
                f"the loss returned {found}; it must return a tensor with one number, the mean over the minibatch "
                f"(reduction='mean', or .mean())"
            )
        return value, classified_right(outputs, targets.stacked)

    def _of(self, outputs: Any, stacked: Any) -> Any:
        assert self.loss is not None
        try:
            return self.loss(outputs, stacked)
        except (Speech3Error, torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            if recording():
                raise
            raise failed("loss", self.minibatch, error, (outputs, stacked)) from error


def failed(what: str, minibatch: int, error: Exception, values: Any) -> SettingError:
    """An error of the caller's model or loss, with the shapes, types and classes of what it was called with.

    If minibatches have more than one item, it also says how to do without the last one, which may be smaller.
    """
    shapes = []
    for tensor in tensors(values):
        classes = tensor.numel() and tensor.dtype in _CLASSES and not tensor.is_cuda
        span = f" from {tensor.min()} to {tensor.max()}" if classes else ""
        shapes.append(f"{tuple(tensor.shape)} {tensor.dtype}{span}")
    smaller = (
        f"; if only the last minibatch of an epoch, with fewer than {minibatch} items, is too small (for batch "
        f"normalisation), pass a DataLoader with drop_last=True, or another size of minibatches"
    ) * (minibatch > 1)
    return SettingError(
        f"{what}: raised {type(error).__name__} with a minibatch ({', '.join(shapes) or 'no tensors'}): {error}; make"
        " the dataset (or collate_fn), the model and the loss fit each other" + smaller
    )


def _entry(outputs: Any, name: str) -> Any:
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def classified_right(outputs: Any, targets: Any) -> Tensor | None:
    """In how many rows of logits (B, C) the target (B,) has the largest, int64; None for other outputs or targets.

    Outputs with an entry or attribute ``logits`` are as good as these.
    """
    if not isinstance(outputs, Tensor):
        outputs = _entry(outputs, "logits")
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or targets.dtype == torch.bool:
        return None
    if outputs.dim() != 2 or outputs.shape[1] < 2 or targets.shape != outputs.shape[:1] or targets.is_floating_point():
        return None
    return (outputs.argmax(1) == targets).sum()


@dataclass(eq=False)
class Stream:
    """Minibatches of a stream.

    If it `continues`, an epoch begins where the last one ended, and the stream begins again only at its end; else every
    epoch is a pass of its own.
    """

    loader: DataLoader[Any]  # reads the stream
    batches: int  # number of the loader's batches in an epoch
    continues: bool
    seed: int
    device: torch.device
    reader: Reader
    microbatches: int = 1  # number of the loader's batches in which the gradient of a minibatch is computed
    ahead: int = 0  # the loader itself reads ahead
    _at: tuple[int, int] = field(default=(0, 0), init=False, repr=False)  # where reading began, and batches read since
    _iterator: Iterator[Any] | None = field(default=None, init=False, repr=False)
    _pass: int = field(default=0, init=False, repr=False)
    _read: int = field(default=0, init=False, repr=False)  # batches read in this pass
    _own: Randomness = field(default_factory=Randomness, init=False, repr=False)

    @property
    def rows(self) -> None: ...

    def __len__(self) -> int:
        return -(-self.batches // self.microbatches)

    def draw(self, epoch: int, number: int) -> tuple[Any, Targets]:
        first = number * self.microbatches
        start, before = (1, (epoch - 1) * self.batches) if self.continues else (epoch, 0)
        if self._iterator is None or self._at[0] != start or self._at[1] > before + first:
            self._begin(start)
            self._at = start, 0
        while self._at[1] < before + first:
            self._next(epoch)
        count = min(self.microbatches, self.batches - first)
        found = [self._next(epoch) for _ in range(count)]
        return joined([moved(*self.reader.parts(batch, None), self.device) for batch in found])

    def not_finite(self, epoch: int, number: int) -> list[int]:
        """Nothing: the items of a stream have no numbers."""
        return []

    def close(self) -> None:
        self._iterator = None

    def _begin(self, number: int) -> None:
        if self.loader.num_workers:
            may_start_processes()
        set_epoch = getattr(self.loader.dataset, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(number - 1)
        self._pass, self._read = number, 0
        with seeded_loader(self.loader, minibatch_seed(self.seed, number, 0)):
            try:
                self._iterator = iter(self.loader)
            except Exception as error:
                loader = self.loader
                copied = {"worker_init_fn": loader.worker_init_fn, "collate_fn": loader.collate_fn}
                check_copies({**copied, "dataset": loader.dataset} if loader.num_workers else {}, error)
                raise self._raised(error) from error
            self._own.save()

    def _next(self, epoch: int) -> Any:
        """The next batch; at its end the stream begins again, if epochs continue it."""
        assert self._iterator is not None
        batch = self._batch()
        if batch is _END and self.continues and self._read:
            self._begin(self._pass + 1)
            batch = self._batch()
        if batch is _END:
            raise SettingError(
                f"dataset: the stream ended after {self._read} minibatches, but an epoch has {self.batches}; "
                + ("it must not be empty" if self.continues else "correct its __len__, or pass steps_per_epoch")
            )
        self._at, self._read = (self._at[0], self._at[1] + 1), self._read + 1
        return batch

    def _batch(self) -> Any:
        assert self._iterator is not None
        try:
            with self._own.resumed():
                return next(self._iterator, _END)
        except Speech3Error:
            raise
        except Exception as error:
            raise self._raised(error) from error

    def _raised(self, error: Exception) -> SettingError:
        return SettingError(
            f"dataset: raised {type(error).__name__} after {self._read} minibatches: {error}; repair that item, or "
            f"skip it in the dataset; items of different shapes need a collate_fn"
        )


@dataclass(frozen=True, eq=False)
class Data:
    """What a source of minibatches is made of, in any process."""

    dataset: Any
    minibatch: int
    collate_fn: Collate | None = None
    loader: DataLoader[Any] | None = None  # the caller's, or that which reads a stream
    batches: int | None = None  # number of the loader's batches in an epoch of a stream; None for a map-style dataset
    continues: bool = False  # of a stream: whether an epoch begins where the last one ended (`Stream.continues`)
    accumulate: int = 1  # number of batches of a minibatch, whose gradients are added up

    @property
    def stream(self) -> bool:
        return self.batches is not None

    def source(self, seed: int, device: torch.device, *, own_loss: bool, read_ahead: bool = False) -> Items | Stream:
        """Make a source of minibatches on a device; `read_ahead`: start the processes of the caller's `DataLoader`."""
        loader, parts = self.loader, self.accumulate
        if self.batches is not None:
            assert loader is not None
            reader = Reader(None, own_loss)
            return Stream(loader, self.batches, self.continues, seed, device, reader, microbatches=parts)
        items = Items(self.dataset, self.minibatch, seed, device, Reader(self.collate_fn, own_loss), parts, loader)
        if loader is None or not read_ahead:
            return items
        return replace(
            items, loaders=loader.num_workers, ahead=-(-loader.num_workers * (loader.prefetch_factor or 2) // parts)
        )


def held_out(dataset: Any, minibatch: int, collate: Collate | None) -> DataLoader[Any]:
    """A `DataLoader` of the argument ``validation``; raises `Speech3Error` if it is empty, as a stream may still be."""
    loader = dataset if isinstance(dataset, DataLoader) else None
    if loader is None and not isinstance(dataset, IterableDataset):
        _check_map_style("validation", dataset)
    if loader is None:
        loader = DataLoader(dataset, minibatch, collate_fn=collate)
    with suppress(TypeError):  # of a stream without a length
        if not len(loader):
            raise SettingError("validation: is empty; leave it out, or pass the held-out items")
    return loader


def _check_map_style(name: str, dataset: Any) -> None:
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise SettingError(
            f"{name}: a {type(dataset).__name__} has no length or cannot be indexed; use a map-style dataset, with "
            f"__len__ and __getitem__, a torch.utils.data.IterableDataset, or a DataLoader"
        )


def data_of(
    dataset: Any, minibatch: int | None, collate_fn: Collate | None, steps_per_epoch: int | None, accumulate: int
) -> Data:
    """Look at the caller's arguments; raises `Speech3Error` if they cannot be trained on, or contradict each other."""
    if isinstance(dataset, DataLoader):
        return _of_loader(dataset, minibatch, collate_fn, steps_per_epoch, accumulate)
    if isinstance(dataset, IterableDataset):
        loader: DataLoader[Any] = DataLoader(dataset, minibatch or MINIBATCH, collate_fn=collate_fn)
        return _of_stream(loader, steps_per_epoch, accumulate)
    _check_map_style("dataset", dataset)
    if steps_per_epoch is not None:
        raise SettingError(_STEPS)
    if not len(dataset):
        raise SettingError("dataset: is empty; there is nothing to train on")
    return Data(dataset, minibatch or MINIBATCH, collate_fn, accumulate=accumulate)


def _of_loader(
    loader: DataLoader[Any], minibatch: int | None, collate_fn: Collate | None, steps: int | None, accumulate: int
) -> Data:
    if minibatch is not None:
        raise SettingError(
            f"minibatch={minibatch}: the DataLoader has batch_size={loader.batch_size}; set the number of items there"
        )
    if collate_fn is not None:
        raise SettingError("collate_fn: the DataLoader has its own; pass it there")
    if isinstance(loader.dataset, IterableDataset):
        return _of_stream(loader, steps, accumulate)
    if steps is not None:
        raise SettingError(_STEPS)
    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        if isinstance(sampler, DistributedSampler):
            raise SettingError(
                "dataset: the DataLoader has a DistributedSampler, which chooses the share of one process; fit "
                "distributes the minibatches itself: leave the sampler out and pass shuffle=True"
            )
    try:
        batches = len(loader)
    except TypeError as error:
        raise SettingError(
            f"dataset: the DataLoader has no length ({error}); define __len__ of its sampler, which is the number of "
            f"minibatches in an epoch"
        ) from error
    if not batches:
        raise SettingError("dataset: the DataLoader has no minibatches; there is nothing to train on")
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None) or 1
    # With batch_size=None the items are whole minibatches, which the DataLoader's default leaves as they are.
    collate = None if loader.batch_sampler is None else loader.collate_fn
    if collate is torch.utils.data.default_collate:
        collate = None  # our own stacking is the same, and its errors name the items
    return Data(loader.dataset, int(size), collate, loader, accumulate=accumulate)


def _of_stream(loader: DataLoader[Any], steps: int | None, accumulate: int) -> Data:
    try:
        batches = len(loader)
    except TypeError:
        batches = None
    if steps is None and batches is None:
        raise SettingError(
            f"dataset: a {type(loader.dataset).__name__} has no length, so nobody knows when an epoch ends; pass "
            f"steps_per_epoch, the number of minibatches in an epoch"
        )
    if steps is None and not batches:
        raise SettingError("dataset: is empty; there is nothing to train on")
    if loader.num_workers:
        loader = copy.copy(loader)  # the caller's stays as it is
        loader.worker_init_fn = WithParent(loader.worker_init_fn)
        # Each pass has processes of its own: else the random numbers of one would depend on those before it.
        loader.__dict__["persistent_workers"] = False
    count = batches if steps is None else steps * accumulate
    return Data(
        loader.dataset, loader.batch_size or 1, None, loader, count, continues=steps is not None, accumulate=accumulate
    )
