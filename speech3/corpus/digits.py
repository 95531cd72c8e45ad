"""The built-in corpus: connected English digits, spoken by espeak-ng, with the times of their phones.

Nothing is downloaded, so this is the corpus of the demo and of tests. Half of each split is clean, the rest has noise,
reverberation or both. Speakers (voice, speed, pitch), lexicon and the names of the phones are the files of
``data/digits``; what an utterance says and in what room is drawn from the seed and its name alone, so the corpus is the
same bytes in any number of processes.

The reference alignment is espeak's, phone for phone, renamed by ``data/digits/phones.txt``, with two corrections.
espeak marks a stop at its release; here its closure (the samples before that are exactly zero) belongs to it, as in
hand labels and where an HMM puts it. After a pause the closure cannot be told from the pause and stays with it. And
espeak lists a Scottish "four" with an R of 0 to 25 ms; under 30 ms, the least time that three HMM states take, it
counts as the end of the vowel. All pauses, and the silence at both ends, are ``SIL``.

One kind of border espeak does not mark: after a nasal or a liquid it reports a vowel only when the vowel's beginning,
with the transition of the formants, has been spoken (``Generate`` in its synthesize.c says so); `unmarked_border`.
"""

import functools
import io
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import soundfile

from speech3.config import shipped
from speech3.corpus import rooms
from speech3.corpus.datadir import DataDir, Utterance, write_datadir
from speech3.corpus.espeak import PhoneEvent, Synthesis, synthesize
from speech3.errors import Speech3Error
from speech3.io.atomic import explained_disk_errors, write_text
from speech3.io.parallel import available_jobs, parallel_map

SAMPLE_RATE_HZ = 16000
SPLITS = ("train", "dev", "test")
SILENCE = "SIL"
DIGITS = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")
OH_PROBABILITY = 0.4  # of saying OH for the digit 0
MOST_DIGITS = 7
STOPS = ("t", "t̪", "k")  # in espeak's names
SHORTEST_R_S = 0.03
NASALS_AND_LIQUIDS = frozenset({"N", "R", "W"})
VOWELS = frozenset({"AH", "AO", "AY", "EH", "EY", "IH", "IY", "OW", "UW"})

# Shares of the conditions, and their ranges: hard enough that a good recogniser errs, not so hard that people do.
CONDITIONS = {"clean": 0.5, "noise": 0.3, "reverb": 0.1, "noise+reverb": 0.1}
SNR_DB = (5.0, 20.0)
RT60_S = (0.25, 0.7)
DIRECT_TO_REVERBERANT_DB = (-3.0, 9.0)
BABBLERS = 3
# Digital silence would make the clean part unlike any recording, so all of it has the hiss of a quiet room.
FLOOR_SNR_DB = (35.0, 50.0)
LEVEL_DBFS = (-32.0, -20.0)


@dataclass(frozen=True)
class Speaker:
    """One line of ``data/digits/speakers.txt``."""

    id: str
    split: str
    voice: str
    rate_wpm: int
    pitch: int
    pitch_range: int


@dataclass(frozen=True)
class Interval:
    """A phone, word or silence of the reference alignment."""

    start_s: float
    end_s: float
    label: str


@dataclass(frozen=True)
class Spoken:
    """One utterance of the corpus, its audio already written."""

    id: str
    speaker: str
    text: str
    condition: str
    phones: tuple[Interval, ...]
    words: tuple[Interval, ...]


