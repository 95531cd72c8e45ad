"""A long recording is cut at pauses and recognised part by part, in bounded memory, with the times of the whole."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import example, given, settings, strategies as st
from whistles import RATE_HZ, whistled

from speech3.decode.output import LONG_S, Cut, cut_at_pauses
from speech3.decode.recognizer import load_recognizer, transcribe
from speech3.errors import DataError, Speech3Error

HZ = 1000
SENTENCE = (("SIL", 0.3), ("a", 0.3), ("b", 0.25), ("SIL", 0.2), ("b", 0.3), ("SIL", 0.35))  # "AB BB", 1.7 s


def talk(*sections: tuple[float, float]) -> np.ndarray:
    """Noise in sections of (seconds, amplitude), one after another."""
    rng = np.random.default_rng(0)
    return np.concatenate([level * rng.standard_normal(round(s * HZ)) for s, level in sections]).astype(np.float32)


def blocks(wave_S: np.ndarray, sizes: list[int]) -> Iterator[np.ndarray]:
    at, number = 0, 0
    while at < len(wave_S):
        yield wave_S[at : at + sizes[number % len(sizes)]]
        at, number = at + sizes[number % len(sizes)], number + 1


def test_cuts_lie_in_pauses() -> None:
    wave_S = talk((12, 0.2), (0.5, 0.002), (14, 0.3), (0.6, 0.002), (24, 0.1), (0.5, 0.001), (20, 0.2))
    parts = list(cut_at_pauses(blocks(wave_S, [700]), HZ))
    assert [part.begin_s for part in parts] == pytest.approx([0, 12.25, 26.8, 51.35], abs=0.25)
    np.testing.assert_array_equal(np.concatenate([part.wave_S for part in parts]), wave_S)  # nothing is lost


@settings(max_examples=30, deadline=None)
@example([(1.0, 0.3)], 1)
@example([(1.75, 0.0), (12.25, 0.0), (5.0, 0.001), (20.0, 0.3), (19.75, 0.3), (1.0, 0.0), (13.0, 0.0)], 1)
@given(st.lists(st.tuples(st.floats(0.1, 20), st.sampled_from([0.0, 0.001, 0.3])), max_size=12), st.integers(1, 30_000))
def test_parts_hold_all_that_is_loud(sections: list[tuple[float, float]], size: int) -> None:
    wave_S = talk(*sections) if sections else np.zeros(0, np.float32)
    covered = np.zeros(len(wave_S), bool)
    for part in cut_at_pauses(blocks(wave_S, [size]), HZ):
        first = round(part.begin_s * HZ)
        np.testing.assert_array_equal(wave_S[first : first + len(part.wave_S)], part.wave_S)
        assert not covered[first : first + len(part.wave_S)].any() and len(part.wave_S) <= 30 * HZ
        covered[first : first + len(part.wave_S)] = True
    for first, end in np.flatnonzero(np.diff(np.r_[1, covered, 1])).reshape(-1, 2):
        # What was left out is silence, or parts that are equally loud throughout, with silence around them.
        level = np.abs(wave_S[first:end])
        loud = level >= 0.01
        assert not loud.any() or (end - first > 2 * HZ and np.median(level[loud]) > 0.1)


def test_what_is_no_speech() -> None:
    def begins(wave_S: np.ndarray) -> list[tuple[float, float]]:
        return [(cut.begin_s, len(cut.wave_S) / HZ) for cut in cut_at_pauses([wave_S], HZ)]

    assert begins(talk((20, 0.3))) == begins(np.zeros(5000, np.float32)) == begins(np.zeros(0, np.float32)) == []
    ((begin_s, duration_s),) = begins(talk((5, 0.001), (1, 0.1), (5, 0.001)))
    assert (begin_s, duration_s) == pytest.approx((4.4, 2.2), abs=0.2)
    assert begins(talk((0.1, 0.1))) == [(0, 0.1)]  # too short to be called noise


def test_what_waits_does_not_grow() -> None:
    most = 0

    def hour() -> Iterator[np.ndarray]:
        for number in range(360):
            yield talk((9.5, 0.2), (0.5, 0.001)) if number % 3 else np.zeros(10 * HZ, np.float32)

    parts = cut_at_pauses(hour(), HZ)
    for part in parts:
        assert isinstance(part, Cut)
        most = max(most, parts.gi_frame.f_locals["waiting_S"].nbytes)  # type: ignore[attr-defined]
    assert most < 45 * HZ * 4


@pytest.fixture(scope="module")
def long_S() -> np.ndarray:
    """Twenty sentences, a minute of silence, and twenty sentences."""
    silence_S = np.zeros(60 * RATE_HZ, np.float32)
    said_S = np.tile(whistled(*SENTENCE), 20)
    return np.concatenate([said_S, silence_S, said_S])


def test_a_long_recording(model: Path, tmp_path: Path, long_S: np.ndarray) -> None:
    recognizer = load_recognizer(model)
    assert len(long_S) > LONG_S * RATE_HZ
    path = tmp_path / "long.flac"
    soundfile.write(path, np.stack([long_S, long_S], 1), RATE_HZ)
    (found,) = transcribe(recognizer, [path], times=True)
    assert found.text == " ".join(["AB BB"] * 40) == " ".join(word.label for word in found.words)
    begins = [1.7 * n + (60 if n >= 20 else 0) for n in range(40)]
    assert [word.start_s for word in found.words[::2]] == pytest.approx([b + 0.3 for b in begins], abs=0.06)
    assert [word.end_s for word in found.words[1::2]] == pytest.approx([b + 1.35 for b in begins], abs=0.06)
    (text_only,) = transcribe(recognizer, [path])
    assert text_only.text == found.text and text_only.words == []
    result = recognizer.transcribe(long_S, RATE_HZ)
    assert result.text == found.text
    assert [w.start_s for w in result.words] == pytest.approx([w.start_s for w in found.words], abs=0.02)


def test_a_piece_that_cannot_be_recognised_is_left_out(
    model: Path, long_S: np.ndarray, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from speech3.decode import recognizer as module

    recognizer, features_of, calls = load_recognizer(model), module._features_of, []

    def sometimes(*arguments: object) -> np.ndarray:
        calls.append(arguments[1])
        if len(calls) == 2 or broken:
            raise Speech3Error(f"{arguments[1]}: no")
        return features_of(*arguments)  # type: ignore[arg-type]

    broken = False
    monkeypatch.setattr(module, "_features_of", sometimes)
    result = recognizer.transcribe(long_S, RATE_HZ)
    assert 30 <= len(result.words) < 80 and len(calls) >= 4
    assert f"left out: {calls[1]}: no" in capsys.readouterr().err.replace("\n", " ")
    broken = True
    with pytest.raises(DataError, match="samples"):
        recognizer.transcribe(long_S, RATE_HZ)


def test_a_long_recording_of_silence_has_no_words(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "silence.wav"
    soundfile.write(path, np.zeros(70 * RATE_HZ, np.int16), RATE_HZ)
    (found,) = transcribe(load_recognizer(model), [path], times=True)
    assert found.text == "" and found.words == []


def test_a_long_recording_that_was_cut_short(model: Path, tmp_path: Path, long_S: np.ndarray) -> None:
    path = tmp_path / "short.flac"
    soundfile.write(path, long_S, RATE_HZ)
    path.write_bytes(path.read_bytes()[:-20_000])
    with pytest.raises(Speech3Error, match=r"short\.flac"):
        list(transcribe(load_recognizer(model), [path]))
