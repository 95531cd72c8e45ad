"""The recipe with all that the HMM room can: places of phones, probabilities of silence, realignment by the network."""

from pathlib import Path

import numpy as np

from speech3.decoding.recognizer import load_recognizer
from speech3.hmm.model import load_hmm
from speech3.io.ark import read_int_ark


def test_a_network_learns_from_the_alignment_of_another(speech3, tiny, mine: Path) -> None:
    process = speech3("recipe", "digits", "--out", mine, *tiny, "realign=1", "hmm.position_dependent=true",
                      "hmm.lexicon_probs=true", "hmm.tri.leaves=85")  # fmt: skip
    assert process.returncode == 0, process.stderr
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
