"""Export networks as OUT.onnx, for onnxruntime, in float32 or int8, and OUT.decode, the other files for decoding.

OUT.onnx is written only after onnxruntime's scores have been compared with PyTorch's.

Int8 is dynamic quantisation of the matrix products, also in an LSTM's recurrence: weights are integers with a scale for
each output, inputs are rounded to 8 bits at run time, and everything between the products stays float32. Weights use 7
of their 8 bits: processors without VNNI add two products in 16 bits, which would overflow. Convolutions stay float32:
onnxruntime's integer convolutions run at a quarter of the speed on a CPU.

Axes: T frames, F feature bins, S senones.
"""

import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from speech3.decode.graph import decode_directory
from speech3.decode.trained_model import MeanScorer, NetworkScorer, TrainedModel
from speech3.errors import DataError, MismatchError, OccupiedError, SettingError, TrainingError
from speech3.hmm import Scorer
from speech3.io import (
    DECODE_FILE,
    GRAPH_DIR,
    GRAPH_FILE,
    GRAPH_FILES,
    HMM_FILE,
    MODEL_FILE,
    TUNING_FILE,
    read_about,
)
from speech3.models import AcousticModel, OnnxNetwork, to_onnx
from speech3.runtime import atomic_path, check_output

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

TOLERANCE = 1e-3  # largest difference of a log likelihood, float32 against float32
_CHECKED_S, _ROUNDS = 30.0, 3  # seconds of random features, and how often their scores are computed for the timing
_KEPT = (
    *("training", "best_epoch", "averaged_epochs", "train_accuracy", "heldout_accuracy", "heldout_loss"),
    *("heldout_per", "hmm", "seed", "versions"),
)
_GRAPH = f"{GRAPH_DIR}/{GRAPH_FILE}"
_BESIDE = (*(f"{GRAPH_DIR}/{name}" for name in GRAPH_FILES), DECODE_FILE, TUNING_FILE)
_INT8_PRODUCT = "MatMulInteger"
_PRODUCTS = ("MatMul", "Conv", _INT8_PRODUCT)


@dataclass(frozen=True)
class Form:
    """One form of the network: its size, its speed on one thread, and its differences from the previous form."""

    name: str
    num_bytes: int
    frames_per_s: float
    largest_difference: float
    mean_difference: float


@dataclass(frozen=True)
class Export:
    """What was written."""

    path: Path
    rest: Path  # OUT.decode
    # PyTorch, float, and int8 if requested; differences of log likelihoods are between each form and the one before
    forms: tuple[Form, ...]
    # int8_products, products: how many of the network's products with weights are computed in int8, and how many there
    # are in all
    int8_products: int
    products: int
    # graph, tuned: whether OUT.decode has a decoding graph, and tuned settings
    graph: bool
    tuned: bool


def export(model: Path, out: Path, *, int8: bool = False) -> Export:
    """Write the network of a model directory to `out`, and the other files that decoding needs to OUT.decode beside it.

    Raises `Speech3Error`: `out` does not end in .onnx; the model consists of GMMs; the packages onnx or onnxruntime are
    not installed; the scores of the exported network differ from PyTorch's.
    """
    if out.suffix != ".onnx":
        raise SettingError(f"{out}: the name must end in .onnx")
    recognizer = TrainedModel.load(model)
    if isinstance(recognizer.scorer, OnnxNetwork):
        raise DataError(f"{model}: exported already; pass the model directory that it was exported from")
    if recognizer.sat:
        raise MismatchError(f"{model}: its features are adapted to speakers by GMMs; export a network without them")
    if isinstance(recognizer.scorer, MeanScorer):
        raise MismatchError(f"{model}: is the mean of several networks; export one of them")
    if not isinstance(recognizer.scorer, NetworkScorer):
        raise MismatchError(f"{model}: this model consists of GMMs; only networks are exported, such as dnn beside it")
    # Never overwrite what an earlier export has not written.
    rest = decode_directory(out)
    if rest.exists() and (not (rest / HMM_FILE).exists() or (rest / MODEL_FILE).exists()):
        raise OccupiedError(f"{rest}: exists and is not from an earlier export; move it, or choose another name")
    check_output(out, [model], kind=("from an earlier export, since its .decode is missing", lambda _: rest.exists()))
    # Write the network, as float and as int8, and compare its scores with PyTorch's.
    network = recognizer.scorer.network
    proto = to_onnx(network, recognizer.scorer.log_prior_P, _about(recognizer, int8))
    feats_TF = random_features(network, round(_CHECKED_S * 1000 / recognizer.features.frame_shift))
    with atomic_path(out) as temporary:
        temporary.write_bytes(proto.SerializeToString())
        scorers: dict[str, Scorer] = {"PyTorch": recognizer.scorer, "float": OnnxNetwork(temporary)}
        sizes = [(recognizer.directory / MODEL_FILE).stat().st_size, temporary.stat().st_size]
        if int8:
            proto = _quantized(proto, temporary)
            scorers["int8"] = OnnxNetwork(temporary)
            sizes.append(temporary.stat().st_size)
        forms = _measured(scorers, sizes, feats_TF)
        if not forms[1].largest_difference <= TOLERANCE:  # so that NaN is refused, too
            raise TrainingError(
                f"{out}: not written, because onnxruntime's scores differ from PyTorch's by"
                f" {forms[1].largest_difference:.2g}; check whether the model's training diverged"
            )
        out.unlink(missing_ok=True)  # written last: if it exists, both are complete
        beside = _write_rest(recognizer, rest)
    # How many matrix products became int8.
    kinds = list(_products(proto.graph))
    products = kinds.count(_INT8_PRODUCT), len(kinds)
    return Export(out, rest, forms, *products, graph=_GRAPH in beside, tuned=DECODE_FILE in beside)


