"""Configs from YAML files, presets and key=value overrides; every error names its file and key."""

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import yaml
from pydantic import ValidationError

from speech3.config.base import Config
from speech3.config.features import FeatureConfig, read_conf
from speech3.config.models import TIME_DELAY, LstmConfig, ModelConfig
from speech3.config.stages import AugmentConfig
from speech3.config.training import TrainingConfig
from speech3.errors import FormatError, SettingError
from speech3.runtime import read_utf8

_ROOT = Path(__file__).resolve().parents[1]

C = TypeVar("C", bound=Config)
_PRESETS: dict[str, tuple[type[Config], str]] = {  # keys that may hold the name of a preset; its class and directory
    "model": (ModelConfig, "models"),
    "training": (TrainingConfig, "training"),
    "recurrent": (TrainingConfig, "training"),
    "time_delay": (TrainingConfig, "training"),
    "augment": (AugmentConfig, "augment"),
}
_REPLACEMENTS = ("recurrent", "time_delay")  # keys of a recipe that replace `training` for some kinds of models
_UNSET = {"", "~", "null"}
_GROUPS = {  # groups of a recipe's keys, each a system trained with LF-MMI, and their default presets
    "lfmmi": {"model": "cnn_tdnn", "training": "lfmmi"},
    "flat": {"model": "tdnn_flat", "training": "lfmmi_flat"},
}


def shipped(kind: Literal["conf", "recipes", "data"]) -> Path:
    """Directory of files that are shipped with speech3, in a checkout or in an installed wheel."""
    installed = _ROOT / f"_{kind}"
    return installed if installed.is_dir() else _ROOT.parent / kind


def presets(kind: str) -> list[str]:
    """Names of the presets in ``conf/<kind>/``."""
    return sorted(path.stem for path in (shipped("conf") / kind).glob("*.yaml"))


def recipes() -> dict[str, str]:
    """The recipes that are shipped with speech3: name and description, which is the first line of the file."""
    paths = sorted(shipped("recipes").glob("*/recipe.yaml"))
    return {path.parent.name: path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for path in paths}


def read_yaml(path: Path | str) -> dict[str, Any]:
    """Read a YAML mapping; errors name the file."""
    try:
        value = yaml.safe_load(read_utf8(path))
    except yaml.YAMLError as error:
        raise FormatError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(value, dict):
        raise FormatError(f"{path}: expected `key: value` lines, found {type(value).__name__}")
    return value


def parse(cls: type[C], values: dict[str, Any], source: Path | str) -> C:
    """Check `values` against the config class; the error lists every fault with `source` and its key."""
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        lines = [_explain(cls, values, fault, source) for fault in error.errors()]
        raise SettingError("\n".join(lines)) from error


def _explain(cls: type[Config], values: dict[str, Any], fault: Any, source: Path | str) -> str:
    key = ".".join(str(part) for part in fault["loc"]) or "(whole file)"
    if fault["type"] == "extra_forbidden":
        return f"{source}: unknown key {key!r}; known here: {', '.join(_keys_at(cls, values, fault['loc'][:-1]))}"
    if fault["type"] == "value_error" and isinstance(fault["input"], dict):  # the message names the keys concerned
        return f"{source}: {key}: {fault['ctx']['error']}"
    message = "Input should be a list, as in [0.9,1.1]" if fault["type"] == "tuple_type" else fault["msg"]
    got = "" if fault["type"] == "missing" else f" (got {fault['input']!r})"  # for "missing" it is the whole file
    return f"{source}: {key}: {message}{got}"


def _keys_at(cls: type[Config], values: Any, path: tuple[Any, ...]) -> list[str]:
    cls = _of_family(cls, values)
    for part in path:
        if isinstance(part, str):
            annotation = cls.model_fields[part].annotation if part in cls.model_fields else None
            annotation = next(iter(get_args(annotation)), annotation)  # the element type of a list
            if not (isinstance(annotation, type) and issubclass(annotation, Config)):
                break
            cls = annotation
        values = values[part]
        cls = _of_family(cls, values)
    return sorted(cls.model_fields)


def _of_family(cls: type[Config], values: Any) -> type[Config]:
    return cls.of_family(values) if issubclass(cls, ModelConfig) else cls


