"""Another sample rate, piece by piece, is that of the whole."""

import numpy as np
import pytest

from speech3.data.resampling import OnlineResampler, resample
from speech3.errors import Speech3Error


def noise(samples: int) -> np.ndarray:
    return np.random.default_rng(samples).standard_normal(samples).astype(np.float32)


def pieces(wave_S: np.ndarray, from_hz: int, to_hz: int, sizes: list[int]) -> tuple[np.ndarray, int]:
    online, out, at, most = OnlineResampler(from_hz, to_hz), [], 0, 0
    while at < len(wave_S):
        size = sizes[len(out) % len(sizes)]
        out.append(online.accept(wave_S[at : at + size]))
        at, most = at + size, max(most, len(online._kept_S))
    return np.concatenate([*out, online.finish()]), most


@pytest.mark.parametrize(
    ("from_hz", "to_hz"), [(44100, 16000), (8000, 16000), (16000, 8000), (48000, 16000), (22050, 8000)]
)
@pytest.mark.parametrize("sizes", [[1000], [7, 1, 300], [100_000]])
@pytest.mark.parametrize("samples", [0, 1, 50, 9000])
def test_pieces_are_the_whole(from_hz: int, to_hz: int, sizes: list[int], samples: int) -> None:
    wave_S = noise(samples)
    expected_O = resample(wave_S, from_hz, to_hz) if samples else wave_S
    found_O, most = pieces(wave_S, from_hz, to_hz, sizes)
    assert found_O.shape == expected_O.shape and found_O.dtype == np.float32
    np.testing.assert_allclose(found_O, expected_O, atol=2e-6)
    assert sizes[0] > 9000 or most < sum(sizes) + 2000  # what is kept is a few milliseconds


def test_the_same_rate_is_left_alone() -> None:
    wave_S = noise(10)
    online = OnlineResampler(8000, 8000)
    assert online.accept(wave_S) is wave_S and len(online.finish()) == 0


def test_rates_without_a_common_divisor() -> None:
    with pytest.raises(Speech3Error, match=r"cannot resample 44101 Hz to 16000 Hz.*is it the right rate"):
        OnlineResampler(44101, 16000)
