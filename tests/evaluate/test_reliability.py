"""Normalised cross-entropy against a computation by hand, and which words it is of."""

import math
from pathlib import Path

import pytest

from speech3.evaluate.page import confidence_section
from speech3.evaluate.tables import confidence_lines
from speech3.evaluate.wer import reliability, reliability_beside, reliability_of, score
from speech3.hmm.alignment.times import Segment, write_ctm
from speech3.runtime.files import write_text


def test_by_hand() -> None:
    """Three of four words correct: H = -(3 log2 3/4 + log2 1/4) = 3 (2 - log2 3) + 2 = 3.2451 bits."""
    found = reliability([0.9, 0.8, 0.5, 0.4], [True, True, True, False])
    bits = math.log2(0.9) + math.log2(0.8) + math.log2(0.5) + math.log2(0.6)
    assert found.nce == pytest.approx((3.2451124978 + bits) / 3.2451124978)
    assert found.nce == pytest.approx(0.3187, abs=1e-4)
    assert (found.words, found.correct) == (4, 0.75)
    assert [(each.low, each.words, each.correct) for each in found.bins] == [
        (0.4, 1, 0.0),
        (0.5, 1, 1.0),
        (0.8, 1, 1.0),
        (0.9, 1, 1.0),
    ]


def test_its_ends() -> None:
    right = [True, True, True, False]
    assert reliability([0.75] * 4, right).nce == pytest.approx(0.0), "the share itself"
    assert reliability([1.0, 1.0, 1.0, 0.0], right).nce == pytest.approx(1.0, abs=2e-3)
    assert -12 < reliability([1.0] * 4, right).nce < -2, "sure and wrong, but bounded"
    assert math.isnan(reliability([0.5, 0.6], [True, True]).nce)
    assert reliability([0.0, 1.0], [False, True]).bins[-1].high == 1.0


def track(*words: tuple[str, float | None]) -> list[Segment]:
    return [Segment(0.1 * n, 0.1 * n + 0.1, word, sure) for n, (word, sure) in enumerate(words)]


def test_words_of_a_ctm_are_those_of_the_hypothesis(tmp_path: Path) -> None:
    result = score({"u": "a b c", "v": "d", "w": "e"}, {"u": "a x c y", "v": "d", "w": ""})
    tracks = {"u": track(("a", 0.9), ("x", 0.3), ("c", 0.8), ("y", 0.2)), "v": track(("d", 0.7))}
    found = reliability_of(result, tracks)
    assert found == reliability([0.9, 0.3, 0.8, 0.2, 0.7], [True, False, True, False, True])
    assert reliability_of(result, {"u": track(("a", None)), "v": track(("d", None))}) is None, "no confidences"
    assert reliability_of(result, {"u": track(("a", 0.3)), "v": track(("d", 0.3))}) is None, "of other words"
    write_text(tmp_path / "hyp.txt", "")
    assert reliability_beside(result, tmp_path / "hyp.txt") is None
    write_ctm(tmp_path / "hyp.ctm", tracks)
    assert reliability_beside(result, tmp_path / "hyp.txt") == found
    write_text(tmp_path / "hyp.ctm", "no ctm\n")
    assert reliability_beside(result, tmp_path / "hyp.txt") is None


def test_as_text_and_in_the_report() -> None:
    found = reliability([0.9, 0.8, 0.5, 0.4], [True, True, True, False])
    first, _, *rows = confidence_lines(found).splitlines()
    assert first == "NCE 0.319  of the confidences of 4 words, 75.00 % of them correct"
    assert rows[0].split() == ["0.4", "to", "0.5", "1", "0.400", "0.000"]
    section = confidence_section({"tri": None, "dnn": found}, "dnn")
    assert "0.319" in section and "confidence, dnn" in section and "tri" not in section
    assert confidence_section({"tri": None}, "tri") == ""


@pytest.mark.parametrize(("correct", "why"), [(True, "all words are correct"), (False, "no word is correct")])
def test_where_the_nce_is_not_defined_it_is_said_why(correct: bool, why: str) -> None:
    found = reliability([0.9, 0.8], [correct] * 2)
    assert why in confidence_lines(found) and f"none: {why}" in confidence_section({"dnn": found}, "dnn")
    assert "nan" not in (confidence_lines(found) + confidence_section({"dnn": found}, "dnn")).lower()
