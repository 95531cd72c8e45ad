"""Pitch of a recording that comes in pieces, against that of the whole."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from reference import needs_reference, wave

from speech3.config import FeatureConfig
from speech3.features import pitch as pitch_online
from speech3.features.pitch import OnlinePitch, process, track_pitch, voicing_probability

RAW_LOG = {"add_raw_log_pitch": True}


def whole(wave_S: torch.Tensor, config: FeatureConfig, rate_hz: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and, of each frame, whether it is voiced."""
    raw_NT2, frames_N = track_pitch(wave_S[None], torch.tensor([len(wave_S)]), config, rate_hz)
    return process(raw_NT2, frames_N, config.pitch)[0], voicing_probability(raw_NT2[0, :, 0]) > 0.5


def pieces(wave_S: torch.Tensor, config: FeatureConfig, rate_hz: int, sizes: list[int]) -> list[torch.Tensor]:
    """What comes out with each piece of these sizes, again and again, and at the end."""
    online, given_out, start = OnlinePitch(config, rate_hz), [], 0
    while start < len(wave_S):
        size = sizes[len(given_out) % len(sizes)]
        given_out.append(online.accept(wave_S[start : start + size]))
        start += size
    return [*given_out, online.finish()]


def speechlike(samples: int, rate_hz: int) -> torch.Tensor:
    """A gliding voice that comes and goes over a little noise, from the first quarter of a second on."""
    seconds_S = np.arange(samples) / rate_hz
    phase_S = 2 * np.pi * np.cumsum(140 + 50 * np.sin(3 * seconds_S)) / rate_hz
    loud_S = np.clip(np.sin(2 * np.pi * seconds_S + 0.5), 0, 1) * 0.3
    sound_S = sum(np.sin(k * phase_S) / k for k in range(1, 6)) * loud_S
    return torch.from_numpy(sound_S + 0.002 * np.random.default_rng(0).standard_normal(samples)).float()


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 12000),
    st.lists(st.integers(1, 3000), min_size=1, max_size=4),
    st.sampled_from([8000, 11025, 16000]),
    st.booleans(),
    st.sampled_from([0, 10]),
)
def test_as_many_frames_as_of_the_whole(
    samples: int, sizes: list[int], rate_hz: int, snip_edges: bool, latency: int
) -> None:
    config = FeatureConfig(snip_edges=snip_edges, pitch={"max_frames_latency": latency})
    wave_S = speechlike(samples, rate_hz)
    feats_TP = torch.cat(pieces(wave_S, config, rate_hz, [size + samples // 100 for size in sizes]))
    assert feats_TP.shape == whole(wave_S, config, rate_hz)[0].shape
    assert feats_TP.isfinite().all()


@needs_reference
@pytest.mark.parametrize("snip_edges", [True, False])
@pytest.mark.parametrize("name", ["espeak_f", "espeak_m_zeros", "fsdd_up"])
def test_one_piece_is_the_whole(name: str, snip_edges: bool) -> None:
    config = FeatureConfig(snip_edges=snip_edges, pitch=RAW_LOG)
    wave_S = torch.from_numpy(wave("16k", name))
    feats_TP, _ = whole(wave_S, config, 16000)
    at_once_TP, rest_TP = pieces(wave_S, config, 16000, [len(wave_S)])
    assert len(at_once_TP) > 0
    torch.testing.assert_close(torch.cat([at_once_TP, rest_TP]), feats_TP, atol=1e-4, rtol=0)


def test_one_long_piece_is_the_whole() -> None:
    config, wave_S = FeatureConfig(pitch=RAW_LOG), speechlike(30 * 8000, 8000)
    feats_TP, _ = whole(wave_S, config, 8000)
    torch.testing.assert_close(torch.cat(pieces(wave_S, config, 8000, [len(wave_S)])), feats_TP, atol=1e-4, rtol=0)


@needs_reference
@pytest.mark.parametrize("size", [160, 1600, 8000])
def test_voiced_frames_are_those_of_the_whole(size: int) -> None:
    config = FeatureConfig(pitch=RAW_LOG)
    close = []
    for name in ("espeak_f", "espeak_m", "fsdd_up"):
        wave_S = torch.from_numpy(wave("16k", name))
        feats_TP, voiced_T = whole(wave_S, config, 16000)
        difference_TP = (torch.cat(pieces(wave_S, config, 16000, [size])) - feats_TP).abs()
        close.append(difference_TP[voiced_T] < 0.02)
    pov, normalised, delta, raw_log = torch.cat(close).float().mean(0).tolist()
    assert min(pov, delta) > 0.95
    assert normalised > 0.9  # the mean that is taken off is that of all frames around
    assert raw_log > 0.98


def test_the_early_frames_are_gone_through_again_at_frame_500(monkeypatch: pytest.MonkeyPatch) -> None:
    """One loud second, whose energy makes too much ballast for the quiet ones that follow."""
    config = FeatureConfig(pitch=RAW_LOG)
    quiet_S = torch.cat([speechlike(8000, 8000), speechlike(32000, 8000) * 0.003])
    wave_S = torch.cat([quiet_S, speechlike(48000, 8000) * 0.5])
    feats_TP, _ = whole(wave_S, config, 8000)

    def close() -> float:
        return float(((torch.cat(pieces(wave_S, config, 8000, [800])) - feats_TP)[:500, 3].abs() < 0.02).float().mean())

    assert close() > 0.9
    monkeypatch.setattr(pitch_online, "changed", lambda *energies: False)
    assert close() < 0.7


def test_latency_is_bounded() -> None:
    config = FeatureConfig(pitch={"max_frames_latency": 20, "normalization_right_context": 0, "delta_window": 1})
    online, samples, frames = OnlinePitch(config, 8000), 0, 0
    for _ in range(50):
        frames += len(online.accept(torch.zeros(800)))
        samples += 800
        # A full frame lasts 45.5 ms, the resampling filter reaches 0.5 ms.
        assert frames >= (samples / 8000 - 0.046) / 0.01 - 20 - 1 - 1
    assert frames + len(online.finish()) == 498


def test_values_that_look_at_no_later_frame_are_not_kept_waiting() -> None:
    pitch = {"add_normalized_log_pitch": False, "add_delta_pitch": False, "max_frames_latency": 20}
    online, wave_S = OnlinePitch(FeatureConfig(pitch=pitch), 8000), speechlike(8000, 8000)
    at_once_TP = online.accept(wave_S)
    assert len(at_once_TP) >= (1 - 0.046) / 0.01 - 20 - 1
    assert len(at_once_TP) + len(online.finish()) == 98


@pytest.mark.parametrize("loudness", [0.0, 1.0])
def test_what_is_kept_is_bounded(loudness: float) -> None:
    online = OnlinePitch(FeatureConfig(pitch={"max_frames_latency": 100}), 8000)
    wave_S = speechlike(8000, 8000) * loudness
    for second in range(60):
        online.accept(wave_S)
        if second == 20:
            kept = sum(len(part) for part in (online._wave_S, online._signal_O, online._post._raw_T2))
            tracked = len(online._tracker._back_TK)
    assert sum(len(part) for part in (online._wave_S, online._signal_O, online._post._raw_T2)) <= kept + 100
    assert len(online._tracker._back_TK) == tracked < 3000
    assert online._early is None


def test_no_samples() -> None:
    online = OnlinePitch(FeatureConfig(pitch={}), 16000)
    assert online.accept(torch.zeros(0)).shape == (0, 3)
    assert online.finish().shape == (0, 3)
