"""The engine as one call, for any PyTorch model: `fit`.

It makes the parts of a worker from a model, a dataset and a loss, opens the backends of a strategy, and runs them with
`Trainer`, as `speech3 train` does. In addition it checks the caller's arguments, writes the trained parameters into the
caller's model however training ends, and makes errors name the arguments.
"""

import copy
import errno
import hashlib
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from speech3.config import TrainingConfig
from speech3.engine.backends.processes import Unkillable, before_end
from speech3.engine.fitting import arguments
from speech3.engine.fitting.dataset import (
    ByName,
    Collate,
    Data,
    Items,
    MeanLoss,
    Named,
    Reader,
    Stream,
    data_of,
    failed,
    held_out,
    moved,
)
from speech3.engine.fitting.loading import Packed, check_copies, check_importable, own_process, seeded_loader
from speech3.engine.fitting.results import (
    RATES,
    EpochResult,
    FitDirectory,
    FitResult,
    Saved,
    StepResult,
    epoch_result,
    epoch_result_of_saved,
    means,
)
from speech3.engine.flat import layout, trained
from speech3.engine.gradient import Diverged, precision as use_while, threads, use_precision, use_threads, worker_parts
from speech3.engine.interface import NUMBERED, Microbatches, Progress, Rate, Targets, WorkerParts, minibatch_seed
from speech3.engine.optimizers import MakeOptimizer, MakeSchedule, OwnOptimizer, made, settings_of
from speech3.engine.trainer import Trainer, open_backends, rate_of, times_of
from speech3.errors import DataError, MachineError, SettingError, Speech3Error, listed
from speech3.runtime import Interrupt, deferred_interrupt, keep_freed_memory, progress, say, worker_context

_TRIES = 20  # minibatches tried at the start to find parameters that are never used


