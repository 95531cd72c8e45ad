"""What is seen of runs of every world, while they go on and after."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speech3.engine.interface import ShardReport
from speech3.errors import MissingError, Speech3Error
from speech3.evaluate.run_watch import MinibatchCounts, RunView, follow, run_view

TRAINING = {"world": "shared", "workers": 2, "minibatch": 32, "max_epochs": 4, "schedule": "halving"}
RUN = {"model": {"family": "dnn"}, "training": TRAINING}
SHARED = {
    "versions": 5,
    "staleness": [2, 2, 1],
    "restarts": 1,
    "bytes_per_minibatch": {"up": 6.0, "down": 8.0},
    "shards": [
        {"minibatches": 5, "compute_s": 9.0, "sync_s": 0.5, "wait_s": 0.5, "busy": 1},
        {"minibatches": 15, "compute_s": 8.0, "sync_s": 1.0, "wait_s": 1.0, "busy": 2},
    ],
}


def epoch(number: int, world: str = "shared", **more: Any) -> dict[str, Any]:
    return {"time": 1e9 + number, "event": "epoch", "epoch": number, "seconds": 10.0 * number, "frames": 640 * number,
            "train_loss": 2.0 / number, "train_accuracy": 0.1 * number, "heldout_accuracy": 0.15 * number,
            "heldout_loss": 3.0 / number, "learning_rate": 0.1, "world": world, "workers": 1 if world == "sgd" else 2,
            "minibatches": {"used": 18, "stale": 1, "refused": 1, "returned": 3}} | more  # fmt: skip


def progress(number: int, done: int, **more: Any) -> dict[str, Any]:
    return {"time": 1e9 + number, "event": "progress", "epoch": number, "seconds": 10.0 * (number - 1) + 0.5 * done,
            "frames": 640 * (number - 1) + 32 * done, "train_loss": 1.5, "train_accuracy": 0.5, "world": "shared",
            "workers": 2, "minibatches": {"used": done, "stale": 0, "refused": 0, "returned": 0},
            "epoch_minibatches": 20} | more  # fmt: skip


def see(*records: dict[str, Any], finished: bool = False, run: dict[str, Any] = RUN) -> RunView:
    return run_view("run", records, run, finished=finished)


@pytest.mark.parametrize("world", ["sgd", "ddp", "sandblaster"])
def test_worlds_without_shards(world: str) -> None:
    view = see(epoch(1, world), epoch(2, world), finished=True)
    assert (view.world, view.workers, view.family, view.finished) == (world, 1 if world == "sgd" else 2, "dnn", True)
    assert view.whole == MinibatchCounts(36, 2, 2, 6) and view.latest == MinibatchCounts(18, 1, 1, 3)
    assert (view.shards, view.minibatches, view.seconds_left) == (None, None, None)
    assert [each.frames_per_s for each in view.epochs] == [64.0, 64.0] and view.frames_per_s == 64.0
    assert [each.seconds for each in view.epochs] == [10.0, 10.0]
    assert view.accuracies == (0.15, 0.3) and view.losses == (3.0, 1.5)


@pytest.mark.parametrize("world", ["shared", "cluster", "simulated"])
def test_worlds_with_shards(world: str) -> None:
    view = see(epoch(1, world), epoch(2, world, **SHARED), epoch(3, world, **SHARED))
    assert view.virtual == (world == "simulated")
    assert (view.latest.restarts, view.whole.restarts) == (1, 2)
    assert view.shards_epoch == 3
    assert view.shards and view.shards.shards == (ShardReport(5, 9.0, 0.5, 0.5, 1), ShardReport(15, 8.0, 1.0, 1.0, 2))
    assert view.shards.staleness == (2, 2, 1)


def test_an_epoch_that_is_going_on() -> None:
    view = see(epoch(1), epoch(2), progress(3, 5, **SHARED))
    assert view.minibatches == (5, 20)
    assert (view.epochs[-1].number, view.epochs[-1].done, view.epochs[-1].seconds) == (3, 0.25, 2.5)
    assert (view.epochs[-1].train_accuracy, view.epochs[-1].heldout_accuracy) == (0.5, None)
    assert (view.seconds_left, view.run_seconds_left) == (7.5, 17.5)  # of the epoch; and another one of 10 s
    assert (view.may_stop_early, view.best_epoch, view.seconds) == (True, 2, 22.5)
    assert view.shards_epoch == 3 and view.shards and view.shards.shares == (0.25, 0.75)
    assert (view.latest, view.whole) == (MinibatchCounts(5, restarts=1), MinibatchCounts(41, 2, 2, 6, 1))


def test_the_first_epoch() -> None:
    view = see(progress(1, 5))
    assert (view.minibatches, view.epochs[0].frames_per_s, view.accuracies) == ((5, 20), 64.0, ())
    nothing = see(progress(1, 0, train_accuracy=0.0))
    assert nothing.epochs[0].train_accuracy is None and nothing.seconds_left is None


def test_the_rate_is_that_of_the_last_records() -> None:
    view = see(progress(1, 4), progress(1, 8, seconds=2.0 + 8.0))
    assert view.frames_per_s == 4 * 32 / 8.0
    assert view.epochs[0].frames_per_s == 8 * 32 / 10.0
    assert see(progress(1, 4), epoch(1), progress(2, 5)).frames_per_s == 64.0


def test_a_virtual_clock_foretells_no_time() -> None:
    view = see(epoch(1, "simulated"), progress(2, 5, world="simulated"))
    assert view.virtual and view.seconds_left is None and view.run_seconds_left is None


def test_progress_of_an_epoch_that_ended_is_over() -> None:
    view = see(progress(1, 15), epoch(1))
    assert view.minibatches is None and [each.done for each in view.epochs] == [None]
    still = see(epoch(1), progress(2, 20), {"event": "heldout", "epoch": 2, "frames": 1000, "heldout_accuracy": 0.2})
    assert still.minibatches == (20, 20)  # held-out frames of inside the epoch are looked at when it has ended


def test_an_epoch_done_again_counts_once() -> None:
    view = see(epoch(1), epoch(2, heldout_loss=9.0), epoch(2))
    assert [each.number for each in view.epochs] == [1, 2] and view.epochs[1].heldout_loss == 1.5
    assert view.whole.used == 36


def test_the_best_epoch() -> None:
    losses = [epoch(1, heldout_loss=2.0), epoch(2, heldout_loss=1.0), epoch(3, heldout_loss=1.5)]
    assert see(*losses).best_epoch == 2
    assert see(*losses, run={"training": {"schedule": "cosine"}}).best_epoch == 2
    cosine = {"training": {"schedule": "cosine", "objective": "lfmmi"}}
    assert see(*losses, run=cosine).best_epoch == 3 and not see(*losses, run=cosine).may_stop_early
    assert see(*losses, run={"training": {"schedule": "exponential", "group_lasso": 0.1}}).best_epoch == 3
    begun_with = {"event": "before", "epoch": 0, "train_accuracy": None, "heldout_accuracy": 0.4, "heldout_loss": 0.5}
    view = see(begun_with, *losses)
    assert view.best_epoch == 0 and view.epochs[0].train_accuracy is None and view.whole.used == 54
    assert view.epochs[1].frames_per_s == 64.0


def test_old_records_lack_keys() -> None:
    full = epoch(2, **SHARED)
    for key in full.keys() - {"event", "epoch"}:
        short = {name: value for name, value in full.items() if name != key}
        assert see(epoch(1), short, run={}).epochs[1].number == 2
        assert see({k: v for k, v in epoch(1).items() if k != key}, full, run={}).epochs[1].number == 2
    bare = see({"event": "epoch", "epoch": 3}, {"event": "progress", "epoch": 4}, run={})
    assert [each.number for each in bare.epochs] == [3, 4] and bare.minibatches == (0, 0)
    gap = see(epoch(1), epoch(3))
    assert (gap.epochs[1].seconds, gap.epochs[1].frames_per_s) == (None, 64.0)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    return tmp_path


def append(run_dir: Path, *records: dict[str, Any]) -> None:
    with (run_dir / "metrics.jsonl").open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(record) + "\n" for record in records)


def views(run_dir: Path) -> Iterator[RunView]:
    return follow(run_dir, lambda: None)


def test_a_run_is_followed_to_its_end(run_dir: Path) -> None:
    seen = views(run_dir)
    assert next(seen).epochs == ()
    append(run_dir, progress(1, 4))
    assert next(seen).minibatches == (4, 20)
    append(run_dir, *(progress(1, done) for done in range(5, 9)))
    assert next(seen).minibatches == (8, 20)
    append(run_dir, epoch(1), {"event": "gmm", "iteration": 1}, {"event": "unheard of", "epoch": 7})
    view = next(seen)
    assert [each.number for each in view.epochs] == [1] and not view.finished
    append(run_dir, epoch(2))
    (run_dir / "model.safetensors").touch()
    (last,) = seen
    assert last.finished and [each.number for each in last.epochs] == [1, 2]


def test_a_run_begun_again(run_dir: Path) -> None:
    append(run_dir, epoch(1), epoch(2))
    (run_dir / "metrics.jsonl").open("a").write("{'damaged'\n")
    seen = views(run_dir)
    view = next(seen)
    assert len(view.epochs) == 2 and view.damaged == (3,)
    for file in ("metrics.jsonl", "run.json"):
        (run_dir / file).unlink()
    assert next(seen).epochs == ()
    (run_dir / "run.json").write_text(json.dumps({"training": {"max_epochs": 9}}))
    append(run_dir, progress(1, 5))
    view = next(seen)
    assert (view.max_epochs, view.damaged, [each.done for each in view.epochs]) == (9, (), [0.25])


def test_a_long_run_is_not_kept_in_memory(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []

    def spy(name: str, records: list[Any], *rest: Any, **more: Any) -> RunView:
        lengths.append(len(records))
        return run_view(name, records, *rest, **more)

    monkeypatch.setattr("speech3.evaluate.run_watch.run_view", spy)
    append(run_dir, epoch(1), *(progress(2, done) for done in range(20)))
    view = next(views(run_dir))
    assert lengths == [3] and view.minibatches == (19, 20) and view.frames_per_s == 64.0


def test_a_directory_that_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="nowhere"):
        next(views(tmp_path / "nowhere"))
    with pytest.raises(Speech3Error, match=r"not the directory of a training run; pass one"):
        next(views(tmp_path))
    append(tmp_path, {"event": "gmm", "system": "tri", "iteration": 1})
    with pytest.raises(Speech3Error, match=r"not the directory of a training run; pass one"):
        next(views(tmp_path))
    append(tmp_path, epoch(1))  # of before there was a run.json
    assert next(views(tmp_path)).world == "shared"


def test_a_damaged_description(run_dir: Path) -> None:
    (run_dir / "run.json").write_text("{")
    with pytest.raises(Speech3Error, match=r"run\.json: not valid JSON"):
        next(views(run_dir))


def test_pauses_lie_between_views(run_dir: Path) -> None:
    pauses: list[int] = []
    append(run_dir, epoch(1))
    for _ in itertools.islice(follow(run_dir, lambda: pauses.append(1)), 3):
        pass
    assert len(pauses) == 2
