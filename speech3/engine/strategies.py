"""The training config of a named strategy, for `speech3.engine.fit`.

A strategy is plain SGD, PyTorch's DDP, or a preset of ``conf/training``. It takes from the preset the world and number
of workers (`world`, `workers`), the settings of shards and server (`asgd`), of the codec (`codec`) and of L-BFGS
(`lbfgs`), and what keeps full pushes stable (`warmup`, `gradient_clip`). The preset's learning rate, schedule and
minibatch were chosen for speech and are not used.
"""

import math
from collections.abc import Mapping
from typing import Any

from speech3.config import TrainingConfig, load_preset, parse
from speech3.engine.opening import asynchronous, own_method
from speech3.errors import Speech3Error

_OF_PRESETS = {
    "world",
    "workers",
    "asgd",
    "codec",
    "lbfgs",
    "warmup",
    "gradient_clip",
}  # the other keys of presets were chosen for speech
STRATEGIES = (
    "sgd", "ddp", "terngrad_ddp", "asgd", "asgd_speech3", "asgd_zhang", "asgd_ternary", "downpour", "downpour_adagrad",
    "sandblaster",
)  # fmt: skip
OPTIONS = (
    "asgd", "codec", "lbfgs", "betas", "momentum", "weight_decay", "final_rate", "warmup", "threads", "cuda_graph",
    "simulation",
)  # fmt: skip
_ARGUMENTS = ("optimizer", "schedule", "gradient_clip", "precision", "learning_rate", "minibatch", "workers", "device")
_COMPUTE_S, _SYNC_S = 1.0, 0.06  # on the virtual clock; a sync was measured to take 6 % of the time of a minibatch


def config_of(strategy: str, options: Mapping[str, Any], *, simulate: bool, **arguments: Any) -> TrainingConfig:
    """The config of a call of `fit`; `arguments` are keys of `training`, None where the preset's value is used.

    Raises
    ------
    Speech3Error
        The strategy, an argument or an option is unknown or out of range.
    """
    if strategy not in STRATEGIES:
        raise Speech3Error(f"strategy={strategy!r}: unknown; known here: {', '.join(STRATEGIES)}")
    if arguments_of_fit := [name for name in _ARGUMENTS if name in options]:
        raise Speech3Error(f"options: {', '.join(arguments_of_fit)}: give it as an argument of fit, not in options")
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise Speech3Error(f"options: unknown {', '.join(unknown)}; known here: {', '.join(OPTIONS)}")
    for name in ("workers", "max_epochs", "minibatch"):
        if (value := arguments[name]) is not None and not (isinstance(value, int) and value >= 1):
            raise Speech3Error(f"{name.removeprefix('max_')}={value!r}: must be a whole number of at least 1")
    if arguments.get("precision") == "auto":
        raise Speech3Error("precision=auto is for speech3 train; give float32, tf32 or bf16")
    clock = options.get("simulation") or {}
    if clock and not simulate:
        raise Speech3Error("options: simulation sets the virtual clock, which needs simulate=True")
    if "method" in clock:
        raise Speech3Error("options: simulation.method is set by the strategy; remove it")
    if arguments.get("schedule") == "halving":
        raise Speech3Error(
            "schedule=halving depends on a held-out loss, as in speech3 train; use constant, exponential or cosine, "
            "and early stopping by on_epoch"
        )
    preset = TrainingConfig(world="ddp", workers=2) if strategy == "ddp" else load_preset(
        TrainingConfig, "training", strategy
    )  # fmt: skip
    given = {name: value for name, value in arguments.items() if value is not None}
    values = _merged({"schedule": "constant", **preset.model_dump(include=_OF_PRESETS), **given}, options)
    if arguments.get("gradient_clip") == math.inf:
        values["gradient_clip"] = None
    if simulate:
        method = "synchronous" if preset.world == "sgd" else own_method(preset)
        values["world"] = "simulated"
        values["simulation"] = {"compute_s": _COMPUTE_S, "sync_s": _SYNC_S, **clock, "method": method}
    training = parse(TrainingConfig, values, f"fit(strategy={strategy!r})")
    _check_used(strategy, options, training)
    if strategy == "sgd" and training.workers > 1:
        raise Speech3Error(f"workers={training.workers}: strategy sgd has one; leave workers out, or use asgd or ddp")
    return training


def _check_used(strategy: str, options: Mapping[str, Any], training: TrainingConfig) -> None:
    """Refuse options that would have no effect."""
    needed = {
        "asgd": ("an asynchronous strategy, such as asgd", asynchronous(training)),
        "lbfgs": ("strategy sandblaster", training.by_sandblaster),
        "betas": ("optimizer adamw or muon", training.optimizer != "sgd"),
        "final_rate": ("schedule exponential", training.schedule == "exponential"),
    }
    for name, (what, used) in needed.items():
        if name in options and not used:
            raise Speech3Error(f"options: {name} has no effect here, as it needs {what} (strategy={strategy!r})")


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both else value
    return merged
