"""The built-in corpus: connected English digits, synthesised by espeak-ng, with the times of their phones.

Nothing is downloaded, so this is the corpus of the demo and of tests. Speakers (voice, speed, pitch), lexicon and the
names of the phones are files in ``data/digits``; rooms and noise are those of `synthetic`.

The reference alignment is espeak's, renamed by ``data/digits/phones.txt``, with two corrections. espeak marks a stop at
its release; here its closure (the preceding samples that are exactly zero) is part of it, as in manual labels, unless
it cannot be told from a pause. And an R under 30 ms, as espeak gives it to a Scottish "four", counts as the end of the
vowel. All pauses, and the silence at both ends, are ``SIL``. After a nasal or an approximant espeak reports a vowel
only after its formant transition (`unmarked_boundary`; ``Generate`` in its synthesize.c).
"""

from itertools import pairwise
from pathlib import Path

import numpy as np

from speech3.corpora import synthetic
from speech3.corpora.synthetic import SAMPLE_RATE_HZ, Interval, Speaker, Spoken
from speech3.errors import MachineError, SettingError
from speech3.language import PhoneEvent, Synthesis

CORPUS = "digits"
SILENCE = "SIL"
DIGITS = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")
OH_PROBABILITY = 0.4  # that the digit 0 is OH, not ZERO
MOST_DIGITS = 7
STOPS = ("t", "t̪", "k")  # espeak's names
SHORTEST_R_S = 0.03
NASALS_AND_APPROXIMANTS = frozenset({"N", "R", "W"})
VOWELS = frozenset({"AH", "AO", "AY", "EH", "EY", "IH", "IY", "OW", "UW"})


def prepare(
    source: Path | None, out: Path, seed: int, *, jobs: int = 0, train: int = 1000, dev: int = 150, test: int = 1680
) -> None:
    """Synthesise the corpus; `source` is not used.

    See `synthetic.prepare`; the reference alignments are ``reference.ctm`` (phones of the lexicon and SIL, without
    gaps) and ``reference_words.ctm``. `train`, `dev` and `test` are numbers of utterances; each speaker of a split
    has at least one if there are enough.
    """
    synthetic.prepare(CORPUS, _say, out, seed, {"train": train, "dev": dev, "test": test}, jobs)


def unmarked_boundary(before: str, phone: str) -> bool:
    """Whether espeak puts the boundary between two phones of the reference inside the vowel."""
    return before in NASALS_AND_APPROXIMANTS and phone in VOWELS


def one_vowel(before: str, phone: str) -> bool:
    """Whether two phones are one vowel in espeak: the AO of FOUR (`F AO` or `F AO R`) may include the R."""
    return (before, phone) == ("AO", "R")


def read_phone_names() -> dict[str, str]:
    """The lexicon's name for each of espeak's phones."""
    return dict(line.split() for line in synthetic.data_lines(CORPUS, "phones.txt"))


def _say(key: str, speaker: Speaker, rng: np.random.Generator) -> Spoken:
    words = _draw_words(rng)
    synthesis, samples_N, lead_s = synthetic.speak(_ssml(words, rng), speaker, rng)
    phones, spans = align(synthesis, words, key, lead_s, len(samples_N) / SAMPLE_RATE_HZ)
    tracks = {"reference.ctm": tuple(phones), "reference_words.ctm": tuple(spans)}
    return Spoken(samples_N, " ".join(words), tracks)


def _draw_words(rng: np.random.Generator) -> list[str]:
    digits = rng.integers(10, size=rng.integers(1, MOST_DIGITS + 1))
    return ["OH" if digit == 0 and rng.random() < OH_PROBABILITY else DIGITS[digit] for digit in digits]


def _ssml(words: list[str], rng: np.random.Generator) -> str:
    """Join the words in lower case (espeak spells out capitals), with a pause after about every third."""
    text = words[0].lower()
    for word in words[1:]:
        pause_ms = rng.integers(60, 500)
        text += (f'<break time="{pause_ms}ms"/> ' if rng.random() < 0.35 else " ") + word.lower()
    return text


def align(
    synthesis: Synthesis, words: list[str], key: str, lead_s: float, end_s: float
) -> tuple[list[Interval], list[Interval]]:
    """The reference alignment of an utterance: its phones and SIL from 0 to `end_s` without gaps, and its words.

    `lead_s` of silence precede the synthesised speech. A pronunciation that is not in the lexicon is an error: is
    espeak's release not 1.52?
    """
    names = read_phone_names()
    events = _without_short_r(_with_closures(synthesis), names)
    if not events[0].ipa:
        raise MachineError(f"{key}: espeak-ng begins with a pause; this is not the release that speech3 supports")
    labels = [names.get(event.ipa, event.ipa) if event.ipa else SILENCE for event in events]
    edges = [event.start_s + lead_s for event in events] + [end_s]
    phones = [Interval(0.0, edges[0], SILENCE)]
    phones += [
        Interval(start_s, stop_s, label) for (start_s, stop_s), label in zip(pairwise(edges), labels, strict=True)
    ]
    if labels[-1] != SILENCE:
        raise MachineError(f"{key}: espeak-ng does not end in a pause; this is not the release that speech3 supports")
    lexicon, spans = synthetic.read_lexicon(CORPUS), []
    for index, word in enumerate(words):
        own = [phone for phone, event in zip(phones[1:], events, strict=True) if event.word == index]
        if tuple(phone.label for phone in own) not in lexicon[word]:
            said = " ".join(phone.label for phone in own)
            raise SettingError(
                f"{key}: espeak-ng pronounces {word} as {said!r}; add that to lexicon.txt and phones.txt in "
                f"{synthetic.data_file(CORPUS, '')}"
            )
        spans.append(Interval(own[0].start_s, own[-1].end_s, word))
    return phones, spans


def _without_short_r(events: list[PhoneEvent], names: dict[str, str]) -> list[PhoneEvent]:
    """Remove every R that is too short; the phone before it gets its time. The last event is a pause."""
    short = [
        names.get(event.ipa) == "R" and after.start_s - event.start_s < SHORTEST_R_S
        for event, after in pairwise(events)
    ]
    return [event for event, drop in zip(events, [*short, False], strict=True) if not drop]


def _with_closures(synthesis: Synthesis) -> list[PhoneEvent]:
    """Move the start of each stop to the start of its closure, unless a pause precedes it."""
    events = list(synthesis.events)
    for index in range(1, len(events)):
        before, event = events[index - 1], events[index]
        if event.ipa in STOPS and before.ipa:
            first = round(before.start_s * synthesis.sample_rate_hz)
            release = round(event.start_s * synthesis.sample_rate_hz)
            loud = np.flatnonzero(synthesis.samples[first:release])
            closure = first + int(loud[-1]) + 1 if loud.size else release
            events[index] = event._replace(start_s=closure / synthesis.sample_rate_hz)
    return events
