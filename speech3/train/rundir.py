"""The directory of a training run: its state, with the schedule of the learning rate, its files, and its records.

``run.json`` (the identity of the run), ``metrics.jsonl`` (one record per epoch, and progress records if it is long),
``checkpoints/`` (the last few, each sufficient to resume from; with ``training.average`` also the model's tensors after
the last epochs, a file of their own for each epoch), ``model.safetensors`` (the result; exists only when the run is
finished), and the files that make the directory of a trained network self-contained: the meaning of its outputs, and
the features that it reads.

Of the schedules ``halving`` is "newbob" as in Kaldi's nnet1 (steps/nnet/train_scheduler.sh): once held-out
cross-entropy decreases by less than ``halve_below`` (relative) in an epoch, the rate is halved in every epoch until it
decreases by less than ``stop_below``; an epoch that makes the model worse is undone. ``exponential`` decays to
``final_rate`` of the first rate (Senior et al. 2013), ``cosine`` to zero (Loshchilov and Hutter 2017). With ``warmup``
each rises from a tenth first. The best epoch is the one with the lowest held-out loss (frame accuracy may still rise
while the model becomes more confident in its errors); for LF-MMI with ``cosine``, and with group lasso, the last one.
"""

import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from speech3.config import TrainingConfig
from speech3.engine import Progress, ShardReport, rate_of
from speech3.errors import MismatchError, OccupiedError, Speech3Error
from speech3.hmm import load_outputs
from speech3.io import (
    CARD_FILE,
    DECODE_FILE,
    DENOMINATOR_FILE,
    FEATURES_FILE,
    GRAPH_DIR,
    GRAPH_FILE,
    GRAPH_FILES,
    HCLG_FILE,
    METRICS_FILE,
    MODEL_FILE,
    RUN_FILE,
    TUNING_FILE,
    TUNING_GRAPH_DIR,
    load_tensors,
    save_tensors,
)
from speech3.runtime import locked_directory, read_json, read_metrics, say, write_json, write_text
from speech3.train.curves import staleness_mean, staleness_p95

GRAPHS = (GRAPH_DIR, TUNING_GRAPH_DIR)
_LEAST = 1e-9  # lower bound of a cross-entropy used as a divisor
# The kinds of files: with a checkpoint, and with an epoch's parameters.
_CHECKPOINT_KIND, EPOCH_KIND = "nn-checkpoint", "nn-epoch"
_WORKERS = "training.workers"  # may change when a run is resumed: where a GPU has failed, the others continue
_EPOCH = "parameters-"  # name of the file of an epoch's parameters, before the number


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


def copy_model_files(model: Path, hmm: Path, data: Path) -> None:
    """Copy into `model` the HMM of `hmm`, its denominator, decoding graphs and grid, and the features of `data`.

    What does not exist there is removed from `model`, where an earlier run may have left it.
    """
    load_outputs(hmm).save(model)
    for source, name in ((data, FEATURES_FILE), (hmm, DENOMINATOR_FILE), (hmm, TUNING_FILE)):
        if (source / name).exists():
            shutil.copyfile(source / name, model / name)
        else:
            (model / name).unlink(missing_ok=True)
    share_graphs(model, hmm)


def share_graphs(model: Path, hmm: Path) -> None:
    """Give `model` the decoding graphs of `hmm`, if there are any: they depend on the HMM only, not on the network."""
    if (hmm / GRAPH_DIR / GRAPH_FILE).exists():
        for graph in GRAPHS:
            _copy_graph(hmm / graph, model / graph)


def include_model(network: Path, model: Path) -> None:
    """Give `network` the model directory `model`, whose output it reads, as a directory of the same name."""
    own = network / model.name
    shutil.rmtree(own, ignore_errors=True)
    # Without what is only training's: alignments, the transforms of its speakers.
    left_out = shutil.ignore_patterns("align", METRICS_FILE, "trans.*", "spk2utt", "graph_own")
    shutil.copytree(model, own, ignore=left_out, copy_function=_share)


def _copy_graph(graph: Path, out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)  # it may be an old tuning graph, which this HMM no longer has
    if (graph / GRAPH_FILE).exists():
        out.mkdir()
        for name in GRAPH_FILES:
            if name in (HCLG_FILE, "words.txt", GRAPH_FILE) or (graph / name).exists():
                _share(graph / name, out / name)


def _share(source: Path | str, copy: Path | str) -> None:
    """Make a hard link if the file system can, else copy: graphs and models are large and never written to."""
    try:
        os.link(source, copy)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, copy)


@dataclass(frozen=True)
class Schedule:
    """The state of the schedule: the rate of the next epoch, without warm-up and decay, and the best epoch so far (0:
    none).
    """

    learning_rate: float
    halving: bool = False
    done: bool = False
    best_loss: float = math.inf
    best_epoch: int = 0


