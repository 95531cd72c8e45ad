"""Hands objects with any number of tensors to other processes, through few open files.

PyTorch shares each tensor with another process through a file of its own, and a process that is forked from a server
can be given only some 250. So the large tensors, such as a dataset's, are shared in this way, and the others are copied
together as one.
"""

import copyreg
import io
import pickle
from collections import ChainMap
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
import torch.multiprocessing  # registers PyTorch's types with ForkingPickler
from torch import Tensor
from torch.storage import TypedStorage, UntypedStorage

_LARGE, _MOST = 1 << 20, 64  # bytes of a tensor that is shared; most of these
_ALIGN = 64


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
        spans: list[tuple[int, int] | None] = []
        end = 0
        for each in storages:
            if id(each) in shared:
                spans.append(None)
            else:
                spans.append((end, end + each.nbytes()))
                end += each.nbytes() + -each.nbytes() % _ALIGN
        together = np.empty(end, np.uint8)  # no tensor: its file would be closed before the process is started
        for each, span in zip(storages, spans, strict=True):
            if span is not None:
                together[slice(*span)] = _bytes(each).numpy()
        alone = [_bytes(each) for each, span in zip(storages, spans, strict=True) if span is None]
        return _unpacked, (stream.getvalue(), spans, together, alone)


class _Pickler(ForkingPickler):
    """Leaves out the tensors' values and notes them."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        by_torch = (Tensor, TypedStorage, UntypedStorage)
        others = {
            kind: reduce for kind, reduce in ForkingPickler._extra_reducers.items()  # type: ignore[attr-defined]
            if not (isinstance(kind, type) and issubclass(kind, by_torch))
        }  # fmt: skip
        self.dispatch_table: Any = ChainMap(others, copyreg.dispatch_table)
        self.storages: list[UntypedStorage] = []
        self.numbers: dict[tuple[torch.device, int], int] = {}

    def persistent_id(self, value: Any) -> Any:
        """Number and type of a tensor's values."""
        if not isinstance(value, TypedStorage | UntypedStorage):
            return None
        storage = value._untyped_storage if isinstance(value, TypedStorage) else value
        number = len(self.storages)
        if storage.nbytes():  # tensors with the same values keep sharing them
            number = self.numbers.setdefault((storage.device, storage.data_ptr()), number)
        if number == len(self.storages):
            self.storages.append(storage)
        return number, value.dtype if isinstance(value, TypedStorage) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, storages: list[UntypedStorage]) -> None:
        super().__init__(stream)
        self.storages = storages

    def persistent_load(self, pid: Any) -> Any:
        number, dtype = pid
        storage = self.storages[number]
        return storage if dtype is None else TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def _unpacked(pickled: bytes, spans: list[tuple[int, int] | None], together: np.ndarray, alone: list[Tensor]) -> Any:
    left = iter(alone)
    storages = [
        next(left).untyped_storage()
        if span is None
        else torch.from_numpy(together[slice(*span)].copy()).untyped_storage()
        for span in spans
    ]
    return _Unpickler(io.BytesIO(pickled), storages).load()


def _bytes(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
