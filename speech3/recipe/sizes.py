"""The sizes of a recipe's networks and of their training, chosen by the amount of speech.

Where a recipe has 0, sizes of networks and of their training follow from the amount of speech. For two hours they are
those that were measured (`recipes/minilibri`): a DNN of 4 x 512, a CNN-TDNN of 384, minibatches of 256 frames, 14
epochs. Up to ten hours epochs and minibatch stay the same. For more speech nothing was measured; the formulas lead to
sizes that others have published:

- width of a DNN: 512 (hours / 2)^(1/3), from 256 to 2,048; at 130 hours that is about the 2,048 of Zhang et al. 2013;
- width of a CNN-TDNN: 384 (hours / 2)^(1/4), from 256 to 1,536; 1,536 is that of Kaldi's recipe for LibriSpeech. Its
  bottleneck is a quarter of that, at most 160; its last layer a half, at most 256;
- minibatch: 256 frames below 10 hours, 512 below 100, then 1,024;
- epochs, at most: 14 up to 10 hours, then 14 (10 / hours)^0.12, 8 for 1,000 hours.

Networks train asynchronously in shared memory, with a worker for each core (at most `jobs`) or GPU, unless the recipe
says otherwise: at most 2 below 10 hours, 4 below 100, then 8. Every minibatch is pushed whole, as soon as the server is
free, from the first one on: with two workers this has the word error rates of one (`recipes/minilibri/RESULTS.md`).

GMMs, trees and passes of LF-MMI: `speech3.hmm.train`.
"""

from collections.abc import Sequence
from typing import Any

import torch

from speech3.config import Config, ModelConfig, RecipeConfig, TdnnConfig, TrainingConfig, unsized

_MANY_HOURS, _VERY_MANY_HOURS = 10, 100
_PUSHES = {"warm_start": 0.0, "sync_every": 1, "push_scale": 1.0}  # of training.asgd


def open_sizes(recipe: RecipeConfig) -> list[str]:
    """The keys of networks and their training whose values follow the amount of speech, or the machine."""
    found = size_keys(recipe)
    return [*found, *(key for key in workers_keys(recipe, tuple(_PUSHES)) if key not in found)]


def size_keys(recipe: RecipeConfig) -> list[str]:
    """Those of them that the recipe has as 0."""
    groups: dict[str, Config] = {"model": recipe.model, "training": recipe.training}
    if recipe.lfmmi:
        groups |= {"lfmmi.model": recipe.lfmmi.model, "lfmmi.training": recipe.lfmmi.training}
    found = []
    for name, config in groups.items():
        keys = unsized(name, config)
        if keys and isinstance(config, TdnnConfig):
            keys += [f"{name}.bottleneck", f"{name}.prefinal"]
        found += keys
    return found


def workers_keys(recipe: RecipeConfig, pushes: Sequence[str] = ()) -> list[str]:
    """The keys of the workers of networks, where the recipe leaves these to the amount of speech and the machine.

    `pushes`: keys of `training.asgd` that count among them unless the recipe has them.
    """
    groups = {"training": recipe.training} | ({"lfmmi.training": recipe.lfmmi.training} if recipe.lfmmi else {})
    found = []
    for name, group in groups.items():
        if _open_workers(group):
            found += [f"{name}.workers", f"{name}.world"]
            found += [f"{name}.asgd.{key}" for key in pushes if key not in group.asgd.model_fields_set]
    return found


def with_sizes(recipe: RecipeConfig, hours: float, jobs: int) -> RecipeConfig:
    """The recipe with all sizes chosen, for `hours` of training speech (above 0) and at most `jobs` workers."""
    changed: dict[str, Any] = {
        "model": _model(recipe.model, hours),
        "training": _training(recipe.training, hours, jobs),
    }
    if lfmmi := recipe.lfmmi:
        sized = {"model": _model(lfmmi.model, hours), "training": _training(lfmmi.training, hours, jobs)}
        changed["lfmmi"] = lfmmi.model_copy(update=sized)
    return recipe.model_copy(update=changed)


def described(recipe: RecipeConfig) -> str:
    """The sizes of a recipe's networks and of their training, in words."""
    training, widths = recipe.training, {recipe.model.system: getattr(recipe.model, "width", None)}
    if recipe.lfmmi:
        widths["lfmmi"] = getattr(recipe.lfmmi.model, "width", None)
    wide = [f"{system} {width} wide" for system, width in widths.items() if width]
    workers = f"{training.workers} worker{'s' * (training.workers > 1)}"
    return ", ".join([*wide, f"minibatch {training.minibatch}", f"{training.max_epochs} epochs at most", workers])


def most_workers(hours: float) -> int:
    """The number of workers for training a network, if there are as many cores or GPUs."""
    return 2 if hours < _MANY_HOURS else 4 if hours < _VERY_MANY_HOURS else 8


def _open_workers(training: TrainingConfig) -> bool:
    """Whether a recipe leaves the number of workers open: it has no world, and no number or 0."""
    given = training.model_fields_set
    return "world" not in given and (not training.workers or "workers" not in given)


def _model(model: ModelConfig, hours: float) -> ModelConfig:
    if not unsized("", model):
        return model
    if isinstance(model, TdnnConfig):
        width = _multiple(384 * (hours / 2) ** (1 / 4), 32, 256, 1536)
        sizes = {"width": width, "bottleneck": min(width // 4, 160), "prefinal": min(width // 2, 256)}
        return model.model_copy(update=sizes)
    return model.model_copy(update={"width": _multiple(512 * (hours / 2) ** (1 / 3), 64, 256, 2048)})


def _multiple(value: float, of: int, least: int, most: int) -> int:
    return max(least, min(most, of * round(value / of)))


def _training(training: TrainingConfig, hours: float, jobs: int) -> TrainingConfig:
    found: dict[str, Any] = {}
    if not training.minibatch:
        found["minibatch"] = 256 if hours < _MANY_HOURS else 512 if hours < _VERY_MANY_HOURS else 1024
    if not training.max_epochs:
        found["max_epochs"] = 14 if hours < _MANY_HOURS else max(6, round(14 * (_MANY_HOURS / hours) ** 0.12))
    if _open_workers(training):
        processors = {"cpu": jobs // training.threads, "cuda": torch.cuda.device_count()}.get(training.device, 1)
        found["workers"] = workers = max(1, min(most_workers(hours), processors // training.model_partitions))
        found["world"] = "shared" if workers > 1 else "sgd"
        # Also for one worker: the settings do not depend on the machine.
        given = training.asgd.model_fields_set
        pushes = {key: value for key, value in _PUSHES.items() if key not in given}
        found["asgd"] = training.asgd.model_copy(update=pushes)
    elif not training.workers:
        found["workers"] = 1
    return training.model_copy(update=found)
