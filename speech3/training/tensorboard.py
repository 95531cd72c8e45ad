"""Writes the records of `metrics.jsonl` also as TensorBoard event files, to watch training in a browser.

TensorBoard is an optional extra: PyTorch contains the writer, the package ``tensorboard`` the format. `metrics.jsonl`
remains the record of a run; nothing reads the event files back. The step of every scalar is the number of frames
trained on, which is comparable between runs with different minibatches and workers.
"""

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speech3.io.atomic import explained_disk_errors
from speech3.io.progress import say
from speech3.training.asynchrony import asynchrony, staleness_mean, staleness_p95

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_SCALARS = {
    "train_loss": "loss/train", "heldout_loss": "loss/heldout", "train_accuracy": "accuracy/train",
    "heldout_accuracy": "accuracy/heldout", "heldout_per": "phone_errors/heldout",
    "learning_rate": "training/learning_rate",
}  # fmt: skip


class Writer:
    """Writes the records of one run; made by `open_writer`."""

    def __init__(self, writer: "SummaryWriter", frames: int, seconds: float) -> None:
        self._writer = writer
        self._last = frames, seconds

    def write(self, record: Mapping[str, Any]) -> None:
        """Write the values in a record of `metrics.jsonl`, and flush them at once."""
        step = int(record.get("frames", 0))
        with explained_disk_errors(self._writer.log_dir):
            for tag, value in (*_scalars(record), *self._rate(record)):
                self._writer.add_scalar(tag, value, step, walltime=record.get("time"))
            self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()

    def _rate(self, record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        frames, seconds = self._last
        self._last = int(record.get("frames", frames)), float(record.get("seconds", seconds))
        if self._last[0] > frames and self._last[1] > seconds:
            yield "training/frames_per_s", (self._last[0] - frames) / (self._last[1] - seconds)


def _scalars(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, tag in _SCALARS.items():
        if record.get(key) is not None:
            yield tag, record[key]
    did = asynchrony([record])
    if did is None:
        return
    yield "staleness/mean", staleness_mean(did.staleness)
    yield "staleness/p95", staleness_p95(did.staleness)
    for fate in ("stale", "refused", "returned"):
        yield f"minibatches/{fate}", did.minibatches[fate]
    for number, (shard, share) in enumerate(zip(did.shards, did.shares, strict=True)):
        yield f"shard_share/{number}", share
        yield f"shard_sync_share/{number}", shard.sync_share


def open_writer(directory: Path | str, frames: int = 0, seconds: float = 0.0) -> Writer | None:
    """Open ``tensorboard/`` of a run directory; return None if TensorBoard is not installed.

    Parameters
    ----------
    directory
        Run directory.
    frames, seconds
        Progress of the run. For a new run (0) event files of an earlier run are removed; for a resumed run, values that
        the killed run wrote for later frames are hidden.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        if importlib.util.find_spec("tensorboard") is not None:  # no warning if it is not installed at all
            say(f"TensorBoard cannot be imported ({error}), so no event files are written")
        return None
    path = Path(directory) / "tensorboard"
    with explained_disk_errors(path):
        if not frames:
            for old in path.glob("events.out.tfevents.*"):
                old.unlink()
        writer = SummaryWriter(str(path), purge_step=frames + 1 if frames else None)
    return Writer(writer, frames, seconds)
