"""Boundaries from posteriors and spectral change, against the sum over all segmentations of a short chain."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from speech3.data.audio import write_wav
from speech3.data.datadir import DataDir, Utterance
from speech3.hmm.alignment import boundaries
from speech3.hmm.alignment.boundaries import (
    DataWaves,
    PartWaves,
    Refinement,
    change_at,
    posterior_boundaries,
    spectral_change,
)
from speech3.hmm.alignment.longform import LongPart
from speech3.hmm.alignment.times import FrameClock
from speech3.hmm.model import FIRST_AND_LOOP, THREE_STATES, Hmm, Topology, monophone_tree
from speech3.hmm.train import Scored
from speech3.hmm.transcript import Alignment
from speech3.language.lexicon import Lexicon, Pronunciation

RATE_HZ = 16000


def _hmm(topology: Topology) -> Hmm:
    lexicon = Lexicon((Pronunciation("ab", ("a", "b")),))
    tree = monophone_tree(np.arange(len(lexicon.phones)), topology.states)
    return Hmm(lexicon, tree, np.linspace(0.3, 0.8, tree.num_pdfs), topology)


def _alignment(hmm: Hmm, starts: list[int]) -> Alignment:
    silence, a, b = (hmm.lexicon.phone_ids[name] for name in (hmm.lexicon.silence_phones[0], "a", "b"))
    chain = np.array([silence, a, b, a, silence][: len(starts) - 1], np.int32)
    words = np.array([-1, 0, 0, 0, -1][: len(chain)], np.int32)
    return Alignment(chain, words, np.array(starts, np.int32), np.zeros(starts[-1], np.int8), 0.0)


def _paths(hmm: Hmm, phones: int, frames: int) -> Iterator[tuple[int, ...]]:
    """Every path through a chain of phones: the state in each frame, states numbered through all phones."""
    states, exits = hmm.topology.states, hmm.topology.exits

    def longer(path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        phone, state = divmod(path[-1], states)
        if len(path) == frames:
            if phone == phones - 1 and state in exits:
                yield path
            return
        ahead = [path[-1]] if hmm.topology.loops[state] else []
        ahead += [path[-1] + 1] if state + 1 < states else []
        ahead += [(phone + 1) * states] if state in exits and phone + 1 < phones else []
        for following in ahead:
            yield from longer((*path, following))

    return longer((0,))


def _by_enumeration(
    hmm: Hmm, alignment: Alignment, loglikes_TP: np.ndarray, bonus_T: np.ndarray, scale: float
) -> np.ndarray:
    """The medians from the sum over all paths, in float64, without any recursion over frames."""
    frames, states = alignment.num_frames, hmm.topology.states
    pdf_S = [pdf for window in alignment.windows().tolist() for pdf in hmm.pdfs(*window)]
    total, later = 0.0, np.zeros((len(alignment.phones), frames))
    for path in _paths(hmm, len(alignment.phones), frames):
        score = 0.0
        for t, s in enumerate(path):
            loop = float(hmm.self_loop[pdf_S[s]])
            after = path[t + 1] if t + 1 < frames else None
            score += scale * float(loglikes_TP[t, pdf_S[s]])
            if hmm.topology.weighted:
                score += math.log(loop if after == s else 1 - loop)
            if after is not None and after // states != s // states:
                score += bonus_T[t + 1]
        total += math.exp(score)
        for phone in range(len(later)):
            later[phone] += math.exp(score) * (np.array(path) // states >= phone)
    later /= total
    found = [0.0]
    for phone in range(1, len(later)):
        t = int(np.argmax(later[phone] >= 0.5))
        found.append(t - 0.5 + (0.5 - later[phone, t - 1]) / (later[phone, t] - later[phone, t - 1]))
    return np.array([*found, frames])


@pytest.mark.parametrize(("topology", "starts"), [(THREE_STATES, [0, 4, 7, 13]), (FIRST_AND_LOOP, [0, 1, 3, 6, 9])])
def test_equal_to_the_sum_over_all_paths(topology: Topology, starts: list[int]) -> None:
    hmm = _hmm(topology)
    alignment, generator = _alignment(hmm, starts), np.random.default_rng(3)
    for scale in (0.05, 0.5):
        loglikes_TP = generator.normal(0, 8, (starts[-1], hmm.num_pdfs)).astype(np.float32)
        bonus_T = generator.normal(0, 1, starts[-1])
        pdf_PK = np.array([hmm.pdfs(*window) for window in alignment.windows().tolist()], np.int32)
        found = posterior_boundaries(loglikes_TP, pdf_PK, hmm, alignment, bonus_T, scale)
        np.testing.assert_allclose(
            found, _by_enumeration(hmm, alignment, loglikes_TP, bonus_T, scale), rtol=0, atol=1e-6
        )


def test_a_wide_band_changes_nothing_and_a_narrow_one_stays_near_the_path() -> None:
    hmm, generator = _hmm(THREE_STATES), np.random.default_rng(4)
    alignment = _alignment(hmm, [0, 40, 60, 90, 130, 170])
    loglikes_TP = generator.normal(0, 40, (170, hmm.num_pdfs)).astype(np.float32)
    pdf_PK = np.array([hmm.pdfs(*window) for window in alignment.windows().tolist()], np.int32)
    arguments = loglikes_TP, pdf_PK, hmm, alignment, np.zeros(170), 0.05
    whole, wide = posterior_boundaries(*arguments, band=1000), posterior_boundaries(*arguments, band=170)
    np.testing.assert_array_equal(whole, wide)
    for band in (0, 5, 30):
        near = posterior_boundaries(*arguments, band=band)
        assert np.abs(near - alignment.starts).max() <= band + 0.5
        assert (np.diff(near) >= 3 - 1e-9).all()
    np.testing.assert_allclose(posterior_boundaries(*arguments, band=0), alignment.starts - 0.0, atol=0.5)


def test_a_certain_boundary_is_where_it_is_not_half_a_frame_beside_it() -> None:
    hmm = _hmm(THREE_STATES)
    alignment = _alignment(hmm, [0, 12, 30])
    pdf_PK = np.array([hmm.pdfs(*window) for window in alignment.windows().tolist()], np.int32)
    loglikes_TP = np.full((30, hmm.num_pdfs), -1e4, np.float32)
    loglikes_TP[:17, pdf_PK[0]], loglikes_TP[17:, pdf_PK[1]] = 0.0, 0.0
    found = posterior_boundaries(loglikes_TP, pdf_PK, hmm, alignment, np.zeros(30), 0.05)
    np.testing.assert_allclose(found, [0, 17, 30], atol=1e-6)


def _two_tones(silence: float = 0.0) -> np.ndarray:
    """300 ms of each of two tones in a little noise, after digital silence of some seconds."""
    time_S = np.arange(round(0.3 * RATE_HZ)) / RATE_HZ
    tones = [0.3 * np.sin(2 * np.pi * hz * time_S) for hz in (500, 2500)]
    sound = np.concatenate(tones) + 0.003 * np.random.default_rng(0).normal(size=2 * len(time_S))
    return np.concatenate([np.zeros(round(silence * RATE_HZ)), sound]).astype(np.float32)


def _literal_change(mels_TM: np.ndarray) -> np.ndarray:
    last, found = len(mels_TM) - 1, []
    for edge in range(len(mels_TM) + 1):
        before = [mels_TM[min(max(edge - n, 0), last)] for n in range(1, 5)]
        after = [mels_TM[min(max(edge + n, 0), last)] for n in range(4)]
        found.append(math.sqrt(math.dist(np.mean(before, 0), np.mean(after, 0))))
    return (np.array(found) - np.mean(found)) / np.std(found)


def test_spectral_change_is_its_definition() -> None:
    mels_TM = np.random.default_rng(1).normal(0, 3, (40, 23))
    change_E = boundaries.standardised_change(mels_TM)
    np.testing.assert_allclose(change_E, _literal_change(mels_TM), atol=1e-9)
    assert change_E.mean() == pytest.approx(0, abs=1e-12) and change_E.std() == pytest.approx(1)


def test_the_spectrum_changes_between_the_tones_whatever_silence_is_before_them() -> None:
    seconds_E, change_E = spectral_change(_two_tones(), RATE_HZ)
    assert seconds_E[np.argmax(change_E)] == pytest.approx(0.3, abs=0.010)
    for silence_s in (0.2, 1.0):
        seconds_E, change_E = spectral_change(_two_tones(silence_s), RATE_HZ)
        inner = np.abs(seconds_E - silence_s - 0.3) < 0.1
        assert seconds_E[inner][np.argmax(change_E[inner])] == pytest.approx(silence_s + 0.3, abs=0.010)
        # The floor: the step from digital silence to speech is not thousands of times as large as that between sounds.
        assert change_E.max() < 2 * change_E[inner].max()
        assert np.isfinite(change_E).all()


@pytest.mark.parametrize("wave_S", [np.zeros(8000), np.full(8000, 0.25), np.zeros(100), np.zeros(0)])
def test_where_nothing_changes_there_is_no_bonus(wave_S: np.ndarray) -> None:
    edges_s = np.array([0.0, 0.1, 0.2])
    assert change_at(wave_S.astype(np.float32), RATE_HZ, edges_s).tolist() == [0, 0, 0]
    assert change_at(wave_S.astype(np.float32), 500, edges_s).tolist() == [0, 0, 0]  # too low a rate for the mel bins


def _refined(waves: dict[str, tuple[np.ndarray, int]]) -> np.ndarray:
    hmm = _hmm(THREE_STATES)
    alignment = _alignment(hmm, [0, 20, 58])
    pdf_U = np.arange(hmm.num_pdfs)
    scores = Scored(None, pdf_U, np.zeros((58, hmm.num_pdfs), np.float32))  # type: ignore[arg-type]  # not used
    refined = Refinement(FrameClock(0.01, 0.0075), waves).refined(alignment, "u", scores, hmm, 0.1)
    assert refined.starts is alignment.starts and refined.edges is not None
    np.testing.assert_array_equal(refined.places, refined.edges)
    return refined.edges


def test_the_waveform_moves_boundaries_to_where_the_spectrum_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    without = _refined({})
    assert without[1] * 0.01 + 0.0075 != pytest.approx(0.3, abs=0.01)
    monkeypatch.setattr("speech3.hmm.alignment.boundaries.BONUS", 4.0)
    found = _refined({"u": (_two_tones(), RATE_HZ)})
    assert found[1] * 0.01 + 0.0075 == pytest.approx(0.3, abs=0.008)


def test_waveforms_of_a_directory_and_of_parts(tmp_path: Path) -> None:
    wave_S = _two_tones()
    write_wav(tmp_path / "r.wav", wave_S, RATE_HZ)
    recordings = {"r": "r.wav", "gone": "gone.wav"}
    utterances = {"u": Utterance("u", "r", "s", "ab"), "v": Utterance("v", "gone", "s", "ab")}
    waves = DataWaves(DataDir(tmp_path, recordings, utterances), RATE_HZ)
    assert waves["u"][1] == RATE_HZ and len(waves["u"][0]) == len(wave_S)
    assert waves.get("v") is None and waves.get("w") is None
    parts = PartWaves(waves, {"u-1": LongPart("u", 10, 20, (0,))}, FrameClock(0.01, 0.0075))
    np.testing.assert_array_equal(parts["u-1"][0], waves["u"][0][1600:3440])
    assert len(parts["u"][0]) == len(wave_S) and parts.get("v-1") is None
    assert DataWaves(DataDir(tmp_path, {}, utterances)).get("u") is None
