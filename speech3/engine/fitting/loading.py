"""Reading the caller's dataset: random numbers, the sampler, processes that read ahead, and how it reaches them.

PyTorch shares each tensor with another process through a file of its own, and a process that is forked from a server
can be given only some 250. So the large tensors, such as a dataset's, are shared in this way, and the others are copied
together as one (`Packed`).
"""

import copyreg
import io
import multiprocessing
import pickle
import random
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.storage import TypedStorage, UntypedStorage
from torch.utils.data import DataLoader
from torch.utils.data._utils import worker as torch_worker

from speech3.errors import MachineError, SettingError
from speech3.runtime import end_with_parent, starting_workers, worker_pool

_LARGE, _MOST = 1 << 20, 64  # bytes of a tensor that is shared; most of these
_ALIGN = 64
Read = Callable[[int, int], Any]  # epoch, number -> a minibatch in the host's memory


@dataclass(frozen=True, eq=False)
class Packed:
    """A value that is pickled for another process, where unpickling gives the value itself."""

    value: Any

    def __reduce__(self) -> tuple[Any, ...]:
        stream = io.BytesIO()
        pickler = _Pickler(stream)
        pickler.dump(self.value)
        storages = pickler.storages
        large = sorted((s for s in storages if s.nbytes() >= _LARGE), key=lambda s: -s.nbytes())[:_MOST]
        shared = {id(s) for s in large} | {id(s) for s in storages if s.device.type != "cpu"}
        spans: list[slice | None] = []  # of each storage in `together`; None: it is shared
        end = 0
        for each in storages:
            spans.append(None if id(each) in shared else slice(end, end + each.nbytes()))
            end += 0 if id(each) in shared else each.nbytes() + -each.nbytes() % _ALIGN
        together = np.empty(end, np.uint8)  # no tensor: its file would be closed before the process is started
        alone = []
        for each, span in zip(storages, spans, strict=True):
            if span is None:
                alone.append(_bytes(each))
            else:
                together[span] = _bytes(each).numpy()
        return _unpacked, (stream.getvalue(), spans, together, alone)


def check_importable(value: Any) -> None:
    """Refuse classes and functions of the caller's script: workers on other hosts do not run it.

    Raises `Speech3Error` that names the first one.
    """
    _Importable(io.BytesIO()).dump(value)


def no_copy(name: str, error: Exception, value: Any = None) -> str:
    remedy = "define its class or function at the top of a file, not as a lambda, and keep open files, locks and "
    remedy += "similar objects out of it"
    if isinstance(value, nn.Module) and any(map(is_parametrized, value.modules())):
        remedy = "remove its parametrizations, such as weight_norm (remove_parametrizations), or use strategy='sgd', "
        remedy += "which starts no processes"
    if name == "optimizer":
        remedy = "define the function at the top of a file, not as a lambda, or use functools.partial, for example "
        remedy += "functools.partial(torch.optim.AdamW, lr=1e-3)"
    return f"{name}: cannot be copied to other processes ({type(error).__name__}: {error}); {remedy}"


def check_copies(passed: Mapping[str, Any], error: Exception) -> None:
    """Starting a process raised `error`: name the first of these arguments that cannot be copied to it, if any."""
    for name, value in passed.items():
        try:
            ForkingPickler.dumps(value)
        except Exception as why:
            raise SettingError(no_copy(name, why, value)) from error


