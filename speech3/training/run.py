"""One training run: packed frames in, an acoustic model out, resumable at any minibatch.

Axes: B minibatch, S senones, F feature bins.
"""

import math
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import speech3
from speech3.config import FeatureConfig, TrainConfig, parse, read_yaml
from speech3.engine.sgd import Sgd, Step, train_minibatches
from speech3.errors import Speech3Error
from speech3.features.augment import FrequencyWarp, frequency_warp
from speech3.frames.minibatches import Minibatches
from speech3.frames.packed import PackedFrames, open_packed
from speech3.io.atomic import read_json
from speech3.io.checkpoint import load_tensors, save_tensors
from speech3.io.interrupt import Interrupt, deferred_interrupt
from speech3.io.progress import Metrics, progress, say
from speech3.models import build, network_tensors
from speech3.models.linear import product, use
from speech3.models.loss import cross_entropy
from speech3.training.init import Init, read_init
from speech3.training.package import complete
from speech3.training.rundir import RunDirectory, Standing
from speech3.training.schedule import Schedule, advance

_NOT_COMPUTED = {"device", "keep_checkpoints", "checkpoint_s"}  # may change between the two halves of a resumed run
_HELDOUT_FRAMES = 1024


def train(config: TrainConfig, out: Path | str, *, restart: bool = False) -> dict[str, Any]:
    """Train an acoustic model by frame cross-entropy, or go on with a run that was killed.

    Parameters
    ----------
    config
        ``data`` holds ``train.frames`` and ``heldout.frames``; ``hmm`` the model directory with the same senones;
        ``init`` a model to begin with (`speech3.training.init`).
    out
        Run directory: ``model.safetensors`` (the best epoch's parameters, input shift and scale, ``log_prior``),
        ``metrics.jsonl``, ``checkpoints/``. A finished run is not run again.
    restart
        Forget what `out` holds of an earlier run.

    Returns
    -------
    about
        What ``model.safetensors`` says of itself: config, accuracies, history, versions, seconds of training.

    Raises
    ------
    Speech3Error
        Frames missing or damaged, or of other senones than `hmm`; `init` of another architecture; no such device;
        `out` belongs to another run; a loss that is not finite.
    KeyboardInterrupt
        Ctrl-C, after a checkpoint was written.
    """
    device = _device(config.training.device)
    packed = _open(config)
    init = read_init(config, packed["train"])
    directory = RunDirectory(Path(out), _identity(config, packed, init), config.training.keep_checkpoints)
    directory.claim(restart=restart)
    if directory.model.exists():
        say(f"{directory.model}: finished before, not trained again")
        return load_tensors(directory.model, "nn")[1]
    with deferred_interrupt() as interrupt, _threads(config.training.threads):
        run = _Run(config, directory, packed, device, init)
        while not run.standing.schedule.done:
            run.epoch(interrupt)
        return run.finish()


