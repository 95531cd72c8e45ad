"""What the shell completes: recipes, stages, presets, backends, keys, and the systems that were trained here."""

from collections.abc import Callable
from pathlib import Path

import typer

Complete = Callable[[str], list[str]]
STAGES = ("data", "features", "hmm", "graph", "train", "decode", "self", "score", "report")
_MODEL_FILES = ("model.safetensors", "hmm.json")
_PRESETS = {"model": "models", "training": "training", "features": "features", "augment": "augment"}
_GROUPS = ("lfmmi", "flat", "hmm")  # groups of a recipe's keys that hold presets, too


def recipes(incomplete: str) -> list[str]:
    """Names of recipes."""
    from speech3.config import shipped

    names = sorted(path.parent.name for path in shipped("recipes").glob("*/recipe.yaml"))
    return [name for name in names if name.startswith(incomplete)]


def stages(incomplete: str) -> list[str]:
    """Stages of a recipe."""
    return [stage for stage in STAGES if stage.startswith(incomplete)]


def backends(incomplete: str) -> list[str]:
    """Values of `training.world`."""
    from typing import get_args

    from speech3.config import TrainingConfig

    worlds = get_args(TrainingConfig.model_fields["world"].annotation)
    return [world for world in worlds if world.startswith(incomplete)]


def presets(kind: str, *, several: bool = False) -> Complete:
    """Presets of ``conf/KIND``; with `several`, of a list whose names are separated by commas."""

    def complete(incomplete: str) -> list[str]:
        from speech3.config import presets as presets_of

        before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        return [f"{before}{comma}{name}" for name in presets_of(kind) if name.startswith(last)]

    return complete


def overrides(ctx: typer.Context, incomplete: str) -> list[str]:
    """``key=`` of a recipe or of a training config, and presets as the values of keys that hold one."""
    from speech3.config import RecipeConfig, TrainConfig
    from speech3.config import presets as presets_of

    before: list[str] = list(ctx.params.get("overrides") or [])
    # Bash splits words at =, and replaces only what follows it.
    if incomplete == "" and before and "=" not in before[-1]:
        before.append("=")
    if before[1:] and before[-1] == "=":
        return [name.partition("=")[2] for name in _values(before[-2], incomplete, presets_of)]
    key, equals, value = incomplete.partition("=")
    if equals:
        return _values(key, value, presets_of)
    keys = {**RecipeConfig.model_fields, **TrainConfig.model_fields}
    return [f"{name}=" for name in sorted(keys) if name.startswith(key)]


def _values(key: str, value: str, presets_of: Callable[[str], list[str]]) -> list[str]:
    group, _, last = key.rpartition(".")
    kind = _PRESETS.get(last.removeprefix("aligner_"))
    if kind is None or group not in ("", *_GROUPS):
        return []
    return [f"{key}={name}" for name in presets_of(kind) if name.startswith(value)]


def models(incomplete: str) -> list[str]:
    """Model directories below ``exp/`` and below the directory that was typed; empty: the shell completes files."""
    typed = Path(incomplete if incomplete.endswith("/") else Path(incomplete).parent) if incomplete else Path("exp")
    found: set[str] = set()
    for pattern in ("*", "*/*"):
        for file in _MODEL_FILES:
            found |= {str(path.parent) for path in typed.glob(f"{pattern}/{file}")}
    return sorted(path for path in found if path.startswith(incomplete))
