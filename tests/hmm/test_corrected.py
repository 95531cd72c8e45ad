"""Offsets by class pair: those that were put in come out, and are not applied where they do not help."""

import numpy as np
import pytest

from speech3.errors import Speech3Error
from speech3.hmm.alignment.compared import Offsets, check_names, differences, fit, match, moved, spoken
from speech3.hmm.alignment.times import FrameClock, Segment
from speech3.hmm.transcript import Alignment
from speech3.language.lexicon import Lexicon, Pronunciation

PAIR, OTHER = ("stop", "vowel"), ("vowel", "stop")


def test_offsets_are_medians_drawn_towards_zero_and_each_recording_is_left_out_in_turn() -> None:
    errors = {f"r{n}": [(PAIR, 0.012), (OTHER, 0.0)] for n in range(10)} | {"far": [(PAIR, 0.5)]}
    found = fit(errors)
    assert found.late_s[PAIR] == pytest.approx(0.012 * 11 / 21) and found.late_s[OTHER] == 0
    # By hand: ten recordings see nine others and the far one, (10 of 20): 6 ms; the far one sees ten.
    after = (10 * (0.012 - 0.006) + 10 * 0 + (0.5 - 0.006)) / 21
    assert found.after_ms == pytest.approx(1000 * after) and found.before_ms == pytest.approx(1000 * 0.62 / 21)
    assert found.help and (found.boundaries, found.recordings) == (21, 11)


def test_contradicting_recordings_do_not_help() -> None:
    assert not fit({"a": [(PAIR, 0.02)], "b": [(PAIR, -0.02)]}).help
    with pytest.raises(Speech3Error, match="only 1 of the corrected recordings"):
        fit({"a": [(PAIR, 0.02)], "b": []})


def test_names_that_match_no_utterance_are_refused() -> None:
    for names, told in ((["x_1", "x_2"], "no names"), (["x_1", "s-1"], "only one name")):
        with pytest.raises(Speech3Error, match=rf"\({', '.join(names)}\).*\(s-1, s-2\) have {told} in common"):
            check_names(names, ["s-1", "s-2"])
    check_names(["a/S_1", "a/S_2"], ["s-1", "s-2"])


def track(*edges: float, labels: str) -> list[Segment]:
    return [Segment(a, b, label) for a, b, label in zip(edges[:-1], edges[1:], labels.split(), strict=True)]


def test_only_boundaries_of_both_sides_are_compared() -> None:
    ours = track(0, 0.21, 0.32, 0.5, 0.6, 0.7, 0.8, 1.0, labels="SIL k ae t SIL iy SIL")
    truth = track(0.2, 0.3, 0.5, 0.62, 0.8, labels="k ae t iy")  # no silence before iy
    found = differences(ours, match(spoken(truth), spoken(ours), "phones"), truth)
    assert [pair for pair, _ in found] == [("silence", "stop"), PAIR, OTHER, ("vowel", "silence")]
    assert [error for _, error in found] == pytest.approx([0.01, 0.02, 0.0, 0.0], abs=1e-9)


def test_a_blank_that_praat_users_leave_in_an_interval_is_silence() -> None:
    ours = track(0, 0.21, 0.32, 0.5, 0.6, 1.0, labels="SIL k ae t SIL")
    truth = [Segment(0, 0.2, " "), *track(0.2, 0.3, 0.5, 0.62, labels="k ae t")]
    found = differences(ours, match(spoken(truth), spoken(ours), "phones"), truth)
    assert [error for _, error in found] == pytest.approx([0.01, 0.02, 0.0, -0.02], abs=1e-9)


def test_boundaries_move_and_keep_their_order() -> None:
    lexicon = Lexicon((Pronunciation("ta", ("t", "a")),))
    silence, t, a = (lexicon.phone_ids[name] for name in (lexicon.silence_phones[0], "t", "a"))
    alignment = Alignment(
        np.array([silence, t, a, silence], np.int32),
        np.array([-1, 0, 0, -1], np.int32),
        np.array([0, 10, 13, 30, 40], np.int32),
        np.zeros(40, np.int8),
        0.0,
        np.array([0, 9.6, 13.2, 30.5, 40]),
    )
    clock = FrameClock(0.01, 0.0)
    late = Offsets({PAIR: 0.012, ("silence", "stop"): -0.005}, 1, 0, 1, 2)
    edges = moved(alignment, lexicon, clock, late).edges
    assert edges is not None and edges.tolist() == pytest.approx([0, 10.1, 12.0, 30.5, 40])
    far = moved(alignment, lexicon, clock, Offsets({PAIR: 0.5, ("vowel", "silence"): -9.0}, 1, 0, 1, 2)).edges
    assert far is not None and (np.diff(far) >= 0.5 - 1e-9).all() and far[0] == 0 and far[-1] == 40
