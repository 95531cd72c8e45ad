"""One training run, from packed frames to an acoustic model; a killed run resumes from its last checkpoint.

Axes: M minibatches of an epoch, S senones, K values of the model.
"""

import copy
import math
import platform
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import speech3
from speech3.config import MAY_CHANGE_ON_RESUME, SimulationConfig, TrainConfig
from speech3.engine import (
    Backend,
    Loss,
    OneWorker,
    Progress,
    Times,
    Trainer,
    Unkillable,
    WorkerParts,
    check_epoch,
    check_workers,
    device_of,
    measure,
    open_backends,
    precision,
    rate_of,
    threads,
    times_of,
)
from speech3.errors import MOST_BAD, DataError, TrainingError
from speech3.frames import PackedFrames
from speech3.hmm import load_outputs
from speech3.io import load_tensors, save_tensors
from speech3.models import BatchNorm, gemm_library, network_tensors, use_gemm_library
from speech3.runtime import (
    Interrupt,
    Metrics,
    deferred_interrupt,
    keep_freed_memory,
    progress,
    read_json,
    say,
    write_json,
)
from speech3.train.card import counted, write_card
from speech3.train.checks import check_objective, check_out, with_precision
from speech3.train.curves import open_writer
from speech3.train.init import Init, read_init, warn_of_teacher
from speech3.train.parts import (
    BuildParts,
    Source,
    check_partitions,
    criterion_of,
    log_priors,
    make_parts,
    minibatches,
    num_outputs,
    open_frames,
    outputs_identity,
    slices,
    smaller,
    units_left,
)
from speech3.train.phone_errors import phone_errors
from speech3.train.rundir import (
    RunDirectory,
    RunState,
    Schedule,
    advance,
    copy_model_files,
    epoch_record,
    epoch_words,
    mean_of,
    progress_record,
    progress_text,
    share_left_out,
)

_FRAMES = 2400  # in a minibatch: 16 chunks of 150, a whole vector for the objectives of sequences
_MINIBATCHES = 100  # for the statistics of batch normalisation
_PROGRESS_S = 10.0  # between two progress records within an epoch


def open_run_backends(
    config: TrainConfig, times: Path, parts: WorkerParts, build: BuildParts
) -> tuple[OneWorker, Backend | None]:
    """Open the backends of a run (`speech3.engine.open_backends`); a resumed simulation reuses the measured `times`."""
    training, clock = config.training, None
    if training.world == "simulated":
        clock = _clock(config, times, lambda: replace(parts, model=copy.deepcopy(parts.model)))
    split = slices(config, parts.model) if training.model_partitions > 1 else ()
    return open_backends(training, parts, build, clock=clock, split=split)


def _clock(config: TrainConfig, path: Path, parts: Callable[[], WorkerParts]) -> Times:
    clock = times_of(simulation_of(config, path, parts), config.training.workers)
    times = ", ".join(f"{seconds * 1e3:.2f}" for seconds in sorted(set(clock.compute_s)))
    say(f"virtual clock: {times} ms per minibatch, {clock.sync_s * 1e3:.2f} ms per sync")
    return clock


def simulation_of(config: TrainConfig, path: Path, parts: Callable[[], WorkerParts]) -> SimulationConfig:
    """The config of the virtual clock; times that it lacks are measured, and stored at `path` for a resumed run."""
    given = config.training.simulation
    if given.compute_s is not None and given.sync_s is not None:
        return given
    if not path.exists():
        compute_s, sync_s = measure(parts(), config.training.server, codec=config.training.codec)
        write_json(path, {"compute_s": compute_s, "sync_s": sync_s})
    measured = {key: seconds for key, seconds in read_json(path).items() if getattr(given, key) is None}
    return given.model_copy(update=measured)


def with_workers(config: TrainConfig, workers: int, **changes: object) -> TrainConfig:
    """A copy of the config with another number of workers, and other changes to its training."""
    return config.model_copy(update={"training": config.training.model_copy(update={"workers": workers, **changes})})


