"""Fine-tuning: a run that starts from the parameters of a trained model instead of random ones.

With the same senones all parameters are kept. With different senones the output layer is new, drawn from the seed as in
any run, and the layers below it are kept: what they have learnt is useful for another language or another tree as well.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from speech3.config import FeatureConfig, LstmConfig, ModelConfig, TrainConfig, parse, read_yaml
from speech3.errors import DataError, FormatError, MismatchError, MissingError, Speech3Error
from speech3.frames import PackedFrames
from speech3.hmm import Hmm, PdfsOnly, load_outputs, output_difference
from speech3.io import FEATURES_FILE, HMM_FILE, MODEL_FILE, load_tensors, read_about
from speech3.models import refuse_mean
from speech3.runtime import say
from speech3.train.parts import num_outputs

_OUTPUT = ("output.", "xent_output.")  # prefixes of the names of the output layers' tensors, in every family
_SECOND = ("xent_output.", "xent_prefinal.")  # of those that only a network with `two_outputs` has
# Keys that may differ, as no parameter depends on them.
FREE_KEYS = {"dropout", "time_dropout", "dropout_per_chunk", "cell_clip", "lookahead", "subsampling", "two_outputs"}
_CONTEXT = ("left_context", "right_context")  # may grow in recurrent networks
_FIRST_CELLS = [f"layers.0.{direction}.weight_ih" for direction in ("ahead", "back")]


@dataclass(frozen=True, eq=False)
class Init:
    """A trained model to start from.

    `tensors`: parameters and buffers to keep; without those of the output layer if the senones differ. `senones`:
    whether they are the same, or how they differ, in words. `digest`: of the file, which identifies runs that started
    from it.
    """

    path: Path
    tensors: dict[str, np.ndarray]
    same_senones: bool
    senones: str
    digest: str

    def put_into(self, model: nn.Module) -> dict[str, Any]:
        """Set the parameters of `model`; print and return what was kept and what is new.

        The shift and scale of the input are kept, too, because the first layer was trained on inputs normalised by
        them. Statistics of the new data would change the function of the network before the first step, and they
        differ from the old ones in just what the model has learnt to see: channel, noise, speakers.
        """
        state = model.state_dict()
        there = {name: a for name, a in self.tensors.items() if name in state or not name.startswith(_SECOND)}
        kept = {name: torch.from_numpy(there[name]) for name in state if name in there}
        new = [name for name in state if name not in kept]
        wrong = len(kept) < len(there) or any(state[name].shape != kept[name].shape for name in kept)
        if wrong or any(not name.startswith((*_OUTPUT, *_SECOND)) for name in new):
            raise DataError(f"{self.path}: its tensors do not match the model it describes; train it again")
        model.load_state_dict(kept, strict=False)
        if new:
            why = "but the second output layer is new" if self.same_senones else "so the output layer is new"
            say(f"starting from {self.path}: {self.senones}, {why} ({', '.join(new)}); {len(kept)} tensors are kept")
        else:
            say(f"starting from {self.path}: {self.senones}, so all {len(kept)} tensors are kept")
        return {"path": str(self.path), "digest": self.digest, "kept": list(kept), "new": new}


def read_init(config: TrainConfig, frames: PackedFrames) -> Init | None:
    """Read the model that ``config.init`` names: a model directory, or the ``model.safetensors`` in it.

    Raises Speech3Error: the model is missing or damaged, or its architecture or number of feature bins differs from
    this run's, or with MMI or sMBR its senones: the message names what differs.
    """
    if config.init is None:
        return None
    path = Path(config.init)
    path = path / MODEL_FILE if path.is_dir() else path
    if not path.is_file():
        raise MissingError(f"{path}: no such file; pass --init the directory of a trained network")
    about = read_about(path)
    refuse_mean(path, about)
    if about.get("kind") == "gmm":
        raise FormatError(f"{path}: holds Gaussians; pass --init the directory of a trained network")
    tensors, about = load_tensors(path, "nn")
    if missing := {"model", "feat_dim", "num_senones"} - about.keys():
        raise MismatchError(
            f"{path}: lacks {', '.join(sorted(missing))}; it was written by another version of speech3, train it again"
        )
    there = _check_architecture(path, about, config, frames)
    _compare_features(path, Path(config.frames))
    tensors.pop("log_prior", None)  # counted on the frames it was trained on; this run counts its own
    if pretraining := about.get("pretraining"):
        same, senones = False, f"pretrained without transcripts ({pretraining['task']})"
    else:
        same, senones = _senones(path, about["num_senones"], Path(config.hmm), num_outputs(config, frames))
    if not same and config.training.of_sequences:
        raise DataError(
            f"{path}: {senones}, but training.objective={config.training.objective} continues a network with the same "
            f"senones; train it on this tree by cross-entropy first, or pass the frames and the HMM of its own tree"
        )
    if not same:
        tensors = {name: array for name, array in tensors.items() if not name.startswith(_OUTPUT)}
    if isinstance(there, LstmConfig) and isinstance(config.model, LstmConfig):
        tensors = _widened(tensors, there, config.model)
    return Init(path, tensors, same, senones, hashlib.sha256(path.read_bytes()).hexdigest()[:16])


def _widened(tensors: dict[str, np.ndarray], there: LstmConfig, here: LstmConfig) -> dict[str, np.ndarray]:
    """Widen the window of the first layer; the weights of frames that it did not see are zero."""
    before, after = here.left_context - there.left_context, here.right_context - there.right_context
    if not (before or after):
        return tensors
    window, wide = there.left_context + 1 + there.right_context, dict(tensors)
    names = ["before.hidden.0.weight"] if here.input_layers else _FIRST_CELLS
    for name in tensors.keys() & names:
        weight_OWF = tensors[name].reshape(len(tensors[name]), window, -1)
        wide[name] = np.pad(weight_OWF, ((0, 0), (before, after), (0, 0))).reshape(len(weight_OWF), -1)
    return wide


def _check_architecture(path: Path, about: dict[str, Any], config: TrainConfig, frames: PackedFrames) -> ModelConfig:
    """Return the config of the model there."""
    old, model = parse(ModelConfig, about["model"], path), config.model
    there, here = ({"adapted": 0, **each.model_dump()} for each in (old, model))  # which has no key where it is 0
    if there["family"] != here["family"]:
        raise MismatchError(
            f"{path}: is a {there['family']}, but this run's model is a {here['family']}; pass --init another model, "
            f"or train one of that family"
        )
    free = {key for key in _CONTEXT if isinstance(model, LstmConfig) and here[key] >= there[key]}
    differ = [key for key in here if key not in FREE_KEYS | free and here[key] != there[key]]
    if differ:
        changes = ", ".join(f"{key} {_written(there[key])} there, {_written(here[key])} here" for key in differ)
        remedy = " ".join(f"model.{key}={_written(there[key])}" for key in differ)
        raise MismatchError(
            f"{path}: this run's model has another architecture ({changes}); set {remedy}, or pass --init another model"
        )
    if about["feat_dim"] != frames.dim:
        features = path.parent / FEATURES_FILE
        remedy = f"extract and pack the features that this model reads ({features})"
        if config.training.objective == "lfmmi":  # only a recipe packs such frames
            remedy = (
                f"run the recipe with lfmmi.features={features} lfmmi.model={old.family} and another --out, and pass "
                f"its frames/lfmmi and lfmmi_hmm as frames and hmm"
            )
        raise MismatchError(
            f"{path}: trained on {about['feat_dim']} feature bins per frame, {frames.path} has {frames.dim}; {remedy}"
        )
    return old


def _written(value: Any) -> str:
    """A value as it can be given on the command line."""
    return json.dumps(value, separators=(",", ":")) if isinstance(value, tuple) else str(value)


def warn_of_teacher(config: TrainConfig) -> None:
    """Warn if the teacher of an LF-MMI run was trained on other features, as for a model to start from."""
    if config.training.lfmmi.teacher is not None:
        _compare_features(Path(config.training.lfmmi.teacher) / MODEL_FILE, Path(config.frames), ("adapted",))


def _compare_features(path: Path, data: Path, but: Sequence[str] = ()) -> None:
    """Warn if the features differ though their number does not: that may be intended, but seldom is."""
    files = path.parent / FEATURES_FILE, data / FEATURES_FILE
    if all(file.exists() for file in files):
        configs = (parse(FeatureConfig, read_yaml(file), file) for file in files)
        there, here = ({"adapted": 0, **config.of_values()} for config in configs)  # which has no key where it is 0
        if here["cmvn"] != "global":
            but = (*but, "global_stats")  # of other training data
        changed = [key for key in here if there.get(key) != here[key] and key not in but]
        differ = [f"{key} {there.get(key)} there, {here[key]} here" for key in changed]
        if differ:
            say(f"warning: {path} was trained on features that differ from those of {data}: {', '.join(differ)}")


def _senones(path: Path, there: int, hmm: Path, here: int) -> tuple[bool, str]:
    """Whether the senones are the same, and the reason in words."""
    if there != here:
        return False, f"{there} senones there, {here} here"
    try:
        old = load_outputs(path.parent) if (path.parent / HMM_FILE).exists() else None
        new = load_outputs(hmm)
    except Speech3Error as error:
        raise error.restated(f"{error} (needed to compare the senones of {path} with those of {hmm})") from error
    if not (isinstance(old, Hmm) and isinstance(new, Hmm)):
        unknown = hmm if isinstance(new, PdfsOnly) else path.parent
        return True, f"{here} senones in both (assumed to be the same, as {unknown} has no tree to compare)"
    differ = output_difference(old, new)
    return not differ, differ or f"the same {here} senones"
