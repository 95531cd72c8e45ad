"""Augmentation of waveforms: noise, other speakers, rooms, speed, volume, the telephone.

Pure functions of float32 tensors, on the CPU or a GPU: sounds to add are passed as tensors, random values as numbers.
All functions but `change_speed` keep lengths and timing, so alignments stay valid. Samples beyond an utterance's length
are zero in the output. Signal-to-noise ratios are ratios of mean powers over whole utterances, as in Kaldi's
wav-reverberate and torchaudio, so that figures are comparable.

Axes: N utterances, S samples, M samples of another speaker's speech, R taps of an impulse response.
"""

from fractions import Fraction

import torch
from torch import Tensor

from speech3.io.torchaudio_ import torchaudio_functional

TELEPHONE_HZ = 8000
_BAND_HZ = (300.0, 3400.0)
_TAPS = 161  # 20 ms at 8 kHz: the transition band is 165 Hz wide
_TRANSFORM = 4096  # lengths of Fourier transforms are multiples of this
_PEAK = 32767 / 32768  # the largest value of 16-bit audio


def add_noise(waves_NS: Tensor, lengths_N: Tensor, noises_NS: Tensor, snr_db_N: Tensor) -> Tensor:
    """Add noise of the same length at a signal-to-noise ratio of `snr_db_N`; silent noise changes nothing."""
    waves_NS, noises_NS = _cut(waves_NS, lengths_N), _cut(noises_NS, lengths_N)
    heard_NS = torchaudio_functional().add_noise(waves_NS, noises_NS, snr_db_N, lengths_N)
    return torch.where(_power(noises_NS, lengths_N)[:, None] > 0, heard_NS, waves_NS)


def overlap(
    waves_NS: Tensor, lengths_N: Tensor, others_NM: Tensor, other_lengths_N: Tensor, start_N: Tensor, snr_db_N: Tensor
) -> Tensor:
    """Add another speaker from sample `start_N` (which may be negative) on; what does not fit is cut off.

    The power of each signal is its mean over its own length, before the cut.
    """
    waves_NS, others_NM = _cut(waves_NS, lengths_N), _cut(others_NM, other_lengths_N)
    place_NS = torch.arange(waves_NS.shape[1], device=waves_NS.device) - start_N[:, None]
    heard_NS = others_NM.gather(1, place_NS.clamp(0, others_NM.shape[1] - 1))
    heard_NS = heard_NS * ((place_NS >= 0) & (place_NS < other_lengths_N[:, None]))
    ratio_N = _power(waves_NS, lengths_N) / _power(others_NM, other_lengths_N).clamp_min(1e-20)
    gain_N = torch.sqrt(ratio_N * 10 ** (-snr_db_N / 10))
    return waves_NS + gain_N[:, None] * _cut(heard_NS, lengths_N)


def reverberate(waves_NS: Tensor, lengths_N: Tensor, responses_NR: Tensor) -> Tensor:
    """Convolve with room impulse responses.

    Equal to Kaldi's wav-reverberate with its defaults: the delay of the response's peak (the direct sound) is removed,
    so that timing is unchanged; the power is unchanged, too; the tail beyond the end is cut off.
    """
    dry_NS = _cut(waves_NS, lengths_N)
    full_NX = _convolved(dry_NS, responses_NR)
    direct_N1 = responses_NR.abs().argmax(dim=1, keepdim=True)
    wet_NS = full_NX.gather(1, direct_N1 + torch.arange(waves_NS.shape[1], device=waves_NS.device))
    wet_NS = _cut(wet_NS, lengths_N)
    before_N, after_N = _power(dry_NS, lengths_N), _power(wet_NS, lengths_N)
    gain_N = torch.where(after_N > 0, torch.sqrt(before_N / after_N), after_N)
    return wet_NS * gain_N[:, None]


