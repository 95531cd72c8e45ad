"""Features from pieces of a recording, of any size, are those of the whole."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from reference import needs_reference, wave

from speech3.config import FeatureConfig, PitchConfig
from speech3.errors import Speech3Error
from speech3.features.compute import OnlineFeatures, finish_features, static_features

# As extraction has it. Threads share a product out by its size, and round by what each of them gets.
pytestmark = pytest.mark.usefixtures("one_thread")


def whole(wave_S: torch.Tensor, config: FeatureConfig, rate_hz: int) -> torch.Tensor:
    static_NTF, _ = static_features(wave_S[None], torch.tensor([len(wave_S)]), config, rate_hz)
    return finish_features([static_NTF[0]], config)[0]


def pieces(wave_S: torch.Tensor, config: FeatureConfig, rate_hz: int, sizes: list[int]) -> list[torch.Tensor]:
    online, out, at, number = OnlineFeatures(config, rate_hz), [], 0, 0
    while at < len(wave_S):
        size = sizes[number % len(sizes)]
        out.append(online.accept(wave_S[at : at + size]))
        at, number = at + size, number + 1
    return [*out, online.finish()]


def noise(samples: int, seed: int = 0) -> torch.Tensor:
    return (torch.randn(samples, generator=torch.Generator().manual_seed(seed)) * 2000 + 300).round() / 32768


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 6000),
    st.lists(st.integers(1, 1500), min_size=1, max_size=6),
    st.sampled_from(["fbank", "mfcc", "plp"]),
    st.booleans(),
    st.sampled_from([8000, 11025, 16000]),
)
def test_any_pieces_give_the_same_frames(
    samples: int, sizes: list[int], kind: str, snip_edges: bool, rate_hz: int
) -> None:
    config, wave_S = FeatureConfig(kind=kind, snip_edges=snip_edges, use_energy=True), noise(samples)
    streamed_TF = torch.cat(pieces(wave_S, config, rate_hz, sizes))
    # Batches of other sizes round differently, and PLP's recursion for the predictor enlarges that.
    atol = 1e-4 if kind == "plp" else 1e-5
    torch.testing.assert_close(streamed_TF, whole(wave_S, config, rate_hz), atol=atol, rtol=1e-6)


@needs_reference
@pytest.mark.parametrize("kind", ["fbank", "mfcc", "plp"])
@pytest.mark.parametrize("size", [1, 160, 1024, 100000])
def test_speech(kind: str, size: int) -> None:
    wave_S = torch.from_numpy(wave("16k", "espeak_f"))[: 4000 if size == 1 else None]
    config = FeatureConfig(kind=kind, num_mel_bins=40)
    streamed_TF = torch.cat(pieces(wave_S, config, 16000, [size]))
    torch.testing.assert_close(streamed_TF, whole(wave_S, config, 16000), atol=1e-5, rtol=0)


CONTEXTS = [
    {"deltas": 2},
    {"left_context": 5, "right_context": 3},
    {"deltas": 1, "right_context": 4},
    {"cmvn": "sliding"},
    {"cmvn": "sliding", "cmn_window": 40, "min_cmn_window": 15, "norm_vars": True, "deltas": 2, "left_context": 2},
    {"cmvn": "sliding", "cmn_window": 41, "center": True},
    {"cmvn": "sliding", "cmn_window": 20, "min_cmn_window": 50},
]


@pytest.mark.parametrize("options", CONTEXTS, ids=str)
@pytest.mark.parametrize("samples", [300, 3000, 24000])
@pytest.mark.parametrize("sizes", [[37], [800, 1], [5000]])
def test_cmvn_deltas_and_splicing(options: dict[str, object], samples: int, sizes: list[int]) -> None:
    config, wave_S = FeatureConfig(num_mel_bins=8, **options), noise(samples, 1)
    streamed_TF = torch.cat(pieces(wave_S, config, 8000, sizes))
    torch.testing.assert_close(streamed_TF, whole(wave_S, config, 8000), atol=2e-5, rtol=0)


def test_frames_come_as_soon_as_they_can() -> None:
    wave_S = noise(16000)
    given_T = [len(piece_TF) for piece_TF in pieces(wave_S, FeatureConfig(), 16000, [160])]
    assert given_T == [0, 0] + [1] * 98 + [0]
    with_deltas = np.cumsum([len(piece) for piece in pieces(wave_S, FeatureConfig(deltas=2), 16000, [160])])
    assert with_deltas[50] == np.cumsum(given_T)[50] - 4


def test_what_is_kept_does_not_grow() -> None:
    online = OnlineFeatures(FeatureConfig(cmvn="sliding", deltas=2, num_mel_bins=8), 8000)
    for number in range(60):
        online.accept(noise(8000, number))
    assert len(online._context._kept_TF) < 800
    assert len(online._spectral._waiting_S) < 400


@needs_reference
@pytest.mark.parametrize("rate", ["8k", "16k"])
@pytest.mark.parametrize("size", [100, 3000, 10**6])
def test_pitch_beside(rate: str, size: int) -> None:
    wave_S = torch.from_numpy(wave(rate, "9_theo_16" if rate == "8k" else "espeak_f"))
    hz = 8000 if rate == "8k" else 16000
    config = FeatureConfig(num_mel_bins=20, pitch=PitchConfig(add_delta_pitch=False), deltas=1)
    streamed_TF, expected_TF = torch.cat(pieces(wave_S, config, hz, [size])), whole(wave_S, config, hz)
    assert streamed_TF.shape == expected_TF.shape
    torch.testing.assert_close(streamed_TF[:, :20], expected_TF[:, :20], atol=1e-5, rtol=0)
    near_T = (streamed_TF[:, 20:22] - expected_TF[:, 20:22]).abs().amax(1) < 0.1
    assert near_T.float().mean() > (0.999 if size == 10**6 else 0.8)


def test_pitch_beside_at_a_rate_whose_frames_drift() -> None:
    wave_S, config = noise(11025 * 8), FeatureConfig(num_mel_bins=20, pitch=PitchConfig())
    expected_TF = whole(wave_S, config, 11025)
    assert torch.cat(pieces(wave_S, config, 11025, [777])).shape == expected_TF.shape
    assert abs(len(expected_TF) - 800) < 5


@pytest.mark.parametrize("cmvn", ["speaker", "utterance"])
def test_what_needs_the_whole_utterance_is_refused(cmvn: str) -> None:
    with pytest.raises(Speech3Error, match=f"cmvn: {cmvn} needs whole recordings.*sliding"):
        OnlineFeatures(FeatureConfig(cmvn=cmvn), 16000)
