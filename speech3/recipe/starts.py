"""Trained networks that the networks of a recipe start from (`init=MODEL`).

They are of another language or of more speech; the networks of the recipe get their architecture.
Much of what hidden layers learn holds for other speech, too (Huang et al. 2013; Ghahremani et al. 2017), and little
speech is enough to train output layers for other phones on top of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speech3.config import FeatureConfig, ModelConfig, RecipeConfig, load_preset, parse, read_yaml
from speech3.errors import SettingError
from speech3.io import FEATURES_FILE, MODEL_FILE, read_about
from speech3.runtime import say

LFMMI = "lfmmi"  # the system trained with LF-MMI, and the objective of its training
# Keys of features that may differ: recordings are converted to the model's rate, and statistics belong to the data.
_OF_DATA = {"sample_frequency", "resample", "mix_channels", "global_stats"}


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
        name: _read(directory, models[name], features[name], f"{LFMMI}." if name == LFMMI else "", recipe.sample_rate)
        for name, directory in directories.items()
    }


def _read(directory: Path, here: ModelConfig, preset: str, prefix: str, rate_hz: int | None) -> Start:
    from speech3.models import refuse_mean  # here, because these import PyTorch
    from speech3.train import FREE_KEYS

    file = directory / MODEL_FILE
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