def advance(schedule: Schedule, epoch: int, loss: float, config: TrainingConfig) -> Schedule:
    """The schedule after `epoch` (counted from 1) ended with held-out `loss`."""
    best, better = schedule.best_loss, loss < schedule.best_loss or config.last_is_best
    gain = 1.0 if math.isinf(best) else (best - loss) / max(best, _LEAST)
    halving = config.schedule == "halving" and (schedule.halving or gain < config.halve_below)
    return Schedule(
        learning_rate=schedule.learning_rate / 2 if halving else schedule.learning_rate,
        halving=halving,
        done=epoch >= config.max_epochs or (schedule.halving and gain < config.stop_below),
        best_loss=loss if better else best,
        best_epoch=epoch if better else schedule.best_epoch,
    )


@dataclass(frozen=True)
class RunState:
    """The progress of a run: the epoch, the progress within it, and the sums over the epochs before it."""

    schedule: Schedule
    epoch: int = 1
    done: Progress = field(default_factory=Progress)
    unevaluated: list[Progress] = field(default_factory=list)  # points at which parameters were kept for evaluation
    frames_before: int = 0
    seconds_before: float = 0.0
    before: dict[str, Any] = field(default_factory=dict)  # the record of the initial model
    history: list[dict[str, Any]] = field(default_factory=list)

    def next_epoch(self, schedule: Schedule, record: dict[str, Any]) -> "RunState":
        return replace(
            self,
            schedule=schedule,
            epoch=self.epoch + 1,
            done=Progress(),
            frames_before=self.frames,
            seconds_before=self.seconds,
            history=[*self.history, record],
        )

    @property
    def frames(self) -> int:
        return self.frames_before + self.done.frames

    @property
    def seconds(self) -> float:
        """Training time so far; virtual in a simulation."""
        return self.seconds_before + self.done.seconds

    @property
    def best(self) -> dict[str, Any]:
        """The record of the best epoch, or of the initial model if none was better."""
        return self.history[self.schedule.best_epoch - 1] if self.schedule.best_epoch else self.before

    @property
    def minibatch(self) -> int:
        """Number of minibatches of the epoch that are used or dropped."""
        return self.done.ended


class AnotherRun(Speech3Error):
    """A directory holds a run of another config; `fault` is the message without the advice."""

    def __init__(self, fault: str) -> None:
        super().__init__(f"{fault}; choose another --out, or --restart to remove it and begin again")
        self.fault = fault


