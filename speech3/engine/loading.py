"""Reading minibatches of the caller's dataset: its random numbers, its sampler, and processes that read ahead."""

import multiprocessing
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import worker as torch_worker

from speech3.engine.handover import Packed
from speech3.errors import Speech3Error
from speech3.runtime import end_with_parent, starting_workers

_own_process: list[bool] = []  # not empty: this process is a worker's own
Read = Callable[[int, int], Any]  # epoch, number -> a minibatch in the host's memory


class Randomness:
    """A state of the generators of PyTorch, NumPy and Python, which datasets draw from."""

    def __init__(self) -> None:
        self.save()

    def save(self) -> None:
        """Remember the generators' present state."""
        self.states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002

    def restore(self) -> None:
        """Set the generators to the state remembered."""
        torch.set_rng_state(self.states[0])
        np.random.set_state(self.states[1])  # noqa: NPY002
        random.setstate(self.states[2])

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Context in which the generators continue from this state; the caller's are the same afterwards."""
        outside = Randomness()
        self.restore()
        try:
            yield
        finally:
            self.save()
            outside.restore()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Context in which the generators of PyTorch, NumPy and Python are seeded; afterwards they are as they were.

    In a worker's own process they are not set back, which takes most of the 0.1 ms: nobody else draws from them.
    """
    before = None if _own_process else Randomness()
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % (1 << 32))  # noqa: NPY002  # datasets use the global generator
    random.seed(seed)
    try:
        yield
    finally:
        if before is not None:
            before.restore()


def own_process() -> None:
    """Say that this process is a worker's own."""
    _own_process.append(True)


def order_of(loader: DataLoader[Any], seed: int) -> list[list[int]]:
    """The indices of each minibatch of an epoch, as the sampler of a `DataLoader` chooses them with this seed.

    Raises
    ------
    Speech3Error
        They are not as many as the `DataLoader` says.
    """
    generators = (
        loader.generator,
        *(getattr(each, "generator", None) for each in (loader.sampler, loader.batch_sampler)),
    )
    with seeded(seed):
        for generator in generators:
            if isinstance(generator, torch.Generator):  # else it would depend on what it was used for before
                generator.manual_seed(seed)
        chosen = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        order = [[each] if isinstance(each, int) else list(each) for each in chosen]
    if len(order) != len(loader):
        raise Speech3Error(
            f"dataset: the sampler of the DataLoader chose {len(order)} minibatches, but len() of the DataLoader is "
            f"{len(loader)}; every epoch must have that number: correct the sampler's __len__"
        )
    return order


def may_start_processes() -> None:
    """Let a worker, which is a daemon, have processes of its own; they end when the worker does."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]


class Loaders:
    """Processes that read minibatches before they are needed, as the workers of PyTorch's `DataLoader` do.

    Parameters
    ----------
    read
        Reads a minibatch; pickled once for every process.
    count
        Number of processes.
    init
        Called in each process with its number, as ``worker_init_fn`` of a `DataLoader`.
    """

    def __init__(self, read: Read, dataset: Any, count: int, init: Callable[[int], None] | None, seed: int) -> None:
        may_start_processes()
        context = torch.multiprocessing.get_context("forkserver" if "forkserver" in _METHODS else "spawn")
        begin = partial(_begin, Packed((read, dataset, init)), count, seed)
        self.pool = ProcessPoolExecutor(count, mp_context=context, initializer=begin)

    def submit(self, epoch: int, number: int) -> "Future[Any]":
        """Begin to read a minibatch."""
        with starting_workers():
            return self.pool.submit(_read, epoch, number)

    def result(self, reading: "Future[Any]") -> Any:
        """The minibatch; waits until it is read.

        Raises
        ------
        Speech3Error
            It cannot be read, or a process died.
        """
        try:
            return reading.result()
        except BrokenProcessPool as error:
            raise Speech3Error(
                "dataset: a process that reads it for the DataLoader died, most likely because memory ran out or the "
                "dataset cannot be pickled; use a smaller num_workers, or num_workers=0, which shows the error itself"
            ) from error

    def close(self) -> None:
        """Stop the processes."""
        self.pool.shutdown(wait=False, cancel_futures=True)


_METHODS = multiprocessing.get_all_start_methods()
_reads: list[Read] = []  # in a process that reads: how


def _begin(given: Any, count: int, seed: int) -> None:
    end_with_parent()
    own_process()
    read, dataset, init = given
    torch.set_num_threads(1)
    number = (multiprocessing.current_process()._identity[-1] - 1) % count
    torch_worker._worker_info = torch_worker.WorkerInfo(id=number, num_workers=count, seed=seed, dataset=dataset)
    if init is not None:
        init(number)
    _reads.append(read)


def _read(epoch: int, number: int) -> Any:
    return _reads[0](epoch, number)
