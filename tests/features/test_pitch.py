"""Pitch: Kaldi's vectors, a float64 reference, sounds of known pitch, and what must not become NaN."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from pitch64 import track64
from reference import RECORDINGS, needs_reference, vectors, wave

from speech3.config import FeatureConfig, PitchConfig
from speech3.errors import Speech3Error
from speech3.features import pitch as pitch_module, pitch_tracking
from speech3.features.pitch import process, track_pitch
from speech3.features.pitch_tracking import Tracker, pitch_sizes, search

KALDI = FeatureConfig(pitch={})


def one(wave_S: torch.Tensor, config: FeatureConfig = KALDI, rate_hz: int = 16000) -> torch.Tensor:
    raw_NT2, frames_N = track_pitch(wave_S[None], torch.tensor([len(wave_S)]), config, rate_hz)
    assert raw_NT2.shape == (1, int(frames_N), 2)
    return raw_NT2[0]


def noise(samples: int, seed: int = 0) -> torch.Tensor:
    """Integers as of 16-bit audio, with an offset; float32 in [-1, 1)."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(samples, generator=generator) * 2000 + 300).round().clamp(-32768, 32767) / 32768


def voice(hz_S: np.ndarray, rate_hz: int) -> torch.Tensor:
    """Four harmonics of a fundamental frequency that may change, and a little noise."""
    phase_S = 2 * np.pi * np.cumsum(hz_S) / rate_hz
    sound_S = sum(np.sin(k * phase_S) / k for k in range(1, 5)) * 0.2
    return torch.from_numpy(sound_S + 0.001 * np.random.default_rng(0).standard_normal(len(hz_S))).float()


@needs_reference
@pytest.mark.parametrize(("rate", "name"), RECORDINGS)
def test_kaldis_vectors(rate: str, name: str) -> None:
    wave_S = torch.from_numpy(wave(rate, name))
    raw_NT2, frames_N = track_pitch(wave_S[None], torch.tensor([len(wave_S)]), KALDI, 8000 if rate == "8k" else 16000)
    kaldi_T2 = vectors(rate)[f"{name}.pitch_raw"]
    assert raw_NT2[0].shape == kaldi_T2.shape
    error_T2 = np.abs(raw_NT2[0].numpy() - kaldi_T2)
    assert (error_T2[:, 1] < 0.5).mean() >= 0.99
    assert (error_T2[:, 0] < 1e-4).mean() >= 0.99
    for key, options in (("pitch_proc", {}), ("pitch_proc_rawlog", {"add_raw_log_pitch": True})):
        ours_TP = process(raw_NT2, frames_N, PitchConfig(**options))[0].numpy()
        kaldi_TP = vectors(rate)[f"{name}.{key}"]
        assert ours_TP.shape == kaldi_TP.shape
        assert ((np.abs(ours_TP - kaldi_TP) < 1e-3).mean(0) >= 0.99).all()