def fit(
    model: nn.Module,
    dataset: Any,
    loss: Callable[[Any, Any], Tensor] | None = None,
    *,
    strategy: str = "asgd",
    workers: int | None = None,
    epochs: int = 10,
    minibatch: int | None = None,
    learning_rate: float | None = None,
    optimizer: str | MakeOptimizer = "sgd",
    schedule: str | MakeSchedule = "constant",
    gradient_clip: float | None = None,
    accumulate: int = 1,
    precision: str = "float32",
    collate_fn: Collate | None = None,
    steps_per_epoch: int | None = None,
    validation: Any = None,
    on_epoch: Callable[[EpochResult], object] | None = None,
    on_step: Callable[[StepResult], object] | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    seed: int = 1,
    device: str | torch.device = "cpu",
    simulate: bool = False,
    options: Mapping[str, Any] | None = None,
) -> FitResult:
    """Train a PyTorch model with any of the engine's strategies; the model has the trained parameters afterwards.

    Workers are processes that import the calling script: call `fit` under ``if __name__ == "__main__":``, and define
    model, dataset, loss and other functions in a file, not in a notebook. They are pickled; tensors in them pass
    through shared memory.

    Parameters
    ----------
    model
        Called with the inputs of a minibatch; if minibatches are dictionaries, with their entries as keyword arguments,
        as Hugging Face's models are. Its parameters are float32; those with ``requires_grad=False`` are not changed. It
        also receives the trained buffers (batch normalisation). It is trained in training mode, except modules in
        evaluation mode (frozen batch normalisation), which stay in it; if all are, all are trained. Its modes are the
        same afterwards. Parameters that a minibatch does not use (LayerDrop, mixtures of experts) get a gradient of
        zero.
    dataset
        A map-style dataset: it has a length, and items that are pairs (input, target) of tensors, numbers, arrays, or
        nested tuples and dictionaries of them; or that are dictionaries. An `IterableDataset` of such items, which each
        worker reads from the beginning to the end, leaving out the minibatches of others. Or a `DataLoader` of either:
        its sampler, ``batch_size``, ``collate_fn``, ``drop_last``, ``num_workers`` (for each worker) and
        ``prefetch_factor`` apply. The generators of PyTorch, NumPy and Python are seeded for every minibatch (for a
        stream, at its beginning), for datasets that augment at random.
    loss
        Maps outputs and targets of a minibatch to a scalar tensor, the mean over its items. It has no parameters of its
        own to train. If minibatches are dictionaries, the targets are the entry ``labels``, which the model then does
        not get. None: the model gets the labels and returns the loss as the entry or attribute ``loss``.
    strategy
        One of `fitting.arguments.STRATEGIES`: ``sgd``, ``ddp``, or a preset of ``conf/training``, which sets workers,
        server, codec and momentum (of ``terngrad_momentum``); the preset's learning rate and schedule were chosen for
        speech and are not used.
    workers
        Number of workers; None: that of the preset (1 for ``sgd``), or 2 for ``ddp``.
    minibatch
        Items in a minibatch, 256 by default; the last one of an epoch may be smaller. A `DataLoader` has its own.
    learning_rate
        That of the optimizer with this name, 0.1 by default.
    optimizer
        ``sgd``, ``adamw`` or ``muon`` (momentum, betas and weight decay are `options`; by default betas are 0.9 and
        0.98 and weight decay is 0, unlike in `torch.optim.AdamW`); or a function that takes a list
        of the parameters to be trained and returns a `torch.optim.Optimizer`, which has a learning rate of its own:
        ``functools.partial(torch.optim.AdamW, lr=1e-3)``. Each worker has such an optimizer for its own parameters.
    schedule
        ``constant``, ``cosine`` (to zero at the end) or ``exponential``; or, with such an optimizer, a function that
        takes it and returns a scheduler of ``torch.optim.lr_scheduler``. Every minibatch is a step of the scheduler.
    gradient_clip
        Norm to which the gradient of each minibatch is clipped; with ``ddp``, the mean gradient of the workers. None:
        that of the strategy's preset, usually none; `math.inf`: no clipping.
    accumulate
        A minibatch consists of this number of parts with `minibatch` items each, whose gradients are averaged before
        the step, for minibatches that do not fit into memory.
    precision
        ``float32``; ``bf16`` (autocast of the forward and backward pass); ``tf32``, on GPUs.
    collate_fn
        Makes a minibatch of a list of items, as in a `DataLoader`: a pair (inputs, targets), or a dictionary. Pads
        items of various lengths, for example.
    steps_per_epoch
        Minibatches in an epoch of an `IterableDataset`: each epoch continues where the last one ended, and the stream
        begins again when it has ended. None: an epoch is a pass over it, whose length must be known.
    validation
        A dataset or `DataLoader` like `dataset`, on which loss and accuracy are measured after every epoch.
    on_epoch
        Called with an `EpochResult` after every epoch, when `model` has the parameters that it has reached. If it
        returns True, training ends: early stopping.
    on_step
        Called with a `StepResult` after every minibatch, or ten times a second where workers are processes; `model`
        does not have the parameters then. If it returns True, training ends.
    out
        Directory for a checkpoint after every epoch, every minute, and after Ctrl-C. The same call resumes from it; the
        number of workers, `epochs` and `device` may differ. A finished training is not repeated; nor is one that a
        callback ended, which is finished whatever `epochs` is: to train on, pass the model to a call with another
        `out`, where its parameters are the beginning.
    quiet
        Do not show progress on standard error.
    seed
        Seed of the order of items and of each minibatch's random numbers, such as dropout; the caller's generators are
        not changed. With one worker or with `simulate`, the same seed gives the same parameters.
    device
        ``cpu``; ``cuda``: workers are distributed over all GPUs; ``cuda:N``.
    simulate
        Use one process and a virtual clock for any number of workers: real gradients, the same result every time.
    options
        Other keys of a config's ``training`` (`speech3.config.TrainingConfig`) that `fitting.arguments.OPTIONS` names:
        ``{"momentum": 0.9, "asgd": {"push_scale": "1/workers"}, "simulation": {"failures": [[1, 20.0]]}}``. With
        ``{"cluster": {"address": "auto"}}`` asynchronous workers are on the hosts of a Ray cluster,
        which must be able to import what is passed: it cannot be defined in the script itself.

    Raises
    ------
    Speech3Error
        An argument, an item of the dataset or the loss is unusable, training diverged, or a worker died repeatedly; the
        message says which and what to do. `model` then has the parameters after the last finished epoch or warm start.
    KeyboardInterrupt
        Ctrl-C was pressed; `model` has the newest published parameters.
    """
    # 1. The arguments: the caller's data, and the config of the strategy.
    arguments.check_guard()
    arguments.check_kinds(options, on_epoch=on_epoch, on_step=on_step)
    numbers = {"accumulate": accumulate, "steps_per_epoch": steps_per_epoch, "minibatch": minibatch}
    arguments.check_numbers(**numbers, epochs=epochs, workers=workers)
    own = arguments.check_optimizer(optimizer, schedule, learning_rate, options or {})
    data = data_of(dataset, minibatch, collate_fn, steps_per_epoch, accumulate)
    training = arguments.config_of(
        strategy,
        options or {},
        simulate=simulate,
        own=own,
        workers=workers,
        max_epochs=epochs,
        minibatch=data.minibatch,
        learning_rate=learning_rate,
        device=str(device),
        gradient_clip=gradient_clip,
        precision=precision,
        optimizer="sgd" if own else optimizer,
        schedule="constant" if callable(schedule) else schedule,
    )
    # 2. Try out model and loss on the first minibatch before any process is started; then train.
    with (
        arguments.as_arguments(own=own),
        torch.random.fork_rng(_gpus(training)),
        threads(training.threads),
        use_while(training.precision),
        deferred_interrupt() as interrupt,
        ExitStack() as opened,
    ):
        _import_in_server(training)
        arguments.check_training(model, data, training, seed)
        arguments.check_loss(loss)
        build = Build(arguments.copied(model), data, loss, training, seed)
        inputs, targets = _microbatch(*build.source(torch.device("cpu")).draw(1, 0))
        build = replace(build, by_name=isinstance(inputs, Named))
        if callable(optimizer):
            build = replace(build, optimizer=_own_optimizer(build, optimizer, schedule))
        if training.world == "cluster":
            check_importable({each.name: getattr(build, each.name) for each in fields(build)})
        classes = _try_out(build.parts(training.device, read_ahead=False), inputs, targets)
        files = FitDirectory(Path(out), _identity(build, strategy, optimizer, schedule)) if out is not None else None
        opened.enter_context(files.alone() if files else nullcontext())
        validation_data = Validation.of(validation, build) if validation is not None else None
        run = _Run(build, model, files, validation_data, classes, quiet, on_epoch, on_step, interrupt)
        run(opened)
    return FitResult(strategy, training.workers, tuple(run.history), run.stopped)


