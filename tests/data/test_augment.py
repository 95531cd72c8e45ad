"""What is done to waveforms, against closed forms; a batch against its utterances one by one."""

import numpy as np
import pytest
import torch
from torch import Tensor

from speech3.data.augment import noises as rooms
from speech3.data.augment.augmenter import add_noise, change_speed, change_volume, overlap, reverberate, telephone
from speech3.data.resampling import resample

LENGTHS = torch.tensor([16000, 9000, 1, 4001])


def speech(lengths_N: Tensor = LENGTHS, seed: int = 1) -> Tensor:
    """Noise that comes and goes, 0.05 in the mean, and rubbish beyond the lengths."""
    generator = torch.Generator().manual_seed(seed)
    waves_NS = 0.05 * torch.randn(len(lengths_N), int(lengths_N.max()), generator=generator)
    return waves_NS * (1 + torch.sin(torch.arange(waves_NS.shape[1]) / 800))


def power(wave_S: Tensor) -> float:
    return float(wave_S.double().square().mean())


def decibel(ratio: float) -> float:
    return 10 * float(np.log10(ratio))


def tone(hz: float, rate_hz: int, seconds: float = 1.0) -> Tensor:
    return 0.3 * torch.sin(2 * np.pi * hz * torch.arange(round(seconds * rate_hz)) / rate_hz)[None].float()


