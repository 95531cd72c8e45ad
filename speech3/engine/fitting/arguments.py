"""The arguments of `fit`: the training config of a named strategy, and checks of what the caller passes.

A strategy is plain SGD, PyTorch's DDP, or a preset of ``conf/training``. It takes from the preset the backend and
number of workers (`world`, `workers`), the settings of shards and server (`asgd`), of the codec (`codec`) and of L-BFGS
(`lbfgs`), momentum (`momentum`), and what keeps full pushes stable (`warmup`, `gradient_clip`). The preset's learning
rate, schedule and minibatch were chosen for speech and are not used.
"""

import copy
import hashlib
import math
import multiprocessing
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from numbers import Integral
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from speech3.config import TrainingConfig, load_preset, parse
from speech3.engine.fitting.dataset import Data
from speech3.engine.fitting.loading import no_copy
from speech3.engine.flat import trained
from speech3.engine.gradient import device_of
from speech3.engine.trainer import check_epoch, check_workers, simulated_strategy
from speech3.errors import SettingError, Speech3Error, listed

# The keys that a strategy takes from its preset; the others were chosen for speech.
_OF_PRESETS = {"world", "workers", "asgd", "codec", "lbfgs", "momentum", "warmup", "gradient_clip"}
_ASYNCHRONOUS = ("asgd", "asgd_speech3", "asgd_zhang", "asgd_ternary", "downpour", "downpour_adagrad")
STRATEGIES = ("sgd", "ddp", "terngrad_ddp", "terngrad_momentum", *_ASYNCHRONOUS, "sandblaster")
_NUMBERS = ("betas", "momentum", "weight_decay", "final_rate", "warmup", "threads", "cuda_graph")
OPTIONS = ("asgd", "codec", "lbfgs", *_NUMBERS, "simulation", "cluster")
_ARGUMENTS = ("optimizer", "schedule", "gradient_clip", "precision", "learning_rate", "minibatch", "workers", "device")
_COMPUTE_S, _SYNC_S = 1.0, 0.06  # on the virtual clock; a sync was measured to take 6 % of the time of a minibatch


def config_of(
    strategy: str, options: Mapping[str, Any], *, simulate: bool, own: bool, **arguments: Any
) -> TrainingConfig:
    """The config of a call of `fit`; `arguments` are keys of `training`, None where the preset's value is used.

    `own`: the optimizer is the caller's.

    Raises `Speech3Error` if the strategy, an argument or an option is unknown or out of range.
    """
    if strategy not in STRATEGIES:
        raise SettingError(f"strategy={strategy!r}: unknown; known here: {', '.join(STRATEGIES)}")
    if arguments_of_fit := [name for name in _ARGUMENTS if name in options]:
        raise SettingError(f"options: {', '.join(arguments_of_fit)}: pass it as an argument of fit, not in options")
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise SettingError(f"options: unknown {', '.join(unknown)}; known here: {', '.join(OPTIONS)}")
    if arguments.get("precision") == "auto":
        raise SettingError("precision=auto is for speech3 train; use float32, tf32 or bf16")
    clock = options.get("simulation") or {}
    if clock and not simulate:
        raise SettingError("options: simulation sets the virtual clock, which needs simulate=True")
    if "strategy" in clock:
        raise SettingError("options: simulation.strategy is set by the argument strategy; remove it")
    if arguments.get("schedule") == "halving":
        raise SettingError(
            "schedule=halving depends on a held-out loss, as in speech3 train; use constant, exponential or cosine, "
            "and early stopping by on_epoch"
        )
    # The preset of the strategy, then the arguments, then the options.
    ddp = strategy == "ddp"
    preset = TrainingConfig(world="ddp", workers=2) if ddp else load_preset(TrainingConfig, "training", strategy)
    if preset.momentum and (own or arguments.get("optimizer") != "sgd"):
        raise SettingError(
            f"optimizer: strategy={strategy!r} is SGD with momentum; leave optimizer out, or use the strategy without "
            f"momentum of its own ({strategy.replace('momentum', 'ddp')})"
        )
    given = {name: value for name, value in arguments.items() if value is not None}
    values = _merged({"schedule": "constant", **preset.model_dump(include=_OF_PRESETS), **given}, options)
    if arguments.get("gradient_clip") == math.inf:
        values["gradient_clip"] = None
    if simulate:
        how = "synchronous" if preset.world == "sgd" else simulated_strategy(preset)
        values["world"] = "simulated"
        values["simulation"] = {"compute_s": _COMPUTE_S, "sync_s": _SYNC_S, **clock, "strategy": how}
    if "cluster" in options:  # the workers are on the hosts of a Ray cluster
        if simulate or preset.world != "shared":
            raise SettingError(
                f"options: cluster is for asynchronous workers ({', '.join(_ASYNCHRONOUS)}) that are not simulated; "
                f"remove it, or change strategy={strategy!r}"
            )
        values["world"] = "cluster"
    training = parse(TrainingConfig, values, f"fit(strategy={strategy!r})")
    # What the strategy would ignore in silence.
    for name, purpose in training.unused.items():
        if name in options:
            raise SettingError(
                f"options: {name} has no effect here: it is for {purpose} (strategy={strategy!r}); remove it"
            )
    if strategy == "sgd" and training.workers > 1:
        raise SettingError(f"workers={training.workers}: strategy sgd has one; leave workers out, or use asgd or ddp")
    return training


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def check_guard() -> None:
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SettingError(
            "fit was called by one of its own worker processes, when that imported your script: put the call under "
            '`if __name__ == "__main__":`'
        )


