"""The records of `metrics.jsonl` as TensorBoard event files, live, for people who watch training in a browser.

TensorBoard is an optional extra: PyTorch brings the writer, the package ``tensorboard`` the format. `metrics.jsonl`
stays the record of a run; nothing reads the event files back. The step of every scalar is the frames trained on, which
runs of different minibatches and workers share.
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
    """Writes records of one run; `open_writer` makes it."""

    def __init__(self, writer: "SummaryWriter", frames: int, seconds: float) -> None:
        self._writer = writer
        self._last = frames, seconds

    def write(self, record: Mapping[str, Any]) -> None:
        """Write what a record of `metrics.jsonl` holds and make it visible at once; what is absent is left out."""
        step = int(record.get("frames", 0))
        with explained_disk_errors(self._writer.log_dir):
            for tag, value in (*_scalars(record), *self._rate(record)):
                self._writer.add_scalar(tag, value, step, walltime=record.get("time"))
            self._writer.flush()

    def close(self) -> None:
        """End the event file."""
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
    """Open ``tensorboard/`` of a run directory; none where TensorBoard is not installed.

    Parameters
    ----------
    directory
        Of the run.
    frames, seconds
        Where the run stands: 0 for one that begins, and event files of an earlier one are removed; else what a killed
        run wrote of later frames, which are done again, is hidden.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        if importlib.util.find_spec("tensorboard") is not None:  # who has not installed it does not miss it
            say(f"TensorBoard cannot be imported ({error}), so no event files are written")
        return None
    path = Path(directory) / "tensorboard"
    with explained_disk_errors(path):
        if not frames:
            for old in path.glob("events.out.tfevents.*"):
                old.unlink()
        writer = SummaryWriter(str(path), purge_step=frames + 1 if frames else None)
    return Writer(writer, frames, seconds)