class _Pickler(ForkingPickler):
    """Leaves out the tensors' values and notes them."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        by_torch = (Tensor, TypedStorage, UntypedStorage)
        reducers: dict[Any, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
        for_torch = {kind for kind in reducers if isinstance(kind, type) and issubclass(kind, by_torch)}
        others = {kind: reduce for kind, reduce in reducers.items() if kind not in for_torch}
        self.dispatch_table: Any = ChainMap(others, copyreg.dispatch_table)
        self.storages: list[UntypedStorage] = []
        self.numbers: dict[tuple[torch.device, int], int] = {}

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, TypedStorage | UntypedStorage):
            return None
        storage = value._untyped_storage if isinstance(value, TypedStorage) else value
        number = len(self.storages)
        if storage.nbytes():  # tensors with the same values keep sharing them
            number = self.numbers.setdefault((storage.device, storage.data_ptr()), number)
        if number == len(self.storages):
            self.storages.append(storage)
        return number, value.dtype if isinstance(value, TypedStorage) else None


class _Importable(_Pickler):
    """Raises an error where something is defined in `__main__`."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise SettingError(
                f"options: cluster: {value.__qualname__} is defined in the script that is run, which other hosts do not"
                " run; move it into a module that every host can import"
            )
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, storages: list[UntypedStorage]) -> None:
        super().__init__(stream)
        self.storages = storages

    def persistent_load(self, pid: Any) -> Any:
        number, dtype = pid
        storage = self.storages[number]
        return storage if dtype is None else TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def _unpacked(pickled: bytes, spans: list[slice | None], together: np.ndarray, alone: list[Tensor]) -> Any:
    left = iter(alone)
    storages = [
        (next(left) if span is None else torch.from_numpy(together[span].copy())).untyped_storage() for span in spans
    ]
    return _Unpickler(io.BytesIO(pickled), storages).load()


def _bytes(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


_own_process: list[bool] = []  # not empty: this process is a worker's own


class Randomness:
    """A state of the generators of PyTorch, NumPy and Python, which datasets draw from."""

    def __init__(self) -> None:
        self.save()

    def save(self) -> None:
        self.states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002

    def restore(self) -> None:
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


@contextmanager
def seeded_loader(loader: DataLoader[Any], seed: int) -> Iterator[None]:
    """Context in which a `DataLoader` and its samplers draw from this seed; afterwards all generators are as before.

    The generators of the caller would make the order depend on what they were used for before.
    """
    drawing = (loader, loader.sampler, loader.batch_sampler)
    found = {id(own): own for own in (getattr(each, "generator", None) for each in drawing) if own is not None}
    generators = [own for own in found.values() if isinstance(own, torch.Generator)]
    states = [generator.get_state() for generator in generators]
    try:
        with seeded(seed):
            for generator in generators:
                generator.manual_seed(seed)
            yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def own_process() -> None:
    _own_process.append(True)


def order_of(loader: DataLoader[Any], seed: int) -> list[list[int]]:
    """The indices of each minibatch of an epoch, as the sampler of a `DataLoader` chooses them with this seed."""
    with seeded_loader(loader, seed):
        chosen = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        order = [[each] if isinstance(each, int) else list(each) for each in chosen]
    if len(order) != len(loader):
        raise SettingError(
            f"dataset: the sampler of the DataLoader chose {len(order)} minibatches, but len() of the DataLoader is "
            f"{len(loader)}; every epoch must have that number: correct the sampler's __len__"
        )
    return order


def may_start_processes() -> None:
    """Let a worker, which is a daemon, have processes of its own; they end when the worker does."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]


@dataclass(frozen=True)
class WithParent:
    """A ``worker_init_fn`` of PyTorch's `DataLoader`, whose processes then end with the one that reads from them.

    PyTorch's own watch looks at the parent by its number, which is that of the server that forked them both.
    """

    init: Callable[[int], object] | None

    def __call__(self, number: int) -> None:
        end_with_parent()
        if self.init is not None:
            self.init(number)


class Loaders:
    """Processes that read minibatches before they are needed, as the workers of PyTorch's `DataLoader` do.

    `read` is pickled once for every process; `init` is called in each with its number, as ``worker_init_fn``.
    """

    def __init__(self, read: Read, dataset: Any, count: int, init: Callable[[int], None] | None, seed: int) -> None:
        may_start_processes()
        self.pool = worker_pool(count, _begin, Packed((read, dataset, init)), count, seed)

    def submit(self, epoch: int, number: int) -> "Future[Any]":
        with starting_workers():
            return self.pool.submit(_read, epoch, number)

    def result(self, reading: "Future[Any]") -> Any:
        """The minibatch; waits until it is read. Raises `Speech3Error` if it cannot be, or a process died."""
        try:
            return reading.result()
        except BrokenProcessPool as error:
            raise MachineError(
                "dataset: a process that reads it for the DataLoader died, most likely because memory ran out or the "
                "dataset cannot be pickled; use a smaller num_workers, or num_workers=0, which shows the error itself"
            ) from error

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


_reads: list[Read] = []  # in a process that reads: how


def _begin(given: Any, count: int, seed: int) -> None:
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