def prepare(
    source: Path | None, out: Path, seed: int, *, jobs: int = 0, train: int = 1000, dev: int = 150, test: int = 300
) -> None:
    """Synthesise the corpus into ``out``, where it appears only once it is whole.

    Writes ``lexicon.txt`` and the Kaldi data directories ``train``, ``dev`` and ``test``, each with ``wav/`` (16 kHz,
    16 bit), ``conditions`` (utterance and one of `CONDITIONS`), ``reference.ctm`` (phones of the lexicon and SIL,
    without gaps) and ``reference_words.ctm``. Lines of both: ``utterance 1 start duration label``, in seconds.

    Parameters
    ----------
    source
        Not used (None): there is nothing to download.
    jobs
        Processes; 0: one per core. The result does not depend on it.
    train, dev, test
        Number of utterances, at least one for each speaker of the split.

    Raises
    ------
    Speech3Error
        espeak-ng is not installed, a split has fewer utterances than speakers, or `out` cannot be written.
    """
    sizes = dict(zip(SPLITS, (train, dev, test), strict=True))
    speakers = read_speakers()
    for split, size in sizes.items():
        if size < (fewest := sum(speaker.split == split for speaker in speakers)):
            raise Speech3Error(f"{split}: {size} utterances for {fewest} speakers; ask for at least {fewest}")
    synthesize("one", speakers[0].voice)  # a missing espeak-ng shows here, before anything is written
    with _staging(Path(out)) as staging:
        task = functools.partial(_speak_all, directory=staging, seed=seed, sizes=sizes)
        spoken = dict(zip(speakers, parallel_map(task, speakers, jobs or available_jobs(), "synthesis"), strict=True))
        for split in SPLITS:
            utterances = [utt for speaker, utts in spoken.items() if speaker.split == split for utt in utts]
            _write_split(utterances, staging / split)
        shutil.copyfile(_data("lexicon.txt"), staging / "lexicon.txt")


def unmarked_border(before: str, phone: str) -> bool:
    """Is the border between two phones of the reference one that lies inside the vowel?"""
    return before in NASALS_AND_LIQUIDS and phone in VOWELS


def one_vowel(before: str, phone: str) -> bool:
    """Are two phones one vowel to espeak? FOUR is `F AO` or `F AO R` to the lexicon, but its R often part of the AO."""
    return (before, phone) == ("AO", "R")


def read_speakers() -> list[Speaker]:
    """The speakers of the corpus in the order of their ids."""
    rows = (line.split() for line in _lines("speakers.txt"))
    return [
        Speaker(key, split, voice, int(rate), int(pitch), int(span)) for key, split, voice, rate, pitch, span in rows
    ]


def read_phone_names() -> dict[str, str]:
    """Our name of each of espeak's phones."""
    return dict(line.split() for line in _lines("phones.txt"))


def read_lexicon() -> dict[str, list[tuple[str, ...]]]:
    """The variants of each word."""
    lexicon: dict[str, list[tuple[str, ...]]] = {}
    for line in _lines("lexicon.txt"):
        word, *phones = line.split()
        lexicon.setdefault(word, []).append(tuple(phones))
    return lexicon


def _data(name: str) -> Path:
    return shipped("data") / "digits" / name


