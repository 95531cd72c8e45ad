"""Kaldi's features once more, frame by frame, in float64 NumPy: shares no line with speech3.

Tells whose rounding a difference from Kaldi's float32 is. Axes: S samples, T frames, B bins, M mel bins.
"""

import numpy as np

EPS = 1.1920928955078125e-07


def frames_of(wave_S: np.ndarray, rate_hz: int, snip_edges: bool = True) -> np.ndarray:
    """Frames (T, 25 ms) every 10 ms, on the scale of 16-bit samples."""
    length, shift = int(rate_hz * 0.025), int(rate_hz * 0.01)
    wave_S = wave_S.astype(np.float64) * 32768
    if snip_edges:
        count, first = 1 + (len(wave_S) - length) // shift, 0
    else:
        count, first = (len(wave_S) + shift // 2) // shift, shift // 2 - length // 2
    frames = np.empty((count, length))
    for t in range(count):
        for i in range(length):
            s = first + t * shift + i
            while not 0 <= s < len(wave_S):
                s = -s - 1 if s < 0 else 2 * len(wave_S) - 1 - s
            frames[t, i] = wave_S[s]
    return frames


def log_mel(frames_TL: np.ndarray, rate_hz: int, bins: int, floor: float = EPS) -> tuple[np.ndarray, np.ndarray]:
    """Log-mel filterbank (T, bins) and log energies (T,), Kaldi's default options."""
    length = frames_TL.shape[1]
    fft = 2 ** int(np.ceil(np.log2(length)))
    frames_TL = frames_TL - frames_TL.mean(axis=1, keepdims=True)
    energy_T = np.log(np.maximum((frames_TL**2).sum(axis=1), EPS))
    previous_TL = np.concatenate([frames_TL[:, :1], frames_TL[:, :-1]], axis=1)
    povey_L = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / (length - 1))) ** 0.85
    power_TB = np.abs(np.fft.rfft((frames_TL - 0.97 * previous_TL) * povey_L, fft)) ** 2
    points = np.linspace(1127 * np.log(1 + 20 / 700), 1127 * np.log(1 + rate_hz / 2 / 700), bins + 2)
    weights_BM = np.zeros((fft // 2 + 1, bins))
    for b in range(fft // 2):
        mel = 1127 * np.log(1 + b * rate_hz / fft / 700)
        for m in range(bins):
            left, centre, right = points[m : m + 3]
            if left < mel < right:
                weights_BM[b, m] = (mel - left) / (centre - left) if mel <= centre else (right - mel) / (right - centre)
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(power_TB @ weights_BM, floor)), energy_T


def cepstra(log_mel_TM: np.ndarray, count: int = 13, lifter: float = 22.0) -> np.ndarray:
    """Liftered cosine transform (T, count)."""
    bins = log_mel_TM.shape[1]
    cosine = np.array([[np.cos(np.pi * k * (m + 0.5) / bins) for m in range(bins)] for k in range(count)])
    cosine *= np.where(np.arange(count) == 0, np.sqrt(1 / bins), np.sqrt(2 / bins))[:, None]
    return log_mel_TM @ cosine.T * (1 + lifter / 2 * np.sin(np.pi * np.arange(count) / lifter))


def plp(log_mel_TM: np.ndarray, rate_hz: int, order: int = 12, lifter: float = 22.0) -> np.ndarray:
    """PLP cepstra (T, order + 1), the residual's log energy first; NaN where Kaldi's are."""
    bins = log_mel_TM.shape[1]
    points = np.linspace(1127 * np.log(1 + 20 / 700), 1127 * np.log(1 + rate_hz / 2 / 700), bins + 2)
    hz2 = (700 * (np.exp(points[1:-1] / 1127) - 1)) ** 2
    loudness_TM = (np.exp(log_mel_TM) * (hz2 / (hz2 + 1.6e5)) ** 2 * (hz2 + 1.44e6) / (hz2 + 9.61e6)) ** 0.33333
    out = np.empty((len(loudness_TM), order + 1))
    for t, loudness_M in enumerate(loudness_TM):
        # An even spectrum of 2 (bins + 1) points, of which these are the first half: its inverse DFT.
        half = np.concatenate([loudness_M[:1], loudness_M, loudness_M[-1:]])
        autocorrelation = np.fft.irfft(half)[: order + 1]
        toeplitz = autocorrelation[np.abs(np.subtract.outer(np.arange(order), np.arange(order)))]
        predictor = np.linalg.solve(toeplitz, -autocorrelation[1:])  # the normal equations, which Durbin solves
        energy = autocorrelation[0] + predictor @ autocorrelation[1:]
        # Cepstrum by definition: the inverse DFT of the filter's log spectrum, on a grid so fine that nothing aliases.
        spectrum = -np.log(np.abs(np.fft.rfft(np.concatenate([[1.0], predictor]), 1 << 14)) ** 2)
        out[t] = np.fft.irfft(spectrum)[: order + 1]
        out[t, 0] = max(np.log(energy), EPS)
    return out * (1 + lifter / 2 * np.sin(np.pi * np.arange(order + 1) / lifter))