def check_kinds(options: Any, **callbacks: Any) -> None:
    if not (options is None or isinstance(options, Mapping)):
        raise SettingError(f"options: is a {type(options).__name__}; pass a dictionary of keys of training")
    for name, callback in callbacks.items():
        if not (callback is None or callable(callback)):
            raise SettingError(f"{name}: is a {type(callback).__name__}; pass a function of one argument")


def check_numbers(**arguments: int | None) -> None:
    for name, value in arguments.items():
        if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
            raise SettingError(f"{name}={value!r}: must be a whole number of at least 1")


def check_optimizer(optimizer: Any, schedule: Any, learning_rate: float | None, options: Mapping[str, Any]) -> bool:
    """Refuse arguments that contradict each other; returns whether the optimizer is the caller's own."""
    if isinstance(optimizer, torch.optim.Optimizer):
        raise SettingError(
            f"optimizer: is a {type(optimizer).__name__} of one model, but every worker has a copy of the model; pass "
            f"a function that makes it, for example functools.partial(torch.optim.{type(optimizer).__name__}, lr=1e-3)"
        )
    if not callable(optimizer):
        if callable(schedule):
            raise SettingError(
                "schedule: a scheduler needs an optimizer of torch.optim; pass that as a function, too, for example "
                "optimizer=functools.partial(torch.optim.SGD, lr=0.1), or a schedule by its name"
            )
        return False
    if learning_rate is not None:
        raise SettingError(
            f"learning_rate={learning_rate}: your own optimizer has its learning rate; set lr there, and remove this"
        )
    if inside := sorted({"momentum", "weight_decay", "betas"} & set(options)):
        raise SettingError(f"options: {', '.join(inside)}: your own optimizer has its own; set it there")
    return True


def check_training(model: nn.Module, data: Data, training: TrainingConfig, seed: int) -> None:
    """Refuse arguments that make training impossible, at all or with this number of workers."""
    device_of(training.device)
    if not isinstance(seed, Integral) or seed < 0:
        raise SettingError(f"seed={seed!r}: must be a whole number of at least 0")
    _check_model(model)
    if data.stream and training.by_sandblaster:
        raise SettingError(
            "dataset: sandblaster reads the minibatches again and again, in any order, which a stream cannot do; make "
            "a list of the items of the IterableDataset, or use another strategy"
        )
    if data.accumulate > 1 and training.cuda_graph:
        raise SettingError("accumulate: a minibatch in parts cannot be recorded; set options cuda_graph to false")
    workers, minibatches = training.workers, len(data.source(seed, torch.device("cpu"), own_loss=False))
    if workers > minibatches:
        items = "" if data.stream else f"{len(data.dataset)} items by "
        parts = f", accumulate={data.accumulate}" if data.accumulate > 1 else ""
        raise SettingError(
            f"workers={workers}: an epoch has only {minibatches} minibatches ({items}minibatch={training.minibatch}"
            f"{parts}); use fewer workers, or smaller minibatches"
        )
    check_workers(training)
    check_epoch(training, minibatches, warm_start_of(training))


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise SettingError(f"model: a {type(model).__name__} is not a torch.nn.Module")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise SettingError(f"model: {name} has no shape yet; call the model once with an input of the dataset")
        if parameter.requires_grad and parameter.dtype != torch.float32:
            remedy = "use model.float()"
            if parameter.is_complex():
                remedy = "make it a parameter of its real and imaginary parts (torch.view_as_complex in forward)"
            raise SettingError(f"model: {name} is {parameter.dtype}, but the engine trains float32; {remedy}")
    if not trained(model):
        raise SettingError("model: has no parameter with requires_grad=True; there is nothing to train")


