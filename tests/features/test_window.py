"""Frame counts, window functions, mirrored edges."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from speech3.config import FeatureConfig
from speech3.errors import Speech3Error
from speech3.features.spectrum import Framing, frame_sizes, mirror_edges, window


@given(st.integers(0, 5000), st.integers(2, 600), st.integers(1, 600))
def test_snipped_frames_are_those_that_fit(samples: int, length: int, shift: int) -> None:
    fits = sum(t * shift + length <= samples for t in range(samples // shift + 1))
    assert Framing(length, shift, length, True).frames(samples) == fits


@given(st.integers(0, 5000), st.integers(1, 300))
def test_centred_frames_have_their_centre_in_the_recording(samples: int, half_shift: int) -> None:
    shift = 2 * half_shift
    inside = sum(t * shift + half_shift <= samples for t in range(samples // shift + 2))
    assert Framing(2 * shift, shift, 2 * shift, False).frames(samples) == inside


@pytest.mark.parametrize(
    ("rate_hz", "length", "shift", "fft"),
    [
        (8000, 200, 80, 256),
        (11025, 275, 110, 512),
        (16000, 400, 160, 512),
        (22050, 551, 220, 1024),
        (44100, 1102, 441, 2048),
    ],
)
def test_sizes_are_truncated_as_kaldis(rate_hz: int, length: int, shift: int, fft: int) -> None:
    assert frame_sizes(FeatureConfig(), rate_hz) == Framing(length, shift, fft, True)
    assert frame_sizes(FeatureConfig(round_to_power_of_two=False), rate_hz).fft == length


def test_frames_of_no_sample_are_refused() -> None:
    with pytest.raises(Speech3Error, match=r"frame_shift 0.1 ms .* 0 samples at 8000 Hz"):
        frame_sizes(FeatureConfig(frame_shift=0.1), 8000)


@pytest.mark.parametrize(
    ("window_type", "theirs"),
    [("hamming", np.hamming), ("hanning", np.hanning), ("blackman", np.blackman), ("rectangular", np.ones)],
)
def test_window_equals_numpys(window_type: str, theirs) -> None:  # type: ignore[no-untyped-def]
    ours_L = window(FeatureConfig(window_type=window_type), 400)
    np.testing.assert_allclose(ours_L.numpy(), theirs(400), atol=1e-12)


def test_povey_window_is_hanning_to_the_power_of_0_85() -> None:
    np.testing.assert_allclose(window(FeatureConfig(), 200).numpy(), np.hanning(200) ** 0.85, atol=1e-12)


@pytest.mark.parametrize("samples", [1, 2, 3, 7, 50])
def test_mirrored_edges_equal_numpys_symmetric_padding(samples: int) -> None:
    sizes = Framing(10, 4, 16, False)
    frames = sizes.frames(samples)
    if frames == 0:
        return
    wave_S = np.arange(1.0, samples + 1, dtype=np.float32)
    padded_S = np.pad(wave_S, (3, sizes.span(frames)), mode="symmetric")[: sizes.span(frames)]
    rows_NS = torch.zeros(2, 60)
    rows_NS[0, :samples] = torch.from_numpy(wave_S)
    rows_NS[1] = 9.0
    mirrored_NS = mirror_edges(rows_NS, torch.tensor([samples, 60]), sizes, frames)
    np.testing.assert_array_equal(mirrored_NS[0].numpy(), padded_S)
