"""The names of the files in a model directory, and in its graphs; a check that a path is that of a directory.

A model directory is what `speech3 train`, a recipe or `speech3 align` makes and what decoding reads; the directory of a
run, which may be resumed, becomes one when it ends.
"""

from pathlib import Path

from speech3.errors import FormatError, MissingError

MODEL_FILE = "model.safetensors"  # the parameters of a network or of GMMs, and a description; written last
FEATURES_FILE = "features.yaml"  # how the features were computed; also beside features and packed frames
HMM_FILE = "hmm.json"  # phones and topology; beside it are the tree and the lexicon with probabilities
TREE_FILE = "tree.safetensors"
DENOMINATOR_FILE = "denominator.safetensors"  # of LF-MMI: the phone language model
DECODE_FILE = "decode.json"  # tuned: acoustic scale, word penalty, cost of fillers; beam
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
GRAPH_FILES = (
    HCLG_FILE,
    "words.txt",
    GRAMMAR_FILE,
    LM_FILE,
    "letters.arpa.gz",
    "lexicon.txt",
    "g2p.safetensors",
    GRAPH_FILE,
)

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