def _lines(name: str) -> list[str]:
    stripped = (line.partition("#")[0].strip() for line in _data(name).read_text(encoding="utf-8").splitlines())
    return [line for line in stripped if line]


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """Yield an empty directory beside `out`; move what is in it into `out` if the block succeeds."""
    out = out.absolute()
    staging = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    with explained_disk_errors(out):
        for left in out.parent.glob(f".{out.name}.*.tmp"):  # by runs that were killed
            if not _is_running(left.name.split(".")[-2]):
                shutil.rmtree(left, ignore_errors=True)
        staging.mkdir(parents=True)
        try:
            yield staging
            out.mkdir(parents=True, exist_ok=True)
            # The lexicon goes first and comes last: without it a corpus is not finished.
            (out / "lexicon.txt").unlink(missing_ok=True)
            for split in SPLITS:
                shutil.rmtree(out / split, ignore_errors=True)
                (staging / split).rename(out / split)
            (staging / "lexicon.txt").rename(out / "lexicon.txt")
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _is_running(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        return True
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    return True


def _speak_all(speaker: Speaker, directory: Path, seed: int, sizes: dict[str, int]) -> list[Spoken]:
    """Make and write the utterances of one speaker; those of a split are dealt out to its speakers in turn."""
    colleagues = [other for other in read_speakers() if other.split == speaker.split]
    first = colleagues.index(speaker)
    wav = directory / speaker.split / "wav"
    wav.mkdir(parents=True, exist_ok=True)
    spoken = []
    for number in range(len(range(first, sizes[speaker.split], len(colleagues)))):
        rng = np.random.default_rng([seed, int(speaker.id[1:]), number])
        key = f"{speaker.id}-{number:03d}"
        samples_N, utterance = _speak(key, speaker, [other for other in colleagues if other != speaker], rng)
        buffer = io.BytesIO()  # writing through Python, since libsndfile does not say that the disk is full
        soundfile.write(buffer, samples_N, SAMPLE_RATE_HZ, format="WAV", subtype="PCM_16")
        (wav / f"{key}.wav").write_bytes(buffer.getvalue())
        spoken.append(utterance)
    return spoken


def _speak(key: str, speaker: Speaker, others: list[Speaker], rng: np.random.Generator) -> tuple[np.ndarray, Spoken]:
    """Synthesise one utterance: samples (N,) int16 and what is known of them."""
    words = _draw_words(rng)
    synthesis = synthesize(
        _ssml(words, rng),
        speaker.voice,
        rate_wpm=round(speaker.rate_wpm * rng.uniform(0.85, 1.15)),
        pitch=int(np.clip(speaker.pitch + rng.integers(-6, 7), 0, 99)),
        pitch_range=speaker.pitch_range,
        ssml=True,
    )
    before_s, after_s = rng.uniform(0.1, 0.5, 2)
    lead = round(before_s * SAMPLE_RATE_HZ)
    speech_N = rooms.resample(synthesis.samples, synthesis.sample_rate_hz, SAMPLE_RATE_HZ)
    speech_N = np.pad(speech_N, (lead, round(after_s * SAMPLE_RATE_HZ)))
    end_s = len(speech_N) / SAMPLE_RATE_HZ
    phones, spans = align(synthesis, words, key, lead / SAMPLE_RATE_HZ, end_s)
    condition = str(rng.choice(list(CONDITIONS), p=list(CONDITIONS.values())))
    samples_N = _in_room(speech_N, condition, others, rng)
    return samples_N, Spoken(key, speaker.id, " ".join(words), condition, tuple(phones), tuple(spans))


def _draw_words(rng: np.random.Generator) -> list[str]:
    digits = rng.integers(10, size=rng.integers(1, MOST_DIGITS + 1))
    return ["OH" if digit == 0 and rng.random() < OH_PROBABILITY else DIGITS[digit] for digit in digits]


def _ssml(words: list[str], rng: np.random.Generator) -> str:
    """Put the words in lower case (espeak spells capitals), with a pause after about every third."""
    text = words[0].lower()
    for word in words[1:]:
        pause_ms = rng.integers(60, 500)
        text += (f'<break time="{pause_ms}ms"/> ' if rng.random() < 0.35 else " ") + word.lower()
    return text


def align(
    synthesis: Synthesis, words: list[str], key: str, lead_s: float, end_s: float
) -> tuple[list[Interval], list[Interval]]:
    """Make the reference alignment of an utterance in which `lead_s` of silence precede what was synthesised.

    Returns
    -------
    phones, words
        The phones and SIL from 0 to `end_s` without gaps; the words without the silence between them.

    Raises
    ------
    Speech3Error
        espeak pronounced a word otherwise than the lexicon does (another release than 1.52?).
    """
    names = read_phone_names()
    events = _without_short_r(_with_closures(synthesis), names)
    if not events[0].ipa:
        raise Speech3Error(f"{key}: espeak-ng begins with a pause; this release is not the one that speech3 knows")
    labels = [names.get(event.ipa, event.ipa) if event.ipa else SILENCE for event in events]
    edges = [event.start_s + lead_s for event in events] + [end_s]
    phones = [Interval(0.0, edges[0], SILENCE)]
    phones += [
        Interval(start_s, stop_s, label) for (start_s, stop_s), label in zip(pairwise(edges), labels, strict=True)
    ]
    if labels[-1] != SILENCE:
        raise Speech3Error(f"{key}: espeak-ng does not end in a pause; this release is not the one that speech3 knows")
    spans = []
    for index, word in enumerate(words):
        own = [phone for phone, event in zip(phones[1:], events, strict=True) if event.word == index]
        if tuple(phone.label for phone in own) not in read_lexicon()[word]:
            said = " ".join(phone.label for phone in own)
            raise Speech3Error(
                f"{key}: espeak-ng says {word} as {said!r}; add that to {_data('lexicon.txt')} and phones.txt"
            )
        spans.append(Interval(own[0].start_s, own[-1].end_s, word))
    return phones, spans


def _without_short_r(events: list[PhoneEvent], names: dict[str, str]) -> list[PhoneEvent]:
    """Leave out every R that is too short; its time goes to the phone before. The last event is a pause."""
    short = [
        names.get(event.ipa) == "R" and after.start_s - event.start_s < SHORTEST_R_S
        for event, after in pairwise(events)
    ]
    return [event for event, drop in zip(events, [*short, False], strict=True) if not drop]


def _with_closures(synthesis: Synthesis) -> list[PhoneEvent]:
    """Let a stop begin with its closure, unless a pause precedes it."""
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


def _in_room(speech_N: np.ndarray, condition: str, others: list[Speaker], rng: np.random.Generator) -> np.ndarray:
    """Apply the condition, the hiss and the level of the recording: (N,) float to (N,) int16."""
    heard_N = speech_N
    if "reverb" in condition:
        response_M = rooms.room_response(
            SAMPLE_RATE_HZ, rng.uniform(*RT60_S), rng.uniform(1, 4), rng.uniform(*DIRECT_TO_REVERBERANT_DB), rng
        )
        heard_N = rooms.reverberate(heard_N, response_M)
    if "noise" in condition:
        heard_N = rooms.add_noise(heard_N, _noise(len(heard_N), others, rng), rng.uniform(*SNR_DB))
    hiss_N = rooms.colored_noise(len(heard_N), rng.uniform(0, 4), rng)
    heard_N = rooms.add_noise(heard_N, hiss_N, rng.uniform(*FLOOR_SNR_DB))
    gain = 10 ** (rng.uniform(*LEVEL_DBFS) / 20) / rooms.active_rms(heard_N)
    gain = min(gain, 0.97 / np.abs(heard_N).max())
    return np.round(heard_N * gain * 32768).astype(np.int16)


def _noise(count: int, others: list[Speaker], rng: np.random.Generator) -> np.ndarray:
    """Draw a background (N,): people talking, coloured noise, or hum over coloured noise."""
    kind = rng.choice(["babble", "colored", "hum"], p=[0.4, 0.4, 0.2])
    if kind == "babble":
        sentences = _lines("babble.txt")
        chosen = rng.choice(len(others), BABBLERS, replace=False)
        voices = [_background(others[index], str(rng.choice(sentences))) for index in chosen]
        return rooms.babble(voices, count, rng)
    colored_N = rooms.colored_noise(count, rng.uniform(0, 6), rng)
    return colored_N if kind == "colored" else (colored_N + rooms.hum(count, SAMPLE_RATE_HZ, rng)) / np.sqrt(2)


def _background(speaker: Speaker, sentence: str) -> np.ndarray:
    synthesis = synthesize(sentence, speaker.voice, speaker.rate_wpm, speaker.pitch, speaker.pitch_range)
    return rooms.resample(synthesis.samples, synthesis.sample_rate_hz, SAMPLE_RATE_HZ)


def _write_split(utterances: Iterable[Spoken], path: Path) -> None:
    listed = sorted(utterances, key=lambda utt: utt.id)
    recordings = {utt.id: f"wav/{utt.id}.wav" for utt in listed}
    rows = {utt.id: Utterance(utt.id, utt.id, utt.speaker, utt.text) for utt in listed}
    write_text(path / "conditions", "".join(f"{utt.id} {utt.condition}\n" for utt in listed))
    write_text(path / "reference.ctm", "".join(_ctm(utt.id, utt.phones) for utt in listed))
    write_text(path / "reference_words.ctm", "".join(_ctm(utt.id, utt.words) for utt in listed))
    write_datadir(DataDir(path, recordings, rows), path)


def _ctm(key: str, intervals: Iterable[Interval]) -> str:
    return "".join(f"{key} 1 {one.start_s:.4f} {one.end_s - one.start_s:.4f} {one.label}\n" for one in intervals)