def load_preset(cls: type[C], kind: str, name: str) -> C:
    """Read preset `name` of ``conf/<kind>/``, or a YAML file if `name` is a path; for features also Kaldi's `.conf`."""
    if issubclass(cls, FeatureConfig) and name.endswith(".conf"):
        return parse(cls, read_conf(Path(name)), name)
    path = _preset_path(kind, name)
    if not path.exists():
        raise SettingError(f"{name}: neither a YAML file nor a preset of conf/{kind} ({', '.join(presets(kind))})")
    found = parse(cls, read_yaml(path), path)
    if isinstance(found, FeatureConfig) and found.adapted:
        raise SettingError(
            f"{path}: adapted: the last {found.adapted} values of a frame are made by the GMMs of a model, not by"
            " extraction; choose features without them"
        )
    return found


def _preset_path(kind: str, name: str) -> Path:
    return Path(name) if name.endswith((".yaml", ".yml")) else shipped("conf") / kind / f"{name}.yaml"


def training_overrides(name: str) -> list[str]:
    """The keys of a preset of ``conf/training`` as overrides, to apply on top of a config that keeps its other keys."""
    load_preset(TrainingConfig, "training", name)  # for its error messages
    return [f"training.{key}={json.dumps(value)}" for key, value in _leaves(read_yaml(_preset_path("training", name)))]


