"""The caller's data, whatever they are, and the sources of minibatches that workers make of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from speech3.engine.items import Items, Reader
from speech3.engine.stream import Stream
from speech3.errors import Speech3Error

MINIBATCH = 256
Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True, eq=False)
class Data:
    """What a source of minibatches is made of, in any process.

    Attributes
    ----------
    loader
        The caller's `DataLoader`, or that which reads a stream; None for a map-style dataset.
    batches
        Number of the loader's batches in an epoch of a stream; None for a map-style dataset.
    continues
        Of a stream: whether an epoch begins where the last one ended (`Stream.continues`).
    accumulate
        Number of batches of a minibatch, whose gradients are added up.
    """

    dataset: Any
    minibatch: int
    collate_fn: Collate | None = None
    loader: DataLoader[Any] | None = None
    batches: int | None = None
    continues: bool = False
    accumulate: int = 1

    @property
    def stream(self) -> bool:
        """Whether the data can only be read from the beginning."""
        return self.batches is not None

    def source(self, seed: int, device: torch.device, *, own_loss: bool, read_ahead: bool = False) -> Items | Stream:
        """Make a source of minibatches on a device.

        Parameters
        ----------
        own_loss
            Whether the model computes the loss.
        read_ahead
            Whether to start the processes that the caller's `DataLoader` has.
        """
        loader = self.loader
        if self.batches is not None:
            assert loader is not None
            reader = Reader(None, own_loss)
            return Stream(loader, self.batches, self.continues, seed, device, reader, portions=self.accumulate)
        loaders = loader.num_workers if loader is not None and read_ahead else 0
        ahead = -(-loaders * ((loader.prefetch_factor if loader is not None else None) or 2) // self.accumulate)
        return Items(
            self.dataset, self.minibatch, seed, device, Reader(self.collate_fn, own_loss), portions=self.accumulate,
            loader=loader, loaders=loaders, ahead=ahead,
        )  # fmt: skip


def data_of(
    dataset: Any, minibatch: int | None, collate_fn: Collate | None, steps_per_epoch: int | None, accumulate: int
) -> Data:
    """Look at the caller's arguments.

    Raises
    ------
    Speech3Error
        They cannot be trained on, or contradict each other.
    """
    if isinstance(dataset, DataLoader):
        return _of_loader(dataset, minibatch, collate_fn, steps_per_epoch, accumulate)
    if isinstance(dataset, IterableDataset):
        loader: DataLoader[Any] = DataLoader(dataset, minibatch or MINIBATCH, collate_fn=collate_fn)
        return _of_stream(loader, steps_per_epoch, accumulate)
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise Speech3Error(
            f"dataset: a {type(dataset).__name__} has no length or cannot be indexed; use a map-style dataset, with "
            f"__len__ and __getitem__, a torch.utils.data.IterableDataset, or a DataLoader"
        )
    if steps_per_epoch is not None:
        raise Speech3Error(_STEPS)
    if not len(dataset):
        raise Speech3Error("dataset: is empty; there is nothing to train on")
    return Data(dataset, minibatch or MINIBATCH, collate_fn, accumulate=accumulate)


_STEPS = (
    "steps_per_epoch: is for an IterableDataset, whose length may be unknown; an epoch of any other dataset is one "
    "pass over it, so remove it (and give more epochs)"
)


def _of_loader(
    loader: DataLoader[Any], minibatch: int | None, collate_fn: Collate | None, steps: int | None, accumulate: int
) -> Data:
    if minibatch is not None:
        raise Speech3Error(
            f"minibatch={minibatch}: the DataLoader has batch_size={loader.batch_size}; set the number of items there"
        )
    if collate_fn is not None:
        raise Speech3Error("collate_fn: the DataLoader has its own; pass it there")
    if isinstance(loader.dataset, IterableDataset):
        return _of_stream(loader, steps, accumulate)
    if steps is not None:
        raise Speech3Error(_STEPS)
    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        if isinstance(sampler, DistributedSampler):
            raise Speech3Error(
                "dataset: the DataLoader has a DistributedSampler, which chooses the share of one process; fit "
                "distributes the minibatches itself: leave the sampler out and give shuffle=True"
            )
    try:
        batches = len(loader)
    except TypeError as error:
        raise Speech3Error(
            f"dataset: the DataLoader has no length ({error}); give its sampler a __len__, which is the number of "
            f"minibatches in an epoch"
        ) from error
    if not batches:
        raise Speech3Error("dataset: the DataLoader has no minibatches; there is nothing to train on")
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
        raise Speech3Error(
            f"dataset: a {type(loader.dataset).__name__} has no length, so nobody knows when an epoch ends; give "
            f"steps_per_epoch, the number of minibatches in an epoch"
        )
    if steps is None and not batches:
        raise Speech3Error("dataset: is empty; there is nothing to train on")
    count = batches if steps is None else steps * accumulate
    return Data(
        loader.dataset, loader.batch_size or 1, None, loader, count, continues=steps is not None, accumulate=accumulate
    )  # fmt: skip