@dataclass(frozen=True)
class RunDirectory:
    path: Path
    identity: dict[str, Any]
    keep: int

    @property
    def model(self) -> Path:
        return self.path / MODEL_FILE

    @property
    def metrics(self) -> Path:
        return self.path / METRICS_FILE

    @property
    def times(self) -> Path:
        """Times measured for the virtual clock; a resumed simulation reuses them."""
        return self.path / "simulation.json"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the directory against a second training process; the lock is released if this process is killed."""
        busy = f"{self.path}: another training process is running there; wait until it ends, or choose another --out"
        with locked_directory(self.path, busy):
            yield

    def claim(self, *, restart: bool) -> None:
        """Claim the directory for this run; refuse if it holds another run, or empty it with `restart`.

        A run that has left neither a checkpoint nor a model may be replaced by any other; one that is not finished may
        be resumed with another number of workers.

        Raises Speech3Error: the directory holds a run of another config, model or corpus (the message names the keys
        that differ), or a model that was not made by a run, which `restart` does not remove either.
        """
        run = self.path / RUN_FILE
        if self.model.exists() and not run.exists():
            raise OccupiedError(f"{self.model}: was not made by a run in this directory; choose another --out")
        if restart or (run.exists() and not self.model.exists() and not self._checkpoints()):
            for directory in ("checkpoints", *GRAPHS):
                shutil.rmtree(self.path / directory, ignore_errors=True)
            for file in (self.model, self.path / CARD_FILE, self.path / DECODE_FILE, self.metrics, self.times, run):
                file.unlink(missing_ok=True)
        for torn in (self.path / "checkpoints").glob(".*.tmp"):  # left by a process killed while writing a checkpoint
            torn.unlink(missing_ok=True)
        identity = self._plain_identity()
        if run.exists():
            there, now = _flat(read_json(run)), _flat(identity)
            differ = sorted(key for key in there.keys() | now.keys() if there.get(key) != now.get(key))
            if differ and (self.model.exists() or differ != [_WORKERS]):
                changes = ", ".join(f"{key} {there.get(key)} there, {now.get(key)} now" for key in differ)
                raise AnotherRun(f"{self.path}: holds a run of another config ({changes})")
            if differ:
                say(f"{self.path}: was run with {_WORKERS}={there[_WORKERS]}, continues with {now[_WORKERS]}")
                write_json(run, identity)
        else:
            write_json(run, identity)

    def save(self, state: RunState, tensors: dict[str, np.ndarray], library: str) -> None:
        """Write a checkpoint and remove all but the last few."""
        name = f"e{state.epoch:04d}-m{state.minibatch:08d}.safetensors"
        about = {"kind": _CHECKPOINT_KIND, "identity": self.identity, "product": library, "state": asdict(state)}
        save_tensors(self.path / "checkpoints" / name, tensors, about)
        for old in self._checkpoints()[: -self.keep]:
            old.unlink(missing_ok=True)

    def keep_epoch(self, epoch: int, tensors: dict[str, np.ndarray], count: int) -> None:
        """Write the model's tensors after an epoch, and remove those of all but the last `count` epochs written."""
        save_tensors(self.path / "checkpoints" / f"{_EPOCH}{epoch:04d}.safetensors", tensors, {"kind": EPOCH_KIND})
        for old in list(self.epochs().values())[:-count]:
            old.unlink(missing_ok=True)

    def epochs(self) -> dict[int, Path]:
        """The files that `keep_epoch` has written, by epoch."""
        found = sorted((self.path / "checkpoints").glob(f"{_EPOCH}*.safetensors"))
        return {int(path.stem.removeprefix(_EPOCH)): path for path in found}

    def newest(self) -> tuple[RunState, dict[str, np.ndarray], str] | None:
        """Read the newest intact checkpoint (state, tensors, library), and remove later records from the metrics."""
        for path in reversed(self._checkpoints()):
            try:
                tensors, about = load_tensors(path, _CHECKPOINT_KIND)
            except Speech3Error as error:
                path.rename(path.with_suffix(".damaged"))  # else it would count as one of the newest, which are kept
                say(f"{error}; renamed to {path.stem}.damaged; the run resumes from an earlier checkpoint, if any")
                continue
            if _without_workers(about["identity"]) != _without_workers(self._plain_identity()):
                raise OccupiedError(f"{path}: is a checkpoint of another run; remove it, or begin again with --restart")
            values = about["state"]
            done = _progress(values["done"])
            unevaluated = [_progress(each) for each in values["unevaluated"]]
            schedule = Schedule(**values["schedule"])
            state = RunState(**{**values, "schedule": schedule, "done": done, "unevaluated": unevaluated})
            self._take_back(state.epoch)
            return state, tensors, about["product"]
        self._take_back(0)
        return None

    def _plain_identity(self) -> Any:
        return json.loads(json.dumps(self.identity))  # tuples are lists in JSON

    def _checkpoints(self) -> list[Path]:
        return sorted((self.path / "checkpoints").glob("e*.safetensors"))

    def _take_back(self, epoch: int) -> None:
        # A run may be killed between an epoch's record and its checkpoint: the epoch will be recorded again.
        for number, path in self.epochs().items():
            if number >= epoch:
                path.unlink(missing_ok=True)
        records = read_metrics(self.metrics)
        of_an_epoch, of_the_result = ("before", "heldout", "progress", "epoch"), ("average", "pruning")
        kept = [record for record in records if record.get("event") not in of_the_result]
        kept = [record for record in kept if record.get("event") not in of_an_epoch or record["epoch"] < epoch]
        if len(kept) != len(records):
            write_text(self.metrics, "".join(json.dumps(record) + "\n" for record in kept))


def mean_of(paths: Sequence[Path]) -> dict[str, np.ndarray]:
    """The mean of the tensors of some files, summed in float64; an error names a file that is damaged or has other
    tensors.
    """
    first, _ = load_tensors(paths[0], EPOCH_KIND)
    sums = {name: np.asarray(array, np.float64) for name, array in first.items()}
    for path in paths[1:]:
        tensors, _ = load_tensors(path, EPOCH_KIND)
        if {name: array.shape for name, array in tensors.items()} != {n: a.shape for n, a in first.items()}:
            raise MismatchError(
                f"{path}: cannot be averaged with {paths[0].name}: it has other tensors, so it is of another model; "
                f"begin again with --restart"
            )
        for name, array in tensors.items():
            sums[name] = sums[name] + array
    return {name: np.asarray(total / len(paths), first[name].dtype) for name, total in sums.items()}


def _without_workers(identity: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in _flat(identity).items() if key != _WORKERS}


def _progress(values: dict[str, Any]) -> Progress:
    shards = tuple(ShardReport(**each) for each in values["shards"])
    return Progress(**{**values, "staleness": tuple(values["staleness"]), "shards": shards})


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


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
