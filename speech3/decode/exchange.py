"""Model directories of and for other programs: Kaldi's alignments and graphs come in, networks for onnxruntime go out.

`import_kaldi` makes a model directory without an acoustic model, to train one from. Transition-ids of Kaldi's graph
(utils/mkgraph.sh) become pdfs; its arcs keep their transition probabilities, with Kaldi's self-loop scale.

`export` writes OUT.onnx, the network, and OUT.decode, the other files for decoding. OUT.onnx is written only after
onnxruntime's scores have been compared with PyTorch's. Int8 is dynamic quantisation of the matrix products, also in an
LSTM's recurrence: weights are integers with a scale for each output, inputs are rounded to 8 bits at run time, and
everything between the products stays float32. Weights use 7 of their 8 bits: processors without VNNI add two products
in 16 bits, which would overflow. Convolutions stay float32: onnxruntime's integer convolutions run at a quarter of the
speed on a CPU.

Axes: T frames, F feature bins, S senones.
"""

import logging
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from speech3.decode.graph import check_graph, decode_directory
from speech3.decode.trained_model import MeanScorer, NetworkScorer, TrainedModel
from speech3.errors import DataError, FormatError, MismatchError, OccupiedError, SettingError, TrainingError, listed
from speech3.hmm import Hmm, PdfsOnly, Scorer, TransitionModel, open_alignment, read_symbol_table
from speech3.io import (
    DECODE_FILE,
    GRAPH_DIR,
    GRAPH_FILE,
    GRAPH_FILES,
    HCLG_FILE,
    HMM_FILE,
    MODEL_FILE,
    TREE_FILE,
    TUNING_FILE,
    Fst,
    from_kaldifst,
    read_about,
    read_fst,
    write_ark,
    write_fst,
)
from speech3.models import AcousticModel, OnnxNetwork, to_onnx
from speech3.runtime import atomic_path, check_output, explained_disk_errors, write_json, write_text

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

_KALDI_REMEDY = "pass the graph directory that mkgraph.sh made for this model"
_IMPORTED = {HMM_FILE, TREE_FILE, "lexiconp.txt", "lexiconp_silprob.txt", "ali.ark", "graph"}
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


def import_graph(graph: Path, model: TransitionModel, mdl: Path, out: Path) -> dict[str, Any]:
    """Write ``out/HCLG.fst``, ``out/words.txt`` and ``out/graph.json``; return the contents of the last.

    Kaldi's graph is a directory with HCLG.fst (of type const or vector), words.txt and, usually, num_pdfs. `mdl` is the
    file of the transition model that it was made from; a graph of another model is refused.
    """
    stated = graph / "num_pdfs"
    if (
        stated.exists()
        and (text := stated.read_text(encoding="utf-8").strip()).isdigit()
        and int(text) != model.num_pdfs
    ):
        raise MismatchError(f"{stated}: {text} pdfs, but {mdl} has {model.num_pdfs}; {_KALDI_REMEDY}")
    fst = _read_graph(graph / HCLG_FILE)
    lowest, highest = (int(f(fst.arcs_A["ilabel"])) if len(fst.arcs_A) else 0 for f in (np.min, np.max))
    if lowest < 0 or highest >= len(model.pdf_K):
        found = f"up to {highest}" if lowest >= 0 else f"below 0 ({lowest})"
        raise MismatchError(
            f"{graph / 'HCLG.fst'}: transition-ids {found}, but {mdl} has {len(model.pdf_K) - 1}; {_KALDI_REMEDY}"
        )
    arcs_A = fst.arcs_A.copy()
    arcs_A["ilabel"] = model.pdf_K[fst.arcs_A["ilabel"]] + 1
    words = read_symbol_table(graph / "words.txt", _KALDI_REMEDY)
    check_graph(fst := Fst(fst.start, fst.final_S, fst.source_A, arcs_A), model.num_pdfs, len(words), graph)
    sizes = {"num_pdfs": model.num_pdfs, "states": len(fst.final_S), "arcs": len(arcs_A), "words": len(words)}
    about = {**sizes, "lm": str(graph), "dropped": []}
    write_text(out / "words.txt", "".join(f"{word} {label}\n" for label, word in enumerate(words)))
    write_fst(fst, out / HCLG_FILE)
    write_json(out / GRAPH_FILE, about)
    return about


def _read_graph(path: Path) -> Fst:
    import kaldifst

    try:
        with path.open("rb") as stream:
            head = stream.read(64)
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}; {_KALDI_REMEDY}") from error
    if head[8:13] == b"const":
        return read_fst(path)
    fst = kaldifst.StdVectorFst.read(str(path)) if head[8:14] == b"vector" else None
    if fst is None:
        raise FormatError(f"{path}: not an OpenFst file of type const or vector, or cut short; {_KALDI_REMEDY}")
    return from_kaldifst(fst)


@dataclass(frozen=True)
class Imported:
    """Numbers of utterances and frames, the imported outputs, and the graph's number of words (None: no graph)."""

    utterances: int
    frames: int
    outputs: Hmm | PdfsOnly
    words: int | None


def import_kaldi(alignment: Path, out: Path, lang: Path | None = None, graph: Path | None = None) -> Imported:
    """Make the model directory `out` with ``ali.ark`` (pdfs) and ``hmm.json``.

    With `lang` and phones of three consecutive states, also import the lexicon and the tree; with `graph`, also
    ``graph/``. An earlier import in `out` is replaced once everything has been read and found consistent.

    Raises `Speech3Error`: a file is missing or damaged, or two files belong to different models; the message names
    them. `out` has files that no import wrote, such as Kaldi's own model and graph.
    """
    check_output(out, [alignment, lang, graph], sorted(_IMPORTED), marks=[HMM_FILE, "ali.ark"])
    kaldi = open_alignment(alignment)
    there = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if others := sorted(name for name in there - _IMPORTED if not name.startswith(".")):
        raise OccupiedError(f"{out}: is not an earlier import: it has {listed(others, 3)}; choose another OUT")
    with explained_disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
            staged = Path(scratch)
            mdl = alignment / "final.mdl"
            about = import_graph(graph, kaldi.model, mdl, staged / "graph") if graph else None
            utterances = write_ark(staged / "ali.ark", kaldi.senones())
            if not utterances:
                raise DataError(f"{alignment}: its ali.*.gz contain no utterance; align again")
            outputs = kaldi.outputs(lang)
            outputs.save(staged)
            _publish(staged, out)
    return Imported(utterances, int(kaldi.seen_K.sum()), outputs, about["words"] if about else None)


def _publish(staged: Path, out: Path) -> None:
    out.mkdir(exist_ok=True)
    for name in _IMPORTED - {"graph"}:
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / "graph", ignore_errors=True)
    for path in sorted(staged.iterdir(), key=lambda path: path.name == HMM_FILE):  # last: if it exists, the rest does
        path.replace(out / path.name)


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
