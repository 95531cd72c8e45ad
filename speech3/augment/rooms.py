"""Noise and reverberation that make a clean recording harder: pure functions of waveforms and a random generator.

Legend: N samples. Waveforms are float, full scale 1. No function shifts speech in time.
"""

import numpy as np

SPEED_OF_SOUND_M_S = 343.0


def colored_noise(count: int, slope_db_per_octave: float, rng: np.random.Generator) -> np.ndarray:
    """Gaussian noise (N,) float64 of standard deviation 1 whose power falls by `slope_db_per_octave` (3: pink).

    It is flat below 1/512 of the sampling rate, so that the lowest frequencies do not have all the power.
    """
    size = 1 << (count - 1).bit_length()
    spectrum_F = np.fft.rfft(rng.standard_normal(size))
    frequency_F = np.maximum(np.fft.rfftfreq(size), 1 / 512)
    spectrum_F *= frequency_F ** (-slope_db_per_octave / (20 * np.log10(2)))
    noise_N = np.fft.irfft(spectrum_F, size)[:count]
    return noise_N / max(noise_N.std(), 1e-12)


def hum(count: int, sample_rate_hz: int, rng: np.random.Generator) -> np.ndarray:
    """Mains hum (N,) float64 of standard deviation 1: 50 or 60 Hz, twelve harmonics of falling, random strength."""
    mains_hz = rng.choice([50.0, 60.0]) * rng.uniform(0.998, 1.002)
    harmonic_H = np.arange(1, 13)
    strength_H = rng.uniform(0.2, 1.0, 12) / harmonic_H
    phase_H = rng.uniform(0, 2 * np.pi, 12)
    time_N1 = np.arange(count)[:, None] / sample_rate_hz
    noise_N = np.sin(2 * np.pi * mains_hz * harmonic_H * time_N1 + phase_H) @ strength_H
    return noise_N / max(noise_N.std(), 1e-12)


def babble(voices: list[np.ndarray], count: int, rng: np.random.Generator) -> np.ndarray:
    """Mix of recordings (N,) float64 of standard deviation 1, at equal power, each repeated from a random start."""
    mixed_N = np.zeros(count)
    for voice in voices:
        start = int(rng.integers(len(voice)))
        mixed_N += np.resize(np.roll(voice, -start), count) / max(float(voice.std()), 1e-12)
    return mixed_N / max(mixed_N.std(), 1e-12)


def active_rms(speech_N: np.ndarray) -> float:
    """Root mean square over the samples that are speech: 10 ms blocks (at 16 kHz) within 35 dB of the loudest block."""
    blocks_KB = speech_N[: len(speech_N) // 160 * 160].reshape(-1, 160)
    if not blocks_KB.size:
        return float(np.sqrt(np.mean(np.square(speech_N))))
    power_K = np.mean(np.square(blocks_KB), axis=1)
    return float(np.sqrt(power_K[power_K >= power_K.max() * 10**-3.5].mean()))


def add_noise(speech_N: np.ndarray, noise_N: np.ndarray, snr_db: float) -> np.ndarray:
    """Add `noise_N` (standard deviation 1, same length) so that active speech is `snr_db` above it."""
    return speech_N + noise_N * (active_rms(speech_N) * 10 ** (-snr_db / 20))


def room_response(
    sample_rate_hz: int, rt60_s: float, distance_m: float, direct_to_reverberant_db: float, rng: np.random.Generator
) -> np.ndarray:
    """Impulse response (N,) of a room after Polack's model: direct sound, then exponentially decaying noise.

    The direct sound is sample 0 with amplitude 1 (the delay from source to microphone is left out), so convolution
    keeps the timing of speech. J.-D. Polack, La transmission de l'energie sonore dans les salles (1988).

    Parameters
    ----------
    rt60_s
        Time in which the reverberation falls by 60 dB; the response is cut there.
    distance_m
        Path from the source to the nearest wall and back; before its echo there is only the direct sound.
    """
    count = int(rt60_s * sample_rate_hz)
    first = min(int(distance_m / SPEED_OF_SOUND_M_S * sample_rate_hz) + 1, count - 1)
    time_s_N = np.arange(count) / sample_rate_hz
    tail_N = rng.standard_normal(count) * 10 ** (-3 * time_s_N / rt60_s)
    tail_N[:first] = 0
    tail_N *= 10 ** (-direct_to_reverberant_db / 20) / np.sqrt(np.sum(np.square(tail_N)))
    tail_N[0] = 1.0
    return tail_N


def reverberate(speech_N: np.ndarray, response_M: np.ndarray) -> np.ndarray:
    """Convolve with an impulse response; the result is as long as the input, without the rest of the tail."""
    size = 1 << (len(speech_N) + len(response_M) - 1).bit_length()
    product_F = np.fft.rfft(speech_N, size) * np.fft.rfft(response_M, size)
    return np.fft.irfft(product_F, size)[: len(speech_N)]


def resample(samples_N: np.ndarray, from_hz: int, to_hz: int) -> np.ndarray:
    """Change the sampling rate by cutting (or zero-padding) the spectrum of the whole recording; timing is kept.

    It uses numpy instead of torchaudio, whose sums of products depend on the number of threads, while the corpus must
    not. Both ends of the recording should be silent, since the discrete spectrum is that of a periodic signal.
    """
    divisor = np.gcd(from_hz, to_hz)
    up, down = to_hz // divisor, from_hz // divisor
    blocks = -(-len(samples_N) // (16 * down)) * 16  # small prime factors make a fast transform
    padded_N = np.pad(samples_N, (0, blocks * down - len(samples_N)))
    resampled_M = np.fft.irfft(np.fft.rfft(padded_N), blocks * up) * (up / down)
    return resampled_M[: -(-len(samples_N) * up // down)]
