"""Adapters that make the engine's source and loss from the caller's map-style dataset and loss.

Axes: B items of a minibatch, C classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from speech3.engine.world import minibatch_seed, seed_generators
from speech3.errors import Speech3Error, listed
from speech3.io.device import to_device

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Targets:
    """The stacked targets of a minibatch; its `len` is the number of items, whatever the targets are."""

    stacked: Any
    items: int

    def __len__(self) -> int:
        return self.items


@dataclass(frozen=True, eq=False)
class Items:
    """Minibatches of a dataset whose items are pairs (input, target), in a different order in each epoch.

    Inputs and targets are stacked separately by PyTorch's ``default_collate``: tensors, numbers, arrays, and tuples and
    dictionaries of them. The last minibatch may be smaller. PyTorch's generator is seeded before the items of a
    minibatch are read, so the dataset draws the same random numbers whichever worker reads them.

    Attributes
    ----------
    device
        The device to which minibatches are copied.
    """

    dataset: Any
    minibatch: int
    seed: int
    device: torch.device

    @property
    def rows(self) -> None:
        """None: the order of minibatches does not matter."""

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.minibatch)

    def draw(self, epoch: int, number: int) -> tuple[Any, Targets]:
        """Inputs and targets of a minibatch.

        Raises
        ------
        Speech3Error
            An item cannot be read, is not a pair, or differs in shape from the others; the message names the items.
        """
        seed_generators(minibatch_seed(self.seed, epoch, number), _CPU)
        indices_B = self.indices(epoch, number)
        inputs, targets = zip(*(self._item(index) for index in indices_B), strict=True)
        there = [
            each_tensor(_stacked(each, name, indices_B), lambda tensor: to_device(tensor, self.device))
            for name, each in (("inputs", inputs), ("targets", targets))
        ]
        return there[0], Targets(there[1], len(indices_B))

    def indices(self, epoch: int, number: int) -> list[int]:
        """The indices of a minibatch's items in the dataset."""
        order = _order(self.seed, epoch, len(self.dataset))
        return order[number * self.minibatch : (number + 1) * self.minibatch].tolist()

    def not_finite(self, epoch: int, number: int) -> list[int]:
        """The indices of those items of a minibatch that contain NaN or infinity."""
        return [
            index for index in self.indices(epoch, number)
            if not all(_finite(default_collate([value])) for value in self._item(index))
        ]  # fmt: skip

    def _item(self, index: int) -> Any:
        try:
            item = self.dataset[index]
        except Exception as error:
            raise Speech3Error(
                f"dataset[{index}] raised {type(error).__name__}: {error}; repair that item, or leave it out "
                f"(torch.utils.data.Subset)"
            ) from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise Speech3Error(f"dataset[{index}] is of type {type(item).__name__}; it must be a pair (input, target)")
        return item


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, items: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(items)


def _stacked(values: tuple[Any, ...], name: str, indices_B: list[int]) -> Any:
    try:
        return default_collate(list(values))
    except Exception as error:
        raise Speech3Error(
            f"the {name} of items {listed(map(str, indices_B), 5)} of the dataset cannot be stacked into a minibatch"
            f" ({error}); make them tensors of one shape (for example by padding), or use minibatch=1"
        ) from error


def _finite(values: Any) -> bool:
    match values:
        case Tensor():
            return bool(torch.isfinite(values).all())
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
        case Mapping():
            return {key: each_tensor(value, change) for key, value in values.items()}
        case tuple() if hasattr(values, "_fields"):
            return type(values)(*(each_tensor(value, change) for value in values))
        case tuple() | list():
            return type(values)(each_tensor(value, change) for value in values)
    return values


@dataclass(frozen=True)
class MeanLoss:
    """The caller's loss in the engine's form, which also returns how many items are classified correctly."""

    loss: Callable[[Any, Any], Tensor]

    def __call__(self, outputs: Any, targets: Targets) -> tuple[Tensor, Tensor]:
        """The loss, and how many of the items are classified correctly; 0 where there are no classes.

        Raises
        ------
        Speech3Error
            The loss is not a single number with a gradient.
        """
        value = self.loss(outputs, targets.stacked)
        found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        if not isinstance(value, Tensor) or value.dim():
            raise Speech3Error(
                f"the loss returned {found}; it must return a tensor with one number, the mean over the minibatch "
                f"(reduction='mean', or .mean())"
            )
        if not value.requires_grad:
            raise Speech3Error(
                "the loss has no gradient: it was computed without the model's outputs, or they were detached "
                "(.item(), .detach(), torch.no_grad()); compute it from the outputs with PyTorch operations"
            )
        right = classified_right(outputs, targets.stacked)
        return value, value.new_zeros((), dtype=torch.int64) if right is None else right


def classified_right(outputs: Any, targets: Any) -> Tensor | None:
    """In how many rows of logits (B, C) the target (B,) has the largest, int64; None for other outputs or targets."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or targets.dtype == torch.bool:
        return None
    if outputs.dim() != 2 or outputs.shape[1] < 2 or targets.shape != outputs.shape[:1] or targets.is_floating_point():
        return None
    return (outputs.argmax(1) == targets).sum()
