"""Which operations would make the host wait for a GPU, seen on the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Reading a value on the host, or a size that depends on values.
WAITING = ("_local_scalar_dense", "equal", "is_nonzero", "item", "masked_select", "nonzero", "unique")
READING = ("cpu", "numpy", "tolist")  # methods of a tensor; on a GPU they copy it, and wait for that


class _Names(TorchDispatchMode):
    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        # Indexing by a mask looks for what is not zero in it.
        masked = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        self.seen.append("nonzero" if masked else name)
        return func(*args, **(kwargs or {}))


@contextmanager
def operations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of what PyTorch does meanwhile, also in backward passes, and of what reads tensors on the host."""
    seen: list[str] = []

    def noting(name: str) -> Any:
        method = getattr(Tensor, name)

        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            return method(tensor, *args, **kwargs)

        return read

    with monkeypatch.context() as patched, _Names(seen):
        for name in READING:
            patched.setattr(Tensor, name, noting(name), raising=False)
        yield seen


def waits(seen: list[str]) -> list[str]:
    """Those of them for which the host would wait."""
    return [name for name in seen if name in (*WAITING, *READING)]
