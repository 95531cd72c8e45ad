"""Noise and rooms against closed forms."""

import numpy as np
import pytest

from speech3.data.augment import noises

RATE_HZ = 16000


def _rng() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.mark.parametrize("slope_db", [0.0, 3.0, 6.0])
def test_colored_noise_falls_by_its_slope(slope_db: float) -> None:
    noise = noises.colored_noise(1 << 18, slope_db, _rng())
    power = np.abs(np.fft.rfft(noise)) ** 2
    frequency = np.fft.rfftfreq(len(noise))
    octaves = [power[(frequency >= low) & (frequency < 2 * low)].mean() for low in (1 / 256, 1 / 32, 1 / 4)]
    falls_db = -10 * np.diff(np.log10(octaves)) / 3
    assert falls_db == pytest.approx([slope_db, slope_db], abs=0.15)
    assert noise.std() == pytest.approx(1.0)


def test_hum_is_made_of_harmonics_of_the_mains() -> None:
    noise = noises.hum(10 * RATE_HZ, RATE_HZ, _rng())
    power = np.abs(np.fft.rfft(noise * np.hanning(len(noise)))) ** 2
    peak_hz = np.argmax(power) / 10
    mains_hz = min((50.0, 60.0), key=lambda hz: abs(peak_hz / hz - round(peak_hz / hz)))
    harmonics = np.round(np.arange(1, 13)[:, None] * mains_hz * 10 * np.linspace(0.997, 1.003, 41)).astype(int)
    assert power[np.unique(harmonics)].sum() > 0.99 * power.sum()


def test_babble_repeats_every_voice_at_equal_power() -> None:
    time = np.arange(4000) / RATE_HZ
    voices = [0.01 * np.sin(2 * np.pi * 400 * time), 0.9 * np.sin(2 * np.pi * 1000 * time)]
    mixed = noises.babble(voices, 3 * RATE_HZ, _rng())
    power = np.abs(np.fft.rfft(mixed)) ** 2
    assert power[400 * 3] == pytest.approx(power[1000 * 3], rel=0.01)
    assert power[[1200, 3000]].sum() > 0.999 * power.sum()


def test_noise_is_added_at_its_ratio_to_active_speech() -> None:
    speech = np.concatenate([np.zeros(8000), np.sin(np.arange(8000.0)), np.zeros(16000)])
    noise = noises.colored_noise(len(speech), 0, _rng())
    added = noises.add_noise(speech, noise, 12.0) - speech
    ratio_db = 20 * np.log10(np.sqrt(0.5) / added.std())  # the pauses of the speech do not count
    assert ratio_db == pytest.approx(12.0, abs=0.05)


def test_room_decays_by_60_db_in_rt60_and_keeps_the_direct_sound_in_place() -> None:
    response = noises.room_response(RATE_HZ, 0.5, 3.43, 4.0, _rng())
    assert response[0] == 1.0
    assert np.argmax(np.abs(response)) == 0
    assert not response[1:160].any() and response[161:200].any()  # 3.43 m are 10 ms
    assert 10 * np.log10(1 / np.sum(response[1:] ** 2)) == pytest.approx(4.0)
    level_db = 10 * np.log10((response[161 : 161 + 7680] ** 2).reshape(-1, 240).mean(axis=1))
    slope_db_s = np.polyfit(np.arange(32) * 240 / RATE_HZ, level_db, 1)[0]
    assert slope_db_s == pytest.approx(-60 / 0.5, rel=0.05)


def test_reverberation_is_the_convolution_cut_to_length() -> None:
    rng = _rng()
    speech, response = rng.standard_normal(700), rng.standard_normal(300)
    assert noises.reverberate(speech, response) == pytest.approx(np.convolve(speech, response)[:700])


def test_resampling_keeps_amplitude_and_time() -> None:
    def burst(rate_hz: int) -> np.ndarray:
        time = np.arange(round(0.8 * rate_hz)) / rate_hz
        return np.exp(-(((time - 0.4) / 0.05) ** 2)) * np.sin(2 * np.pi * 3000 * (time - 0.4))

    resampled = noises.resample(burst(22050), 22050, RATE_HZ)
    assert len(resampled) == len(burst(RATE_HZ))
    assert resampled == pytest.approx(burst(RATE_HZ), abs=1e-6)
    high = np.sin(2 * np.pi * 9000 * np.arange(22050) / 22050) * np.hanning(22050)
    assert np.abs(noises.resample(high, 22050, RATE_HZ)).max() < 1e-3  # above the new Nyquist frequency
