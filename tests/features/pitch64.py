"""Kaldi's pitch tracker as its formulas stand, in float64, sum by sum: slow, and independent of the package's."""

import math

import numpy as np


def low_pass(seconds: np.ndarray, cutoff_hz: float, zeros: int) -> np.ndarray:
    """Sinc times Hann window."""
    seconds = np.asarray(seconds, dtype=np.float64)
    safe = np.where(seconds == 0, 1, seconds)
    sinc = np.where(seconds == 0, 2 * cutoff_hz, np.sin(2 * np.pi * cutoff_hz * safe) / (np.pi * safe))
    hann = 0.5 * (1 + np.cos(2 * np.pi * cutoff_hz / zeros * seconds))
    return np.where(np.abs(seconds) < zeros / (2 * cutoff_hz), sinc * hann, 0)


def resampled(wave_S: np.ndarray, rate_hz: int, new_hz: int, cutoff_hz: float, zeros: int) -> np.ndarray:
    """All samples at times before the end of the signal."""
    count = math.ceil(len(wave_S) * new_hz / rate_hz)
    times_S = np.arange(len(wave_S)) / rate_hz
    samples = [low_pass(times_S - o / new_hz, cutoff_hz, zeros) @ wave_S / rate_hz for o in range(count)]
    return np.array(samples) * 32768


def track64(
    wave_S: np.ndarray,
    rate_hz: int,
    *,
    frame_length: float = 25.0,
    frame_shift: float = 10.0,
    snip_edges: bool = True,
    min_f0: float = 50.0,
    max_f0: float = 400.0,
    soft_min_f0: float = 10.0,
    penalty_factor: float = 0.1,
    lowpass_cutoff: float = 1000.0,
    resample_freq: int = 4000,
    delta_pitch: float = 0.005,
    nccf_ballast: float = 7000.0,
    lowpass_filter_width: int = 1,
    upsample_filter_width: int = 5,
    preemph_coeff: float = 0.0,
) -> np.ndarray:
    """Correlation and pitch (T, 2); the ballast from the whole signal, also for the first frames."""
    signal_O = resampled(wave_S, rate_hz, resample_freq, lowpass_cutoff, lowpass_filter_width)
    window, shift = int(resample_freq * frame_length / 1000), int(resample_freq * frame_shift / 1000)
    margin_s = upsample_filter_width / (2 * resample_freq)
    first = math.ceil(resample_freq * (1 / max_f0 - margin_s))
    last = math.floor(resample_freq * (1 / min_f0 + margin_s))
    span, samples = window + last, len(signal_O)
    if samples < window:
        return np.zeros((0, 2))
    frames = (samples - window) // shift + 1 if snip_edges else int(samples / shift + 0.5)
    start = 0 if snip_edges else int(0.5 * shift) - span // 2
    padded_O = np.pad(signal_O, (-start, frames * shift + span))
    lags_K = 1 / max_f0 * (1 + delta_pitch) ** np.arange(int(np.log(max_f0 / min_f0) / np.log1p(delta_pitch)) + 1)
    whole_L = np.arange(first, last + 1)
    interpolate_LK = low_pass(lags_K - whole_L[:, None] / resample_freq, resample_freq / 2, upsample_filter_width)
    ballast = nccf_ballast * (signal_O.var() * window) ** 2
    cost_K, back, voicing = np.zeros(len(lags_K)), [], []
    step_KK = (
        penalty_factor
        * np.log1p(delta_pitch) ** 2
        * np.subtract.outer(np.arange(len(lags_K)), np.arange(len(lags_K))) ** 2
    )
    for t in range(frames):
        frame_W = padded_O[t * shift : t * shift + span]
        if preemph_coeff:
            frame_W = frame_W - preemph_coeff * np.concatenate([frame_W[:1], frame_W[:-1]])
        frame_W = frame_W - frame_W[:window].mean()
        inner_L = np.array([frame_W[:window] @ frame_W[lag : lag + window] for lag in whole_L])
        energy_L = np.array([np.square(frame_W[lag : lag + window]).sum() for lag in whole_L])
        norm_L = np.square(frame_W[:window]).sum() * energy_L
        with np.errstate(invalid="ignore"):
            voicing.append(np.nan_to_num(inner_L / np.sqrt(norm_L)) @ interpolate_LK / resample_freq)
            nccf_K = np.nan_to_num(inner_L / np.sqrt(norm_L + ballast)) @ interpolate_LK / resample_freq
        total_KK = cost_K + step_KK
        back.append(total_KK.argmin(1))
        cost_K = total_KK.min(1) + 1 - nccf_K + soft_min_f0 * lags_K * nccf_K
    state, path = int(cost_K.argmin()), []
    for t in reversed(range(frames)):
        path.append((voicing[t][state], 1 / lags_K[state]))
        state = back[t][state]
    return np.array(path[::-1])