@dataclass
class _Run:
    build: "Build"
    model: nn.Module
    files: FitDirectory | None
    validation: "Validation | None"
    classes: bool
    quiet: bool
    on_epoch: Callable[[EpochResult], object] | None
    on_step: Callable[[StepResult], object] | None
    interrupt: Interrupt
    history: list[EpochResult] = field(default_factory=list)
    stopped: bool = False

    def __call__(self, opened: ExitStack) -> None:
        """Train, or continue; `model` has the last state afterwards, however training ends."""
        saved = self.files.load() if self.files else None
        epochs = self.build.training.max_epochs
        if saved is not None:
            self.history, self.stopped = [epoch_result_of_saved(each) for each in saved.history], saved.stopped
        if saved is not None and (self.stopped or len(self.history) >= epochs):
            one = self.build.backend_of_one()
            one.load(saved.tensors)
            _write_back(one.parts.model, self.model)
            ended = f"a callback ended it after {len(self.history)} epochs" if self.stopped else "already finished"
            on = "; to train on, call fit with this model and another out" * (
                self.stopped and len(self.history) < epochs
            )
            self._say(f"{self.files.path if self.files else ''}: {ended}, not trained again{on}")
            return
        trainer = _open(self.build, opened)
        if saved is not None:
            trainer.resume(saved.tensors, saved.states_M, saved.done)
            self._say(f"resumed in epoch {len(self.history) + 1} with {saved.done.ended} of its minibatches done")
        try:
            while len(self.history) < epochs and not self.stopped:
                self._epoch(trainer)
        except (KeyboardInterrupt, Unkillable):
            trainer.take()
            self._save(trainer)
            raise
        except Diverged as error:
            raise _with_items(error, self.build.source(torch.device("cpu"))) from None
        finally:
            trainer.one.load(trainer.tensors)
            _write_back(trainer.one.parts.model, self.model)

    def _epoch(self, trainer: Trainer) -> None:
        epoch, total = len(self.history) + 1, trainer.minibatches
        rate = self.build.rate(epoch, total)
        moves: Any = trainer.epoch(rate, sum(done.seconds for done in self.history))
        label = f"epoch {epoch}/{self.build.training.max_epochs}"
        if not self.quiet:
            moves = progress(moves, total, label, place=lambda done: (done.ended, self._text(done)))
        # 1. Train; the callback, Ctrl-C and the clock may interrupt.
        saved_s = trainer.done.seconds
        for done in moves:
            if self.interrupt:
                raise KeyboardInterrupt
            if self.on_step is not None and _ends(self.on_step(self._step(epoch, total, done))):
                self.stopped = True
                break
            if self.files and done.ended < total and done.seconds - saved_s >= self.build.training.checkpoint_s:
                trainer.take()
                self._save(trainer)
                saved_s = done.seconds
        if self.stopped:
            trainer.take()
        # 2. Measure, with the newest parameters in the backend of one worker.
        result = epoch_result(epoch, trainer.done, classes=self.classes)
        if self.validation is not None or self.on_epoch is not None:
            trainer.one.load(trainer.tensors)
        if self.validation is not None:
            loss, accuracy = self.validation(trainer.one.parts)
            result = replace(result, validation_loss=loss, validation_accuracy=accuracy)
        # 3. Tell the caller, who may end training here, too.
        self.history.append(result)
        self._say(f"{label}: {self._text(trainer.done, result)}, {result.seconds:.1f} s")
        if self.on_epoch is not None:
            _write_back(trainer.one.parts.model, self.model)
            self.stopped = _ends(self.on_epoch(result)) or self.stopped
        # 4. The checkpoint counts the epoch only when the callback has seen it.
        trainer.begin_epoch()
        self._save(trainer)
        if self.interrupt:
            raise KeyboardInterrupt

    def _step(self, epoch: int, total: int, done: Progress) -> StepResult:
        return StepResult(epoch, done.ended, total, done.seconds, *means(done, classes=self.classes))

    def _text(self, done: Progress, result: EpochResult | None = None) -> str:
        loss, accuracy = means(done, classes=self.classes)
        words = [f"loss {loss:.4f}"]
        if accuracy is not None:
            words.append(f"accuracy {accuracy:.2%}")
        if result is not None and result.validation_loss is not None:
            words.append(f"validation loss {result.validation_loss:.4f}")
        if result is not None and result.validation_accuracy is not None:
            words.append(f"accuracy {result.validation_accuracy:.2%}")
        return ", ".join(words + [done.note] * bool(done.note))

    def _save(self, trainer: Trainer) -> None:
        if self.files is not None:
            history = [asdict(each) for each in self.history]
            self.files.save(Saved(trainer.tensors, trainer.states_M, trainer.done, history, self.stopped))

    def _say(self, text: str) -> None:
        if not self.quiet:
            say(text)


