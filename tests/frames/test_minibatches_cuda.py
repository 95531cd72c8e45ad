"""Minibatches on a GPU are those on the CPU to the last bit, wherever frames lie: all there, in chunks, on the host."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from speech3.frames.chunks import Chunks, Sequences
from speech3.frames.minibatches import Minibatches
from speech3.frames.packed import PackedFrames, open_packed, write_frames

CONTEXT: dict[str, Any] = {"left": 5, "right": 5, "seed": 1}


@pytest.fixture(params=["float32", "float16"])
def packed(tmp_path: Path, request: pytest.FixtureRequest) -> PackedFrames:
    rng = np.random.default_rng(0)
    feats = {f"u{i}": rng.normal(size=(n, 40)).astype(request.param) for i, n in enumerate((200, 333, 641, 410))}
    senones = {utterance: rng.integers(0, 900, len(each)) for utterance, each in feats.items()}
    write_frames(tmp_path / "x", feats, senones, 900, utterances=list(feats), dtype=request.param)
    return open_packed(tmp_path / "x")


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        assert found.dtype == expected.dtype and torch.equal(found.cpu(), expected)
    elif isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert found == expected


@pytest.mark.parametrize("chunk_frames", [0, 1100])
@pytest.mark.parametrize("free", [1e9, 0.0])
def test_windows(
    packed: PackedFrames, free: float, chunk_frames: int, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speech3.frames.minibatches.free_bytes", lambda device: free)
    here, there = (
        Minibatches(packed, minibatch=64, chunk_frames=chunk_frames, device=torch.device(device), **CONTEXT)
        for device in ("cpu", gpu)
    )
    for number in range(len(here)):
        same(there.draw(1, number), here.draw(1, number))
    for found, expected in zip(there.sequential(100), here.sequential(100), strict=True):
        same(found, expected)


def test_sequences_and_chunks(packed: PackedFrames, gpu: str) -> None:
    for make in (
        lambda device: Sequences(packed, chunk=20, streams=4, delay=3, lookahead=5, device=device, **CONTEXT),
        lambda device: Chunks(packed, chunk=60, streams=4, subsampling=3, device=device, **CONTEXT),
    ):
        here, there = (make(torch.device(device)) for device in ("cpu", gpu))
        for number in range(len(here)):
            same(there.draw(1, number), here.draw(1, number))
