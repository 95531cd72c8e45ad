"""The recipe with position-dependent phones, silence probabilities and realignment by the network.

The lexicon has words that are not in the speech, and the language model has words that are not in the lexicon.
"""

import gzip
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from speech3.corpora.digits import DIGITS
from speech3.decode.recognizer import load_recognizer
from speech3.hmm.model import load_hmm
from speech3.io.ark import read_int_ark

pytestmark = pytest.mark.slow

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def process(
    speech3: Run, tiny: Sequence[str], experiment: Path, tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    """The recipe, run from stage `hmm` on, in the directory that is its last argument."""
    mine = tmp_path_factory.mktemp("realigned") / "digits"
    shutil.copytree(experiment, mine, symlinks=True)
    lexicon, arpa = mine / "data" / "lexicon.txt", mine.parent / "lm.arpa.gz"
    lexicon.write_text(lexicon.read_text() + "LOCH L O X\n")
    words = ["<s>", "</s>", "LOCH", "NESS", *DIGITS, "OH"]
    unigrams = "".join(f"{-99 if word == '<s>' else -1.2}\t{word}\n" for word in words)
    arpa.write_bytes(gzip.compress(f"\\data\\\nngram 1={len(words)}\n\n\\1-grams:\n{unigrams}\n\\end\\\n".encode()))
    return speech3("recipe", "digits", *tiny, "realign=1", "hmm.position_dependent=true", "hmm.lexicon_probs=true",
                   "hmm.tri.leaves=85", "lm.order=null", f"lm.arpa={arpa}", "--from", "hmm", "--out", mine)  # fmt: skip


@pytest.fixture
def mine(process: subprocess.CompletedProcess[str]) -> Path:
    """The directory of the recipe, which must not be changed."""
    assert process.returncode == 0, process.stderr
    return Path(process.args[-1])


def test_phones_and_words_without_data(process: subprocess.CompletedProcess[str], mine: Path) -> None:
    """The lexicon may have words that are not in the speech, and the language model words that the lexicon lacks."""
    assert "not in the lexicon: 1 word of the language model" in process.stderr
    assert (mine / "tri" / "graph" / "dropped.txt").read_text() == "NESS\n"
    assert process.stdout.count("\ndigits ") == 4


def test_a_network_learns_from_the_alignment_of_another(process: subprocess.CompletedProcess[str], mine: Path) -> None:
    systems = [line.split()[1] for line in process.stdout.splitlines()[-4:]]
    assert systems == ["mono", "tri", "dnn", "dnn_realigned1"]

    hmm = load_hmm(mine / "dnn_realigned1")
    assert "N_B" in hmm.lexicon.phones
    seven = next(pron for pron in hmm.lexicon.pronunciations if pron.word == "SEVEN")
    assert [phone[-2:] for phone in seven.phones] == ["_B", "_I", "_I", "_I", "_E"]
    assert hmm.lexicon.end is not None
    assert len({pron.silences for pron in hmm.lexicon.pronunciations}) > 1, "each word has silences of its own"

    by_tri, by_network = (read_int_ark(mine / name / "align" / "train" / "ali.ark") for name in ("tri", "dnn"))
    both = sorted(set(by_tri) & set(by_network))
    same = [np.mean(by_tri[key] == by_network[key]) for key in both if len(by_tri[key]) == len(by_network[key])]
    assert len(same) == len(both) > 50
    assert 0.5 < np.mean(same) < 1.0, "another alignment, but not a wholly other one"

    lines = (mine / "aligner" / "align" / "test" / "phones.ctm").read_text().splitlines()
    assert not [line for line in lines if line.split()[4].endswith(("_B", "_E"))], "places are not for people"
    again, old = (load_recognizer(mine / name) for name in ("dnn_realigned1", "dnn"))
    assert again.graph.num_pdfs == old.graph.num_pdfs == again.hmm.num_pdfs