def change_speed(waves_NS: Tensor, lengths_N: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Play faster (`factor` above 1) or slower, which changes the pitch, too; returns waves, lengths (Ko et al. 2015).

    Uses `resample` because torchaudio's `speed` truncates the rate to a whole number (1.15 times 8000 Hz becomes 9199).
    """
    ratio = Fraction(factor).limit_denominator(1000)
    changed_NS = torchaudio_functional().resample(_cut(waves_NS, lengths_N), ratio.numerator, ratio.denominator)
    lengths_N = -(-lengths_N * ratio.denominator // ratio.numerator)
    return _cut(changed_NS, lengths_N), lengths_N


def change_volume(waves_NS: Tensor, lengths_N: Tensor, gain_db_N: Tensor) -> Tensor:
    """Make louder or softer, but never so loud that 16-bit audio would clip."""
    louder_NS = _cut(waves_NS, lengths_N) * (10 ** (gain_db_N / 20))[:, None]
    return louder_NS * (_PEAK / louder_NS.abs().amax(1, keepdim=True).clamp_min(_PEAK))


def telephone(waves_NS: Tensor, lengths_N: Tensor, sample_rate_hz: int, *, mu_law: bool = True) -> Tensor:
    """Limit to the telephone band of 300 to 3400 Hz, by resampling to 8 kHz and back.

    Parameters
    ----------
    mu_law
        Quantise to 8 bits by mu-law, which G.711 approximates; samples above full scale are clipped.
    """
    functional, rate_hz = torchaudio_functional(), min(sample_rate_hz, TELEPHONE_HZ)
    narrow_NS = functional.resample(_cut(waves_NS, lengths_N), sample_rate_hz, rate_hz)
    narrow_lengths_N = -(-lengths_N * rate_hz // sample_rate_hz)
    band_R = _band(rate_hz).to(narrow_NS)
    full_NX = _convolved(_cut(narrow_NS, narrow_lengths_N), band_R.expand(len(narrow_NS), -1))
    narrow_NS = full_NX[:, _TAPS // 2 : _TAPS // 2 + narrow_NS.shape[1]]
    if mu_law:
        narrow_NS = functional.mu_law_decoding(functional.mu_law_encoding(narrow_NS.clamp(-1, 1), 256), 256)
    wide_NS = functional.resample(_cut(narrow_NS, narrow_lengths_N), rate_hz, sample_rate_hz)
    return _cut(wide_NS[:, : waves_NS.shape[1]], lengths_N)


def _convolved(waves_NS: Tensor, responses_NR: Tensor) -> Tensor:
    """The full convolution, padded with zeros: Fourier transforms of arbitrary length would be five times slower."""
    missing = -(waves_NS.shape[1] + responses_NR.shape[1] - 1) % _TRANSFORM
    return torchaudio_functional().fftconvolve(waves_NS, torch.nn.functional.pad(responses_NR, (0, missing)))


def _band(rate_hz: int) -> Tensor:
    """A symmetric band-pass filter (windowed sinc), without delay if its middle tap is taken as time 0."""
    time_R = torch.arange(_TAPS, dtype=torch.float64) - _TAPS // 2
    low, high = (2 * min(hz, rate_hz / 2) / rate_hz for hz in _BAND_HZ)
    ideal_R = high * torch.sinc(high * time_R) - low * torch.sinc(low * time_R)
    return ideal_R * torch.hamming_window(_TAPS, periodic=False, dtype=torch.float64)


def _cut(waves_NS: Tensor, lengths_N: Tensor) -> Tensor:
    """Set everything beyond the lengths to zero, NaNs included."""
    return waves_NS.masked_fill(torch.arange(waves_NS.shape[1], device=waves_NS.device) >= lengths_N[:, None], 0.0)


def _power(waves_NS: Tensor, lengths_N: Tensor) -> Tensor:
    """Mean square of waves that are zero beyond their lengths."""
    return waves_NS.square().sum(1) / lengths_N.clamp_min(1)
