"""What is done to waveforms, against closed forms."""

import numpy as np
import pytest
import torch
from torch import Tensor

from speech3.data.augment import noises as rooms
from speech3.data.augment.augmenter import add_noise, change_speed, change_volume, overlap, reverberate, telephone

LENGTHS = (16000, 9000, 1, 4001)


def speech(length: int = 16000, seed: int = 1) -> Tensor:
    """Noise that comes and goes, 0.05 in the mean."""
    wave_S = 0.05 * torch.randn(length, generator=torch.Generator().manual_seed(seed))
    return wave_S * (1 + torch.sin(torch.arange(length) / 800))


def power(wave_S: Tensor) -> float:
    return float(wave_S.double().square().mean())


def decibel(ratio: float) -> float:
    return 10 * float(np.log10(ratio))


def tone(hz: float, rate_hz: int, seconds: float = 1.0) -> Tensor:
    return 0.3 * torch.sin(2 * np.pi * hz * torch.arange(round(seconds * rate_hz)) / rate_hz).float()


def middle(wave_S: Tensor) -> Tensor:
    return wave_S[len(wave_S) // 4 : -len(wave_S) // 4]


@pytest.mark.parametrize(("length", "snr_db"), [(16000, -5.0), (9000, 0.0), (1, 10.0), (4001, 33.0)])
def test_noise_is_added_at_its_ratio(length: int, snr_db: float) -> None:
    wave, noise = speech(length), speech(length, seed=2)
    added = add_noise(wave, noise, snr_db) - wave
    assert decibel(power(wave) / power(added)) == pytest.approx(snr_db, abs=0.01)
    gain = (power(added) / power(noise)) ** 0.5
    torch.testing.assert_close(added, gain * noise, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("silent", ["speech", "noise", "both"])
def test_silence_is_no_fault(silent: str) -> None:
    wave, noise = speech() * (silent == "noise"), speech(seed=2) * (silent == "speech")
    assert torch.equal(add_noise(wave, noise, 0.0), wave)
    assert torch.equal(overlap(wave, noise, 0, 0.0), wave)
    wet = reverberate(wave, noise[:100] + torch.eye(1, 100)[0])
    assert torch.isfinite(wet).all() and bool(wet.any()) == (silent == "noise")
    assert torch.equal(change_volume(wave, 0.0), wave)
    assert torch.isfinite(telephone(wave, 16000, mu_law=True)).all()


@pytest.mark.parametrize(
    ("length", "other", "start", "snr_db"),
    [(1000, 300, 200, 6.0), (1000, 300, -100, 0.0), (1000, 2000, -500, 20.0), (600, 300, 550, -3.0), (600, 9, -9, 0.0)],
)
def test_another_speaker_begins_where_asked_at_the_level_asked(
    length: int, other: int, start: int, snr_db: float
) -> None:
    wave, voice = speech(length), speech(other, seed=3)
    heard = overlap(wave, voice, start, snr_db)
    expected = np.zeros(length)
    for place in range(max(start, 0), min(start + other, length)):
        expected[place] = voice[place - start]
    gain = np.sqrt(power(wave) / power(voice) / 10 ** (snr_db / 10))
    np.testing.assert_allclose(heard - wave, gain * expected, atol=1e-6)


@pytest.mark.parametrize("delay", [0, 1, 799])
def test_a_lone_pulse_changes_nothing_however_late_it_is(delay: int) -> None:
    response = torch.zeros(800)
    response[delay] = -0.5 if delay == 1 else 3.0
    for length in LENGTHS:
        wave = speech(length)
        expected = -wave if delay == 1 else wave
        torch.testing.assert_close(reverberate(wave, response), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_room_is_the_convolution_shifted_by_its_direct_sound_and_as_loud(length: int) -> None:
    wave, rng = speech(length), np.random.default_rng(1)
    response = rng.normal(size=500) * np.exp(-np.arange(500) / 60)
    response[37] = 5.0
    dry = wave.double().numpy()
    expected = np.convolve(dry, response)[37 : 37 + length]
    expected *= np.sqrt(np.square(dry).mean() / np.square(expected).mean())
    np.testing.assert_allclose(reverberate(wave, torch.from_numpy(response).float()), expected, atol=2e-6)


def test_a_synthesised_room_is_that_of_the_corpora() -> None:
    wave, rng = speech(), np.random.default_rng(1)
    response = rooms.room_response(16000, 0.3, 2.0, 3.0, rng)
    wet = reverberate(wave, torch.from_numpy(response).float()).double().numpy()
    expected = rooms.reverberate(wave.double().numpy(), response)
    np.testing.assert_allclose(wet / wet.std(), expected / expected.std(), atol=1e-4)


@pytest.mark.parametrize("factor", [0.9, 1.1, 1.15, 2.0])
def test_speed_changes_pitch_and_length(factor: float) -> None:
    rate_hz = 8000
    wave = change_speed(tone(440, rate_hz, 2.0).numpy(), factor)
    assert len(wave) == int(np.ceil(16000 / factor - 1e-9))
    spectrum = np.abs(np.fft.rfft(wave * np.hanning(len(wave)), 1 << 18))
    assert spectrum.argmax() * rate_hz / (1 << 18) == pytest.approx(440 * factor, rel=1e-3)
    assert power(middle(torch.from_numpy(wave))) == pytest.approx(0.045, rel=0.02)


def test_volume_stops_short_of_clipping() -> None:
    quiet, loud = torch.tensor([0.1, -0.2, 0.3]), torch.tensor([0.5, -0.9, 0.1, 0.0])
    torch.testing.assert_close(change_volume(quiet, 6.0), quiet * 10**0.3)
    torch.testing.assert_close(change_volume(loud, 20.0), loud / 0.9 * (32767 / 32768))
    torch.testing.assert_close(change_volume(loud, -20.0), loud / 10)


@pytest.mark.parametrize("rate_hz", [8000, 16000, 22050, 44100])
def test_a_telephone_passes_its_band_only(rate_hz: int) -> None:
    def gain_db(hz: float) -> float:
        wave = tone(hz, rate_hz)
        heard = telephone(wave, rate_hz, mu_law=False)
        assert heard.shape == wave.shape
        return decibel(power(middle(heard)) / power(middle(wave)))

    for hz in (500, 1000, 3000):
        assert gain_db(hz) == pytest.approx(0, abs=0.3)
    for hz in (50, 100, 3900, *([6000] if rate_hz > 12000 else [])):
        assert gain_db(hz) < -20


@pytest.mark.parametrize("rate_hz", [6000, 8000, 16000, 11025])
def test_a_telephone_keeps_timing_and_mu_law_adds_its_noise(rate_hz: int) -> None:
    wave = tone(1000, rate_hz)
    clean, coded = (telephone(wave, rate_hz, mu_law=mu_law) for mu_law in (False, True))
    torch.testing.assert_close(middle(clean), middle(wave), atol=5e-3, rtol=0)
    snr_db = decibel(power(middle(clean)) / power(middle(coded - clean)))
    assert 33 < snr_db < 45, "38 dB: 8 bits of mu-law at any level"
    quiet = telephone(0.01 * wave, rate_hz, mu_law=True) - 0.01 * clean
    assert 25 < decibel(1e-4 * power(middle(clean)) / power(middle(quiet))) < 45
