"""First stage of the pitch tracker: cross-correlation of every frame of the resampled signal with later samples.

Sizes and their float32 roundings are Kaldi's (feat/pitch-functions.cc). The correlations are computed by FFT, in
float64: the rounding errors of float32 would mask a quiet frame before a loud one.

Axes: R frames, W samples of a window and its largest lag, L lags in samples, K lags on a logarithmic scale (the
tracker's states).
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from speech3.config import FeatureConfig, PitchConfig
from speech3.errors import Speech3Error
from speech3.features.pitch_resample import Resampler, low_pass, resampler

# Kaldi recomputes the frames before this one (its recompute_frame) once it knows the signal's energy better, if old and
# new energy differ by more than this fraction of their sum.
RECOMPUTE_FRAME, _RECOMPUTE_CHANGE = 500, 0.01

_MOST_STATES = 10000
_LEAST_NORM = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, eq=False)
class PitchSizes:
    """Sizes in samples after resampling, and lags. Made by `pitch_sizes`."""

    window: int
    shift: int
    first_lag: int
    last_lag: int
    snip_edges: bool
    lags_K: np.ndarray  # seconds, float32
    lag_weights_LK: np.ndarray  # float32: interpolates correlations at lags L to lags K
    resampler: Resampler

    @property
    def span(self) -> int:
        """Samples of a window plus the largest lag."""
        return self.window + self.last_lag

    @property
    def lead(self) -> int:
        """Zeros before the signal, so that frame t begins at t * shift."""
        return 0 if self.snip_edges else self.span // 2 - self.shift // 2

    def frames(self, samples: int, *, finished: bool) -> int:
        """Number of frames in this many resampled samples (Kaldi NumFramesAvailable, but in exact arithmetic)."""
        length = self.window if finished else self.span
        if samples < length:
            return 0
        if self.snip_edges:
            return (samples - length) // self.shift + 1
        return (2 * (samples if finished else samples - (length + 1) // 2) + self.shift) // (2 * self.shift)


@lru_cache(maxsize=16)
def pitch_sizes(config: FeatureConfig, sample_rate_hz: int) -> PitchSizes:
    """Sizes and filters at a sample rate.

    Raises
    ------
    Speech3Error
        The config does not fit the sample rate.
    """
    pitch = config.pitch or PitchConfig()
    rate = int(pitch.resample_freq)
    if 2 * pitch.lowpass_cutoff > min(sample_rate_hz, rate):
        raise Speech3Error(
            f"lowpass_cutoff {pitch.lowpass_cutoff:g} Hz of pitch must be at most half of the sample rate,"
            f" {sample_rate_hz} Hz, and of resample_freq, {rate} Hz: lower it"
        )
    if math.log(pitch.max_f0 / pitch.min_f0) / math.log1p(pitch.delta_pitch) > _MOST_STATES:
        raise Speech3Error(f"delta_pitch {pitch.delta_pitch:g} gives more than {_MOST_STATES} pitches: make it larger")
    milliseconds = (config.frame_length, config.frame_shift)
    window, shift = (int(np.float32(rate) * np.float32(ms) / 1000.0) for ms in milliseconds)
    margin_s = pitch.upsample_filter_width / (2.0 * rate)
    first, last = math.ceil(rate * (1 / pitch.max_f0 - margin_s)), math.floor(rate * (1 / pitch.min_f0 + margin_s))
    if window < 2 or shift < 1 or first < 0:
        raise Speech3Error(
            f"pitch cannot be tracked with frame_length {config.frame_length:g} ms, frame_shift"
            f" {config.frame_shift:g} ms, max_f0 {pitch.max_f0:g} Hz at resample_freq {rate} Hz: give longer frames,"
            " a lower max_f0 or a higher resample_freq"
        )
    lags_K = _lags(pitch)
    return PitchSizes(
        window=window,
        shift=shift,
        first_lag=first,
        last_lag=last,
        snip_edges=config.snip_edges,
        lags_K=lags_K,
        lag_weights_LK=_lag_weights(pitch, lags_K, first, last, rate),
        resampler=resampler(sample_rate_hz, rate, pitch.lowpass_cutoff, pitch.lowpass_filter_width),
    )


def _lags(pitch: PitchConfig) -> np.ndarray:
    """Lags in seconds, a geometric progression (Kaldi SelectLags), rounded at each step as in Kaldi."""
    lag, last, ratio = (
        np.float32(1 / pitch.max_f0),
        np.float32(1 / pitch.min_f0),
        1 + float(np.float32(pitch.delta_pitch)),
    )
    lags = []
    while lag <= last:
        lags.append(lag)
        lag = np.float32(float(lag) * ratio)
    return np.array(lags, dtype=np.float32)


def _lag_weights(pitch: PitchConfig, lags_K: np.ndarray, first: int, last: int, rate: int) -> np.ndarray:
    """Interpolation from whole to logarithmic lags (Kaldi ArbitraryResample), float32 (L, K)."""
    offset_K = lags_K - np.float32(first) / np.float32(rate)
    place_L = np.arange(last + 1 - first, dtype=np.float32) / np.float32(rate)
    distance_LK = (offset_K - place_L[:, None]).astype(np.float64)
    return (low_pass(distance_LK, rate / 2, pitch.upsample_filter_width) / rate).astype(np.float32)


@dataclass
class Correlations:
    """Normalised cross-correlations of frames with later samples, at L lags."""

    pitch_RL: Tensor  # with ballast, so small where the frame is quiet: for the tracker
    pov_RL: Tensor  # without ballast: for the probability of voicing
    norm_R: Tensor  # energy of the frame times energy of the lagged frame, mean over the lags


def correlate(frames_RW: Tensor, energy_R: Tensor, pitch: PitchConfig, sizes: PitchSizes) -> Correlations:
    """Normalised correlations of frames (Kaldi ComputeCorrelation, ComputeNccf).

    Parameters
    ----------
    frames_RW
        float32, on Kaldi's scale.
    energy_R
        float32: energy of the signal (`variance`), as estimated for each frame.
    """
    window, lags = sizes.window, slice(sizes.first_lag, sizes.last_lag + 1)
    points = _fft_points(sizes.span)
    centred_R2W = frames_RW.new_empty(len(frames_RW), 2, points, dtype=torch.float64)
    later_RW, now_RW = centred_R2W[:, 0, : sizes.span], centred_R2W[:, 1, :window]
    centred_R2W[:, 0, sizes.span :], centred_R2W[:, 1, window:] = 0, 0
    if pitch.preemph_coeff:  # a frame's first sample is repeated before the frame
        before_RW = torch.cat([frames_RW[:, :1], frames_RW[:, :-1]], 1)
        frames_RW = frames_RW.sub(before_RW, alpha=pitch.preemph_coeff)
    mean_R1 = frames_RW[:, :window].mean(1, dtype=torch.float64, keepdim=True)
    torch.sub(frames_RW, mean_R1, out=later_RW)
    now_RW.copy_(later_RW[:, :window])
    spectra_R2B = torch.fft.rfft(centred_R2W)
    inner_RL = torch.fft.irfft(spectra_R2B[:, 0] * spectra_R2B[:, 1].conj(), points)[:, lags].float()

    squares_RW = torch.cumsum(later_RW * later_RW, 1)  # square() takes twice as long as the product
    later_RL = squares_RW[:, sizes.first_lag + window - 1 :].clone()
    before = max(sizes.first_lag - 1, 0)  # a lag of 0 has nothing before its window
    later_RL[:, max(1 - sizes.first_lag, 0) :] -= squares_RW[:, before : sizes.last_lag]
    norm_RL = (squares_RW[:, window - 1, None] * later_RL).clamp_(min=0).float()

    pitch_RL = _normalised(inner_RL, norm_RL + _ballast(energy_R, pitch, sizes)[:, None])
    return Correlations(pitch_RL, _normalised(inner_RL, norm_RL), norm_RL.mean(1))


def _normalised(inner_RL: Tensor, norm_RL: Tensor) -> Tensor:
    # Without energy the inner product is 0, too, and so is the result. Rounding errors may exceed the bounds.
    return inner_RL.div(norm_RL.clamp(min=_LEAST_NORM).sqrt_()).clamp_(-1, 1)


@lru_cache(maxsize=16)
def _lag_weights_on(sizes: PitchSizes, device: torch.device) -> Tensor:
    return torch.from_numpy(sizes.lag_weights_LK).to(device)


@lru_cache(maxsize=16)
def _fft_points(least: int) -> int:
    """The smallest even size of at least `least` that has no prime factors but 2, 3 and 5."""
    points = least + least % 2
    while True:
        rest = points
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return points
        points += 2


def at_states(nccf_RL: Tensor, sizes: PitchSizes) -> Tensor:
    """Correlations at logarithmic lags, float32 (R, K)."""
    return nccf_RL @ _lag_weights_on(sizes, nccf_RL.device)


def variance(moments_2: Tensor, samples: int) -> float:
    """Kaldi's estimate of a signal's energy: its mean square less the square of its mean."""
    total, squares = moments_2.tolist()
    samples = max(samples, 1)
    return max(squares / samples - (total / samples) ** 2, 0.0)


def changed(energy: float, later: float) -> bool:
    """Whether the estimate has changed enough for Kaldi to recompute."""
    return abs(energy - later) > _RECOMPUTE_CHANGE * (energy + later)


def rescale(heard_R: Tensor, energy_R: Tensor, norm_R: Tensor, pitch: PitchConfig, sizes: PitchSizes) -> Tensor:
    """Factors (R) that adapt `pitch_RL` to a new estimate of the signal's energy.

    An approximation, as in Kaldi's RecomputeBacktraces: it uses `norm_R`, the mean over the lags.
    """
    old_R, new_R = (norm_R + _ballast(e_R, pitch, sizes) for e_R in (heard_R, energy_R))
    return (old_R / new_R).sqrt_().masked_fill_(new_R < _LEAST_NORM, 1.0)


def _ballast(energy_R: Tensor, pitch: PitchConfig, sizes: PitchSizes) -> Tensor:
    return (energy_R * sizes.window).square_().mul_(pitch.nccf_ballast)
