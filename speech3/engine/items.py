"""What the caller's data and loss are in the engine's form: minibatches of a map-style dataset, and the mean loss.

Axes: B items of a minibatch, C classes.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, default_collate

from speech3.engine.loading import Loaders, order_of, seeded
from speech3.engine.world import minibatch_seed
from speech3.errors import Speech3Error, listed
from speech3.runtime import to_device

LABELS = "labels"  # the entry of a minibatch of named tensors that is its target, as in Hugging Face's models


@dataclass(frozen=True)
class Targets:
    """The stacked targets of a minibatch; its `len` is the number of items, whatever the targets are."""

    stacked: Any
    items: int

    def __len__(self) -> int:
        return self.items


@dataclass(frozen=True, eq=False)
class Portions:
    """The inputs of a minibatch whose gradient is computed in portions: inputs and targets of each."""

    portions: tuple[tuple[Any, Targets], ...]


class Named(dict[str, Any]):
    """The inputs of a minibatch that was a dictionary: keyword arguments of the model."""


class ByName(nn.Module):
    """Calls a model with the entries of a minibatch as keyword arguments, as Hugging Face's models are called."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Mapping[str, Any]) -> Any:
        """The outputs of the model."""
        return self.model(**inputs)


@dataclass(frozen=True)
class Reader:
    """How items become a minibatch.

    Attributes
    ----------
    collate_fn
        Makes a minibatch of a list of items, as in PyTorch's `DataLoader`; None: tensors are stacked.
    own_loss
        Whether the model computes the loss, so that it needs the labels.
    """

    collate_fn: Callable[[list[Any]], Any] | None = None
    own_loss: bool = False

    def batch(self, items: list[Any], indices_B: Sequence[int]) -> Any:
        """The minibatch of these items: a pair (inputs, targets), or a mapping."""
        if self.collate_fn is not None:
            try:
                return self.collate_fn(items)
            except Exception as error:
                raise Speech3Error(
                    f"collate_fn raised {type(error).__name__} for items {listed(map(str, indices_B), 5)} of the "
                    f"dataset: {error}; it gets a list of items and returns a pair (inputs, targets), or a dictionary"
                ) from error
        if isinstance(items[0], Mapping):
            return _stacked(items, "entries", indices_B)
        inputs, targets = zip(*items, strict=True)
        return _stacked(inputs, "inputs", indices_B), _stacked(targets, "targets", indices_B)

    def parts(self, batch: Any, items: int | None) -> tuple[Any, Targets]:
        """Inputs and targets of a minibatch; if the number of items is None, it is that of the first tensor.

        Raises
        ------
        Speech3Error
            It is neither a pair nor a dictionary, or has no labels for the loss.
        """
        if isinstance(batch, Mapping):
            inputs: Any = Named(batch)
            if not self.own_loss and LABELS not in inputs:
                raise Speech3Error(
                    f"the minibatches have the entries {', '.join(map(str, inputs))}, but not {LABELS!r}, which is the "
                    f"target for the loss; name it so (collate_fn can), or leave loss out if the model returns a loss"
                )
            targets = inputs.get(LABELS) if self.own_loss else inputs.pop(LABELS)
        elif isinstance(batch, tuple | list) and len(batch) == 2:
            inputs, targets = batch
        else:
            long = f" of length {len(batch)}" if isinstance(batch, tuple | list) else ""
            raise Speech3Error(
                f"a minibatch is a {type(batch).__name__}{long}; it must be a pair (inputs, targets), where either may "
                f"be a tuple or a dictionary, or a dictionary with {LABELS!r}: give collate_fn a function that returns "
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

    Attributes
    ----------
    device
        The device to which minibatches are copied.
    portions
        Number of parts of `minibatch` items in which the gradient of a minibatch is computed.
    loader
        A `DataLoader` whose sampler chooses the items of each minibatch, in place of `minibatch`.
    loaders
        Number of processes that read minibatches before they are needed; 0: they are read when they are needed.
    ahead
        Number of minibatches that are read before they are needed.
    """

    dataset: Any
    minibatch: int
    seed: int
    device: torch.device
    reader: Reader = Reader()
    portions: int = 1
    loader: DataLoader[Any] | None = None
    loaders: int = 0
    ahead: int = 0
    _pool: Loaders | None = field(default=None, init=False, repr=False)
    _reading: dict[tuple[int, int], Any] = field(default_factory=dict, init=False, repr=False)
    _expected: deque[tuple[int, int]] = field(default_factory=deque, init=False, repr=False)
    _order: tuple[int, list[list[int]]] = field(default=(0, []), init=False, repr=False)

    @property
    def rows(self) -> None:
        """None: the order of minibatches does not matter."""

    def __len__(self) -> int:
        batches = -(-len(self.dataset) // self.minibatch) if self.loader is None else len(self.loader)
        return -(-batches // self.portions)

    def draw(self, epoch: int, number: int) -> tuple[Any, Targets]:
        """Inputs and targets of a minibatch.

        Raises
        ------
        Speech3Error
            An item cannot be read, is not a pair, or differs in shape from the others; the message names the items.
        """
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
        """Stop the processes that read."""
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
            self._reading[key] = self._pool.submit(*key)

    def read(self, epoch: int, number: int) -> list[tuple[Any, int | None]]:
        """The portions of a minibatch in the host's memory, each with its number of items if that is known."""
        portions = self._portions(epoch, number)  # a sampler has a seed of its own
        with seeded(minibatch_seed(self.seed, epoch, number)):
            return [
                (self._item(indices_B[0]), None) if self._whole else
                (self.reader.batch([self._item(index) for index in indices_B], indices_B), len(indices_B))
                for indices_B in portions
            ]  # fmt: skip

    def indices(self, epoch: int, number: int) -> list[int]:
        """The indices of a minibatch's items in the dataset."""
        return [index for indices_B in self._portions(epoch, number) for index in indices_B]

    def not_finite(self, epoch: int, number: int) -> list[int]:
        """The indices of those items of a minibatch that contain NaN or infinity."""
        return [index for index in self.indices(epoch, number) if not _finite(self._item(index))]

    @property
    def _whole(self) -> bool:
        """Whether the items of the dataset are whole minibatches."""
        return self.loader is not None and self.loader.batch_sampler is None

    def _portions(self, epoch: int, number: int) -> list[list[int]]:
        first = number * self.portions
        if self.loader is not None:
            if self._order[0] != epoch:
                self._order = epoch, order_of(self.loader, minibatch_seed(self.seed, epoch, 0))
            return self._order[1][first : first + self.portions]
        order, stop = _order(self.seed, epoch, len(self.dataset)), (first + self.portions) * self.minibatch
        indices = order[first * self.minibatch : stop].tolist()
        return [indices[start : start + self.minibatch] for start in range(0, len(indices), self.minibatch)]

    def _item(self, index: int) -> Any:
        try:
            item = self.dataset[index]
        except Exception as error:
            raise Speech3Error(
                f"dataset[{index}] raised {type(error).__name__}: {error}; repair that item, or leave it out "
                f"(torch.utils.data.Subset)"
            ) from error
        if self.reader.collate_fn is None and not self._whole and not isinstance(item, Mapping) and not _pair(item):
            raise Speech3Error(
                f"dataset[{index}] is of type {type(item).__name__}; it must be a pair (input, target) or a "
                f"dictionary, or collate_fn must make minibatches of such items"
            )
        return item


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, items: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(items)


def joined(portions: Sequence[tuple[Any, Targets]]) -> tuple[Any, Targets]:
    """A minibatch of its portions: itself if there is one."""
    if len(portions) == 1:
        return portions[0]
    return Portions(tuple(portions)), Targets(None, sum(len(targets) for _, targets in portions))


def moved(inputs: Any, targets: Targets, device: torch.device) -> tuple[Any, Targets]:
    """A minibatch on a device."""

    def there(tensor: Tensor) -> Tensor:
        return to_device(tensor, device)

    return each_tensor(inputs, there), each_tensor(targets, there)


def _pair(item: Any) -> bool:
    return isinstance(item, tuple | list) and len(item) == 2


def _count(values: Any) -> int:
    """Number of items of a minibatch: the length of its first tensor."""
    found: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        found.extend(tensor.shape[:1])
        return tensor

    each_tensor(values, note)
    return found[0] if found else 1


def _stacked(values: Sequence[Any], name: str, indices_B: Sequence[int]) -> Any:
    try:
        return default_collate(list(values))
    except Exception as error:
        raise Speech3Error(
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


def each_tensor(values: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply `change` to every tensor in nested tuples, lists and dictionaries; other values are kept."""
    match values:
        case Tensor():
            return change(values)
        case Targets():
            return Targets(each_tensor(values.stacked, change), values.items)
        case PackedSequence():  # its batch sizes stay in the host's memory
            orders = (None if order is None else change(order) for order in values[2:])
            return PackedSequence(change(values.data), values.batch_sizes, *orders)
        case MutableMapping() if type(values) is not dict:  # with attributes, as the outputs of Hugging Face's models
            changed = copy.copy(values)
            for key, value in values.items():
                changed[key] = each_tensor(value, change)
            return changed
        case Mapping():
            return {key: each_tensor(value, change) for key, value in values.items()}
        case tuple() if hasattr(values, "_fields"):
            return type(values)(*(each_tensor(value, change) for value in values))
        case tuple() | list():
            return type(values)(each_tensor(value, change) for value in values)
    return values


@dataclass(frozen=True)
class MeanLoss:
    """The caller's loss in the engine's form, which also returns how many items are classified correctly.

    Attributes
    ----------
    loss
        None: the model returns the loss itself.
    """

    loss: Callable[[Any, Any], Tensor] | None

    def __call__(self, outputs: Any, targets: Targets) -> tuple[Tensor, Tensor]:
        """The loss, and how many of the items are classified correctly; 0 where there are no classes.

        Raises
        ------
        Speech3Error
            The loss is not a single number with a gradient.
        """
        value, right = self.measure(outputs, targets)
        if not value.requires_grad:
            raise Speech3Error(
                "the loss has no gradient: it was computed without the model's outputs, or they were detached "
                "(.item(), .detach(), torch.no_grad()); compute it from the outputs with PyTorch operations"
            )
        return value, value.new_zeros((), dtype=torch.int64) if right is None else right

    def measure(self, outputs: Any, targets: Targets) -> tuple[Tensor, Tensor | None]:
        """The loss, which needs no gradient, and how many items are classified correctly; None without classes.

        Raises
        ------
        Speech3Error
            The loss is not a single number.
        """
        value = _entry(outputs, "loss") if self.loss is None else self.loss(outputs, targets.stacked)
        if self.loss is None and value is None:
            raise Speech3Error(
                f"loss: was left out, but the model returned a {type(outputs).__name__} without an entry or attribute "
                f"'loss'; give a loss, or let the model return a dictionary with one"
            )
        found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        if not isinstance(value, Tensor) or value.dim():
            raise Speech3Error(
                f"the loss returned {found}; it must return a tensor with one number, the mean over the minibatch "
                f"(reduction='mean', or .mean())"
            )
        return value, classified_right(outputs, targets.stacked)


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
