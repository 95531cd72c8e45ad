"""A view of a training run, during or after it, from its ``metrics.jsonl`` and ``run.json``.

Any key of a record may be missing: worlds differ in what they record, and older runs recorded less.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speech3.config import TrainingConfig
from speech3.errors import Speech3Error
from speech3.io.atomic import read_json
from speech3.io.tail import Tail
from speech3.training.asynchrony import Asynchrony, asynchrony
from speech3.training.curves import curve_of

Record = Mapping[str, Any]

_SHOWN = ("before", "heldout", "progress", "epoch", "average")
_FATES = ("used", "stale", "refused", "returned")


@dataclass(frozen=True)
class EpochView:
    """One epoch; 0 is the initial model. Unknown values are None.

    Attributes
    ----------
    seconds
        Training time of this epoch alone; virtual in a simulation.
    done
        Share of the epoch's minibatches that are used or dropped; None: the epoch has ended.
    heldout_per
        Phone error rate of the held-out utterances.
    """

    number: int
    seconds: float | None = None
    frames_per_s: float | None = None
    train_accuracy: float | None = None
    train_loss: float | None = None
    heldout_accuracy: float | None = None
    heldout_loss: float | None = None
    heldout_per: float | None = None
    learning_rate: float | None = None
    done: float | None = None


@dataclass(frozen=True)
class Counts:
    """Counts of minibatches by outcome, and of restarted shards."""

    used: int = 0
    stale: int = 0
    refused: int = 0
    returned: int = 0
    restarts: int = 0


@dataclass(frozen=True)
class RunView:
    """The current state of a run; unknown values are None.

    Attributes
    ----------
    family
        Family of the network, such as dnn.
    minibatches
        Minibatches of the current epoch that are used or dropped, and their total.
    frames_per_s
        Speed between the last two records.
    seconds
        Training time of the whole run, virtual in a simulation.
    seconds_left, run_seconds_left
        Estimated training time until the end of the current epoch, and of the run if it does not stop early.
    epochs
        The epochs in order; the last may be unfinished.
    best_epoch
        The epoch whose parameters are the best so far, or the result.
    averaged
        The epochs whose mean is the result, if it is.
    accuracies, losses
        All held-out measurements, in the order of training.
    latest, whole
        Counts of the newest epoch, and of all epochs together.
    shards, shards_epoch
        Staleness and shards of the newest epoch that had any, and the number of that epoch.
    recorded
        When the newest record was written, in seconds since 1970.
    damaged
        Numbers of lines of ``metrics.jsonl`` that could not be read.
    """

    name: str
    finished: bool = False
    family: str | None = None
    minibatch_frames: int | None = None
    world: str | None = None
    workers: int | None = None
    max_epochs: int | None = None
    may_stop_early: bool = False
    minibatches: tuple[int, int] | None = None
    frames_per_s: float | None = None
    seconds: float | None = None
    seconds_left: float | None = None
    run_seconds_left: float | None = None
    epochs: tuple[EpochView, ...] = ()
    best_epoch: int | None = None
    averaged: tuple[int, ...] = ()
    accuracies: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    latest: Counts = Counts()
    whole: Counts = Counts()
    shards: Asynchrony | None = None
    shards_epoch: int | None = None
    recorded: float | None = None
    damaged: tuple[int, ...] = ()

    @property
    def virtual(self) -> bool:
        """Whether times are those of the simulator's virtual clock."""
        return self.world == "simulated"


def follow(run_dir: Path, pause: Callable[[], object]) -> Iterator[RunView]:
    """Yield views of a run, one after each call of `pause`; the last is that of the finished run.

    Parameters
    ----------
    pause
        Called between two views; each view reads only the new records.

    Raises
    ------
    Speech3Error
        `run_dir` is not the directory of a training run, or one of its files cannot be read.
    """
    if not run_dir.is_dir():
        raise Speech3Error(f"{run_dir}: no such directory; give one that `speech3 train` writes, such as exp/dnn")
    records: list[Record] = []
    damaged: tuple[int, ...] = ()
    with Tail(run_dir / "metrics.jsonl") as tail:
        while True:
            finished = (run_dir / "model.safetensors").exists()  # it is written after the last record, so check first
            appended = tail.read()
            if appended.afresh:
                records, damaged = [], ()
            for record in appended.records:
                if record.get("event") == "progress":  # there may be thousands, and only the last two are needed
                    older = [each for each in records if each["event"] == "progress"][:-1]
                    records = [each for each in records if each not in older]
                if record.get("event") in _SHOWN and isinstance(record.get("epoch"), int):
                    records.append(record)
            damaged += appended.damaged
            is_run = (run_dir / "run.json").exists()
            if not records and not is_run and not appended.afresh:
                raise Speech3Error(
                    f"{run_dir}: not the directory of a training run; give one that `speech3 train` writes, such as "
                    f"exp/dnn"
                )
            identity = read_json(run_dir / "run.json") if is_run else {}
            yield run_view(run_dir.resolve().name, records, identity, finished=finished, damaged=damaged)
            if finished:
                return
            pause()


