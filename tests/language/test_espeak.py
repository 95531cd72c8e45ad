"""The synthesiser: what it says, when, and that it says it again to the byte."""

import hashlib
import itertools
import subprocess
import sys
import time

import numpy as np
import pytest

from speech3.errors import Speech3Error
from speech3.language import espeak

pytest.importorskip("espeakng_loader", reason="the espeak extra is not installed")

VOICES = ("en-us", "en-gb-scotland+victor", "en+klatt3")  # victor has breath: the noise seeded by the time of day


def _digest(text: str, voice: str) -> str:
    samples, rate_hz, events = espeak.synthesize(text, voice, 160, 55, 45)
    return hashlib.sha256(samples.tobytes() + repr((rate_hz, events)).encode()).hexdigest()


def test_phones_and_words() -> None:
    samples, rate_hz, events = espeak.synthesize("six nine", "en-us")
    assert rate_hz == 22050
    assert samples.dtype == np.float32 and 0.1 < np.abs(samples).max() <= 1
    assert [(ipa, word) for _, ipa, word in events] == [
        ("s", 0),
        ("ɪ", 0),
        ("k", 0),
        ("s", 0),
        ("n", 1),
        ("aɪ", 1),
        ("n", 1),
        ("", -1),
    ]
    starts_s = [start_s for start_s, _, _ in events]
    assert starts_s == sorted(starts_s) and starts_s[0] >= 0 and starts_s[-1] < len(samples) / rate_hz


def test_events_stand_where_the_sound_changes() -> None:
    samples, rate_hz, events = espeak.synthesize("six <break time='300ms'/> two", "en-us", ssml=True)
    at = {(ipa, word): round(start_s * rate_hz) for start_s, ipa, word in events[:-1]}
    pause, release = at["", -1], at["t", 1]
    assert not samples[pause:release].any()  # silence up to the release of t, to the sample
    assert samples[pause - 3 : pause].any() and samples[release : release + 3].any()
    assert (release - pause) / rate_hz > 0.3
    # Fricatives cross zero several times as often as vowels, within 5 ms of the boundary.
    first, vowel = (next(round(event.start_s * rate_hz) for event in events if event.ipa == ipa) for ipa in ("s", "ɪ"))
    assert not samples[:first].any() and samples[first : first + 3].any()
    window = round(0.03 * rate_hz)

    def crossings(end: int) -> int:
        return int(np.sum(np.diff(np.signbit(samples[end - window : end]))))

    assert crossings(vowel) > 3 * crossings(vowel + window + round(0.005 * rate_hz))


def test_nameless_glide_prolongs_the_phone_before() -> None:
    events = espeak.synthesize("three eight", "en-us").events
    assert [event.ipa for event in events] == ["θ", "ɹ", "iː", "eɪ", "t", ""]


def test_same_samples_in_any_order() -> None:
    first = {voice: _digest("one seven", voice) for voice in VOICES}
    for order in itertools.permutations(VOICES):
        assert {voice: _digest("one seven", voice) for voice in order} == first
    assert len(set(first.values())) == len(VOICES)


def test_same_samples_in_another_process_at_another_time() -> None:
    time.sleep(1.1)  # espeak's own seed is the time in seconds
    code = (
        "import hashlib; from speech3.language import espeak\n"
        "s, r, e = espeak.synthesize('one seven', 'en-gb-scotland+victor', 160, 55, 45)\n"
        "print(hashlib.sha256(s.tobytes() + repr((r, e)).encode()).hexdigest())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert said == _digest("one seven", "en-gb-scotland+victor")


def test_rate_pitch_and_range_matter() -> None:
    slow, fast = (espeak.synthesize("one seven", "en-us", rate_wpm=rate).samples for rate in (100, 250))
    assert len(slow) > 1.5 * len(fast)
    low, high = (espeak.synthesize("one", "en-us", pitch=pitch).samples for pitch in (20, 80))

    def period(samples: np.ndarray) -> int:
        middle = samples[len(samples) // 3 : 2 * len(samples) // 3]
        correlation = np.correlate(middle, middle, "full")[len(middle) - 1 :]
        return int(np.argmax(correlation[80:400])) + 80

    assert period(low) > 1.3 * period(high)
    flat, lively = (espeak.synthesize("one", "en-us", pitch_range=width).samples for width in (0, 99))
    assert flat.tobytes() != lively.tobytes()


def test_pronounce() -> None:
    assert espeak.pronounce(["Two, three!", "", "one"], "en-us") == [
        [["t", "ˈuː"], ["θ", "ɹ", "ˈiː"]],
        [],
        [["w", "ˌʌ", "n"]],
    ]
    assert espeak.pronounce(["Nacht"], "de") == [[["n", "ˈa", "x", "t"]]]


def test_voices() -> None:
    languages = {tag for voice in espeak.voices() for tag in voice.languages}
    assert {"en-us", "en-gb-scotland", "de", "cmn"} <= languages
    name = next(voice.name for voice in espeak.voices() if "en-us" in voice.languages)
    assert _digest("nine", name) == _digest("nine", "en-us")


@pytest.mark.parametrize("text", ["", " \n", "..."])
def test_nothing_to_say(text: str) -> None:
    with pytest.raises(Speech3Error, match="said nothing"):
        espeak.synthesize(text, "en-us")


def test_unknown_voice() -> None:
    with pytest.raises(Speech3Error, match="no voice 'xx-yy'"):
        espeak.synthesize("one", "xx-yy")


def test_missing_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(Speech3Error, match=r'pip install "speech3\[espeak\]"'):
        espeak.pronounce(["one"], "en-us")