def _ends(answer: object) -> bool:
    """Whether a callback returned True: Python's, NumPy's or PyTorch's."""
    if isinstance(answer, Tensor) and answer.numel() == 1:
        answer = answer.item()
    return isinstance(answer, bool | np.bool_) and bool(answer)


@dataclass(frozen=True, eq=False)
class Build:
    """Makes the parts of a worker, in any process; can be pickled if what the caller gave can."""

    model: nn.Module
    data: Data
    loss: Callable[[Any, Any], Tensor] | None
    training: TrainingConfig
    seed: int
    by_name: bool = False  # whether minibatches are dictionaries, whose entries are keyword arguments of the model
    optimizer: OwnOptimizer | None = None  # what the caller's own optimizer is made of; None: the config names one

    def __reduce__(self) -> tuple[Any, ...]:
        return _built, (Packed({each.name: getattr(self, each.name) for each in fields(self)}),)

    def __call__(self, device: str) -> WorkerParts:
        keep_freed_memory()
        own_process()
        use_threads(self.training.threads)
        use_precision(self.training.precision)
        parts = self.parts(device)
        if self.data.loader is not None and self.data.loader.num_workers:
            assert isinstance(parts.source, Items | Stream)
            before_end(parts.source.close)
        return parts

    def parts(self, device: str, *, read_ahead: bool = True) -> WorkerParts:
        """Make the parts with a copy of the model, since the original may be in memory shared with another process."""
        training, on = self.training, torch.device(device)
        loss = copy.deepcopy(self.loss).to(on) if isinstance(self.loss, nn.Module) else self.loss
        model = copy.deepcopy(self.model).to(on)
        source, evaluated = self.source(on, read_ahead=read_ahead), _evaluated(self.model, "model" * self.by_name)
        more = {"evaluated": evaluated, "skips": True, "optimizer": self.optimizer or training.optimizer}
        more["explained"] = partial(failed, "model", self.data.minibatch)
        return worker_parts(
            training,
            ByName(model) if self.by_name else model,
            source,
            MeanLoss(loss, self.data.minibatch),
            self.seed,
            **more,
        )

    def source(self, device: torch.device, *, read_ahead: bool = False) -> Items | Stream:
        ahead = read_ahead and self.training.world != "simulated" and not self.training.by_sandblaster
        return self.data.source(self.seed, device, own_loss=self.loss is None, read_ahead=ahead)

    def rate(self, epoch: int, minibatches: int) -> Rate:
        """The learning rate in an epoch; with the caller's own optimizer, the number of the minibatch."""
        if self.optimizer is not None:
            return Rate(1.0, epoch, minibatches, last=NUMBERED)
        return rate_of(self.training.learning_rate, epoch, minibatches, self.training)

    def backend_of_one(self) -> Any:
        """A backend of one worker, to load a state into."""
        training = self.training.model_copy(update={"world": "sgd"})
        return open_backends(training, self.parts("cpu", read_ahead=False), self)[0]


