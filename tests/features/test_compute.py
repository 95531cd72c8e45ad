"""Static features: batches, other rates and options against kaldi-native-fbank, input that could give NaN."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from speech3.config import FeatureConfig, PitchConfig, load_preset
from speech3.features import spectrum
from speech3.features.compute import finish_features, pitch_ratio, static_dim, static_features
from speech3.features.spectrum import frame_sizes

LOG_EPSILON = math.log(torch.finfo(torch.float32).eps)


def noise(samples: int, seed: int = 0) -> torch.Tensor:
    """Integers as of 16-bit audio, with an offset; float32 in [-1, 1)."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(samples, generator=generator) * 2000 + 300).round().clamp(-32768, 32767) / 32768


def one(wave_S: torch.Tensor, config: FeatureConfig, rate_hz: int = 16000) -> torch.Tensor:
    return static_features(wave_S[None], torch.tensor([len(wave_S)]), config, rate_hz)[0][0]


@pytest.mark.parametrize("kind", ["fbank", "mfcc", "plp"])
@pytest.mark.parametrize("options", [{}, {"snip_edges": False}, {"use_energy": True, "window_type": "hamming"}])
@pytest.mark.parametrize("chunk", [512, 512 * 30, 1 << 18])
def test_a_batch_equals_its_utterances(
    kind: str, options: dict[str, object], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = FeatureConfig(kind=kind, **options)
    lengths = [16000, 0, 399, 400, 401, 5000, 80, 12345]
    waves_NS = torch.full((len(lengths), 17000), torch.nan)
    alone = []
    for row, length in enumerate(lengths):
        waves_NS[row, :length] = noise(length, row)
        alone.append(one(waves_NS[row, :length], config))
    monkeypatch.setattr(spectrum, "_CHUNK_CPU", chunk)
    feats_NTF, frames_N = static_features(waves_NS, torch.tensor(lengths), config, 16000)
    assert frames_N.tolist() == [frame_sizes(config, 16000).frames(length) for length in lengths]
    assert feats_NTF.shape == (len(lengths), max(frames_N.tolist()), static_dim(config))
    for row, alone_TF in enumerate(alone):
        frames = int(frames_N[row])
        torch.testing.assert_close(feats_NTF[row, :frames], alone_TF, atol=2e-4, rtol=0)
        assert (feats_NTF[row, frames:] == 0).all()


NATIVE = [
    {},
    {"window_type": "hamming", "snip_edges": False},
    {"window_type": "hanning", "preemphasis_coefficient": 0.0},
    {"window_type": "rectangular", "remove_dc_offset": False},
    {"window_type": "blackman", "use_energy": True, "raw_energy": False},
    {"low_freq": 60.0, "high_freq": -300.0, "use_power": False},
    {"use_log_fbank": False, "frame_length": 32.0, "frame_shift": 8.0},
    {"use_energy": True, "energy_floor": 1e12},
    {"round_to_power_of_two": False},
]


@pytest.mark.parametrize("rate_hz", [8000, 11025, 16000, 22050, 44100, 48000])
@pytest.mark.parametrize("options", NATIVE, ids=lambda options: "-".join(options) or "default")
def test_options_and_rates_equal_kaldi_native_fbank(rate_hz: int, options: dict[str, object]) -> None:
    knf = pytest.importorskip("kaldi_native_fbank")
    config = FeatureConfig(num_mel_bins=24, **options)
    theirs = knf.FbankOptions()
    frame = theirs.frame_opts
    frame.samp_freq, frame.dither = rate_hz, 0.0
    frame.frame_length_ms, frame.frame_shift_ms = config.frame_length, config.frame_shift
    frame.preemph_coeff, frame.remove_dc_offset = config.preemphasis_coefficient, config.remove_dc_offset
    frame.window_type, frame.snip_edges = config.window_type, config.snip_edges
    frame.round_to_power_of_two = config.round_to_power_of_two
    theirs.mel_opts.num_bins, theirs.mel_opts.low_freq = config.num_mel_bins, config.low_freq
    theirs.mel_opts.high_freq = config.high_freq
    theirs.use_energy, theirs.raw_energy, theirs.energy_floor = (
        config.use_energy,
        config.raw_energy,
        config.energy_floor,
    )
    theirs.use_log_fbank, theirs.use_power = config.use_log_fbank, config.use_power
    if not config.round_to_power_of_two and frame_sizes(config, rate_hz).fft % 2:
        pytest.skip("kaldi-native-fbank has no FFT of odd size")
    wave_S = noise(rate_hz // 2)
    online = knf.OnlineFbank(theirs)
    online.accept_waveform(rate_hz, (wave_S.numpy() * 32768).tolist())
    online.input_finished()
    expected = np.stack([online.get_frame(t) for t in range(online.num_frames_ready)])
    tolerance = {"rtol": 0, "atol": 1e-3} if config.use_log_fbank else {"rtol": 1e-4, "atol": 0}
    np.testing.assert_allclose(one(wave_S, config, rate_hz).numpy(), expected, **tolerance)


@pytest.mark.parametrize("hz", [300, 1000, 3000])
def test_a_sine_is_loudest_in_the_bin_around_it(hz: int) -> None:
    wave_S = 0.5 * torch.sin(2 * math.pi * hz / 16000 * torch.arange(8000))
    centres = np.linspace(1127 * np.log1p(20 / 700), 1127 * np.log1p(8000 / 700), 42)[1:-1]
    nearest = int(np.abs(centres - 1127 * np.log1p(hz / 700)).argmin())
    assert set(one(wave_S, FeatureConfig(num_mel_bins=40)).argmax(1).tolist()) == {nearest}


@pytest.mark.parametrize("value", [0.0, 0.25, -1.0, 32767 / 32768])
def test_constant_samples_are_at_the_floor_as_kaldis_are(value: float) -> None:
    wave_S = noise(16000)
    wave_S[4000:12000] = value
    for config in (FeatureConfig(num_mel_bins=40, use_energy=True), FeatureConfig(num_mel_bins=40, snip_edges=False)):
        inside_TF = one(wave_S, config)[30:70]
        torch.testing.assert_close(inside_TF, torch.full_like(inside_TF, LOG_EPSILON), atol=1e-5, rtol=0)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 3000),
    st.sampled_from(["zeros", "constant", "clipped", "impulse", "tiny", "noise"]),
    st.sampled_from([8000, 16000]),
    st.sampled_from(["fbank", "mfcc", "plp"]),
    st.booleans(),
    st.booleans(),
)
def test_never_nan(samples: int, what: str, rate_hz: int, kind: str, energy: bool, snip_edges: bool) -> None:
    wave_S = {
        "zeros": torch.zeros(samples),
        "constant": torch.full((samples,), -0.7),
        "clipped": torch.where(torch.arange(samples) // 37 % 2 == 0, 1.0, -1.0),
        "impulse": torch.nn.functional.one_hot(torch.tensor(samples // 2), samples + 1)[:samples].float(),
        "tiny": noise(samples) * 1e-30,
        "noise": noise(samples),
    }[what]
    config = FeatureConfig(kind=kind, use_energy=energy, snip_edges=snip_edges)
    feats_TF = one(wave_S, config, rate_hz)
    assert len(feats_TF) == frame_sizes(config, rate_hz).frames(samples)
    assert feats_TF.isfinite().all()


def test_no_utterances() -> None:
    feats_NTF, frames_N = static_features(torch.zeros(0, 100), torch.zeros(0, dtype=torch.int64), FeatureConfig(), 8000)
    assert feats_NTF.shape == (0, 0, 23)
    assert frames_N.shape == (0,)


@pytest.mark.parametrize(("name", "values"), [("fbank40", 40), ("fbank40_d2", 120), ("mfcc13_d2", 39)])
def test_presets_have_the_size_in_their_name(name: str, values: int) -> None:
    config = load_preset(FeatureConfig, "features", name)
    assert finish_features([one(noise(4000), config)], config)[0].shape[1] == values


def test_mfcc_has_the_energy_by_default_as_in_kaldi() -> None:
    assert FeatureConfig(kind="mfcc").use_energy
    assert not FeatureConfig(kind="mfcc", use_energy=False).use_energy
    assert not FeatureConfig().use_energy


@pytest.mark.parametrize("options", [{}, {"use_energy": True}, {"use_energy": True, "raw_energy": False}])
@pytest.mark.parametrize("remove_dc_offset", [True, False])
def test_the_cpus_passes_equal_the_tensor_operations_of_other_devices(
    options: dict[str, object], remove_dc_offset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = FeatureConfig(window_type="hamming", remove_dc_offset=remove_dc_offset, **options)
    passes_TF = one(noise(30000), config)
    monkeypatch.setattr(spectrum, "_cut_cpu", spectrum._cut)
    monkeypatch.setattr(spectrum, "_power_cpu", spectrum._power)
    torch.testing.assert_close(passes_TF, one(noise(30000), config), atol=2e-5, rtol=0)


def test_chunks_of_short_frames_may_be_larger_than_blocks() -> None:
    config = FeatureConfig(frame_length=8, frame_shift=1, num_mel_bins=4)
    wave_S = noise(8000 * 10)
    feats_TF = one(wave_S, config, 8000)
    assert len(feats_TF) == 9993
    torch.testing.assert_close(feats_TF[5000:5010], one(wave_S[40000:40136], config, 8000), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("rate_hz", "shift_ms", "ratio"), [(16000, 10, 1), (16000, 7.3, 1), (11025, 10, 110 / 110.25)])
def test_pitch_stays_beside_the_other_features(rate_hz: int, shift_ms: float, ratio: float) -> None:
    config = FeatureConfig(frame_shift=shift_ms, pitch=PitchConfig())
    assert pitch_ratio(config, rate_hz) == pytest.approx(ratio, rel=1e-12)


def test_pitch_without_a_generator_has_no_noise() -> None:
    noisy = FeatureConfig(pitch=PitchConfig(delta_pitch_noise_stddev=0.1))
    quiet_TF, lengths_N = one(noise(16000), FeatureConfig(pitch=PitchConfig())), torch.tensor([16000])
    assert torch.equal(one(noise(16000), noisy), quiet_TF)
    first, again = (
        static_features(noise(16000)[None], lengths_N, noisy, 16000, torch.Generator().manual_seed(3))[0][0]
        for _ in range(2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, quiet_TF)
