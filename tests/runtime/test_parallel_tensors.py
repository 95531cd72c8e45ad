"""Tensors that are sent to worker processes."""

from functools import partial
from multiprocessing.reduction import ForkingPickler

import pytest
import torch

from speech3.runtime.parallel import parallel_map


def _tensors(number: int) -> torch.Tensor:
    return torch.full((1 << 16,), float(number))


def test_tensors_go_to_processes_and_back_without_shared_memory(pooled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.multiprocessing import reductions

    def refuse(*_: object) -> None:
        raise AssertionError("a tensor would be put into /dev/shm")

    monkeypatch.setattr(reductions, "reduce_storage", refuse)
    monkeypatch.setitem(ForkingPickler._extra_reducers, torch.Tensor, refuse)  # type: ignore[attr-defined]
    add = partial(torch.add, torch.ones(1 << 16))
    found = list(parallel_map(add, [_tensors(number) for number in range(6)], 2, "test", start_at_once=True))
    assert [each[0].item() for each in found] == [1, 2, 3, 4, 5, 6]
