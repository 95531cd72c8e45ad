"""Whole runs on a GPU, in every world that one GPU can have and for every kind of minibatch: they learn, and resume."""

from pathlib import Path
from typing import Any

import frame_corpus
import pytest
from frame_corpus import config, learnt
from sentences import config_of, write

from speech3.train import train
from speech3.train.run import _Run

SHARDS = {"world": "shared", "workers": 2, "asgd": {"warm_start": 0.25}}
VIRTUAL = {"world": "simulated", "workers": 2, "simulation": {"compute_s": 1.0, "sync_s": 0.05}}
WORLDS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.5},
    "sgd_bf16": {"momentum": 0.5, "precision": "bf16"},
    "sgd_tf32": {"momentum": 0.5, "precision": "tf32"},
    "sgd_graph": {"momentum": 0.5, "cuda_graph": True},
    "shared_graph_bf16": SHARDS | {"cuda_graph": True, "precision": "bf16"},
    "shared": SHARDS,
    "shared_ternary": SHARDS | {"codec": {"kind": "ternary", "down": "ternary"}},
    "shared_partitions": {**SHARDS, "asgd": {"warm_start": 0.25, "partitions": 2, "momentum": 0.3}},
    "shared_adagrad": {**SHARDS, "asgd": {"warm_start": 0.25, "adagrad": 0.05}},
    "simulated": VIRTUAL,
    "synchronous_ternary": {
        **VIRTUAL,
        "simulation": VIRTUAL["simulation"] | {"strategy": "synchronous"},
        "codec": {"kind": "ternary"},
    },
    "sandblaster": {"world": "sandblaster", "workers": 2, "schedule": "constant", "learning_rate": 0.1},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `frame_corpus`."""
    root = tmp_path_factory.mktemp("frames")
    frame_corpus.write(root)
    return root


@pytest.mark.parametrize("world", WORLDS)
def test_worlds(world: str, corpus: Path, gpu: str, tmp_path: Path) -> None:
    if gpu == "cpu" and (WORLDS[world].get("precision") == "tf32" or "cuda_graph" in WORLDS[world]):
        pytest.skip("it is of GPUs")
    train(config(corpus, gpu, "dnn", **WORLDS[world]), tmp_path)
    assert learnt(tmp_path)[-1] > 0.5  # by chance: 0.17


@pytest.mark.parametrize(
    ("model", "precision"), [("cnn", "float32"), ("cnn", "bf16"), ("lstm", "float32"), ("blstm", "bf16")]
)
def test_models(model: str, precision: str, corpus: Path, gpu: str, tmp_path: Path) -> None:
    train(config(corpus, gpu, model, max_epochs=4, precision=precision, **SHARDS), tmp_path)
    assert learnt(tmp_path)[-1] > 0.3


def test_lfmmi(gpu: str, tmp_path: Path) -> None:
    write(tmp_path)
    train(config_of(tmp_path, device=gpu, **SHARDS), tmp_path / "out")
    assert len(learnt(tmp_path / "out")) == 4


def test_a_run_whose_frames_come_in_chunks_resumes(
    corpus: Path, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks, whole_epoch = config(corpus, gpu, "dnn", chunk_frames=1600, momentum=0.5), _Run._end_epoch

    def stop(run: _Run) -> None:
        whole_epoch(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(_Run, "_end_epoch", stop)
    with pytest.raises(KeyboardInterrupt):
        train(chunks, tmp_path)
    monkeypatch.setattr(_Run, "_end_epoch", whole_epoch)
    train(chunks, tmp_path)
    assert len(learnt(tmp_path)) == 3 and learnt(tmp_path)[-1] > 0.5
