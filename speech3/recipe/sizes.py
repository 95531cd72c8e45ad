"""The sizes of a recipe's networks, chosen by the amount of speech, or those of trained networks that they start from.

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

With `init=MODEL` networks start from trained ones of another language or of more speech (`find_starts`), and get their
architecture. Much of what hidden layers learn holds for other speech, too (Huang et al. 2013; Ghahremani et al. 2017),
and little speech is enough to train output layers for other phones on top of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from speech3.config import (
    Config,
    FeatureConfig,
    ModelConfig,
    RecipeConfig,
    TdnnConfig,
    TrainingConfig,
    load_preset,
    parse,
    read_yaml,
    unsized,
)
from speech3.errors import SettingError
from speech3.io import FEATURES_FILE, MODEL_FILE, read_about
from speech3.runtime import say

LFMMI = "lfmmi"  # the system trained with LF-MMI, and the objective of its training

_MANY_HOURS, _VERY_MANY_HOURS = 10, 100
# Keys of features that may differ: recordings are converted to the model's rate, and statistics belong to the data.
_OF_DATA = {"sample_frequency", "resample", "mix_channels", "global_stats"}
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


@dataclass(frozen=True)
class Start:
    """A trained network from which one of the recipe's networks starts: its directory, architecture and features."""

    directory: Path
    model: ModelConfig
    features: FeatureConfig

    @property
    def file(self) -> Path:
        return self.directory / MODEL_FILE


def find_starts(recipe: RecipeConfig) -> dict[str, Start]:
    """The network that each system of the recipe starts from: `lfmmi`, or the name of the recipe's model.

    `init` is a model directory, or the directory of a recipe's run, whose networks of the same names are taken.

    Raises `Speech3Error`: there is no such network, the recipe has none of its kind, or its features differ; the
    message says what to do.
    """
    if recipe.init is None:
        return {}
    path, senones = Path(recipe.init), recipe.model.system
    features = {} if recipe.hmm.flat_start == LFMMI else {senones: recipe.features}
    if recipe.lfmmi:
        features[LFMMI] = recipe.lfmmi.features
    if (path / MODEL_FILE).is_file():
        about = read_about(path / MODEL_FILE)
        name = LFMMI if about.get("objective") == LFMMI else senones
        if name not in features:
            how, remedy = ("with LF-MMI", "set lfmmi={}") if name == LFMMI else ("on senones", "remove hmm.flat_start")
            raise SettingError(f"init={path}: was trained {how}, but this recipe trains no such network: {remedy}")
        directories = {name: path}
    else:
        directories = {name: path / name for name in features if (path / name / MODEL_FILE).is_file()}
    if not directories:
        raise SettingError(
            f"init={path}: no trained network is there ({MODEL_FILE}): pass a model directory such as"
            f" exp/minilibri/lfmmi, or the directory of a recipe's run that has {' or '.join(features)}"
        )
    models = {senones: recipe.model, **({LFMMI: recipe.lfmmi.model} if recipe.lfmmi else {})}
    return {
        name: _read_start(directory, models[name], features[name], name, recipe.sample_rate)
        for name, directory in directories.items()
    }


def _read_start(directory: Path, here: ModelConfig, preset: str, name: str, rate_hz: int | None) -> Start:
    from speech3.models import refuse_mean  # here, because these import what training needs
    from speech3.train import FREE_KEYS

    file, prefix = directory / MODEL_FILE, f"{LFMMI}." if name == LFMMI else ""
    about = read_about(file)
    refuse_mean(file, about)
    if about.get("kind") != "nn" or "model" not in about:
        raise SettingError(f"init={directory}: holds no network of this version of speech3; pass one that does")
    there = parse(ModelConfig, about["model"], file)
    if there.system != here.system:
        raise SettingError(
            f"init={directory}: is a {there.system}, but {prefix}model is a {here.system}: set {prefix}model to a"
            f" {there.system}, or choose another init"
        )
    given = directory / FEATURES_FILE
    theirs = parse(FeatureConfig, read_yaml(given), given)
    if theirs.adapted:
        raise SettingError(
            f"init={directory}: reads features that it adapts to speakers, and {prefix}features={preset} are not"
            " adapted: choose a network that reads others, such as the one of the same family without sat_"
        )
    ours = load_preset(FeatureConfig, "features", preset)
    if differ := _differences(theirs.model_dump(), ours.model_dump(), _OF_DATA):
        raise SettingError(
            f"init={directory}: was trained on other features than {prefix}features={preset} ({differ}): set"
            f" {prefix}features={given}"
        )
    if rate_hz is not None and theirs.sample_frequency != rate_hz:
        raise SettingError(
            f"init={directory}: was trained on recordings of {theirs.sample_frequency} Hz, but sample_rate={rate_hz}:"
            f" set sample_rate={theirs.sample_frequency}"
        )
    if differ := _differences(there.model_dump(), here.model_dump(), FREE_KEYS):
        say(f"{prefix}model is changed to that of init={directory} ({differ})")
    kept = {key: value for key, value in here.model_dump().items() if key in FREE_KEYS}
    return Start(directory, parse(ModelConfig, {**there.model_dump(), **kept}, file), theirs)


def _differences(there: Mapping[str, Any], here: Mapping[str, Any], free: set[str]) -> str:
    differ = [key for key in here if key not in free and there.get(key) != here[key]]
    return ", ".join(f"{key} {there.get(key)} there, {here[key]} here" for key in differ)


def with_architectures(recipe: RecipeConfig, starts: Mapping[str, Start]) -> RecipeConfig:
    """The recipe whose networks have the architectures of those they start from."""
    changes: dict[str, Any] = {}
    for name, start in starts.items():
        if name == LFMMI:
            assert recipe.lfmmi is not None
            changes[LFMMI] = recipe.lfmmi.model_copy(update={"model": start.model})
        else:
            changes["model"] = start.model
    return recipe.model_copy(update=changes)