def random_features(network: AcousticModel, frames: int) -> np.ndarray:
    """(T, F) float32 with the mean and variance of the training frames."""
    noise_TF = np.random.default_rng(0).standard_normal((frames, network.feat_dim), np.float32)
    return noise_TF / network.scale_F.numpy() - network.shift_F.numpy()


def _about(recognizer: TrainedModel, int8: bool) -> dict[str, Any]:
    about = read_about(recognizer.directory / MODEL_FILE)
    return {
        "model": about["model"],
        "features": recognizer.features.model_dump(mode="json"),
        "int8": int8,
        "subsampling": recognizer.scorer.subsampling,
        "objective": about.get("objective"),
        "trained": {key: about[key] for key in _KEPT if key in about},
    }


def _measured(scorers: Mapping[str, Scorer], sizes: Sequence[int], feats_TF: np.ndarray) -> tuple[Form, ...]:
    """Compare each form with the previous one, on all frames and on a one-frame utterance, and time each form."""
    best_s = dict.fromkeys(scorers, np.inf)
    for _ in range(_ROUNDS):  # in turns, because the load of the machine may vary
        for name, scorer in scorers.items():
            started = time.perf_counter()
            scorer.loglikes(feats_TF)
            best_s[name] = min(best_s[name], time.perf_counter() - started)
    forms, before = [], None
    for (name, scorer), size in zip(scorers.items(), sizes, strict=True):
        scores = np.concatenate([scorer.loglikes(feats_TF), scorer.loglikes(feats_TF[:1])])
        difference = np.abs(scores - (scores if before is None else before))
        speed = len(feats_TF) / best_s[name]
        forms.append(Form(name, size, speed, float(difference.max()), float(difference.mean())))
        before = scores
    return tuple(forms)


def _quantized(proto: "ModelProto", path: Path) -> "ModelProto":
    """Write the network with the weights of its products in int8; return the quantised network."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)  # onnxruntime would advise a preprocessing step that this network does not need
    try:
        quantize_dynamic(
            proto,
            path,
            op_types_to_quantize=["MatMul"],
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
            extra_options={"EnableSubgraph": True, "MatMulConstBOnly": True},
        )
    finally:
        logging.disable(logging.NOTSET)
    return onnx.load(path)


def _products(graph: "GraphProto") -> Iterator[str]:
    for node in graph.node:
        if node.op_type in _PRODUCTS:
            yield node.op_type
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _products(attribute.g)


def _write_rest(recognizer: TrainedModel, directory: Path) -> list[str]:
    """Write the files that decoding needs beside the network; return which of `_BESIDE` existed."""
    if directory.exists():
        shutil.rmtree(directory)
    recognizer.outputs.save(directory)
    found = [name for name in _BESIDE if (recognizer.directory / name).exists()]
    for name in found:
        with atomic_path(directory / name) as temporary:
            shutil.copyfile(recognizer.directory / name, temporary)
    return found
