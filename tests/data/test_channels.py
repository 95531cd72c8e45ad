"""Several channels become one without losing what is said."""

import numpy as np
import pytest
import soundfile

from speech3.data.audio import channel_mix, mix_of, read_blocks, read_file
from speech3.data.datadir import read_datadir
from speech3.data.stats import measure_corpus, warn_of_problems
from speech3.data.validation import validate

RATE_HZ = 16000
RNG = np.random.default_rng(1)


def _babble(seed, seconds=4.0):
    """Noise whose level changes as that of syllables and pauses does, float32 (S,)."""
    rng = np.random.default_rng(seed)
    level = np.repeat(10 ** rng.uniform(-2.5, 0, round(seconds * 5)), RATE_HZ // 5)
    return (0.1 * level * rng.standard_normal(len(level))).astype(np.float32)


def _noise(like, level):
    return (level * like.std() * RNG.standard_normal(len(like))).astype(np.float32)


SPEECH, OTHER = _babble(2), _babble(3)
SILENCE = np.zeros_like(SPEECH)
MIXES = {
    "equal": ((SPEECH, SPEECH), (0, 1), ""),
    "louder": ((SPEECH, 0.5 * SPEECH), (0, 1), ""),
    "opposite": ((SPEECH, -SPEECH), (0,), "opposite polarity"),
    "half opposite": ((-0.5 * SPEECH, SPEECH), (1,), "opposite polarity"),
    "opposite, one noisy": ((SPEECH + _noise(SPEECH, 0.3), -SPEECH), (1,), "opposite polarity"),
    "first silent": ((SILENCE, SPEECH), (1,), "channel 1 is silent"),
    "offset": ((SILENCE + 0.2, SPEECH), (1,), "channel 1 is silent"),
    "delayed": ((SPEECH, np.roll(SPEECH, 40)), (1,), "channels differ"),
    "loud noise": ((_noise(SPEECH, 3), SPEECH), (1,), "channels differ"),
    "two speakers": ((SPEECH, OTHER), (0, 1), "several speakers"),
    "three": ((SILENCE, SPEECH, -SPEECH), (1,), "opposite polarity"),
    "surround": ((SPEECH, SPEECH, SILENCE, SILENCE), (0, 1), "channels 3, 4 are silent"),
    "silence": ((SILENCE, SILENCE), (0, 1), ""),
}


@pytest.mark.parametrize("name", MIXES)
def test_the_choice(tmp_path, name):
    channels, chosen, why = MIXES[name]
    samples_SC = np.stack(channels, axis=1)
    mix = mix_of(samples_SC, RATE_HZ)
    assert mix.channels == chosen and why in mix.why and bool(mix.why) == bool(why)
    path = tmp_path / "a.wav"
    soundfile.write(path, samples_SC, RATE_HZ, subtype="FLOAT")
    assert channel_mix(path) == mix
    notes = []
    whole, _ = read_file(path, mix_channels=True, note=notes.append)
    assert notes == ([mix.why] if why else [])
    np.testing.assert_allclose(whole, np.mean([channels[channel] for channel in chosen], axis=0), atol=1e-6)
    np.testing.assert_array_equal(np.concatenate(list(read_blocks(path, 0.7))), whole)


def test_validate_and_stats_say_it(make, capsys):
    directory = make()
    soundfile.write(directory / "wav" / "u2.wav", np.stack([SPEECH, -SPEECH], 1), 8000)
    (fault,) = validate(directory).faults
    assert fault.kind == "several channels" and "channel 1 is used" in fault.problem
    warn_of_problems(measure_corpus(read_datadir(directory)))
    assert "u2: as one channel, channel 1 is used, the better one: the channels have opposite polarity" in " ".join(
        capsys.readouterr().err.split()
    )


def test_opposite_polarity_is_no_digital_silence(make):
    directory = make()
    soundfile.write(directory / "wav" / "u2.wav", np.stack([SPEECH, -SPEECH], 1), 8000)
    soundfile.write(directory / "wav" / "u3.wav", np.zeros(8000), 8000)
    assert [fault.subject for fault in validate(directory).warnings] == ["u3"]
