"""The sizes of a recipe's networks and of their training, chosen by the amount of speech.

Where a recipe has 0, sizes of networks and of their training follow from the amount of speech. For two hours they are
those that were measured (`recipes/minilibri`): a DNN of 4 x 512, a CNN-TDNN of 384, minibatches of 256 frames, 14
epochs, one worker. Up to ten hours epochs, minibatch and workers stay the same. For more speech nothing was measured;
the formulas lead to sizes that others have published:

- width of a DNN: 512 (hours / 2)^(1/3), from 256 to 2,048; at 130 hours that is about the 2,048 of Zhang et al. 2013;
- width of a CNN-TDNN: 384 (hours / 2)^(1/4), from 256 to 1,536; 1,536 is that of Kaldi's recipe for LibriSpeech. Its
  bottleneck is a quarter of that, at most 160; its last layer a half, at most 256;
- minibatch: 256 frames below 10 hours, 512 below 100, then 1,024;
- epochs, at most: 14 up to 10 hours, then 14 (10 / hours)^0.12, 8 for 1,000 hours;
- workers, on CPUs: 1 below 10 hours, 4 below 100, then 8, but not more than `jobs`; several share memory and push
  asynchronously, with a push scale of 1/workers, after one pass of plain SGD. LF-MMI has one.

GMMs, trees and passes of LF-MMI: `speech3.hmm.sizes`.
"""

from typing import Any

from speech3.config import Config, ModelConfig, RecipeConfig, TdnnConfig, TrainingConfig, unsized

_MANY_HOURS, _VERY_MANY_HOURS = 10, 100


def open_sizes(recipe: RecipeConfig) -> list[str]:
    """The keys of networks and their training whose values follow the amount of speech."""
    groups: dict[str, Config] = {"model": recipe.model, "training": recipe.training}
    if recipe.lfmmi:
        groups |= {"lfmmi.model": recipe.lfmmi.model, "lfmmi.training": recipe.lfmmi.training}
    found = []
    for name, config in groups.items():
        keys = unsized(name, config)
        if keys and isinstance(config, TdnnConfig):
            keys += [f"{name}.bottleneck", f"{name}.prefinal"]
        if f"{name}.workers" in keys:
            keys.append(f"{name}.world")
        found += keys
    return found


def with_sizes(recipe: RecipeConfig, hours: float, jobs: int) -> RecipeConfig:
    """The recipe with all sizes chosen, for `hours` of training speech (above 0) and at most `jobs` workers."""
    changed: dict[str, Any] = {
        "model": _model(recipe.model, hours),
        "training": _training(recipe.training, hours, jobs),
    }
    if lfmmi := recipe.lfmmi:
        sized = {"model": _model(lfmmi.model, hours), "training": _training(lfmmi.training, hours, 1)}
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
    """The number of workers for training a network, if there are as many cores."""
    return 1 if hours < _MANY_HOURS else 4 if hours < _VERY_MANY_HOURS else 8


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
    if not training.workers:
        on_cores = training.world == "sgd" and training.device == "cpu"
        found["workers"] = workers = min(most_workers(hours), max(1, jobs)) if on_cores else 1
        if workers > 1:
            found["world"] = "shared"
    return training.model_copy(update=found)
