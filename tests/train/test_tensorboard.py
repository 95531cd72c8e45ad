"""Event files, read back with TensorBoard's own reader."""

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest

from speech3.train.curves import open_writer


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator(
        str(run / "tensorboard")
    )
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def epoch(number: int, **more: Any) -> dict[str, Any]:
    return {"event": "epoch", "epoch": number, "time": 1.7e9 + number, "frames": 1000 * number, "seconds": 2.0 * number,
            "train_loss": 1.5, "train_accuracy": 0.5, "heldout_loss": 2.0, "heldout_accuracy": 0.25 * number,
            "learning_rate": 0.125, **more}  # fmt: skip


@pytest.fixture
def needs_tensorboard() -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (pip install 'speech3[tensorboard]')")


@pytest.mark.usefixtures("needs_tensorboard")
def test_records_become_scalars(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    assert writer is not None
    writer.write({"event": "before", "epoch": 0, "train_accuracy": None, "heldout_accuracy": 0.0})
    writer.write({"event": "heldout", "frames": 500, "seconds": 1.0, "heldout_accuracy": 0.125})
    shards = [{"minibatches": n, "compute_s": 3.0, "sync_s": 1.0, "wait_s": 0.0, "busy": 1} for n in (30, 10)]
    counts = {"used": 37, "stale": 2, "refused": 1, "returned": 5}
    writer.write(epoch(1, staleness=[5, 10, 5], shards=shards, minibatches=counts))
    found = scalars(tmp_path)  # before it is closed: people watch a run that goes on
    assert found == {
        "accuracy/heldout": [(0, 0.0), (500, 0.125), (1000, 0.25)],
        "accuracy/train": [(1000, 0.5)],
        "loss/heldout": [(1000, 2.0)],
        "loss/train": [(1000, 1.5)],
        "training/learning_rate": [(1000, 0.125)],
        "training/frames_per_s": [(500, 500.0), (1000, 500.0)],
        "staleness/mean": [(1000, 1.0)],
        "staleness/p95": [(1000, 2.0)],
        "minibatches/stale": [(1000, 2.0)],
        "minibatches/refused": [(1000, 1.0)],
        "minibatches/returned": [(1000, 5.0)],
        "shard_share/0": [(1000, 0.75)],
        "shard_share/1": [(1000, 0.25)],
        "shard_sync_share/0": [(1000, 0.25)],
        "shard_sync_share/1": [(1000, 0.25)],
    }
    writer.close()


@pytest.mark.usefixtures("needs_tensorboard")
def test_a_resumed_run_hides_what_it_does_again(tmp_path: Path) -> None:
    for frames, seconds, number, accuracy in ((0, 0.0, 1, 0.1), (1000, 2.0, 2, 0.5), (1000, 2.0, 2, 0.75)):
        writer = open_writer(tmp_path, frames, seconds)
        assert writer is not None
        writer.write(epoch(number, heldout_accuracy=accuracy))
        writer.close()
    found = scalars(tmp_path)
    assert found["accuracy/heldout"] == [(1000, pytest.approx(0.1)), (2000, 0.75)]
    assert found["training/frames_per_s"] == [(1000, 500.0), (2000, 500.0)]


@pytest.mark.usefixtures("needs_tensorboard")
def test_a_new_run_removes_an_earlier_ones(tmp_path: Path) -> None:
    for number in (2, 1):
        writer = open_writer(tmp_path)
        assert writer is not None
        writer.write(epoch(number))
        writer.close()
    assert [step for step, _ in scalars(tmp_path)["loss/train"]] == [1000]


def test_without_tensorboard_the_remedy_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("torch.utils.tensorboard"):
            raise ModuleNotFoundError("No module named 'tensorboard'")
        return real(name, *arguments, **options)

    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert open_writer(tmp_path) is None
    assert capsys.readouterr().err == ""
    assert not list(tmp_path.iterdir())
