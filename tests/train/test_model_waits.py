"""For which models the host waits for a GPU once a minibatch only; and which of them are not replayed as a graph."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import frame_corpus
import pytest
import torch
from frame_corpus import config
from test_cuda_graphs import Recordings
from waits import operations, waits

from speech3.config import ModelConfig
from speech3.engine import gradient as recorded
from speech3.engine.gradient import CudaGraphs, gradient
from speech3.engine.interface import WorkerParts
from speech3.frames.packed import open_packed
from speech3.train.parts import make_parts

MODELS: dict[str, dict[str, Any]] = {
    **frame_corpus.MODELS,
    "tc_dnn_blstm_dnn": {
        "family": "lstm",
        "layers": 1,
        "cells": 16,
        "bidirectional": True,
        "lookahead": 5,
        "input_layers": [24],
        "output_layers": [20],
        "normalization": "batch",
        "projection": 8,
        "dropout": 0.1,
    },
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `frame_corpus`."""
    root = tmp_path_factory.mktemp("frames")
    frame_corpus.write(root)
    return root


def parts_of(corpus: Path, model: str, **training: Any) -> WorkerParts:
    given = config(corpus, "cpu", "dnn", **training).model_copy(update={"model": ModelConfig(**MODELS[model])})
    parts = make_parts(given, open_packed(corpus / "train.frames"), torch.device("cpu"))
    parts.model.train()
    return parts


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own operations, not what is compiled for CPUs."""
    monkeypatch.setattr("speech3.models.layers._chosen", "stock")
    monkeypatch.setattr("speech3.models.clipped._fast_steps", lambda x: None)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_the_host_waits_once(
    model: str, precision: str, corpus: Path, as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = parts_of(corpus, model, precision=precision)
    drawn = [parts.source.draw(1, number) for number in range(2)]  # what is gathered on the host is another matter
    source = parts.source

    class Drawn:
        rows = source.rows

        def __len__(self) -> int:
            return len(source)

        def draw(self, epoch: int, number: int) -> Any:
            return drawn[number]

    for number in range(2):  # the second with what the first carried on
        with operations(monkeypatch) as seen:
            step, _ = gradient(replace(parts, source=Drawn()), 1, number)
            assert waits(seen) == [] and step.finite
        assert waits(seen) == ["tolist"]


@pytest.mark.parametrize("model", MODELS)
def test_windows_are_replayed_and_sequences_are_not(model: str, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Recordings()
    monkeypatch.setattr(recorded, "capture", fake)
    plain, graphed = parts_of(corpus, model), parts_of(corpus, model, cuda_graph=True)
    assert plain.cuda_graphs is None and isinstance(graphed.cuda_graphs, CudaGraphs)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for number in range(12):
            (step, g), (other, h) = (gradient(parts, 1, number) for parts in (plain, graphed))
            assert step.read == other.read and step.finite
            assert all(torch.equal(one, another) for one, another in zip(g, h, strict=True))
    windows = model in ("dnn", "cnn")
    assert (fake.replayed, len(said)) == ((9, 0) if windows else (0, 1))
    assert windows or "CUDA graphs suit models of windows" in str(said[0].message)