def _built(values: dict[str, Any]) -> Build:
    return Build(**values)


@dataclass(frozen=True, eq=False)
class Validation:
    """Measures loss and accuracy on the caller's held-out data."""

    loader: DataLoader[Any]
    reader: Reader
    seed: int

    @classmethod
    def of(cls, dataset: Any, build: Build) -> "Validation":
        """Look at the caller's argument; raises `Speech3Error` if it is empty or cannot be iterated over."""
        reader = Reader(build.data.collate_fn, build.loss is None)
        collate = build.data.collate_fn or (build.data.loader.collate_fn if build.data.loader else None)
        return cls(held_out(dataset, build.data.minibatch, collate), reader, build.seed)

    @torch.no_grad()
    def __call__(self, parts: WorkerParts) -> tuple[float, float | None]:
        """Mean loss, and accuracy if there are classes, of the model in evaluation mode and float32."""
        assert isinstance(parts.loss, MeanLoss)
        modes = {module: module.training for module in parts.model.modules()}
        sums, right, items = 0.0, 0, 0
        classes = True
        try:
            parts.model.eval()
            with seeded_loader(self.loader, minibatch_seed(self.seed, 0, 0)):
                for batch in self.loader:
                    inputs, targets = moved(*self.reader.parts(batch, None), parts.device)
                    value, correct = parts.loss.measure(parts.model(inputs), targets)
                    sums, items = sums + float(value) * len(targets), items + len(targets)
                    classes = classes and correct is not None
                    right += 0 if correct is None else int(correct)
        except Speech3Error as error:
            raise error.restated(f"validation: {error}") from error
        except Exception as error:
            raise SettingError(
                f"validation: raised {type(error).__name__}: {error}; its items must be like those of dataset"
            ) from error
        finally:
            for module, mode in modes.items():
                module.training = mode
        if not items:
            raise SettingError("validation: is empty; leave it out")
        return sums / items, right / items if classes else None


