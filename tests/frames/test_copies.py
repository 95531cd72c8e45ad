"""Minibatches go to a device through pinned memory, and nobody waits for the copy: seen with PyTorch's meta device."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from speech3.config import TrainingConfig
from speech3.engine.fitting.dataset import Items
from speech3.features.filterbank import mel_scale
from speech3.frames.chunks import Chunks, Sequences, WholeUtterances
from speech3.frames.masks import FrequencyWarp, MelColumns, SpecAugment
from speech3.frames.minibatches import Minibatches
from speech3.frames.packed import PackedFrames, open_packed, write_frames
from speech3.runtime.native import to_device
from speech3.train.parts import _sharers

META = torch.device("meta")
PINNED = "_pinned_by_the_test"


@pytest.fixture
def packed(tmp_path: Path) -> PackedFrames:
    rng = np.random.default_rng(0)
    lengths = (20, 33, 64, 41)
    feats = {f"u{i}": rng.normal(size=(n, 6)).astype(np.float32) for i, n in enumerate(lengths)}
    senones = {f"u{i}": rng.integers(0, 9, n) for i, n in enumerate(lengths)}
    write_frames(tmp_path / "x", feats, senones, 9, utterances=list(feats))
    return open_packed(tmp_path / "x")


class _Copies(TorchDispatchMode):
    """Sees each copy from the CPU to the meta device: did it come from pinned memory, and does somebody wait for it?"""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bool, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func.overloadpacket.__name__ == "_to_copy" and given.get("device") == META and args[0].device != META:
            self.seen.append((hasattr(args[0], PINNED), bool(given.get("non_blocking"))))
        return func(*args, **given)


def _pin(tensor: Tensor) -> Tensor:
    pinned = tensor.clone()
    setattr(pinned, PINNED, True)
    return pinned


def sources(packed: PackedFrames, device: torch.device) -> Iterator[Any]:
    """Of every kind, with all that changes frames."""
    columns = MelColumns(6)
    warp = FrequencyWarp(mel_scale(np.linspace(100.0, 4000.0, 6)), 0.1)
    masks = SpecAugment(torch.zeros(6), 1, 3, 1, 2, columns)
    more: dict[str, Any] = {"left": 2, "right": 2, "seed": 1, "device": device, "warp": warp, "masks": masks}
    yield Minibatches(packed, minibatch=16, **more)
    yield Sequences(packed, chunk=10, streams=3, delay=2, **more)
    yield Chunks(packed, chunk=12, streams=3, subsampling=3, speeds=(0.9, 1.1), **more)
    yield WholeUtterances(packed, minibatch=60, subsampling=3, targets=lambda chunks: len(chunks), **more)


@pytest.mark.parametrize("free", [float("inf"), 0.0])
def test_no_draw_waits_for_a_copy(packed: PackedFrames, monkeypatch: pytest.MonkeyPatch, free: float) -> None:
    monkeypatch.setattr("speech3.frames.minibatches.free_bytes", lambda device: free)
    monkeypatch.setattr(Tensor, "pin_memory", _pin)
    for here, there in zip(sources(packed, torch.device("cpu")), sources(packed, META), strict=True):
        with _Copies() as copies:
            inputs, _ = there.draw(1, 0)
        assert copies.seen and set(copies.seen) == {(True, True)}, type(there).__name__
        expected = here.draw(1, 0)[0]
        for found, wanted in zip(
            [inputs] if isinstance(inputs, Tensor) else inputs,
            [expected] if isinstance(expected, Tensor) else expected,
            strict=True,
        ):
            assert not isinstance(found, Tensor) or (found.shape, found.dtype) == (wanted.shape, wanted.dtype)


def test_items_of_a_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", _pin)
    items = Items([({"x": torch.ones(3), "y": (torch.ones(2), 1)}, 0.5)] * 6, 4, 1, META)
    with _Copies() as copies:
        inputs, targets = items.draw(1, 0)
    assert copies.seen == [(True, True)] * 4
    assert inputs["x"].shape == (4, 3) and inputs["y"][0].device == META and targets.stacked.shape == (4,)


def test_what_is_there_is_not_copied() -> None:
    here, there = torch.ones(2), torch.ones(2, device="meta")
    assert to_device(here, torch.device("cpu")) is here and to_device(there, META) is there


@pytest.mark.parametrize(
    ("keys", "sharers"),
    [
        ({"device": "cuda"}, 1),
        ({"world": "simulated", "workers": 9, "device": "cuda"}, 1),
        ({"world": "shared", "workers": 5, "device": "cuda"}, 4),  # three on the first of two, and who began
        ({"world": "shared", "workers": 5, "device": "cuda:1"}, 6),
        ({"world": "ddp", "workers": 2, "device": "cuda"}, 2),
        ({"world": "cluster", "workers": 9, "device": "cuda"}, 2),
    ],
)
def test_who_shares_a_gpu(keys: dict[str, Any], sharers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert _sharers(TrainingConfig.model_validate(keys)) == sharers
