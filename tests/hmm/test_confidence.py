"""Confidences against their formula by hand, and what they say of right and wrong words."""

from dataclasses import replace

import numpy as np
import pytest
from drawn import Drawn, draw

from speech3.hmm.alignment.align import Aligned, Transcripts, align_utterances, limits_of, suspicions
from speech3.hmm.alignment.oov import unknown_words, with_new_words
from speech3.hmm.alignment.times import Confidence, FrameClock, confidence, spread
from speech3.hmm.gmm import Gmm
from speech3.hmm.model import Hmm
from speech3.hmm.transcript import Alignment
from speech3.language.lexicon import Pronunciation, Silences

CLOCK = FrameClock(0.01, 0.0)


def truth(hmm: Hmm, drawn: Drawn) -> Gmm:
    return Gmm(np.arange(hmm.num_pdfs + 1), np.ones(hmm.num_pdfs), drawn.means, np.ones_like(drawn.means))


def test_is_what_the_formula_says(hmm: Hmm) -> None:
    ids = hmm.lexicon.phone_ids
    alignment = Alignment(
        np.array([ids["SIL"], ids["a"], ids["b"], ids["c"]], np.int32),
        np.array([-1, 0, 0, 1], np.int32),
        np.array([0, 2, 5, 9, 12], np.int32),
        np.array([0, 1, 0, 1, 2, 0, 1, 2, 2, 0, 1, 2], np.int8),
        0.0,
    )
    loglikes = np.random.default_rng(0).standard_normal((12, hmm.num_pdfs)).astype(np.float32)
    pdfs, below = alignment.pdfs(hmm), []
    for begin, end in ((2, 5), (5, 9), (9, 12)):
        below.append(np.mean([loglikes[t].max() - loglikes[t, pdfs[t]] for t in range(begin, end)]))
    scale = np.mean([loglikes[t].max() - np.sort(loglikes[t])[hmm.num_pdfs // 2] for t in range(2, 12)])
    found = confidence(alignment, hmm, [loglikes])
    expected = np.clip([1 - (below[0] + below[1]) / 2 / scale, 1 - below[2] / scale], 0, 1)
    assert found.words_W == pytest.approx(expected, abs=1e-5)
    assert found.utterance == pytest.approx(max(0, 1 - np.mean(below) / scale), abs=1e-5)
    assert found.phones_S[1:] == pytest.approx(np.clip(1 - np.array(below) / scale, 0, 1), abs=1e-5)
    assert found.worst == int(np.argmin(expected))


def test_neither_units_nor_offsets_matter(hmm: Hmm) -> None:
    drawn = draw(hmm, 1, seed=5)
    name, gmm = "u000", truth(hmm, drawn)
    transcripts = Transcripts(drawn.words, {})
    found = align_utterances(hmm, gmm, transcripts, drawn.feats, beam=50, retry_beam=500, jobs=1, scored=True)
    loglikes = gmm.loglikes(drawn.feats[name])
    other = confidence(found.alignments[name], hmm, [3 * loglikes[:7] - 700, 3 * loglikes[7:] - 700])
    assert other.words_W == pytest.approx(found.confidences[name].words_W, abs=1e-4)
    assert spread(loglikes).min() > 0


def test_right_words_are_surer_than_wrong_ones_and_these_are_listed(hmm: Hmm) -> None:
    drawn = draw(hmm, 40, seed=2)
    words = {name: list(said) for name, said in drawn.words.items()}
    wrong = [name for number, name in enumerate(words) if number % 8 == 0]
    for name in wrong:
        words[name][0] = "cc" if words[name][0] != "cc" else "ab"
    gmm, transcripts = truth(hmm, drawn), Transcripts(words, {})
    found = align_utterances(hmm, gmm, transcripts, drawn.feats, beam=50, retry_beam=1e6, jobs=1, scored=True)
    same = align_utterances(hmm, gmm, transcripts, drawn.feats, beam=50, retry_beam=1e6, jobs=1)
    assert {n: a.phones.tolist() for n, a in same.alignments.items()} == {
        n: a.phones.tolist() for n, a in found.alignments.items()
    }
    replaced = [found.confidences[name].words_W[0] for name in wrong]
    rest = np.concatenate([c.words_W for name, c in found.confidences.items() if name not in wrong])
    assert max(replaced) < rest.min()
    listed = suspicions(found, {name: " ".join(said) for name, said in words.items()}, CLOCK)
    assert sorted(s.utterance for s in listed) == wrong
    assert all("as a whole" in s.reason or s.transcript.startswith("*") for s in listed)
    assert any("doubtful" in s.reason for s in listed)
    assert [s.confidence for s in listed] == sorted(s.confidence for s in listed)
    assert limits_of(found).word > 0.85


def test_a_model_with_fewer_outputs_has_to_be_surer_of_its_doubt() -> None:
    words = np.repeat([0, 1], 3)  # of three phones each: the doubt about the second is 0.5 * sqrt(3)
    alignment = Alignment(np.ones(6, np.int32), words, np.arange(7, dtype=np.int32), np.zeros(6, np.int8), 0.0)
    sure = Confidence(0.8, np.array([0.9, 0.35]), np.ones(6))
    aligned = Aligned({"u": alignment}, {}, confidences={"u": sure})
    assert [s.transcript for s in suspicions(aligned, {"u": "yes no"}, CLOCK)] == ["yes *no*"]
    assert suspicions(aligned, {"u": "yes no"}, replace(CLOCK, subsampling=3)) == []


def test_speech_that_a_transcript_lacks_is_suspicious() -> None:
    words, sure = np.array([-1, 0, -1, -1]), Confidence(0.9, np.array([0.9]), np.array([0.4, 0.9, 0.6, 0.95]))
    for lengths, reasons in (
        ((60, 10, 55, 90), ["1.1 s without words that sound like speech"]),
        ((40, 10, 49, 90), []),
    ):
        starts = np.cumsum([0, *lengths]).astype(np.int32)
        alignment = Alignment(np.ones(4, np.int32), words, starts, np.zeros(starts[-1], np.int8), 0.0)
        aligned = Aligned({"u": alignment}, {}, confidences={"u": sure})
        assert [s.reason for s in suspicions(aligned, {"u": "yes"}, CLOCK)] == reasons


def test_no_path_is_the_worst_suspicion(hmm: Hmm) -> None:
    drawn = draw(hmm, 3, seed=3)
    drawn.words["u001"] = ["cc", "ab", "ca"]
    transcripts = Transcripts(drawn.words, {"u9": "has no transcript"})
    found = align_utterances(
        hmm, truth(hmm, drawn), transcripts, drawn.feats, beam=0.2, retry_beam=0.3, jobs=1, scored=True
    )
    assert "u001" in found.bad and "u001" in found.retried and found.bad["u9"] == "has no transcript"
    listed = suspicions(found, {name: " ".join(said) for name, said in drawn.words.items()}, CLOCK)
    assert "u001" in [s.utterance for s in listed if s.confidence == 0] and "u9" not in [s.utterance for s in listed]


def test_a_search_that_widens_itself_ends_with_the_path_of_the_widest_beam(hmm: Hmm) -> None:
    drawn = draw(hmm, 3, seed=3)
    drawn.words["u001"] = ["cc", "ab", "ca"]
    gmm, transcripts = truth(hmm, drawn), Transcripts(drawn.words, {})
    narrow = align_utterances(hmm, gmm, transcripts, drawn.feats, beam=0.2, retry_beam=0.3, jobs=1)
    wide = align_utterances(hmm, gmm, transcripts, drawn.feats, beam=1e9, retry_beam=1e9, jobs=1)
    widened = align_utterances(hmm, gmm, transcripts, drawn.feats, beam=0.2, retry_beam=0.3, jobs=1, widen=True)
    assert "u001" in narrow.bad and not widened.bad and "u001" in widened.retried
    for name in narrow.bad:
        assert widened.alignments[name].starts.tolist() == wide.alignments[name].starts.tolist()
        assert widened.alignments[name].score == wide.alignments[name].score


def test_unknown_words_and_a_lexicon_with_more(hmm: Hmm) -> None:
    texts = {"u": "ab xx ba xx", "v": "xx yy", "w": None}
    assert unknown_words(texts, hmm.lexicon) == {"xx": ["u", "u", "v"], "yy": ["v"]}
    more = with_new_words(hmm, [Pronunciation("xx", ("a", "c")), Pronunciation("ab", ("c",))], "more.txt")
    assert list(unknown_words(texts, more.lexicon)) == ["yy"] and more.lexicon.phones == hmm.lexicon.phones
    assert more.lexicon.by_word["ab"] == hmm.lexicon.by_word["ab"]
    with pytest.raises(Exception, match=r"more.txt: yy: q is not a phone of the model; use its phones: a, b, c"):
        with_new_words(hmm, [Pronunciation("yy", ("q",))], "more.txt")


def test_silence_after_a_new_word_is_that_after_others_not_that_before_a_sentence(hmm: Hmm) -> None:
    prons = tuple(replace(pron, silences=Silences(0.2)) for pron in hmm.lexicon.pronunciations)
    lexicon = replace(hmm.lexicon, pronunciations=prons, silence_prob=0.9, end=Silences(0.9, 2.0, 0.1))
    (new,) = with_new_words(replace(hmm, lexicon=lexicon), [Pronunciation("xx", ("a",))], "more.txt").lexicon.by_word[
        "xx"
    ]
    assert new.silences == Silences(0.2)