def _import_in_server(training: TrainingConfig) -> None:
    """Let the server that forks workers import what they need while the arguments are checked."""
    process = {"shared": "backends.shared", "ddp": "backends.ddp", "sandblaster": "papers.sandblaster_workers"}
    if training.world in process:
        worker_context(at_once=["speech3.engine.fitting.fit", f"speech3.engine.{process[training.world]}"])


def _evaluated(model: nn.Module, prefix: str) -> tuple[str, ...]:
    """The modules that the caller has put into evaluation mode; none if it is the whole model, fresh from a test."""
    names = tuple(name for name, module in model.named_modules(prefix=prefix) if not module.training)
    return names if len(names) < len(list(model.modules())) else ()


def _gpus(training: TrainingConfig) -> list[int]:
    return list(range(torch.cuda.device_count())) if training.device.startswith("cuda") else []


def _own_optimizer(build: "Build", make: MakeOptimizer, schedule: str | MakeSchedule) -> OwnOptimizer:
    """Try the caller's optimizer, and run its schedule before training."""
    training, minibatches = build.training, len(build.source(torch.device("cpu")))
    if training.by_sandblaster:
        raise SettingError(
            "optimizer: sandblaster is L-BFGS, whose workers take no steps of their own; leave it out, or use another "
            "strategy"
        )
    if training.pushes_gradients:
        raise SettingError(
            "optimizer: the workers of this strategy push sums of gradients and take no steps with them; use "
            "optimizer='sgd', or a strategy with local updates, such as asgd"
        )
    tried, total = made(make, copy.deepcopy(build.model)), minibatches * training.max_epochs
    if callable(schedule):
        return OwnOptimizer(make, settings_of(tried, total, make=schedule))
    if schedule == "constant" and not training.warmup:
        return OwnOptimizer(make, settings_of(tried, 1))

    def factor(minibatch: int) -> float:
        epoch, number = divmod(minibatch, minibatches)
        return rate_of(1.0, epoch + 1, minibatches, training)(number)

    return OwnOptimizer(make, settings_of(tried, total, factor=factor))


def _identity(build: "Build", strategy: str, optimizer: Any, schedule: Any) -> dict[str, Any]:
    """The arguments that must be the same when training is resumed from a checkpoint."""
    training = build.training
    keys = {"learning_rate", "gradient_clip", "precision", "momentum", "weight_decay", "betas", "final_rate", "warmup"}
    return {
        "strategy": strategy,
        "seed": build.seed,
        "minibatch": training.minibatch,
        "accumulate": build.data.accumulate,
        "optimizer": _described(optimizer, build.model) if callable(optimizer) else optimizer,
        "schedule": "a function" if callable(schedule) else schedule,
        "minibatches of an epoch": len(build.source(torch.device("cpu"))),
        "simulate": training.world == "simulated",
        **training.model_dump(mode="json", include={*keys, "asgd", "codec", "lbfgs"}),
        "loss": arguments.described_loss(build.loss),
        **({RATES: _rates(build)} if callable(schedule) else {}),
        **{f"{kind} of the model": tensors for kind, tensors in layout(build.model).items()},
    }


def _rates(build: "Build") -> list[str]:
    """A digest of the learning rates of each epoch, which the caller's own schedule has set."""
    assert build.optimizer is not None
    found, minibatches = [], len(build.source(torch.device("cpu")))
    for epoch in range(build.training.max_epochs):
        numbers_T = np.arange(epoch * minibatches, (epoch + 1) * minibatches)
        rates = [group["lr"] for group in build.optimizer.settings.groups if "lr" in group]
        rows = [rates_T[np.minimum(numbers_T, len(rates_T) - 1)].astype(float).tobytes() for rates_T in rates]
        found.append(hashlib.sha256(b"".join(rows)).hexdigest()[:16])
    return found


