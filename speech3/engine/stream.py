"""Minibatches of the caller's `IterableDataset`, which can only be read from the beginning.

Each worker reads the whole stream and computes those minibatches that it draws; the others it skips. So the stream must
be the same for every worker, which it is if it draws random numbers only from the generators of PyTorch, NumPy and
Python: they are seeded when a pass begins, and belong to the stream from then on. Numbers of minibatches are drawn in
ascending order; if a worker dies, another begins the pass again to compute what is left.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader

from speech3.engine.items import Reader, Targets, joined, moved
from speech3.engine.loading import Randomness, may_start_processes, seeded
from speech3.engine.world import minibatch_seed
from speech3.errors import Speech3Error


@dataclass(eq=False)
class Stream:
    """Minibatches of a stream.

    Attributes
    ----------
    loader
        Reads the stream.
    batches
        Number of the loader's batches in an epoch.
    continues
        Whether an epoch begins where the last one ended, and the stream begins again only at its end; else every epoch
        is a pass of its own.
    portions
        Number of the loader's batches in which the gradient of a minibatch is computed.
    """

    loader: DataLoader[Any]
    batches: int
    continues: bool
    seed: int
    device: torch.device
    reader: Reader
    portions: int = 1
    ahead: int = 0  # the loader itself reads ahead
    _at: tuple[int, int] = field(default=(0, 0), init=False, repr=False)  # where reading began, and batches read since
    _iterator: Iterator[Any] | None = field(default=None, init=False, repr=False)
    _pass: int = field(default=0, init=False, repr=False)
    _read: int = field(default=0, init=False, repr=False)  # batches read in this pass
    _own: Randomness = field(default_factory=Randomness, init=False, repr=False)

    @property
    def rows(self) -> None:
        """None: the order of minibatches does not matter."""

    def __len__(self) -> int:
        return -(-self.batches // self.portions)

    def draw(self, epoch: int, number: int) -> tuple[Any, Targets]:
        """Inputs and targets of a minibatch.

        Raises
        ------
        Speech3Error
            The stream ends too early, cannot be read, or its batches are not usable.
        """
        first = number * self.portions
        start, before = (1, (epoch - 1) * self.batches) if self.continues else (epoch, 0)
        if self._iterator is None or self._at[0] != start or self._at[1] > before + first:
            self._begin(start)
            self._at = start, 0
        while self._at[1] < before + first:
            self._next(epoch)
        count = min(self.portions, self.batches - first)
        found = [self._next(epoch) for _ in range(count)]
        return joined([moved(*self.reader.parts(batch, None), self.device) for batch in found])

    def not_finite(self, epoch: int, number: int) -> list[int]:
        """Nothing: the items of a stream have no numbers."""
        return []

    def close(self) -> None:
        """Stop reading."""
        self._iterator = None

    def _begin(self, number: int) -> None:
        if self.loader.num_workers:
            may_start_processes()
        set_epoch = getattr(self.loader.dataset, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(number - 1)
        with seeded(minibatch_seed(self.seed, number, 0)):
            if isinstance(self.loader.generator, torch.Generator):
                self.loader.generator.manual_seed(minibatch_seed(self.seed, number, 0))
            self._iterator = iter(self.loader)
            self._own.save()
        self._pass, self._read = number, 0

    def _next(self, epoch: int) -> Any:
        """The next batch; at its end the stream begins again, if epochs continue it."""
        assert self._iterator is not None
        batch = self._batch()
        if batch is _END and self.continues and self._read:
            self._begin(self._pass + 1)
            batch = self._batch()
        if batch is _END:
            raise Speech3Error(
                f"dataset: the stream ended after {self._read} minibatches, but an epoch has {self.batches}; "
                + ("it must not be empty" if self.continues else "correct its __len__, or give steps_per_epoch")
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
            raise Speech3Error(
                f"dataset: raised {type(error).__name__} after {self._read} minibatches: {error}; repair that item, or "
                f"skip it in the dataset; items of different shapes need a collate_fn"
            ) from error


_END = object()
