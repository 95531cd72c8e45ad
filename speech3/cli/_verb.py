"""What all verbs have in common: the form of their help, `-h`, `--quiet`, and what the shell completes."""

import functools
import inspect
import types
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo, OptionInfo

from speech3.io import HMM_FILE, MODEL_FILE
from speech3.runtime import be_quiet

HELP_NAMES = {"help_option_names": ["-h", "--help"]}


def _if_quiet(wanted: bool) -> None:
    if wanted:
        be_quiet()


Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", callback=_if_quiet, help="Print results and errors only: no progress, no notes.", metavar=""
    ),
]
_METAVARS = {int: "N", float: "X", Path: "FILE", bool: ""}  # of options that name none
Complete = Callable[[str], list[str]]
STAGES = ("data", "features", "hmm", "graph", "train", "decode", "adapted", "self", "rescore", "score", "report")
_MODEL_FILES = (MODEL_FILE, HMM_FILE)
_GROUPS = ("lfmmi", "flat", "hmm")  # groups of a recipe's keys that hold presets, too


class _Plain:
    """Help in which names of values are in upper case, flags have none, and arguments have no type beside them."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if param.param_type_name == "argument":
                vars(param)["display_type_rich"] = lambda ctx: None
            elif getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = ["[OPTIONS]"]
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                name = (param.metavar or param.name.upper()).removesuffix("...")
                name += "..." if param.nargs != 1 else ""
                pieces.append(name if param.required else f"[{name}]")
        return pieces


class Verb(_Plain, TyperCommand):
    """A verb of the program."""


class Group(_Plain, TyperGroup):
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "VERB ..."]


def quietable(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option `--quiet` to a verb, and metavars in upper case where an argument or option has none."""
    hints = get_type_hints(command, include_extras=True)
    if "quiet" in hints:
        return command
    for name, hint in hints.items():
        for info in getattr(hint, "__metadata__", ()):
            if isinstance(info, (ArgumentInfo, OptionInfo)) and info.metavar is None:
                info.metavar = _metavar(name, get_args(hint)[0], info)
    return with_flag(command, "quiet", Quiet)


def with_flag(command: Callable[..., None], name: str, annotation: Any) -> Callable[..., None]:
    """Add a flag to a verb, which does not see it: the flag's callback does what it says."""

    @functools.wraps(command)
    def verb(*args: Any, **options: Any) -> None:
        options.pop(name, None)
        command(*args, **options)

    own = inspect.signature(command)
    flag = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
    verb.__signature__ = own.replace(parameters=[*own.parameters.values(), flag])  # type: ignore[attr-defined]
    verb.__annotations__ = {**command.__annotations__, name: annotation}
    return verb


def _metavar(name: str, kind: Any, info: ArgumentInfo | OptionInfo) -> str | None:
    """The name of a value in the help; None where its choices are shown instead."""
    if get_origin(kind) in (Union, types.UnionType):  # X | None
        kind = next(each for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is list:
        kind = get_args(kind)[0]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return None
    return name.upper() if isinstance(info, ArgumentInfo) else _METAVARS.get(kind, name.upper())


_PRESETS = {"model": "models", "training": "training", "features": "features", "augment": "augment"}


def recipes(incomplete: str) -> list[str]:
    from speech3 import config

    return [name for name in config.recipes() if name.startswith(incomplete)]


def stages(incomplete: str) -> list[str]:
    return [stage for stage in STAGES if stage.startswith(incomplete)]


def backends(incomplete: str) -> list[str]:
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
    from speech3.config import RecipeConfig, TrainConfig, presets as presets_of

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


def preset(kind: str, about: str) -> OptionInfo:
    """An option whose value is a preset of ``conf/KIND``, or a file."""
    option: OptionInfo = typer.Option(metavar="PRESET", help=about, autocompletion=presets(kind))
    return option


def model(about: str) -> ArgumentInfo:
    """An argument that is a model directory."""
    argument: ArgumentInfo = typer.Argument(metavar="MODEL", help=about, autocompletion=models)
    return argument


# Parameters of several verbs.
DataDir = Annotated[Path, typer.Argument(metavar="DIR", help="Kaldi data directory.")]
Speech = Annotated[
    Path, typer.Argument(metavar="DIR", help="Kaldi data directory, or folder of recordings with transcripts.")
]
NewDataDir = Annotated[Path, typer.Argument(metavar="OUT", help="Data directory to write.")]
Model = Annotated[Path, model("Model directory, such as exp/digits/dnn.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes to CONF.", autocompletion=overrides)
]
Restart = Annotated[
    bool, typer.Option("--restart", help="Discard an earlier run in the same directory and begin again.")
]
Jobs = Annotated[int, typer.Option(help="Number of processes; 0: one per core.", min=0)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Tier = Annotated[
    str | None, typer.Option(metavar="NAME", help="Tier of the transcript in TextGrids and ELAN files; *: all tiers.")
]
Lang = Annotated[
    str | None,
    typer.Option(metavar="CODE", help="Pronounce unknown words with espeak-ng in this language, such as en-us."),
]