def run_view(
    name: str, records: Sequence[Record], identity: Record, *, finished: bool, damaged: Sequence[int] = ()
) -> RunView:
    """The view of a run from the records of its ``metrics.jsonl`` and its ``run.json`` (`identity`; empty: none)."""
    training: Record = identity.get("training") or {}
    # A killed run repeats the epoch after its last checkpoint, and records it again.
    ended = {record["epoch"]: record for record in records if record.get("event") in ("before", "epoch")}
    last = max(ended, default=0)
    progress = [record for record in records if record.get("event") == "progress" and record["epoch"] > last]
    current = progress[-1] if progress and not finished else None
    by_epoch = [record for _, record in sorted(ended.items())] + ([current] if current else [])
    epochs = tuple(_epoch(record, before) for before, record in zip([{}, *by_epoch], by_epoch, strict=False))
    whole = [record for record in by_epoch if record.get("event") != "before"]
    latest = whole[-1] if whole else {}
    average: Record = next((record for record in reversed(records) if record.get("event") == "average"), {})
    max_epochs, schedule = _whole(training, "max_epochs"), training.get("schedule")
    world, left = latest.get("world", training.get("world")), None
    if current and world != "simulated":
        left = _seconds_left(epochs[-1])
    curve = curve_of(name, records)
    losses = (_number(record, "heldout_loss") for record in records)
    did, did_epoch = _shards(whole)
    return RunView(
        name, finished, (identity.get("model") or {}).get("family"), _whole(training, "minibatch"), world,
        latest.get("workers", training.get("workers")), max_epochs,
        may_stop_early=schedule == "halving",
        minibatches=_minibatches(current) if current else None,
        frames_per_s=_frames_per_s(epochs, progress) if current else _frames_per_s(epochs),
        seconds=_number(latest, "seconds"),
        seconds_left=left,
        run_seconds_left=_run_seconds_left(epochs[-1], left, max_epochs) if left is not None else None,
        epochs=epochs,
        best_epoch=_best_epoch(epochs, last=TrainingConfig.model_construct(**training).last_is_best),
        averaged=tuple(average["epochs"]) if average.get("taken") else (),
        accuracies=curve.accuracy if curve else (),
        losses=tuple(loss for loss in losses if loss is not None and math.isfinite(loss)),
        latest=_counts([latest]), whole=_counts(whole), shards=did, shards_epoch=did_epoch,
        recorded=_number(records[-1], "time") if records else None,
        damaged=tuple(damaged),
    )  # fmt: skip


def _epoch(record: Record, before: Record) -> EpochView:
    """A view of the epoch in `record`; seconds and frames are counted from the end of the record `before`."""
    seconds, frames = _gain(record, before, "seconds"), _gain(record, before, "frames")
    untold = record["epoch"] > before.get("epoch", 0) + 1  # the seconds would include epochs without a record
    per_s = frames / seconds if frames and seconds and seconds > 0 else None
    trained = frames is None or frames > 0  # else loss and accuracy have no meaning
    done = None
    if record.get("event") == "progress":
        ended, total = _minibatches(record)
        done = ended / total if total else 0.0
    return EpochView(
        record["epoch"], None if untold else seconds, per_s,
        _number(record, "train_accuracy") if trained else None, _number(record, "train_loss") if trained else None,
        _number(record, "heldout_accuracy"), _number(record, "heldout_loss"), _number(record, "heldout_per"),
        _number(record, "learning_rate"), done,
    )  # fmt: skip


def _frames_per_s(epochs: Sequence[EpochView], progress: Sequence[Record] = ()) -> float | None:
    """The newest known speed: between the last two progress records, or of an epoch."""
    if len(progress) > 1 and progress[-2]["epoch"] == progress[-1]["epoch"]:
        frames, seconds = (_gain(progress[-1], progress[-2], key) for key in ("frames", "seconds"))
        if frames and seconds and frames > 0 and seconds > 0:
            return frames / seconds
    return next((each.frames_per_s for each in reversed(epochs) if each.frames_per_s is not None), None)


def _gain(record: Record, before: Record, key: str) -> float | None:
    there, base = _number(record, key), _number(before, key) if before.get("epoch") else 0.0
    return None if there is None or base is None else there - base


def _minibatches(progress: Record) -> tuple[int, int]:
    counts = _counts([progress])
    return counts.used + counts.stale + counts.refused, _whole(progress, "epoch_minibatches") or 0


def _counts(records: Sequence[Record]) -> Counts:
    minibatches = [record.get("minibatches") or {} for record in records]
    fates = {fate: sum(counts.get(fate, 0) for counts in minibatches) for fate in _FATES}
    return Counts(**fates, restarts=sum(record.get("restarts", 0) for record in records))


def _shards(records: Sequence[Record]) -> tuple[Asynchrony | None, int | None]:
    for record in reversed(records):
        did = asynchrony([{**record, "event": "epoch"}])
        if did:
            return did, record["epoch"]
    return None, None


def _best_epoch(epochs: Sequence[EpochView], *, last: bool) -> int | None:
    measured = [(each.heldout_loss, each.number) for each in epochs if each.heldout_loss is not None]
    if last and measured:
        return measured[-1][1]
    return min(measured, key=lambda pair: pair[0], default=(0.0, None))[1]


def _seconds_left(epoch: EpochView) -> float | None:
    if not epoch.done or epoch.seconds is None:
        return None
    return epoch.seconds / epoch.done * (1 - epoch.done)


def _run_seconds_left(epoch: EpochView, seconds_left: float, max_epochs: int | None) -> float | None:
    if max_epochs is None or not epoch.done or epoch.seconds is None:
        return None
    return seconds_left + (max_epochs - epoch.number) * epoch.seconds / epoch.done


def _number(record: Record, key: str) -> float | None:
    value = record.get(key)
    return float(value) if isinstance(value, int | float) else None


def _whole(record: Record, key: str) -> int | None:
    value = record.get(key)
    return value if isinstance(value, int) else None
