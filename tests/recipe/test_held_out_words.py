"""Words that only dev and test have are aligned by their letters, so the stage `hmm` accepts corpora with new words."""

from pathlib import Path

import numpy as np
import pytest

from speech3.config import FeatureConfig
from speech3.decode.recognizer import Recognizer
from speech3.errors import MissingError
from speech3.hmm.model import Hmm, monophone_tree
from speech3.io.ark import write_ark
from speech3.language.lexicon import Lexicon, Pronunciation, mark_positions
from speech3.recipe import stages
from speech3.recipe.experiment import open_experiment


class _Flat:
    """A scorer for which all pdfs are equally likely."""

    pseudo_likelihoods = False
    subsampling = 1

    def loglikes(self, feats_TD: np.ndarray, pdfs: np.ndarray) -> np.ndarray:
        return np.zeros((len(feats_TD), len(pdfs)), np.float32)


def test_new_words_are_aligned_with_their_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prons = (Pronunciation("<unk>", ("SPN",)), Pronunciation("mala", ("m", "a", "l", "a")))
    lexicon = mark_positions(Lexicon(prons))
    tree = monophone_tree(np.arange(len(lexicon.phones)))
    hmm = Hmm(lexicon, tree, np.full(tree.num_pdfs, 0.5))
    monkeypatch.setattr(stages, "load_recognizer", lambda path: Recognizer(path, hmm, FeatureConfig(), _Flat()))
    e = open_experiment("any", tmp_path, tmp_path / "in", ["jobs=1"], "")
    for split in ("dev", "test"):
        data, feats = e.data(split), e.features("mfcc13_d2", split)
        for path in (data, feats):
            path.mkdir(parents=True)
        (data / "wav.scp").write_text("u1 u1.wav\nu2 u2.wav\n")
        (data / "utt2spk").write_text("u1 a\nu2 a\n")
        (data / "text").write_text("u1 mla\nu2 mlaq\n")
        zeros = ((key, np.zeros((30, 2), np.float32)) for key in ("u1", "u2"))
        write_ark(feats / "feats.ark", zeros, feats / "feats.scp")
    with pytest.raises(MissingError, match=r"2 of the 2 words of the transcripts .* are not in"):
        stages.align_data(e, "tri", "mfcc13_d2", ["dev"])
    stages.align_data(e, "aligner", "mfcc13_d2", ["test"])  # for inspection: new words do not stop the recipe
    assert " SPN" in (e.alignment("aligner", "test") / "phones.ctm").read_text()
    (tmp_path / "data" / "held_out_lexicon.txt").write_text("mla m l a\nmlaq m l a q\n")
    stages.align_data(e, "tri", "mfcc13_d2", ["dev"])
    words = [line.split() for line in (e.alignment("tri", "dev") / "phones.ctm").read_text().splitlines()]
    spoken = {key: [row[4] for row in words if row[0] == key and row[4] != "SIL"] for key in ("u1", "u2")}
    assert spoken == {"u1": ["m", "l", "a"], "u2": ["SPN"]}  # q is no phone of the model
