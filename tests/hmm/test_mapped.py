"""A model of monophones with the phones of another lexicon: which pdfs its phones have."""

import numpy as np

from speech3 import Aligner
from speech3.hmm.model import with_nearest_pdfs
from speech3.language.lexicon import Lexicon, Pronunciation, mark_positions


def _lexicon(**words: str) -> Lexicon:
    said = (Pronunciation(word, tuple(phones.split())) for word, phones in words.items())
    return mark_positions(Lexicon((*said, Pronunciation("<unk>", ("SPN",)))))


def test_phones_have_the_pdfs_of_their_nearest() -> None:
    hmm = Aligner.load("english").recognizer.hmm
    found = with_nearest_pdfs(hmm, _lexicon(ich="ɪ ç", zwei="ts v aɪ"))
    assert found
    mapped, nearest = found
    expected = {"ɪ": "IH0", "ç": "SH", "ts": "CH", "v": "V", "aɪ": "AY0"}
    assert {phone: near.phone for phone, near in nearest.items()} == expected
    like = {"ç_E": "SH_I", "ts_B": "CH_I", "aɪ_E": "AY1_I", "SIL": "SIL", "SPN": "SPN"}
    for phone, english in like.items():
        pdfs = mapped.pdfs(0, mapped.lexicon.phone_ids[phone], 0)
        assert pdfs == hmm.pdfs(0, hmm.lexicon.phone_ids[english], 0)
    assert np.array_equal(mapped.self_loop, hmm.self_loop)


def test_phones_that_are_not_in_the_chart() -> None:
    hmm = Aligner.load("english").recognizer.hmm
    assert with_nearest_pdfs(hmm, _lexicon(word="ж")) is None