def _leaves(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{below}", leaf) for below, leaf in _leaves(value))
        else:
            yield key, value


def load_config(cls: type[C], path: Path | str, overrides: list[str] | None = None) -> C:
    """Read a config file and apply ``key.sub=value`` overrides.

    A string under ``model``, ``training``, ``recurrent``, ``time_delay`` or ``augment``, or under ``model`` and
    ``training`` of a recipe's groups ``lfmmi`` and ``flat``, names a preset; an override below it (``model.width=64``)
    changes a value of that preset. If a recipe's model is an LSTM or has time-delay layers, `recurrent` or `time_delay`
    replaces `training` before overrides of `training` are applied, unless the file has a `training` for a model of that
    kind.

    Raises Speech3Error: a file or preset is missing or not valid YAML, or a key or value is wrong; the message names
    both.
    """
    values = read_yaml(path)
    replacements = [key for key in _REPLACEMENTS if key in cls.model_fields]
    for key in replacements:
        values.setdefault(
            key, cls.model_fields[key].get_default(call_default_factory=True).model_dump(exclude_unset=True)
        )
    split = [(override, *_split(override)) for override in overrides or []]
    changes = [(override, keys, _value(cls, keys, text, override)) for override, keys, text in split]
    changes.sort(key=lambda change: len(change[1]))  # model=NAME before model.width=64, wherever it stands
    removed = [keys for _, keys, value in changes if value is None and len(keys) == 1]  # lfmmi=null, say
    changes = [change for change in changes if len(change[1]) == 1 or change[1][:1] not in removed]
    # The file's `training` is meant for its own model.
    own = _replacement(values) if replacements and "training" in values else None
    _fill_groups(values)
    for override, keys, value in changes:
        if keys[0] in _GROUPS and len(keys) > 1 and keys[0] in cls.model_fields:
            values[keys[0]] = values.get(keys[0]) or {}
            _fill_groups(values)
        as_it_is = len(keys) == 1 and keys[0] in _GROUPS and value == {} and values.get(keys[0])
        if keys[0] != "training" and not as_it_is:  # lfmmi={}: with LF-MMI, as the file has it if it does
            _set(values, keys, value, override)
            _fill_groups(values)
    if replacements and (replacement := _replacement(values)) and replacement != own:
        values["training"] = copy.deepcopy(values[replacement])  # a copy: overrides of training leave it alone
    for override, keys, value in changes:
        if keys[0] == "training":
            _set(values, keys, value, override)
    for key in _PRESETS:
        if isinstance(values.get(key), str):
            values[key] = _expand(key, values[key])
    return parse(cls, values, f"{path} with {' '.join(overrides)}" if overrides else path)


def _fill_groups(values: dict[str, Any]) -> None:
    """Replace the names of presets in each of `_GROUPS` by their keys; where none is given, use the default preset."""
    for name, presets_of in _GROUPS.items():
        group = values.get(name)
        if isinstance(group, dict):
            for key, preset in presets_of.items():
                if isinstance(given := group.get(key, preset), str):
                    group[key] = _expand(key, given)


def changed(config: C, prefix: str, overrides: list[str], source: Path | str) -> C:
    """A copy of a config, changed by overrides ``prefix.key=value``; errors as for `parse`."""
    values = {prefix: config.model_dump()}
    for override in overrides:
        keys, text = _split(override)
        if keys[0] != prefix or len(keys) == 1:
            known = ", ".join(f"{prefix}.{key}" for key in sorted(type(config).model_fields))
            raise SettingError(f"{override}: unknown key; known here: {known}")
        _set(values, keys, _value(type(config), keys[1:], text, override), override)
    return parse(type(config), values[prefix], f"{source} with {' '.join(overrides)}" if overrides else source)


def refuse_unused(overrides: Iterable[str], unused: Mapping[str, str]) -> None:
    """Refuse overrides of keys that have no effect; a file may have such keys, since it may have several uses.

    `unused`: such keys and groups of keys, and what each of them is for.
    """
    for override in overrides:
        key, _, value = override.partition("=")
        for name, purpose in unused.items():
            if (key == name and value.strip().lower() not in _UNSET) or key.startswith(f"{name}."):
                raise SettingError(f"{override}: has no effect here: {name} is for {purpose}; remove it")


def _split(override: str) -> tuple[list[str], str]:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise SettingError(f"{override}: an override has the form key=value, as in training.max_epochs=5")
    return key.split("."), text


def _value(cls: type[Config], keys: list[str], text: str, override: str) -> Any:
    """The value of an override: YAML, but what is not in quotes is taken as it is for a key that holds a string.

    So ``tier=*CHI`` (in YAML an alias) and ``lang=no`` (false) mean what they say; ``lang=null`` is none.
    """
    raw = text.strip()
    if _is_text(cls, keys) and raw.lower() not in ("", "~", "null") and raw[0] not in "'\"":
        return raw
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingError(f"{override}: not valid YAML: {error}") from error


def _is_text(cls: type[Config], keys: list[str]) -> bool:
    for group in keys[:-1]:
        kind = cls.model_fields[group].annotation if group in cls.model_fields else None
        below = [each for each in (kind, *get_args(kind)) if isinstance(each, type) and issubclass(each, Config)]
        if not below:
            return False
        cls = below[0]
    kind = cls.model_fields[keys[-1]].annotation if keys[-1] in cls.model_fields else None
    return kind is str or set(get_args(kind)) == {str, type(None)}


def _replacement(values: dict[str, Any]) -> str | None:
    model = values.get("model")
    if isinstance(model, str):
        model = _expand("model", model)
    family = ModelConfig.of_family(model) if isinstance(model, dict) else ModelConfig
    if issubclass(family, TIME_DELAY):
        return "time_delay"
    return "recurrent" if issubclass(family, LstmConfig) else None


def _expand(key: str, name: str) -> dict[str, Any]:
    cls, kind = _PRESETS[key]
    return load_preset(cls, kind, name).model_dump(exclude_unset=True)


def _set(values: dict[str, Any], keys: list[str], value: Any, override: str) -> None:
    here = values
    for index, key in enumerate(keys[:-1]):
        if isinstance(here.get(key), str) and index == 0 and key in _PRESETS:
            here[key] = _expand(key, here[key])
        if keys[: index + 1] == ["training", "codec"] and isinstance(here.get(key), str):
            here[key] = {"kind": here[key]}  # a codec may be given by its name alone
        if keys[: index + 1] in (["untranscribed"], ["pretrain"], ["negatives"]) and isinstance(here.get(key), str):
            here[key] = {"recordings": here[key]}
        if keys[index] == "pretraining" and isinstance(here.get(key), str):
            here[key] = {"task": here[key]}
        here = here.setdefault(key, {})
        if not isinstance(here, dict):
            raise SettingError(f"{override}: {'.'.join(keys[: index + 1])} is a value, not a group of keys")
    here[keys[-1]] = value
