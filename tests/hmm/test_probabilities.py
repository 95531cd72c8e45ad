"""Probabilities of pronunciations and silence: against counts made by hand, and summing to one along every path."""

import numpy as np
import pytest

from speech3.errors import Speech3Error
from speech3.hmm.pronunciation_probs import estimated_along
from speech3.hmm.transcript import NO_WORD, Alignment
from speech3.hmm.workers import Workers, WorkerShare
from speech3.language.lexicon import Lexicon, Pronunciation, mark_positions, read_lexicon, write_lexicon

LEXICON = Lexicon((Pronunciation("A", ("a",)), Pronunciation("A", ("b",)), Pronunciation("B", ("b", "a"))))


def said(*segments: tuple[str, int]) -> Alignment:
    phones = [LEXICON.phone_ids[phone] for phone, _ in segments]
    starts = np.arange(len(phones) + 1, dtype=np.int32) * 3
    words = np.array([word for _, word in segments], np.int32)
    return Alignment(np.array(phones, np.int32), words, starts, np.tile(np.arange(3, dtype=np.int8), len(phones)), 0.0)


def hold(share: WorkerShare, alignments: dict[str, Alignment]) -> None:
    share.alignments.update(alignments)


@pytest.fixture
def estimated() -> Lexicon:
    # A(a) sil B | sil A(a) A(b)
    alignments = {
        "u": said(("a", 0), ("SIL", NO_WORD), ("b", 1), ("a", 1)),
        "v": said(("SIL", NO_WORD), ("a", 0), ("b", 1)),
    }
    words = {"u": ["A", "B"], "v": ["A", "A"]}
    with Workers(words, {}, 1) as workers:
        workers.run(hold, alignments)
        return estimated_along(workers, LEXICON)


def test_pronunciations_are_counted(estimated: Lexicon) -> None:
    first, second = estimated.by_word["A"]
    assert (first.prob, second.prob) == pytest.approx((1.0, (2 / 5) / (3 / 5)))  # (1 + 1) / (3 + 2), (2 + 1) / (3 + 2)


def test_silences_are_counted(estimated: Lexicon) -> None:
    average = 2 / 6  # joins: 2 with silence of start-A, A-B, B-end, start-A, A-A, A-end
    after_a = (1 + 2 * average) / (2 + 2)
    after_start = (1 + 2 * average) / (2 + 2)
    a, b, ab = estimated.pronunciations
    assert a.silences and b.silences and ab.silences and estimated.end
    assert a.silences.after == pytest.approx(after_a)
    assert b.silences.after == pytest.approx(2 * average / 3)
    assert ab.silences.given_silence == pytest.approx((1 + 2) / (after_a + 2))
    assert ab.silences.given_word == pytest.approx((0 + 2) / (1 - after_a + 2))
    assert a.silences.given_silence == pytest.approx((1 + 2) / (2 * after_start + 2))
    assert estimated.silence_prob == pytest.approx(after_start)


def test_it_is_the_same_after_writing_and_reading(estimated, tmp_path) -> None:
    write_lexicon(estimated, tmp_path / "lexiconp_silprob.txt")
    again = read_lexicon(tmp_path / "lexiconp_silprob.txt")
    for old, new in zip(estimated.pronunciations, again.pronunciations, strict=True):
        assert (new.word, new.phones) == (old.word, old.phones)
        assert new.prob == pytest.approx(old.prob, rel=1e-5)
        assert new.silences and old.silences
        assert new.silences.given_word == pytest.approx(old.silences.given_word, rel=1e-5)


@pytest.mark.parametrize("numbers", ["1 0 1 1", "1 1 1 1", "0 0.5 1 1", "1 0.5 0 1", "1 0.5 1 nan", "2 0.5 1 1"])
def test_numbers_that_have_no_logarithm(numbers: str, tmp_path) -> None:
    (tmp_path / "lexiconp_silprob.txt").write_text(f"A 1 0.5 1 1 a\nB {numbers} b\n")
    with pytest.raises(Speech3Error, match=rf"lexiconp_silprob.txt:2: B: impossible numbers {numbers}"):
        read_lexicon(tmp_path / "lexiconp_silprob.txt")


def test_places_in_the_word_are_marked() -> None:
    words = {"I": ("ay",), "cat": ("k", "ae", "t"), "x": ("SPN",)}
    lexicon = Lexicon(tuple(Pronunciation(*entry) for entry in words.items()))
    marked = mark_positions(lexicon)
    assert [pron.phones for pron in marked.pronunciations] == [("ay_S",), ("k_B", "ae_I", "t_E"), ("SPN",)]
    assert [marked.base_phone(phone) for phone in marked.phones] == ["SIL", "SPN", "ae", "ay", "k", "t"]
