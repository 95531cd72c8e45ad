"""Sound counts for normalisation, the background does not: a room before and after speech changes nothing."""

import numpy as np
import pytest
import torch

from speech3.config import FeatureConfig
from speech3.features.cmvn import SILENCE_DEVIATIONS, cmvn_stats
from speech3.features.compute import static_features
from speech3.features.normalisation import WAIT_FRAMES, OnlineCmvn, normalise
from speech3.features.sound import FRAMES_AFTER, FRAMES_BEFORE, near_sound, only_background

F, RATE_HZ = 8, 16000
CONFIG = FeatureConfig(num_mel_bins=F, cmvn="utterance", norm_vars=True)


def frames(count: int, level: float, seed: int, deviation: float = 1.0) -> torch.Tensor:
    """Log energies whose level wanders, as that of speech does, or which are as steady as a room's (deviation 0)."""
    random = torch.Generator().manual_seed(seed)
    steps = torch.randn(count // 8 + 2, generator=random).repeat_interleave(8)[:count, None]
    return level + deviation * (2 * steps - 0.5) + 0.3 * torch.randn(count, F, generator=random)


TRAINING = torch.cat([frames(5000, 0.0, 9), frames(1500, -6.0, 10, 0.0)])
STATS = tuple(tuple(row) for row in cmvn_stats(TRAINING).tolist())
RECOGNISES = CONFIG.model_copy(update={"global_stats": STATS})
SPEECH, BEFORE, AFTER = frames(90, 0.0, 1), frames(400, -6.0, 2, 0.0), frames(300, -6.0, 3, 0.0)


def nothing_silent(feats_TF: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(feats_TF), dtype=torch.bool)


def test_sound_and_a_little_around_it() -> None:
    feats_TF = torch.cat([BEFORE, SPEECH, AFTER])
    near_T = near_sound(feats_TF, nothing_silent(feats_TF), torch.tensor(STATS), RECOGNISES)
    first, last = int(near_T.nonzero()[0]), int(near_T.nonzero()[-1])
    assert near_T[first : last + 1].all()  # pauses within speech count
    assert len(BEFORE) - FRAMES_BEFORE <= first <= len(BEFORE)
    assert 0 <= last - (len(BEFORE) + len(SPEECH)) <= FRAMES_AFTER + 10


def test_where_nothing_is_louder_all_counts_but_digital_silence() -> None:
    silent_T = nothing_silent(AFTER)
    silent_T[50:120] = True
    short = slice(0, 90)
    assert torch.equal(near_sound(AFTER[short], silent_T[short], torch.tensor(STATS), RECOGNISES), ~silent_T[short])
    assert near_sound(SPEECH[:5], nothing_silent(SPEECH[:5]), torch.tensor(STATS), RECOGNISES).all()


@pytest.mark.parametrize("loudness", [0.0, 4.0, -9.0])
def test_a_room_in_which_nobody_speaks(loudness: float) -> None:
    """It is where the background of speech is, as in streams; beside speech of the same speaker it does not count."""
    (found_TF,) = normalise([AFTER + loudness], RECOGNISES)
    assert float(found_TF.mean()) == pytest.approx(-SILENCE_DEVIATIONS, abs=0.05)
    config = RECOGNISES.model_copy(update={"cmvn": "speaker"})
    alone_TF, beside_TF = normalise([SPEECH], config)[0], normalise([SPEECH, AFTER + loudness], config)[0]
    torch.testing.assert_close(beside_TF, alone_TF, atol=0, rtol=0)


@pytest.mark.parametrize("rest", [AFTER, AFTER[:0]])
def test_a_word_in_a_quiet_room(rest: torch.Tensor) -> None:
    (alone_TF,) = normalise([torch.cat([BEFORE[-20:], SPEECH, rest[:30]])], RECOGNISES)
    (found_TF,) = normalise([torch.cat([BEFORE, SPEECH, rest])], RECOGNISES)
    spoken = found_TF[len(BEFORE) : len(BEFORE) + len(SPEECH)]
    torch.testing.assert_close(spoken, alone_TF[20 : 20 + len(SPEECH)], atol=0.1, rtol=0)
    (plain_TF,) = normalise([torch.cat([BEFORE, SPEECH, rest])], CONFIG)  # training: as Kaldi
    assert (spoken - plain_TF[len(BEFORE) : len(BEFORE) + len(SPEECH)]).abs().max() > 1.0


def test_utterances_of_a_speaker() -> None:
    config = RECOGNISES.model_copy(update={"cmvn": "speaker"})
    alone = normalise([torch.cat([BEFORE[-20:], SPEECH, AFTER[:30]]), SPEECH], config)
    found = normalise([torch.cat([BEFORE, SPEECH, AFTER]), SPEECH], config)
    torch.testing.assert_close(found[1], alone[1], atol=0.1, rtol=0)


def streamed(feats_TF: torch.Tensor, size: int, silent_T: torch.Tensor | None = None) -> torch.Tensor:
    online = OnlineCmvn(RECOGNISES)
    silent_T = nothing_silent(feats_TF) if silent_T is None else silent_T
    out = [online.accept(*piece) for piece in zip(feats_TF.split(size), silent_T.split(size), strict=True)]
    waited_TF = online.finish()
    return torch.cat(out if waited_TF is None else [*out, waited_TF])


@pytest.mark.parametrize("lead", [0, 30, 95, 250, 400])
def test_a_microphone_that_hears_a_room_first(lead: int) -> None:
    feats_TF = torch.cat([BEFORE[:lead], SPEECH, AFTER])
    alone_TF = streamed(torch.cat([SPEECH, AFTER]), 10)[: len(SPEECH)]
    found_TF = streamed(feats_TF, 10)
    assert len(found_TF) == len(feats_TF)
    torch.testing.assert_close(found_TF[lead : lead + len(SPEECH)], alone_TF, atol=0.7, rtol=0)
    for size in (1, 7, 1000):
        torch.testing.assert_close(streamed(feats_TF, size), found_TF, atol=1e-5, rtol=0)


def test_a_room_is_where_it_is_in_training() -> None:
    online = OnlineCmvn(RECOGNISES)
    for loudness in (0.0, 4.0, -9.0):
        found_TF = streamed(BEFORE + loudness, 10)
        assert float(found_TF.mean()) == pytest.approx(-SILENCE_DEVIATIONS, abs=0.15)
    # and waits only once: later frames come at once but for those that a word might begin with
    assert len(online.accept(BEFORE[:WAIT_FRAMES])) == WAIT_FRAMES - FRAMES_BEFORE
    online.restart(speech=False)
    assert len(online.accept(BEFORE[WAIT_FRAMES : WAIT_FRAMES + 50])) == 50


def test_a_fan_is_switched_on() -> None:
    """A new level that does not change is background; a word after it is normalised as after quiet noise."""
    fan_TF = frames(300, -3.0, 7, 0.0)
    found_TF = streamed(torch.cat([BEFORE, fan_TF]), 10)
    assert float(found_TF[len(BEFORE) + 30 :].mean()) == pytest.approx(-SILENCE_DEVIATIONS, abs=0.15)
    loud_TF = SPEECH + 2.0
    found_TF = streamed(torch.cat([BEFORE, fan_TF, loud_TF, AFTER]), 10)
    spoken_TF = found_TF[len(BEFORE) + len(fan_TF) :][: len(SPEECH)]
    alone_TF = streamed(torch.cat([loud_TF, AFTER]), 10)[: len(SPEECH)]
    torch.testing.assert_close(spoken_TF, alone_TF, atol=0.7, rtol=0)


def test_a_fan_does_not_make_the_speaker_forgotten() -> None:
    talk_TF = torch.cat([frames(300, 0.0, 11), AFTER[:100]])
    fan_TF = frames(300, 9.0, 7, 0.0)
    feats_TF = torch.cat([talk_TF, fan_TF, SPEECH])
    found_TF, alone_TF = (
        streamed(feats_TF, 10)[-len(SPEECH) :],
        streamed(torch.cat([talk_TF, SPEECH]), 10)[-len(SPEECH) :],
    )
    torch.testing.assert_close(found_TF, alone_TF, atol=0.7, rtol=0)  # a few frames of the fan count


def test_what_was_taken_for_speech_and_was_not() -> None:
    """Noise whose level wanders counts as sound, until something much louder comes."""
    wandering_TF = frames(300, -6.0, 5, 0.4)
    alone_TF = streamed(torch.cat([SPEECH, AFTER]), 10)[: len(SPEECH)]
    feats_TF = torch.cat([wandering_TF, SPEECH, AFTER])
    found_TF = streamed(feats_TF, 10)[len(wandering_TF) : len(wandering_TF) + len(SPEECH)]
    torch.testing.assert_close(found_TF[20:], alone_TF[20:], atol=0.7, rtol=0)
    for size in (1, 7, 1000):
        torch.testing.assert_close(streamed(feats_TF, size)[-200:], streamed(feats_TF, 10)[-200:], atol=1e-5, rtol=0)


CLICK = frames(12, 14.0, 6, 0.0)


@pytest.mark.parametrize("where", ["before", "inside", "after"])
def test_a_click_much_louder_than_speech_does_not_make_it_background(where: str) -> None:
    speech, after = [SPEECH], [AFTER]
    if where == "inside":
        speech = [SPEECH[:40], CLICK, SPEECH[40:]]
    elif where == "after":
        after = [AFTER[:80], CLICK, AFTER[80:]]
    before = [BEFORE, CLICK, BEFORE[:100]] if where == "before" else [BEFORE]
    feats_TF = torch.cat([*before, *speech, *after])
    near_T = near_sound(feats_TF, nothing_silent(feats_TF), torch.tensor(STATS), RECOGNISES)
    begin = sum(map(len, before))
    assert near_T[begin : begin + sum(map(len, speech))].all()


@pytest.mark.parametrize("muted", [False, True])
def test_speech_counts_in_a_stream_that_began_with_a_click(muted: bool) -> None:
    talk_TF = torch.cat([frames(90, 0.0, seed) for seed in range(20, 28)])
    feats_TF = torch.cat([BEFORE, CLICK, BEFORE[:300], talk_TF])
    alone_TF = streamed(torch.cat([BEFORE, talk_TF]), 10)
    silent_T, end = nothing_silent(feats_TF), len(feats_TF) - len(talk_TF)
    silent_T[end - 280 : end - 20] = muted
    found_TF = streamed(feats_TF, 10, silent_T=silent_T)
    torch.testing.assert_close(found_TF[-90:], alone_TF[-90:], atol=0.1, rtol=0)


def test_a_click_does_not_make_a_stream_forget_the_speaker() -> None:
    """Long quiet speech, a click, then one loud sound: it is normalised by all of them, not by the second after it."""
    talk_TF = torch.cat([frames(90, 0.0, seed) for seed in range(20, 28)])
    feats_TF, alone_TF = torch.cat([talk_TF, CLICK, SPEECH]), streamed(torch.cat([talk_TF, SPEECH]), 10)
    found_TF = streamed(feats_TF, 10)
    assert len(found_TF) == len(feats_TF)
    torch.testing.assert_close(found_TF[: len(talk_TF)], alone_TF[: len(talk_TF)], atol=1e-5, rtol=0)
    torch.testing.assert_close(found_TF[-len(SPEECH) :], alone_TF[-len(SPEECH) :], atol=0.8, rtol=0)
    for size in (1, 7, 1000):
        torch.testing.assert_close(streamed(feats_TF, size), found_TF, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("kind", "bins"), [("fbank", 23), ("mfcc", 23)])
def test_features_of_real_samples(kind: str, bins: int) -> None:
    """The level is found in cepstra, too: two seconds of a quiet room before a tone that comes and goes."""
    random = np.random.default_rng(0)
    config = FeatureConfig(kind=kind, num_mel_bins=bins, cmvn="utterance", norm_vars=True)
    t_S = np.arange(RATE_HZ) / RATE_HZ
    word_S = 0.2 * np.sin(2 * np.pi * 300 * t_S) * (np.sin(2 * np.pi * 4 * t_S) > 0) * random.normal(1, 0.3, RATE_HZ)
    wave_S = np.concatenate([np.zeros(2 * RATE_HZ), word_S, np.zeros(RATE_HZ)]) + random.normal(0, 1e-3, 4 * RATE_HZ)
    lengths = torch.tensor([len(wave_S)])
    statics_TF = static_features(torch.from_numpy(wave_S.astype(np.float32))[None], lengths, config, RATE_HZ)[0][0]
    stats = tuple(tuple(row) for row in cmvn_stats(statics_TF[180:320]).tolist())
    near_T = near_sound(statics_TF, nothing_silent(statics_TF), torch.tensor(stats), config)
    assert 180 <= int(near_T.nonzero()[0]) <= 205 and 280 <= int(near_T.nonzero()[-1]) <= 345


def test_a_plug_is_connected_and_the_microphone_is_muted() -> None:
    """So little sound that no background is known is followed by digital silence."""
    for sound in (3, 9, 25):
        feats_TF, silent_T = torch.cat([SPEECH[:sound], AFTER, SPEECH]), torch.zeros(sound + 390, dtype=torch.bool)
        silent_T[sound : sound + 300] = True
        found_TF = streamed(feats_TF, 10, silent_T=silent_T)
        assert len(found_TF) == len(feats_TF) and found_TF.isfinite().all()


def test_a_quieter_speaker_after_a_loud_one_counts_after_some_seconds() -> None:
    loud_TF, quiet_TF = frames(600, 6.0, 12), torch.cat([frames(300, 0.0, seed) for seed in range(13, 18)])
    online = OnlineCmvn(RECOGNISES)
    for feats_TF in (BEFORE, loud_TF, AFTER, *quiet_TF.split(300)):
        found_TF = online.accept(feats_TF)
        online.restart(speech=feats_TF is not BEFORE and feats_TF is not AFTER)
    assert float(found_TF.mean().abs()) < 0.7


def test_weak_speech_in_noise_is_no_background() -> None:
    """Its level hardly rises, but it is not as steady as noise."""
    weak_TF = frames(300, -6.0, 19, 0.0) + 0.25 * (frames(300, 0.0, 20) + 0.5)
    assert near_sound(weak_TF, nothing_silent(weak_TF), torch.tensor(STATS), RECOGNISES).any()
    assert not only_background(weak_TF, nothing_silent(weak_TF), RECOGNISES)
    assert only_background(AFTER, nothing_silent(AFTER), RECOGNISES)
    cepstra = RECOGNISES.model_copy(update={"kind": "mfcc", "use_energy": True})  # a hum may be all of the energy
    assert not only_background(AFTER, nothing_silent(AFTER), cepstra)
    assert not only_background(AFTER, nothing_silent(AFTER), CONFIG)  # nothing is known of the training data


def test_random_levels_silence_and_restarts() -> None:
    """Every frame comes out once, finite, and the same for any pieces."""
    random = np.random.default_rng(0)
    for _ in range(30):
        parts = [frames(int(random.integers(1, 250)), float(random.uniform(-9, 9)), int(random.integers(1e6)),
                        float(random.choice([0.0, 0.3, 1.0]))) for _ in range(6)]  # fmt: skip
        feats_TF = torch.cat(parts)
        silent_T = torch.from_numpy(random.random(len(parts)) < 0.2).repeat_interleave(
            torch.tensor(list(map(len, parts)))
        )
        ends = {int(random.integers(1, len(feats_TF))): bool(random.random() < 0.5) for _ in range(3)}
        whole = [_with_restarts(feats_TF, silent_T, ends, size) for size in (1, 24, 1000)]
        assert len(whole[0]) == len(feats_TF) and whole[0].isfinite().all()
        for other in whole[1:]:
            torch.testing.assert_close(other, whole[0], atol=1e-4, rtol=1e-4)


def _with_restarts(feats_TF: torch.Tensor, silent_T: torch.Tensor, ends: dict[int, bool], size: int) -> torch.Tensor:
    online, out, begin = OnlineCmvn(RECOGNISES), [], 0
    for end in [*sorted(ends), len(feats_TF)]:
        for piece in zip(feats_TF[begin:end].split(size), silent_T[begin:end].split(size), strict=True):
            out.append(online.accept(*piece))
        if end in ends:
            online.restart(speech=ends[end])
        begin = end
    waited_TF = online.finish()
    return torch.cat(out if waited_TF is None else [*out, waited_TF])
