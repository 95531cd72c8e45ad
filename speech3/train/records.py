"""Progress lines and records of a run: within an epoch, and at the end of each epoch."""

from dataclasses import asdict
from typing import Any

from speech3.config import TrainingConfig
from speech3.engine import Progress, rate_of
from speech3.train.curves import staleness_mean, staleness_p95
from speech3.train.rundir import RunState


def progress_text(done: Progress, heldout_accuracy: float | None) -> tuple[int, str]:
    """The number of finished minibatches of the epoch, and the text of its progress line, with the last held-out
    accuracy.
    """
    words = [f"{done.frames / max(done.seconds, 1e-9):,.0f} frames/s"]
    if done.frames:
        words.append(f"train {done.correct / done.frames:.1%}")
    if heldout_accuracy is not None:
        words.append(f"held-out {heldout_accuracy:.1%}")
    if done.staleness:
        mean, most = staleness_mean(done.staleness), staleness_p95(done.staleness)
        words.append(f"staleness {mean:.1f} (95th percentile {most})")
        minibatches = max(1, sum(shard.minibatches for shard in done.shards))
        words.append("shares " + "/".join(f"{shard.minibatches / minibatches:.0%}" for shard in done.shards))
        if waited := sum(shard.wait_s for shard in done.shards):
            words.append(f"waited {waited:.1f} s")
    if done.stale or done.refused:
        words.append(f"dropped {done.stale} stale, {done.refused} refused")
    if done.left_out:
        words.append(f"{share_left_out(done):.2%} of frames without a path left out")
    if done.missed:
        words.append(f"{done.missed} not accepted by a partition")
    return done.ended, ", ".join(words)


def share_left_out(done: Progress) -> float:
    return done.left_out / max(1, done.frames + done.left_out)


def progress_record(training: TrainingConfig, state: RunState, minibatches: int) -> dict[str, Any]:
    """The progress of an epoch of `minibatches`, for ``metrics.jsonl``: those keys of `epoch_record` that are known
    already.
    """
    return {"event": "progress", **_so_far(training, state), "epoch_minibatches": minibatches}


def epoch_record(training: TrainingConfig, state: RunState, loss: float, accuracy: float) -> dict[str, Any]:
    """An epoch for ``metrics.jsonl``: `state` is at its end; loss and accuracy are those of the held-out frames."""
    rate = rate_of(state.schedule.learning_rate, state.epoch, 1, training)
    measured = {"heldout_accuracy": accuracy, "heldout_loss": loss, "learning_rate": rate(1)}
    return {"event": "epoch", **_so_far(training, state), **measured}


def _so_far(training: TrainingConfig, state: RunState) -> dict[str, Any]:
    """Seconds and frames since the run began; all other values are for the epoch alone."""
    done = state.done
    record: dict[str, Any] = {
        "epoch": state.epoch,
        "seconds": round(state.seconds, 3),
        "frames": state.frames,
        "train_loss": done.loss_sum / max(1, done.frames),
        "train_accuracy": done.correct / max(1, done.frames),
        "world": training.world,
        "workers": training.workers,
        "minibatches": {name: getattr(done, name) for name in ("used", "stale", "refused", "returned")},
    }
    if done.up or done.down:
        record["bytes_per_minibatch"] = {"up": done.up / max(1, done.ended), "down": done.down / max(1, done.ended)}
    if done.left_out:
        record |= {"left_out_frames": done.left_out, "left_out": share_left_out(done)}
    if done.missed:
        record["missed_by_partitions"] = done.missed
    if done.shards:
        record |= {"versions": done.versions, "staleness": list(done.staleness), "restarts": done.restarts}
        record["shards"] = [asdict(shard) for shard in done.shards]
    return record


def epoch_words(record: dict[str, Any], *, no_better: bool) -> str:
    phones = f", phone errors {record['heldout_per']:.2%}" if "heldout_per" in record else ""
    words = (
        f"epoch {record['epoch']}: train {record['train_accuracy']:.2%} loss {record['train_loss']:.4f}, held-out "
        f"{record['heldout_accuracy']:.2%} loss {record['heldout_loss']:.4f}{phones}"
        f"{', no improvement' if no_better else ''}, rate {record['learning_rate']:g}, "
        f"{record['frames'] / max(record['seconds'], 1e-9):,.0f} frames/s"
    )
    if "units" in record:
        words += f", units left {'/'.join(map(str, record['units']))}"
    if record.get("staleness"):
        mean, most = staleness_mean(record["staleness"]), staleness_p95(record["staleness"])
        words += f", staleness {mean:.2f} (95th percentile {most})"
    ended = record["minibatches"]
    if ended["stale"] or ended["refused"] or ended["returned"]:
        words += f", minibatches stale {ended['stale']}, refused {ended['refused']}, returned {ended['returned']}"
    if record.get("left_out"):
        words += f", {record['left_out']:.2%} of frames left out because no path fits their transcript"
    if record.get("missed_by_partitions"):
        words += f", {record['missed_by_partitions']} used but not accepted by a partition"
    return words