def check_left_out(what: str, frames: int, left_out: int) -> None:
    """Raise an error if more than 5 % of all frames are of chunks without a path through their numerators (LF-MMI)."""
    if left_out > MOST_BAD * (frames + left_out):
        raise DataError(
            f"{what}: {left_out / (frames + left_out):.1%} of the frames cannot be used, more than"
            f" {100 * MOST_BAD:g} %: no path through the transcripts of their chunks fits; the labels are those of"
            " another alignment, the transcripts are too long for the recordings, or training.lfmmi.tolerance is too"
            " small for training.speeds: pack the frames again, or raise it"
        )


@torch.no_grad()
def evaluate(model: nn.Module, heldout: Source, loss: Loss) -> tuple[float, float]:
    """Mean loss and frame accuracy (0 to 1) over all frames; an error if the loss cannot use more than 5 % of them."""
    model.eval()
    loss_sum, correct, frames, left_out = 0.0, 0, 0, 0
    about = -(-heldout.num_frames // _FRAMES)  # a few more where chunks overlap
    for inputs, targets in progress(heldout.sequential(_FRAMES), about, "held-out"):
        mean, right = loss(model(inputs), targets)
        loss_sum, correct = loss_sum + mean.item() * len(targets), correct + int(right)
        frames += len(targets)
        left_out += getattr(targets, "left_out", 0)
    if left_out:
        check_left_out("held-out data", frames, left_out)
    return loss_sum / frames, correct / frames


@torch.no_grad()
def estimate_statistics(model: nn.Module, parts: WorkerParts, epoch: int) -> None:
    """Set the statistics of batch normalisation to their means over the first minibatches of an epoch.

    The mean of the parameters after several epochs is another network, so its statistics are estimated anew.
    Everything else computes as in evaluation: without dropout, as in Kaldi's ``RecomputeStats``, and without changing
    parameters.
    """
    norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
    if not norms:
        return
    model.eval()
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
    count = min(_MINIBATCHES, len(parts.source))
    for number in progress(range(count), count, "statistics of the mean"):
        for norm in norms:
            norm.momentum = 1 / (number + 1)  # the running mean is then the mean of all minibatches so far
        model(parts.source.draw(epoch, number)[0])
    for norm, momentum in zip(norms, before, strict=True):
        norm.momentum = momentum
    model.eval()


def train(config: TrainConfig, out: Path | str, *, restart: bool = False) -> dict[str, Any]:
    """Train an acoustic model with frame cross-entropy, MMI, sMBR or LF-MMI; resume a run that was killed.

    Parameters
    ----------
    config
        ``frames`` is the directory with ``train.frames`` and ``heldout.frames``; ``hmm`` the model directory with the
        same senones; ``init`` a model to start from (`speech3.train.init`).
    out
        Run directory: ``model.safetensors`` (the best epoch's parameters, input shift and scale, ``log_prior``),
        ``metrics.jsonl``, ``checkpoints/``. A finished run is not run again.
    restart
        Discard an earlier run in `out`.

    Returns
    -------
    The metadata of ``model.safetensors``: config, accuracies, history, versions, seconds of training.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C, after a checkpoint was written.
    Speech3Error
        Frames are missing or damaged, or their senones are not those of `hmm`; `init` has another architecture; no such
        device; `out` is read from, belongs to another run, or one is running there; a loss is not finite.
    """
    keep_freed_memory()
    config = with_precision(config, None if restart else Path(out))
    device = device_of(config.training.device)
    device = device if config.training.model_partitions == 1 else torch.device("cpu")  # it may not fit on one GPU
    check_workers(config.training)
    check_objective(config)
    check_out(config, Path(out))
    packed = open_frames(config, Path(out))
    check_partitions(config, packed["train"])
    init = read_init(config, packed["train"])
    warn_of_teacher(config)
    epoch_minibatches = len(minibatches(config, packed["train"], torch.device("cpu"), train=True))
    check_epoch(config.training, epoch_minibatches, _warm_start(config, init))
    directory = RunDirectory(Path(out), _identity(config, packed, init), config.training.keep_checkpoints)
    with directory.alone():
        directory.claim(restart=restart)
        if directory.model.exists():
            say(f"{directory.model}: already finished, not trained again")
            return load_tensors(directory.model, "nn")[1]
        with deferred_interrupt() as interrupt, threads(config.training.threads), precision(config.training.precision):
            with ExitStack() as opened:
                run = _Run(config, directory, packed, device, init, opened)
                while not run.state.schedule.done:
                    run.epoch(interrupt)
                run.average()
                run.prune()
            return run.finish()


def _identity(config: TrainConfig, packed: dict[str, PackedFrames], init: Init | None) -> dict[str, Any]:
    return {
        "model": config.model.model_dump(),
        "training": config.training.model_dump(
            exclude={**dict.fromkeys(MAY_CHANGE_ON_RESUME, True), "lfmmi": {"teacher"}}
        ),
        "seed": config.seed,
        "frames": {name: frames.digest for name, frames in packed.items()},
        **({"init": init.digest} if init else {}),
        **outputs_identity(config),
        **_pretraining(config),
    }


def _pretraining(config: TrainConfig) -> dict[str, Any]:
    return {"pretraining": config.pretraining.model_dump()} if config.pretraining else {}


def _warm_start(config: TrainConfig, init: Init | None) -> float:
    """Epochs of plain SGD before asynchronous training: none for synchronous training or a model already trained."""
    if not config.training.asynchronous or (init and init.same_senones):
        return 0.0
    return config.training.asgd.warm_start


def _versions() -> dict[str, str]:
    modules = {"speech3": speech3, "torch": torch, "numpy": np}
    return {**{name: module.__version__ for name, module in modules.items()}, "python": platform.python_version()}


class _Run:
    """The parts of a run, and its progress.

    - `one`: the backend of one worker, for plain SGD and every warm start; its model is the one evaluated and written.
    - `trainer`: drives the backends, and holds their state.
    - `snapshots`: progress and parameters at points within the epoch, evaluated when the epoch has ended.
    """

    def __init__(
        self,
        config: TrainConfig,
        directory: RunDirectory,
        packed: dict[str, PackedFrames],
        device: torch.device,
        init: Init | None,
        opened: ExitStack,
    ) -> None:
        self.config, self.directory, self.packed = config, directory, packed
        resumed = directory.newest()
        if resumed:
            use_gemm_library(resumed[2])  # the other library rounds differently
        self.one, backend = open_run_backends(
            config, directory.times, make_parts(config, packed["train"], device), BuildParts(config, gemm_library())
        )
        if backend:
            opened.callback(backend.close)
        self.model = self.one.parts.model
        self.begun_with = init.put_into(self.model) if init and not resumed else {}
        self.heldout = minibatches(config, packed["heldout"], device)
        self.heldout_loss = criterion_of(self.one.parts.loss)
        outputs, labels = load_outputs(Path(config.hmm)), config.training.labels
        self.phone_errors = phone_errors(outputs, packed, self.log_priors(), config.seed, device, labels=labels)
        self.epoch_minibatches = len(self.one.parts.source)
        self.trainer = Trainer(self.one, backend, _warm_start(config, init))
        self.best: dict[str, np.ndarray] = {}
        self.averaged: dict[str, Any] = {}  # the record of the average, if that is the result
        self.shape, self.pruned = config.model, dict[str, Any]()  # config of the result; the record of pruning
        self.state = RunState(Schedule(config.training.learning_rate))
        self.snapshots: list[tuple[Progress, torch.Tensor]] = []
        if resumed:
            self._restore(*resumed[:2])
        self.metrics = Metrics(directory.metrics)
        self.board = open_writer(directory.path, self.state.frames, self.state.seconds)
        if self.board:
            opened.callback(self.board.close)
        if init and not resumed:
            self._evaluate_initial(init)

    def epoch(self, interrupt: Interrupt) -> None:
        """Run the rest of the epoch: training, held-out evaluation, the schedule's next rate, a checkpoint.

        If a process cannot be killed, a checkpoint is written before the error is raised.
        """
        try:
            self._compute(interrupt)
        except Unkillable:
            self._take()
            self._save()
            raise
        self._end_epoch()
        if interrupt:
            raise KeyboardInterrupt

    def _compute(self, interrupt: Interrupt) -> None:
        total, begun, trainer = self.epoch_minibatches, self.state, self.trainer
        rate = rate_of(begun.schedule.learning_rate, begun.epoch, total, self.config.training)
        moves, label = trainer.epoch(rate, begun.seconds_before), f"epoch {begun.epoch}"
        saved, evaluations, noted = begun.seconds, self._evaluations_due(begun.minibatch), begun.done.note
        last = begun.history[-1]["heldout_accuracy"] if begun.history else None
        recorded = time.monotonic()
        for done in progress(moves, total, label, place=lambda done: progress_text(done, last)):
            if done.restarts > self.state.done.restarts:
                say(f"{label}: a shard died and is being replaced ({done.returned} minibatches returned so far)")
            if done.note not in ("", noted):
                say(f"{label}: {done.note}")
            noted = done.note
            self.state = replace(begun, done=done)
            if done.left_out:
                self._check_left_out(done, total)
            if time.monotonic() - recorded >= _PROGRESS_S:  # for `speech3 watch`; curves do not use these records
                self.metrics.write(**progress_record(self.config.training, self.state, total))
                recorded = time.monotonic()
            inside = self.state.minibatch < total
            if inside and self._evaluations_due(self.state.minibatch) > evaluations:
                evaluations = self._evaluations_due(self.state.minibatch)
                self._take()
                if self.state.minibatch < total:  # it may be newer than `done` (in ddp also older), and the epoch's end
                    self.snapshots.append((self.state.done, trainer.tensors["parameters"]))
            if inside and (interrupt or self.state.seconds - saved >= self.config.training.checkpoint_s):
                self._take()
                self._save()
                saved = self.state.seconds
            if interrupt and inside:
                raise KeyboardInterrupt
        self.state = replace(begun, done=trainer.done)

    def _check_left_out(self, done: Progress, minibatches: int) -> None:
        """Raise an error if the share of frames that the loss cannot use is too large, or is certain to become so."""
        label = f"epoch {self.state.epoch}"
        if done.ended >= minibatches:
            check_left_out(label, done.frames, done.left_out)
        elif share_left_out(done) * done.ended > MOST_BAD * minibatches:
            check_left_out(f"{label}, after {done.ended} of {minibatches} minibatches", done.frames, done.left_out)

    def _take(self) -> None:
        self.trainer.take()
        self.state = replace(self.state, done=self.trainer.done)

    def _evaluations_due(self, minibatch: int) -> int:
        return minibatch * self.config.training.evaluations // self.epoch_minibatches

    def _note(self, **record: Any) -> None:
        self.metrics.write(**record)
        if self.board:
            self.board.write(record)

    def average(self) -> None:
        """Evaluate the mean of the last epochs; if it is no worse than the best epoch, it becomes the result.

        Polyak and Juditsky 1992; Izmailov et al. 2018.
        """
        if not self.config.training.average:
            return
        files = self.directory.epochs()
        if len(files) < 2:
            say(f"training.average={self.config.training.average}: no mean, as fewer than two epochs were kept")
            return
        tensors = {name: torch.from_numpy(array) for name, array in mean_of(list(files.values())).items()}
        self.model.load_state_dict(tensors)
        estimate_statistics(self.model, self.one.parts, self.state.epoch)
        loss, accuracy = self._heldout(self.one.sgd.state()["parameters"])
        best, epochs = self.state.best["heldout_loss"], list(files)
        record = {"event": "average", "epoch": epochs[-1], "epochs": epochs, "taken": loss <= best}
        record |= {"heldout_accuracy": accuracy, "heldout_loss": loss, **self._heldout_per(), "train_accuracy": None}
        self.metrics.write(**record)  # not on TensorBoard, whose curves are over the frames seen in training
        if record["taken"]:
            self.best, self.averaged = network_tensors(self.model), record
        say(
            f"mean of epochs {', '.join(map(str, epochs))}: held-out {accuracy:.2%} loss {loss:.4f}, "
            + (f"taken (best epoch {best:.4f})" if record["taken"] else f"not taken: the best epoch has {best:.4f}")
        )

    def prune(self) -> None:
        """With group lasso: the result is the network without the units that nothing reads, evaluated once more."""
        if not self.config.training.group_lasso:
            return
        self.model.load_state_dict({name: torch.from_numpy(array) for name, array in self.best.items()})
        self.shape, small = smaller(self.config.model, self.model)
        self.best = network_tensors(small)
        loss, accuracy = self._evaluate(small)
        parameters = [sum(each.numel() for each in model.parameters()) for model in (self.model, small)]
        self.pruned = {"heldout_accuracy": accuracy, "heldout_loss": loss, **self._heldout_per(small)}
        record = {"event": "pruning", "epoch": self.state.epoch - 1, **units_left(self.config, self.model)}
        self.metrics.write(**record, parameters=parameters, **self.pruned)
        say(f"pruned {parameters[0]:,} -> {parameters[1]:,} parameters; held-out {accuracy:.2%} loss {loss:.4f}")

    def finish(self) -> dict[str, Any]:
        """Write the result: the best epoch's model, or the mean of the last epochs, without unused units."""
        frames, state, epoch = self.packed["train"], self.state, self.state.best
        best = {**epoch, **self.averaged, **self.pruned}
        if not self.averaged and not state.schedule.best_epoch:
            say("no epoch was better than the initial model, keeping the initial model")
        measured = ("train_accuracy", "heldout_accuracy", "heldout_loss", "heldout_per")
        about = {
            "kind": "nn",
            "model": self.shape.model_dump(mode="json"),
            "feat_dim": frames.dim,
            "num_senones": num_outputs(self.config, frames),
            "hmm": self.config.hmm,
            "objective": self.config.training.objective,
            "training": self.config.training.model_dump(mode="json"),
            "seed": self.config.seed,
            "frames": {name: each.digest for name, each in self.packed.items()},
            "data": counted(self.packed),
            "info": frames.info,
            "best_epoch": epoch["epoch"],
            "averaged_epochs": best.get("epochs", []),
            **{key: best[key] for key in measured if key in best},
            "seconds": state.seconds,
            "history": state.history,
            "before": state.before,
            "product": gemm_library(),
            **_pretraining(self.config),
            "versions": _versions(),
        }
        copy_model_files(self.directory.path, Path(self.config.hmm), Path(self.config.frames))
        save_tensors(self.directory.model, {**self.best, "log_prior": self.log_priors()}, about)
        if not self.config.pretraining:
            write_card(self.directory.path)
        return about

    def log_priors(self) -> np.ndarray:
        """Log priors of the outputs; zero for LF-MMI, whose outputs are already likelihoods."""
        frames = self.packed["train"]
        if self.config.training.objective == "lfmmi":
            return np.zeros(num_outputs(self.config, frames), np.float32)
        return log_priors(frames.counts_S)

    def _evaluate_initial(self, init: Init) -> None:
        """Evaluate the initial model; with the same senones the result is no worse, unless `last_is_best`."""
        loss, accuracy = self._heldout()
        record = {"event": "before", "epoch": 0, "train_accuracy": None, "heldout_accuracy": accuracy}
        record |= {"heldout_loss": loss, **self._heldout_per(), **self.begun_with}
        schedule = self.state.schedule
        if init.same_senones:
            self.best, schedule = network_tensors(self.model), replace(schedule, best_loss=loss)
        self.state = replace(self.state, schedule=schedule, before=record)
        self._note(**record)
        say(f"held-out before training: {accuracy:.2%}, loss {loss:.4f}")

    def _end_epoch(self) -> None:
        self._evaluate_snapshots()
        state, before = self.state, self.state.schedule
        loss, accuracy = self._heldout()
        phones = self._heldout_per()
        schedule = advance(before, state.epoch, loss, self.config.training)
        better, halving = schedule.best_epoch == state.epoch, self.config.training.schedule == "halving"
        if better:
            self.best = network_tensors(self.model)
        elif halving:
            self.model.load_state_dict({name: torch.from_numpy(array) for name, array in self.best.items()})
            self.trainer.tensors = {"parameters": self.one.sgd.state()["parameters"]}  # and slots of zero
        if self.config.training.average and (better or not halving):
            self.directory.keep_epoch(state.epoch, network_tensors(self.model), self.config.training.average)
        record = epoch_record(self.config.training, state, loss, accuracy)
        record |= {**phones, **units_left(self.config, self.model)}
        self.state = state.next_epoch(schedule, record)
        self.trainer.begin_epoch()
        self._note(**record)
        self._save()
        say(epoch_words(record, no_better=not better))

    def _evaluate_snapshots(self) -> None:
        """Measure held-out accuracy at those points of the epoch at which the parameters were kept."""
        for done, parameters in self.snapshots:
            loss, accuracy = self._heldout(parameters)
            seconds, frames = self.state.seconds_before + done.seconds, self.state.frames_before + done.frames
            record = {"event": "heldout", "epoch": self.state.epoch, "seconds": round(seconds, 3), "frames": frames}
            self._note(**record, heldout_accuracy=accuracy, heldout_loss=loss)
        self.snapshots = []

    def _heldout(self, parameters: torch.Tensor | None = None) -> tuple[float, float]:
        """Mean loss and frame accuracy over the held-out frames, for the run's parameters or those given."""
        self.one.sgd.parameters.load(self.trainer.tensors["parameters"] if parameters is None else parameters)
        loss, accuracy = self._evaluate(self.model)
        if not math.isfinite(loss):
            raise TrainingError(
                f"epoch {self.state.epoch}: the held-out loss is {loss}; the learning rate "
                f"({self.state.schedule.learning_rate:g}) is most likely too high: lower training.learning_rate"
            )
        return loss, accuracy

    def _evaluate(self, model: torch.nn.Module) -> tuple[float, float]:
        return evaluate(model, self.heldout, self.heldout_loss)

    def _heldout_per(self, model: torch.nn.Module | None = None) -> dict[str, float]:
        """Phone error rate of a model, or of the one that `_heldout` has just evaluated, if it can be measured."""
        rate = self.phone_errors.rate(model or self.model) if self.phone_errors else math.nan
        return {} if math.isnan(rate) else {"heldout_per": rate}

    def _save(self) -> None:
        tensors = {name: tensor.cpu().numpy() for name, tensor in self.trainer.tensors.items()}
        tensors |= {"states": self.trainer.states_M.astype(np.int8)}
        tensors |= {f"best.{name}": array for name, array in self.best.items()}
        tensors |= {f"unevaluated.{number}": kept.cpu().numpy() for number, (_, kept) in enumerate(self.snapshots)}
        state = replace(self.state, unevaluated=[done for done, _ in self.snapshots])
        self.directory.save(state, tensors, gemm_library())

    def _restore(self, state: RunState, tensors: dict[str, np.ndarray]) -> None:
        self.state = state
        states_M = tensors.pop("states").astype(np.int32)
        self.best = {name[len("best.") :]: array for name, array in tensors.items() if name.startswith("best.")}
        device = self.one.sgd.parameters.vector_K.device
        on_device = {
            name: torch.from_numpy(array).to(device) for name, array in tensors.items() if not name.startswith("best.")
        }
        kept = (on_device.pop(f"unevaluated.{number}") for number in range(len(state.unevaluated)))
        self.snapshots = list(zip(state.unevaluated, kept, strict=True))
        self.trainer.resume(on_device, states_M, state.done)
        say(f"resuming at epoch {state.epoch}, minibatch {state.minibatch}")