def _described(make: MakeOptimizer, model: nn.Module) -> str:
    """The caller's own optimizer: its class, and the settings of each parameter group."""
    optimizer = made(make, copy.deepcopy(model))
    groups = [
        {name: str(value) for name, value in group.items() if name != "params"} for group in optimizer.param_groups
    ]
    return f"{type(optimizer).__name__} {groups}"


def _microbatch(inputs: Any, targets: Targets) -> tuple[Any, Targets]:
    return inputs.microbatches[0] if isinstance(inputs, Microbatches) else (inputs, targets)


def _try_out(parts: WorkerParts, inputs: Any, targets: Targets) -> bool:
    """Compute the first minibatch before any process is started; `parts` must not be used again.

    Returns whether accuracy can be measured; raises `Speech3Error` if the loss is faulty.
    """
    model = parts.model.model if isinstance(parts.model, ByName) else parts.model
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    unused, classes, tried = set(names), False, 0
    assert isinstance(parts.loss, MeanLoss)
    parts.begin_training()
    while unused and tried < min(_TRIES, len(parts.source)):
        if tried:
            inputs, targets = _microbatch(*parts.source.draw(1, tried))
        inputs, targets = moved(inputs, targets, parts.device)
        try:
            outputs = parts.model(inputs)
        except Exception as error:
            if isinstance(inputs, Named) and isinstance(error, TypeError):
                raise SettingError(
                    f"model: called with the entries of a minibatch as keyword arguments "
                    f"({', '.join(map(str, inputs))}): {error}; leave entries that the model does not take out of the "
                    f"items, in the dataset or by collate_fn"
                ) from error
            assert parts.explained is not None
            raise parts.explained(error, inputs) from error
        total, _ = parts.loss(outputs, targets)
        try:
            gradients = torch.autograd.grad(total, trained(parts.model), allow_unused=True)
        except Exception as error:
            assert parts.explained is not None
            raise parts.explained(error, inputs) from error
        unused -= {name for name, g in zip(names, gradients, strict=True) if g is not None}
        classes, tried = parts.loss.measure(outputs, targets)[1] is not None, tried + 1
    if unused:
        warnings.warn(
            f"model: in {tried} minibatches, the loss did not depend on {listed(sorted(unused), 5)}; freeze parameters "
            f"that are not to be trained (requires_grad_(False))",
            RuntimeWarning,
            stacklevel=3,
        )
    return classes


def _open(build: Build, opened: ExitStack) -> Trainer:
    training, parts = build.training, build.parts(build.training.device)
    assert isinstance(parts.source, Items | Stream)
    opened.callback(parts.source.close)
    clock = times_of(training.simulation, training.workers) if training.world == "simulated" else None
    # Workers start, each with a copy of what the caller passed: whatever cannot be copied is found out here.
    try:
        one, backend = open_backends(training, parts, build, clock=clock)
    except Speech3Error as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
            raise MachineError(
                "dataset: copying it to the workers needs an open file for each of its tensors, more than this system "
                "allows (ulimit -n); allow more, or use few large tensors, as in torch.utils.data.TensorDataset"
            ) from cause
        raise
    except Exception as error:
        data, own = build.data, build.optimizer
        loader = data.loader
        passed = {
            "model": build.model,
            "collate_fn": loader.collate_fn if loader else data.collate_fn,
            "worker_init_fn": loader.worker_init_fn if loader else None,
            "dataset": (data.dataset, loader),
            "loss": build.loss,
            "optimizer": own.make if own else None,
        }
        check_copies(passed, error)
        raise
    if backend:
        opened.callback(backend.close)
    return Trainer(one, backend, arguments.warm_start_of(training))


@torch.no_grad()
def _write_back(own: nn.Module, model: nn.Module) -> None:
    for there, here in zip(
        chain(own.parameters(), own.buffers()), chain(model.parameters(), model.buffers()), strict=True
    ):
        here.copy_(there)


def _with_items(error: Diverged, source: Items | Stream) -> Speech3Error:
    """The error, naming the minibatch's items that are not finite: the caller knows items, not minibatches."""
    found = source.not_finite(error.epoch, error.number)
    return DataError(f"{error}; not finite in the dataset: items {listed(map(str, found), 5)}" if found else str(error))