OPTIONS = [
    {},
    {"snip_edges": False, "frame_length": 30.0, "frame_shift": 12.5},
    {"min_f0": 70.0, "max_f0": 320.0, "delta_pitch": 0.01, "penalty_factor": 0.02, "soft_min_f0": 20.0},
    {"lowpass_filter_width": 2, "upsample_filter_width": 3, "lowpass_cutoff": 800.0, "nccf_ballast": 100.0},
    {"resample_freq": 2600, "preemph_coeff": 0.5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "default")
@pytest.mark.parametrize("rate_hz", [8000, 11025])
def test_options_equal_a_float64_reference(rate_hz: int, options: dict[str, object]) -> None:
    seconds_S = np.arange(rate_hz // 2) / rate_hz
    wave_S = voice(160 + 60 * np.sin(2 * np.pi * 3 * seconds_S), rate_hz) * torch.from_numpy(1 - seconds_S).float()
    own = {key: value for key, value in options.items() if key in ("snip_edges", "frame_length", "frame_shift")}
    config = FeatureConfig(pitch={key: value for key, value in options.items() if key not in own}, **own)
    ours_T2, exact_T2 = one(wave_S, config, rate_hz).numpy(), track64(wave_S.double().numpy(), rate_hz, **options)
    assert ours_T2.shape == exact_T2.shape
    same_T = np.abs(ours_T2[:, 1] / exact_T2[:, 1] - 1) < 1e-4
    assert same_T.mean() > 0.95
    np.testing.assert_allclose(ours_T2[:, 1], exact_T2[:, 1], rtol=0.03)
    np.testing.assert_allclose(ours_T2[same_T, 0], exact_T2[same_T, 0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("rate_hz", [8000, 11025, 15999, 16000, 22050, 44100, 48000])
@pytest.mark.parametrize("hz", [75.0, 123.0, 310.0])
def test_the_pitch_of_a_harmonic_sound(rate_hz: int, hz: float) -> None:
    raw_T2 = one(voice(np.full(rate_hz, hz), rate_hz), rate_hz=rate_hz)
    assert len(raw_T2) == 98
    torch.testing.assert_close(raw_T2[3:-3, 1], torch.full((92,), hz), rtol=0.01, atol=0)
    assert (raw_T2[3:-3, 0] > 0.97).all()


def test_the_pitch_of_a_glide() -> None:
    hz_S = 100 * 2 ** (np.arange(32000) / 32000)
    raw_T2 = one(voice(hz_S, 16000))
    centre_T = (np.arange(len(raw_T2)) * 160 + 200 + 60).clip(
        max=31999
    )  # half a lag, say 4 ms, after the window's middle
    np.testing.assert_allclose(raw_T2[5:-5, 1], hz_S[centre_T][5:-5], rtol=0.02)


@pytest.mark.parametrize("options", [{}, {"snip_edges": False}])
@pytest.mark.parametrize("rows", [7, 512])
def test_a_batch_equals_its_utterances(options: dict[str, object], rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = FeatureConfig(pitch={}, **options)
    lengths = [16000, 0, 399, 400, 401, 5000, 80, 12345, 1]
    waves_NS = torch.full((len(lengths), 17000), torch.nan)
    alone = []
    for row, length in enumerate(lengths):
        waves_NS[row, :length] = noise(length, row)
        alone.append(one(waves_NS[row, :length].clone(), config))
    monkeypatch.setattr(pitch_module, "_ROWS_CPU", rows)
    raw_NT2, frames_N = track_pitch(waves_NS, torch.tensor(lengths), config, 16000)
    for row, alone_T2 in enumerate(alone):
        frames = int(frames_N[row])
        assert frames == len(alone_T2)
        same_T = (raw_NT2[row, :frames, 1] - alone_T2[:, 1]).abs() < 0.5
        assert same_T.float().mean() > 0.98 or frames == 0  # products of other sizes round in another order
        torch.testing.assert_close(raw_NT2[row, :frames][same_T], alone_T2[same_T], atol=1e-4, rtol=0)
        assert (raw_NT2[row, frames:] == 0).all()


def test_the_search_finds_the_cheapest_way() -> None:
    random = np.random.default_rng(0)
    sizes = pitch_sizes(KALDI, 16000)
    lags_K = sizes.lags_K
    step_KK = np.subtract.outer(np.arange(len(lags_K)), np.arange(len(lags_K))) ** 2
    factor = np.float32(2.5e-6)
    for size in (1.0, 1e-2, 1e-4, 0.0):
        nccf_RK = (size * np.cumsum(random.standard_normal((20, len(lags_K))), 1) / 20).astype(np.float32)
        forward_K, back_RK = np.zeros(len(lags_K), np.float32), np.empty(nccf_RK.shape, np.int16)
        exact_K = np.zeros(len(lags_K))
        for r in range(20):
            before_K = forward_K.astype(np.float64)
            search(nccf_RK[r : r + 1], lags_K, np.float32(10), factor, forward_K, back_RK[r : r + 1])
            total_KK = before_K + float(factor) * step_KK
            found_K = total_KK[np.arange(len(lags_K)), back_RK[r]]
            np.testing.assert_allclose(found_K, total_KK.min(1), rtol=0, atol=1e-9)
            exact_K = total_KK.min(1) + (1 - nccf_RK[r] + 10 * lags_K * nccf_RK[r])
            np.testing.assert_allclose(forward_K, exact_K - exact_K.min(), rtol=0, atol=2e-6)


def test_paths_that_never_agree_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pitch_tracking, "_MAX_KEPT", 50)
    monkeypatch.setattr(pitch_module, "_ROWS_CPU", 20)
    raw_T2 = one(torch.zeros(5 * 16000))
    assert (raw_T2 == torch.tensor([0.0, 400.0])).all()
    tracker, pushed = Tracker(PitchConfig(), pitch_sizes(KALDI, 16000)), 0
    for _ in range(30):
        pushed += len(tracker.push(np.zeros((20, 417), np.float32), np.zeros((20, 75), np.float32)))
    assert pushed == 550
    assert len(tracker._back_TK) < 500
    assert len(tracker.finish()) == 50
    wave_S = voice(np.linspace(100, 200, 16000), 16000)
    cut_T2 = one(wave_S)
    monkeypatch.undo()
    torch.testing.assert_close(cut_T2, one(wave_S))


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 3000),
    st.sampled_from(["zeros", "constant", "clipped", "square", "impulse", "tiny", "denormal", "noise", "onset"]),
    st.sampled_from([8000, 11025, 16000]),
    st.booleans(),
)
def test_never_nan(samples: int, what: str, rate_hz: int, snip_edges: bool) -> None:
    one_hot_S = torch.nn.functional.one_hot(torch.tensor(samples // 2), samples + 1)[:samples].float()
    wave_S = {
        "zeros": torch.zeros(samples),
        "constant": torch.full((samples,), -0.7),
        "clipped": torch.where(torch.arange(samples) // 37 % 2 == 0, 1.0, -1.0),
        "square": torch.where(torch.arange(samples) < samples // 2, 1.0, -1.0),
        "impulse": one_hot_S,
        "tiny": noise(samples) * 1e-20,
        "denormal": noise(samples) * 1e-42,
        "noise": noise(samples),
        "onset": noise(samples) * one_hot_S.cumsum(0),
    }[what]
    config = FeatureConfig(snip_edges=snip_edges, pitch={"add_raw_log_pitch": True})
    raw_NT2, frames_N = track_pitch(wave_S[None], torch.tensor([samples]), config, rate_hz)
    feats_NTP = process(raw_NT2, frames_N, config.pitch)
    assert raw_NT2.isfinite().all()
    assert (raw_NT2[..., 0].abs() < 1.5).all()
    assert ((raw_NT2[..., 1] > 49) & (raw_NT2[..., 1] < 401)).all()
    assert feats_NTP.isfinite().all()


def test_no_penalty_and_no_ballast_stay_finite() -> None:
    config = FeatureConfig(pitch={"penalty_factor": 0.0, "nccf_ballast": 0.0})
    for wave_S in (torch.zeros(8000), noise(8000)):
        assert one(wave_S, config).isfinite().all()


def test_samples_that_are_no_numbers_do_no_harm_but_to_their_own_recording() -> None:
    waves_NS = noise(8000).repeat(2, 1)
    waves_NS[0, 3000:3100], waves_NS[0, 5000], waves_NS[0, 6000] = torch.nan, torch.inf, 1e30
    raw_NT2, _ = track_pitch(waves_NS, torch.tensor([8000, 8000]), KALDI, 16000)
    assert raw_NT2[1].isfinite().all()


def test_no_utterances_and_no_frames() -> None:
    raw_NT2, frames_N = track_pitch(torch.zeros(0, 100), torch.zeros(0, dtype=torch.int64), KALDI, 8000)
    assert raw_NT2.shape == (0, 0, 2)
    assert frames_N.shape == (0,)
    raw_NT2, frames_N = track_pitch(torch.zeros(2, 100), torch.tensor([100, 0]), KALDI, 8000)
    assert raw_NT2.shape == (2, 0, 2)
    assert process(raw_NT2, frames_N, PitchConfig()).shape == (2, 0, 3)


@pytest.mark.parametrize(
    ("options", "rate_hz", "wrong"),
    [
        ({"pitch": {}}, 1500, "lowpass_cutoff 1000"),
        ({"pitch": {"delta_pitch": 1e-9}}, 16000, "delta_pitch 1e-09"),
        ({"pitch": {"max_f0": 3999.0}}, 16000, "max_f0 3999"),
        ({"pitch": {}, "frame_length": 0.3, "frame_shift": 0.2}, 16000, "frame_length 0.3"),
    ],
)
def test_what_does_not_fit_is_said(options: dict[str, object], rate_hz: int, wrong: str) -> None:
    with pytest.raises(Speech3Error, match=wrong):
        one(torch.zeros(4000), FeatureConfig(**options), rate_hz)


def raw_of(nccf_T: torch.Tensor, pitch_T: torch.Tensor) -> torch.Tensor:
    return torch.stack([nccf_T, pitch_T], -1)[None]


def test_features_of_a_constant_pitch() -> None:
    raw_NT2 = raw_of(torch.full((300,), 1.0), torch.full((300,), 200.0))
    config = PitchConfig(add_raw_log_pitch=True, pov_offset=0.5)
    feats_TP = process(raw_NT2, torch.tensor([300]), config)[0]
    expected_P = torch.tensor([2 * (0.0001**0.15 - 1) + 0.5, 0.0, 0.0, math.log(200)])
    torch.testing.assert_close(feats_TP, expected_P.expand(300, 4), atol=2e-3, rtol=0)
    torch.testing.assert_close(feats_TP[:, 1:], expected_P[1:].expand(300, 3), atol=1e-5, rtol=0)


def test_normalisation_and_delta_equal_their_formulas() -> None:
    random = np.random.default_rng(0)
    nccf_T, pitch_T = random.uniform(-1, 1, 200), random.uniform(60, 380, 200)
    config = PitchConfig(
        normalization_left_context=20, normalization_right_context=7, delta_window=3, add_pov_feature=False
    )
    ours_TP = process(
        raw_of(torch.from_numpy(nccf_T).float(), torch.from_numpy(pitch_T).float()), torch.tensor([200]), config
    )
    n_T = np.abs(nccf_T)
    ratio_T = -5.2 + 5.4 * np.exp(7.5 * (n_T - 1)) + 4.8 * n_T - 2 * np.exp(-10 * n_T) + 4.2 * np.exp(20 * (n_T - 1))
    weight_T, log_T = 1 / (1 + np.exp(-ratio_T)), np.log(pitch_T)
    around = [slice(max(t - 20, 0), t + 8) for t in range(200)]
    mean_T = np.array([np.average(log_T[a], weights=weight_T[a]) for a in around])
    np.testing.assert_allclose(ours_TP[0, :, 0], 2 * (log_T - mean_T), rtol=0, atol=1e-5)
    edged_T = np.pad(log_T, 3, mode="edge")
    slope_T = sum(j * edged_T[3 + j : 203 + j] for j in range(-3, 4)) / 28
    np.testing.assert_allclose(ours_TP[0, :, 1], 10 * slope_T, rtol=0, atol=1e-5)


def test_processing_a_batch_equals_its_utterances() -> None:
    raw_NT2 = torch.full((3, 250, 2), torch.nan)
    generator, lengths = torch.Generator().manual_seed(0), [250, 0, 90]
    for row, frames in enumerate(lengths):
        raw_NT2[row, :frames] = torch.rand(frames, 2, generator=generator) * torch.tensor([1.0, 300.0]) + 0.01
    config = PitchConfig(add_raw_log_pitch=True)
    feats_NTP = process(raw_NT2, torch.tensor(lengths), config)
    for row, frames in enumerate(lengths):
        alone_TP = process(raw_NT2[row : row + 1, :frames], torch.tensor([frames]), config)[0]
        torch.testing.assert_close(feats_NTP[row, :frames], alone_TP, atol=1e-5, rtol=0)
        assert (feats_NTP[row, frames:] == 0).all()


def test_noise_goes_into_delta_pitch_alone() -> None:
    raw_NT2, frames_N = raw_of(torch.rand(50), torch.rand(50) * 100 + 100), torch.tensor([50])
    noise_NT, config = torch.randn(1, 50), PitchConfig(delta_pitch_noise_stddev=0.005)
    difference_NTP = process(raw_NT2, frames_N, config, noise_NT) - process(raw_NT2, frames_N, config)
    torch.testing.assert_close(difference_NTP[..., 2], noise_NT * 0.05, atol=1e-5, rtol=0)
    assert (difference_NTP[..., :2] == 0).all()