def check_loss(loss: Any) -> None:
    """Refuse what is no loss, and a loss with parameters to train: only those of the model are trained."""
    if isinstance(loss, type):
        raise SettingError(f"loss: is the class {loss.__name__}, not a loss; pass {loss.__name__}()")
    if loss is not None and not callable(loss):
        raise SettingError(
            f"loss={loss!r}: is no function; pass one of outputs and targets, such as CrossEntropyLoss()"
        )
    for module in _modules_of(loss):
        if names := [name for name, parameter in module.named_parameters() if parameter.requires_grad]:
            raise SettingError(
                f"loss: {listed([f'{type(module).__name__}.{name}' for name in names], 5)} would not be trained, as "
                f"only the parameters of the model are; make {type(module).__name__} a part of the model, which then "
                f"returns what it computes, or freeze its parameters (requires_grad_(False))"
            )


def described_loss(loss: Any) -> str:
    """Which loss it is, as far as that can be told, for a training that is resumed.

    Of modules the class and the settings that are numbers and words, and a digest of the buffers (weights of classes);
    of a partial, its function and arguments.
    """
    if isinstance(loss, partial):
        arguments = [*map(described_loss, loss.args), *(f"{k}={described_loss(v)}" for k, v in loss.keywords.items())]
        return f"partial({', '.join([described_loss(loss.func), *arguments])})"
    if isinstance(loss, nn.Module):
        of_tensors = hashlib.sha256()
        for name, value in loss.state_dict().items():
            of_tensors.update(name.encode())
            if isinstance(value, Tensor) and value.layout == torch.strided:
                of_tensors.update(value.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        parts = [f"{name} {_qualified(type(each))} {_settings(each)}" for name, each in loss.named_modules()]
        return " ".join([re.sub(r" at 0x\w+", "", repr(loss)), *parts, of_tensors.hexdigest()[:16]])
    if loss is None or isinstance(loss, int | float | str):
        return repr(loss)
    return _qualified(loss) if hasattr(loss, "__qualname__") else _qualified(type(loss))


def _qualified(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _settings(module: nn.Module) -> dict[str, Any]:
    """The public attributes of a module that are numbers or words; its mode is none of its settings."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, int | float | str) and name != "training" and not name.startswith("_")
    }


def _modules_of(function: Any, seen: tuple[Any, ...] = ()) -> Iterator[nn.Module]:
    """The modules that a loss is made of: itself, its attributes, or what a method, partial or closure refers to."""
    if isinstance(function, nn.Module):
        yield function
        return
    within = [getattr(function, "__self__", None), *getattr(function, "__dict__", {}).values()]
    within += [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _filled(cell)]
    if isinstance(function, partial):
        within += [function.func, *function.args, *function.keywords.values()]
    for each in within:
        if isinstance(each, nn.Module | partial | FunctionType | MethodType) and each not in seen:
            yield from _modules_of(each, (*seen, function))


def _filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # the name has no value yet
        return False


def warm_start_of(training: TrainingConfig) -> float:
    return training.asgd.warm_start if training.asynchronous else 0.0


def copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model).cpu()
    except Exception as error:
        raise SettingError(no_copy("model", error)) from error


@contextmanager
def as_arguments(*, own: bool) -> Iterator[None]:
    """Make errors name the arguments and `options` of `fit`: the engine's errors name keys of ``training``."""
    try:
        yield
    except Speech3Error as error:
        text = str(error).replace("--world simulated", "simulate=True")
        text = re.sub(r"(?<![\w./])training\.(max_(?=epochs\b))?(?=[a-z])", "", text)
        if own:
            text = re.sub(r"the learning rate \([^)]*\)", "the learning rate", text)
            text = text.replace("lower learning_rate", "lower the lr of your optimizer")
        raise error.restated(text) from error.__cause__
