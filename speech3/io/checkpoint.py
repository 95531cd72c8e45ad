"""The files of a model directory: their names, and tensors with a description (safetensors with JSON as metadata).

A model directory is what `speech3 train`, a recipe or `speech3 align` makes and what decoding reads; the directory of a
run, which may be resumed, becomes one when it ends.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from speech3.errors import FormatError, MissingError
from speech3.runtime import atomic_path, foreign_content

MODEL_FILE = "model.safetensors"  # the parameters of a network or of GMMs, and a description; written last
FEATURES_FILE = "features.yaml"  # how the features were computed; also beside features and packed frames
HMM_FILE = "hmm.json"  # phones and topology; beside it are the tree and the lexicon with probabilities
TREE_FILE = "tree.safetensors"
DENOMINATOR_FILE = "denominator.safetensors"  # of LF-MMI: the phone language model
DECODE_FILE = "decode.json"  # tuned: acoustic scale, word penalty, beam
TUNING_FILE = "tuning.json"  # the grid on which they are found
CARD_FILE = "MODEL_CARD.md"

RUN_FILE = "run.json"  # the config that identifies a run
METRICS_FILE = "metrics.jsonl"  # a record for each epoch, evaluation and event

GRAPH_DIR = "graph"  # the decoding graph
TUNING_GRAPH_DIR = "graph_tuning"  # a graph whose language model has not seen the dev set's sentences
HCLG_FILE = "HCLG.fst"
LM_FILE = "lm.arpa.gz"  # of a graph whose language model is an n-gram model
GRAMMAR_FILE = "G.fst"  # the language model as a transducer; imported graphs have none
GRAPH_FILE = "graph.json"  # what the graph was made from; written last
# All that a graph may have; the first, the second and the last are always there.
GRAPH_FILES = (HCLG_FILE, "words.txt", GRAMMAR_FILE, LM_FILE, "letters.arpa.gz", "lexicon.txt", GRAPH_FILE)

# What a directory holds that has one of the files, for `speech3.runtime.check_output`.
A_MODEL = "a model", (HMM_FILE, MODEL_FILE)
A_LANGUAGE_MODEL = "a language model", ("neural.safetensors",)
A_TRAINING = "a training", (RUN_FILE,)
A_GRAPH = "a decoding graph", (GRAPH_FILE,)
A_DATADIR = "a data directory", ("utt2spk", "wav.scp")
PACKED_FRAMES = "packed frames", ("train.frames", "heldout.frames")


def check_is_directory(model: Path) -> None:
    """Raise an error if the path of a model directory is that of a file, or there is nothing."""
    if not model.exists():
        raise MissingError(f"{model}: no such model directory; check the path")
    if not model.is_dir():
        whole = (model.parent / MODEL_FILE).exists()
        remedy = f"pass its directory, {model.parent}" if whole else f"pass one that has {MODEL_FILE}, such as exp/dnn"
        raise FormatError(f"{model}: is a file, not a model directory; {remedy}")


def save_tensors(path: Path | str, tensors: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    """Write arrays and a JSON-serialisable description atomically."""
    with atomic_path(path) as temporary:
        contiguous = {name: np.asarray(array, order="C") for name, array in tensors.items()}
        # Not safetensors' save_file: only the owner can read its files, and its errors are not OSErrors.
        temporary.write_bytes(save(contiguous, {"speech3": json.dumps(about)}))


def load_tensors(path: Path | str, kind: str | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read arrays and their description, whose ``"kind"`` must be `kind`, if that is given."""
    with _opened(path) as stream:
        about = _about(stream)
        tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    if kind is not None and about.get("kind") != kind:
        raise FormatError(f"{path}: holds {about.get('kind', 'something unknown')!r}, expected {kind!r}")
    return tensors, about


def read_about(path: Path | str) -> dict[str, Any]:
    """Read only the description."""
    with _opened(path) as stream:
        return _about(stream)


@contextmanager
def _opened(path: Path | str) -> Iterator[Any]:
    if not Path(path).is_file():
        raise MissingError(f"{path}: no such file")
    try:
        with safe_open(path, framework="numpy") as stream:
            yield stream
    except (SafetensorError, json.JSONDecodeError, OSError) as error:
        with Path(path).open("rb") as content:
            what, remedy = foreign_content(content.read(1024))
        if what and "zip" not in what:  # PyTorch's files are zip archives
            raise FormatError(f"{path}: is {what}, not a safetensors file; {remedy}") from error
        raise FormatError(f"{path}: not a safetensors file, or truncated ({error}); make it again") from error


def _about(stream: Any) -> dict[str, Any]:
    return dict(json.loads((stream.metadata() or {}).get("speech3", "{}")))