def log_priors(counts_S: np.ndarray) -> np.ndarray:
    """Natural logarithms of the senones' shares of the frames, float32 (S,); one frame is added to each count."""
    smoothed_S = counts_S.astype(np.float64) + 1
    return np.log(smoothed_S / smoothed_S.sum()).astype(np.float32)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise Speech3Error(f"device {name!r}: no such kind of device; use cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise Speech3Error(f"device {name!r}: training runs on cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise Speech3Error(f"device {name!r}: this machine offers PyTorch {torch.cuda.device_count()} CUDA devices")
    return device


def _open(config: TrainConfig) -> dict[str, PackedFrames]:
    num_senones = read_json(Path(config.hmm) / "hmm.json")["pdfs"]
    packed = {name: open_packed(Path(config.data) / f"{name}.frames") for name in ("train", "heldout")}
    for frames in packed.values():
        frames.verify()
        if not len(frames):
            raise Speech3Error(f"{frames.path}: holds no frames; pack some utterances into it")
        if frames.num_senones != num_senones:
            raise Speech3Error(
                f"{frames.path}: labelled with {frames.num_senones} senones, but {config.hmm} has {num_senones}; "
                f"pack it again with this model's alignment"
            )
        if frames.dim != packed["train"].dim:
            raise Speech3Error(f"{frames.path}: {frames.dim} feature bins, but train.frames has {packed['train'].dim}")
    return packed


def _warp(config: TrainConfig, frames: PackedFrames) -> FrequencyWarp | None:
    most = config.training.frequency_warp
    if not most:
        return None
    path = Path(config.data) / "features.yaml"
    return frequency_warp(parse(FeatureConfig, read_yaml(path), path), frames.dim, most)


def _identity(config: TrainConfig, packed: dict[str, PackedFrames], init: Init | None) -> dict[str, Any]:
    return {
        "model": config.model.model_dump(), "training": config.training.model_dump(exclude=_NOT_COMPUTED),
        "seed": config.seed, "frames": {name: frames.digest for name, frames in packed.items()},
        **({"init": init.digest} if init else {}),
    }  # fmt: skip


class _Run:
    """The moving parts of a run, and where it stands."""

    def __init__(
        self, config: TrainConfig, directory: RunDirectory, packed: dict[str, PackedFrames], device: torch.device,
        init: Init | None,
    ) -> None:  # fmt: skip
        self.config, self.directory, self.packed = config, directory, packed
        frames = packed["train"]
        resumed = directory.newest()
        if resumed:
            use(resumed[2])  # the other library rounds differently
        model = build(config.model, frames.dim, frames.num_senones, config.seed)
        model.set_input_statistics(torch.from_numpy(frames.mean_F.copy()), torch.from_numpy(frames.variance_F.copy()))
        self.begun_with = init.put_into(model) if init and not resumed else {}
        self.model = model.to(device)
        self.sgd = Sgd(model, momentum=config.training.momentum, weight_decay=config.training.weight_decay)
        self.train, self.heldout = (
            Minibatches(
                packed[name], left=model.left_context, right=model.right_context,
                minibatch=config.training.minibatch, seed=config.seed, device=device, warp=warp,
            ) for name, warp in (("train", _warp(config, frames)), ("heldout", None))
        )  # fmt: skip
        self.best: dict[str, np.ndarray] = {}
        self.standing = Standing(Schedule(config.training.learning_rate))
        if resumed:
            self._restore(*resumed[:2])
        self.metrics = Metrics(directory.metrics)
        if init and not resumed:
            self._look_before(init)

    def epoch(self, interrupt: Interrupt) -> None:
        """The rest of the epoch, its held-out accuracy, the schedule's next rate, a checkpoint."""
        epoch, rate = self.standing.epoch, self.standing.schedule.learning_rate
        numbers = range(self.standing.minibatch, len(self.train))
        steps = train_minibatches(
            self.model, self.sgd, self.train, cross_entropy,
            epoch=epoch, numbers=numbers, learning_rate=rate, seed=self.config.seed,
        )  # fmt: skip
        saved = self.standing.seconds
        for step in progress(steps, len(numbers), f"epoch {epoch}, minibatches of {self.config.training.minibatch}"):
            self._count(step)
            inside = step.number + 1 < len(self.train)
            if inside and (interrupt or self.standing.seconds - saved >= self.config.training.checkpoint_s):
                self._save()
                saved = self.standing.seconds
            if interrupt and inside:
                raise KeyboardInterrupt
        self._end_epoch()
        if interrupt:
            raise KeyboardInterrupt

    def finish(self) -> dict[str, Any]:
        """Write the best epoch's model."""
        frames, standing = self.packed["train"], self.standing
        best = standing.history[standing.schedule.best_epoch - 1] if standing.schedule.best_epoch else standing.before
        if not standing.schedule.best_epoch:
            say("no epoch was better than the model that training began with: that is the result")
        about = {
            "kind": "nn", "model": self.config.model.model_dump(), "feat_dim": frames.dim,
            "num_senones": frames.num_senones, "hmm": self.config.hmm, "training": self.config.training.model_dump(),
            "seed": self.config.seed, "frames": {name: each.digest for name, each in self.packed.items()},
            "info": frames.info, "best_epoch": best["epoch"], "train_accuracy": best["train_accuracy"],
            "heldout_accuracy": best["heldout_accuracy"], "heldout_loss": best["heldout_loss"],
            "seconds": standing.seconds, "history": standing.history, "before": standing.before,
            "product": product(),
            "versions": {"speech3": speech3.__version__, "torch": torch.__version__,
                         "numpy": np.__version__, "python": platform.python_version()},
        }  # fmt: skip
        complete(self.directory.path, Path(self.config.hmm), Path(self.config.data))
        save_tensors(self.directory.model, {**self.best, "log_prior": log_priors(frames.counts_S)}, about)
        return about

    def _look_before(self, init: Init) -> None:
        """Held-out accuracy of the model to begin with; with the same senones, no result will be worse than that."""
        loss, accuracy = self._heldout()
        record = {"event": "before", "epoch": 0, "train_accuracy": None, "heldout_accuracy": accuracy,
                  "heldout_loss": loss, **self.begun_with}  # fmt: skip
        schedule = self.standing.schedule
        if init.same_senones:
            self.best, schedule = network_tensors(self.model), replace(schedule, best_accuracy=accuracy)
        self.standing = replace(self.standing, schedule=schedule, before=record)
        self.metrics.write(**record)
        say(f"held-out before training: {accuracy:.2%}, loss {loss:.4f}")

    def _count(self, step: Step) -> None:
        standing = self.standing
        self.standing = replace(
            standing, minibatch=step.number + 1, loss_sum=standing.loss_sum + step.loss * step.frames,
            correct=standing.correct + step.correct, epoch_frames=standing.epoch_frames + step.frames,
            frames=standing.frames + step.frames, seconds=standing.seconds + step.seconds,
        )  # fmt: skip

    def _end_epoch(self) -> None:
        standing, before = self.standing, self.standing.schedule
        loss, accuracy = self._heldout()
        schedule = advance(before, standing.epoch, accuracy, self.config.training)
        if schedule.best_epoch == standing.epoch:
            self.best = network_tensors(self.model)
        elif self.config.training.schedule == "halving":
            self.model.load_state_dict({name: torch.from_numpy(array) for name, array in self.best.items()})
            if self.sgd.velocity:
                self.sgd.velocity.vector_P.zero_()
        record = {
            "event": "epoch", "epoch": standing.epoch, "seconds": round(standing.seconds, 3),
            "frames": standing.frames, "train_loss": standing.loss_sum / standing.epoch_frames,
            "train_accuracy": standing.correct / standing.epoch_frames, "heldout_accuracy": accuracy,
            "heldout_loss": loss, "learning_rate": before.learning_rate,
        }  # fmt: skip
        self.standing = standing.next_epoch(schedule, record)
        self.metrics.write(**record)
        self._save()
        taken_back = "" if schedule.best_epoch == standing.epoch else ", no better"
        say(
            f"epoch {standing.epoch}: train {record['train_accuracy']:.2%} loss {record['train_loss']:.4f}, held-out "
            f"{accuracy:.2%} loss {loss:.4f}{taken_back}, rate {before.learning_rate:g}, "
            f"{standing.frames / max(standing.seconds, 1e-9):,.0f} frames/s"
        )

    @torch.no_grad()
    def _heldout(self) -> tuple[float, float]:
        """Mean loss and frame accuracy over the held-out frames."""
        self.model.eval()
        loss_sum, correct = 0.0, 0
        for feats_BWF, senones_B in self.heldout.sequential(_HELDOUT_FRAMES):
            loss, right = cross_entropy(self.model(feats_BWF), senones_B)
            loss_sum, correct = loss_sum + loss.item() * len(senones_B), correct + int(right)
        if not math.isfinite(loss_sum):
            raise Speech3Error(
                f"epoch {self.standing.epoch}: the held-out loss is {loss_sum}; the learning rate "
                f"({self.standing.schedule.learning_rate:g}) is most likely too high: lower training.learning_rate"
            )
        return loss_sum / self.heldout.num_frames, correct / self.heldout.num_frames

    def _save(self) -> None:
        tensors = {"parameters": self.sgd.parameters.vector_P.cpu().numpy()}
        if self.sgd.velocity:
            tensors["velocity"] = self.sgd.velocity.vector_P.cpu().numpy()
        tensors |= {f"buffer.{name}": buffer.cpu().numpy() for name, buffer in self.model.named_buffers()}
        tensors |= {f"best.{name}": array for name, array in self.best.items()}
        self.directory.save(self.standing, tensors, product())

    @torch.no_grad()
    def _restore(self, standing: Standing, tensors: dict[str, np.ndarray]) -> None:
        self.standing = standing
        self.sgd.parameters.vector_P.copy_(torch.from_numpy(tensors["parameters"]))
        if self.sgd.velocity:
            self.sgd.velocity.vector_P.copy_(torch.from_numpy(tensors["velocity"]))
        for name, buffer in self.model.named_buffers():
            buffer.copy_(torch.from_numpy(tensors[f"buffer.{name}"]))
        self.best = {name[len("best.") :]: array for name, array in tensors.items() if name.startswith("best.")}
        say(f"going on from epoch {standing.epoch}, minibatch {standing.minibatch}")
