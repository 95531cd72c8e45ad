"""What is exported to Kaldi beside the tree and the transitions (those: test_kaldi_tree, test_kaldi_model)."""

from dataclasses import replace
from pathlib import Path

import pytest

from speech3.errors import OccupiedError
from speech3.hmm.kaldi.convert import export_kaldi
from speech3.hmm.model import Hmm
from speech3.language.lexicon import Silences


def test_a_dictionary_without_silence_probabilities_leaves_no_old_ones(hmm: Hmm, tmp_path: Path) -> None:
    estimated = replace(hmm, lexicon=replace(hmm.lexicon, silence_prob=0.9, end=Silences(0.9, 2.0, 0.1)))
    files = {"lexiconp_silprob.txt", "silprob.txt"}
    export_kaldi(estimated, tmp_path)
    assert files <= {path.name for path in (tmp_path / "dict").iterdir()}
    assert "<s> 0.9\n</s>_s 2\n</s>_n 0.1\n" in (tmp_path / "dict" / "silprob.txt").read_text()
    export_kaldi(hmm, tmp_path)
    assert not files & {path.name for path in (tmp_path / "dict").iterdir()}


def test_a_model_of_kaldi_is_not_replaced(hmm: Hmm, tmp_path: Path) -> None:
    (tmp_path / "final.mdl").write_bytes(b"\0B<TransitionModel> ")
    with pytest.raises(OccupiedError, match=r"final\.mdl"):
        export_kaldi(hmm, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["final.mdl"]