def middle(wave_S: Tensor) -> Tensor:
    return wave_S[len(wave_S) // 4 : -len(wave_S) // 4]


def test_noise_is_added_at_its_ratio() -> None:
    waves, noises, snr_db = speech(), speech(seed=2), torch.tensor([-5.0, 0.0, 10.0, 33.0])
    heard = add_noise(waves, LENGTHS, noises, snr_db)
    for n, length in enumerate(LENGTHS.tolist()):
        added = heard[n, :length] - waves[n, :length]
        assert decibel(power(waves[n, :length]) / power(added)) == pytest.approx(float(snr_db[n]), abs=0.01)
        assert not heard[n, length:].any()
        gain = (power(added) / power(noises[n, :length])) ** 0.5
        torch.testing.assert_close(added, gain * noises[n, :length], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("silent", ["speech", "noise", "both"])
def test_silence_is_no_fault(silent: str) -> None:
    waves, noises = speech(), speech(seed=2)
    waves = waves * (silent == "noise")
    noises = noises * (silent == "speech")
    inside = waves * (torch.arange(waves.shape[1]) < LENGTHS[:, None])
    snr_db, starts = torch.zeros(4), torch.zeros(4, dtype=torch.int64)
    assert torch.equal(add_noise(waves, LENGTHS, noises, snr_db), inside)
    assert torch.equal(overlap(waves, LENGTHS, noises, LENGTHS, starts, snr_db), inside)
    wet = reverberate(waves, LENGTHS, noises[:, :100] + torch.eye(1, 100))
    assert torch.isfinite(wet).all() and bool(wet.any()) == (silent == "noise")
    assert torch.equal(change_volume(waves, LENGTHS, snr_db), inside)
    assert torch.isfinite(telephone(waves, LENGTHS, 16000)).all()


def test_another_speaker_begins_where_asked_at_the_level_asked() -> None:
    lengths = torch.tensor([1000, 1000, 1000, 600])
    others, other_lengths = speech(torch.tensor([300, 300, 2000, 300]), seed=3), torch.tensor([300, 300, 2000, 300])
    starts, snr_db = torch.tensor([200, -100, -500, 550]), torch.tensor([6.0, 0.0, 20.0, -3.0])
    waves = speech(lengths)
    heard = overlap(waves, lengths, others, other_lengths, starts, snr_db)
    for n in range(4):
        length, other, start = int(lengths[n]), int(other_lengths[n]), int(starts[n])
        expected = np.zeros(length)
        for place in range(max(start, 0), min(start + other, length)):
            expected[place] = others[n, place - start]
        gain = np.sqrt(power(waves[n, :length]) / power(others[n, :other]) / 10 ** (float(snr_db[n]) / 10))
        np.testing.assert_allclose((heard - waves)[n, :length], gain * expected, atol=1e-6)
        assert not heard[n, length:].any()


@pytest.mark.parametrize("delay", [0, 1, 799])
def test_a_lone_pulse_changes_nothing_however_late_it_is(delay: int) -> None:
    waves, response = speech(), torch.zeros(4, 800)
    response[:, delay] = -0.5 if delay == 1 else 3.0
    wet = reverberate(waves, LENGTHS, response)
    for n, length in enumerate(LENGTHS.tolist()):
        expected = -waves[n, :length] if delay == 1 else waves[n, :length]
        torch.testing.assert_close(wet[n, :length], expected, atol=1e-6, rtol=1e-5)
        assert not wet[n, length:].any()


def test_a_room_is_the_convolution_shifted_by_its_direct_sound_and_as_loud() -> None:
    waves, rng = speech(), np.random.default_rng(1)
    response = rng.normal(size=(4, 500)) * np.exp(-np.arange(500) / 60)
    response[:, 37] = 5.0
    wet = reverberate(waves, LENGTHS, torch.from_numpy(response).float())
    for n, length in enumerate(LENGTHS.tolist()):
        dry = waves[n, :length].double().numpy()
        expected = np.convolve(dry, response[n])[37 : 37 + length]
        expected *= np.sqrt(np.square(dry).mean() / np.square(expected).mean())
        np.testing.assert_allclose(wet[n, :length], expected, atol=2e-6)


def test_a_synthesised_room_is_that_of_the_corpora() -> None:
    waves, rng = speech(), np.random.default_rng(1)
    response = rooms.room_response(16000, 0.3, 2.0, 3.0, rng)
    wet = reverberate(waves[:1], LENGTHS[:1], torch.from_numpy(response).float()[None])[0].double().numpy()
    expected = rooms.reverberate(waves[0].double().numpy(), response)
    np.testing.assert_allclose(wet / wet.std(), expected / expected.std(), atol=1e-4)


@pytest.mark.parametrize("factor", [0.9, 1.1, 1.15, 2.0])
def test_speed_changes_pitch_and_length(factor: float) -> None:
    rate_hz = 8000
    waves, lengths = change_speed(tone(440, rate_hz, 2.0), torch.tensor([16000]), factor)
    assert int(lengths[0]) == waves.shape[1] == int(np.ceil(16000 / factor - 1e-9))
    spectrum = np.abs(np.fft.rfft(waves[0].numpy() * np.hanning(waves.shape[1]), 1 << 18))
    assert spectrum.argmax() * rate_hz / (1 << 18) == pytest.approx(440 * factor, rel=1e-3)
    assert power(middle(waves[0])) == pytest.approx(0.045, rel=0.02)


def test_speed_is_that_of_the_copies_on_disk() -> None:
    wave = speech()[:1]
    changed, _ = change_speed(wave, LENGTHS[:1], 1.1)
    np.testing.assert_array_equal(changed[0].numpy(), resample(wave[0].numpy(), 17600, 16000))


def test_what_lies_beyond_a_length_is_not_looked_at() -> None:
    beyond = torch.arange(16000) >= LENGTHS[:, None]
    levels, starts, response = torch.full((4,), 6.0), torch.full((4,), -50), torch.linspace(1, 0, 90).expand(4, -1)
    noises, others = speech(seed=2), speech(seed=3)
    for change in (
        lambda waves: add_noise(waves, LENGTHS, noises.masked_fill(beyond, torch.nan), levels),
        lambda waves: overlap(waves, LENGTHS, others.masked_fill(beyond, torch.nan), LENGTHS, starts, levels),
        lambda waves: reverberate(waves, LENGTHS, response),
        lambda waves: change_speed(waves, LENGTHS, 0.9)[0],
        lambda waves: change_volume(waves, LENGTHS, levels),
        lambda waves: telephone(waves, LENGTHS, 16000),
    ):
        waves = speech()
        assert torch.equal(change(waves.masked_fill(beyond, torch.nan)), change(waves))


def test_volume_stops_short_of_clipping() -> None:
    waves = torch.tensor([[0.1, -0.2, 0.3, 9.0], [0.5, -0.9, 0.1, 0.0]])
    louder = change_volume(waves, torch.tensor([3, 4]), torch.tensor([6.0, 20.0]))
    torch.testing.assert_close(louder[0], waves[0] * 10**0.3 * torch.tensor([1.0, 1, 1, 0]))
    torch.testing.assert_close(louder[1], waves[1] / 0.9 * (32767 / 32768))
    softer = change_volume(waves[1:], torch.tensor([4]), torch.tensor([-20.0]))
    torch.testing.assert_close(softer, waves[1:] / 10)


@pytest.mark.parametrize("rate_hz", [8000, 16000, 22050, 44100])
def test_a_telephone_passes_its_band_only(rate_hz: int) -> None:
    def gain_db(hz: float) -> float:
        wave = tone(hz, rate_hz)
        heard = telephone(wave, torch.tensor([wave.shape[1]]), rate_hz, mu_law=False)
        assert heard.shape == wave.shape
        return decibel(power(middle(heard[0])) / power(middle(wave[0])))

    for hz in (500, 1000, 3000):
        assert gain_db(hz) == pytest.approx(0, abs=0.3)
    for hz in (50, 100, 3900, *([6000] if rate_hz > 12000 else [])):
        assert gain_db(hz) < -20


@pytest.mark.parametrize("rate_hz", [6000, 8000, 16000, 11025])
def test_a_telephone_keeps_timing_and_mu_law_adds_its_noise(rate_hz: int) -> None:
    wave = tone(1000, rate_hz)
    clean, coded = (telephone(wave, torch.tensor([rate_hz]), rate_hz, mu_law=mu_law) for mu_law in (False, True))
    torch.testing.assert_close(middle(clean[0]), middle(wave[0]), atol=5e-3, rtol=0)
    snr_db = decibel(power(middle(clean[0])) / power(middle((coded - clean)[0])))
    assert 33 < snr_db < 45, "38 dB: 8 bits of mu-law at any level"
    quiet = telephone(0.01 * wave, torch.tensor([rate_hz]), rate_hz) - 0.01 * clean
    assert 25 < decibel(1e-4 * power(middle(clean[0])) / power(middle(quiet[0]))) < 45


def test_a_batch_is_its_utterances_one_by_one() -> None:
    waves, noises, values = speech(), speech(seed=2), torch.tensor([3.0, -2.0, 9.0, 0.0])
    responses = torch.randn(4, 300, generator=torch.Generator().manual_seed(1)) * torch.exp(-torch.arange(300) / 40)
    starts = torch.tensor([5, -9, 0, 100])
    for whole, alone in (
        (
            add_noise(waves, LENGTHS, noises, values),
            lambda n, s: add_noise(waves[s, :n], LENGTHS[s], noises[s, :n], values[s]),
        ),
        (
            overlap(waves, LENGTHS, noises, LENGTHS, starts, values),
            lambda n, s: overlap(waves[s, :n], LENGTHS[s], noises[s, :n], LENGTHS[s], starts[s], values[s]),
        ),
        (reverberate(waves, LENGTHS, responses), lambda n, s: reverberate(waves[s, :n], LENGTHS[s], responses[s])),
        (change_speed(waves, LENGTHS, 1.1)[0], lambda n, s: change_speed(waves[s, :n], LENGTHS[s], 1.1)[0]),
        (change_volume(waves, LENGTHS, values), lambda n, s: change_volume(waves[s, :n], LENGTHS[s], values[s])),
        (
            telephone(waves, LENGTHS, 16000, mu_law=False),
            lambda n, s: telephone(waves[s, :n], LENGTHS[s], 16000, mu_law=False),
        ),
    ):
        for row, length in enumerate(LENGTHS.tolist()):
            one = alone(length, slice(row, row + 1))
            torch.testing.assert_close(one[0], whole[row, : one.shape[1]], atol=2e-6, rtol=1e-4)
            assert not whole[row, one.shape[1] :].any()
