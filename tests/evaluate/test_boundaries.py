"""Boundary comparison on alignments made by hand."""

import numpy as np
import pytest

from speech3.errors import Speech3Error
from speech3.evaluate.boundaries import compare_boundaries
from speech3.hmm.alignment.times import Segment


def track(*edges: float, labels: str) -> list[Segment]:
    return [Segment(a, b, label) for a, b, label in zip(edges[:-1], edges[1:], labels.split(), strict=True)]


REFERENCE = {"u": track(0, 1, 2, 3, 4, 5, labels="SIL A N AY SIL"), "v": track(0, 1, 2, labels="A B")}


def test_boundaries_are_starts_and_ends_before_silence() -> None:
    aligned = {"u": track(0, 1.01, 2.03, 3, 3.9, 5, labels="SIL A N AY SIL")}
    found = compare_boundaries(REFERENCE, aligned)
    np.testing.assert_allclose(found.differences_s, [0.01, 0.03, 0, -0.1], atol=1e-9)
    assert found.within(0.02) == 0.5 and found.within(0.03) == 0.75 and not found.mismatched


def test_silence_that_only_one_side_has_does_not_matter() -> None:
    aligned = {"u": track(0, 1, 2, 2.5, 3, 4, 5, labels="SIL A SIL N AY SIL")}
    found = compare_boundaries(REFERENCE, aligned)
    np.testing.assert_allclose(found.differences_s, [0, 0.5, 0, 0], atol=1e-9)


def test_some_boundaries_are_set_apart_and_some_phones_merged() -> None:
    aligned = {"u": track(0, 1, 2, 3.5, 4, 5, labels="SIL A N AY SIL"), "v": track(0, 1, 1.5, 2, labels="A R B")}
    found = compare_boundaries(
        REFERENCE, aligned, merge=lambda a, b: (a, b) == ("A", "R"), apart=lambda a, b: (a, b) == ("N", "AY")
    )
    np.testing.assert_allclose(found.apart_s, [0.5])
    np.testing.assert_allclose(found.differences_s, [0, 0, 0, 0, 0.5])
    assert found.within(0.02) == 0.8 and found.within(0.02, everything=True) == pytest.approx(4 / 6)


def test_other_phones_are_named_and_nothing_in_common_is_an_error() -> None:
    aligned = {"u": REFERENCE["u"], "v": track(0, 1, 2, labels="A C")}
    assert compare_boundaries(REFERENCE, aligned).mismatched == ("v",)
    with pytest.raises(Speech3Error, match="have no utterance"):
        compare_boundaries(REFERENCE, {"v": aligned["v"]})
