"""Common parts of the synthetic corpora: speakers, rooms, noise, and writing to disk.

A corpus is a module that draws and synthesises utterances (`Say`) and a directory ``data/CORPUS`` with ``lexicon.txt``,
``speakers.txt`` and ``babble.txt`` (sentences for voices in the background). Half of each split is clean, the rest has
noise, reverberation or both. The text and the room of an utterance depend only on the seed and its name, so a corpus
has the same bytes for any number of processes.

Legend: N samples.
"""

import functools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from speech3.config import shipped
from speech3.data import (
    DataDir,
    Utterance,
    active_rms,
    add_noise,
    babble,
    colored_noise,
    hum,
    resample,
    reverberate,
    room_response,
    write_datadir,
    write_wav,
)
from speech3.errors import SettingError, counted
from speech3.language import Phones, Synthesis, lexicon_entries, synthesize
from speech3.runtime import available_jobs, explained_disk_errors, parallel_map, write_text

SAMPLE_RATE_HZ = 16000
SPLITS = ("train", "dev", "test")

# Shares of the conditions, and their ranges: hard enough that good recognisers make errors, but people do not.
CONDITIONS = {"clean": 0.5, "noise": 0.3, "reverb": 0.1, "noise+reverb": 0.1}
SNR_DB = (5.0, 20.0)
RT60_S = (0.25, 0.7)
DIRECT_TO_REVERBERANT_DB = (-3.0, 9.0)
BABBLERS = 3
# Digital silence would make clean utterances unlike any recording, so every utterance has the hiss of a quiet room.
FLOOR_SNR_DB = (35.0, 50.0)
LEVEL_DBFS = (-32.0, -20.0)


@dataclass(frozen=True)
class Speaker:
    """One line of a ``speakers.txt``."""

    id: str
    split: str
    voice: str
    rate_wpm: int
    pitch: int  # espeak's units, 0 to 99
    pitch_range: int  # espeak's units


@dataclass(frozen=True)
class Interval:
    """A phone, word or silence of a reference alignment."""

    start_s: float
    end_s: float
    label: str


@dataclass(frozen=True)
class Spoken:
    """A synthesised utterance without noise, float (N,); `tracks` are its reference alignments by file name."""

    samples_N: np.ndarray
    text: str
    tracks: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Written:
    id: str
    speaker: str
    text: str
    condition: str
    tracks: Mapping[str, tuple[Interval, ...]]


Say = Callable[[str, Speaker, np.random.Generator], Spoken]


def prepare(corpus: str, say: Say, out: Path, seed: int, sizes: Mapping[str, int], jobs: int = 0) -> None:
    """Synthesise the corpus of the directory ``data/CORPUS`` into ``out``, which appears only when it is complete.

    Writes ``lexicon.txt`` and the Kaldi data directories ``train``, ``dev`` and ``test``, each with ``wav/`` (16 kHz,
    16 bit), ``conditions`` (utterance and one of `CONDITIONS`) and the tracks (``utterance 1 start duration label``, in
    seconds).

    `say` draws and synthesises an utterance, given its id, its speaker and its random generator; it runs in other
    processes, so it must be a module-level function.
    `sizes`: utterances of each split, at least one; if they are fewer than its speakers, the last speakers have none.
    `jobs`: number of processes, on which the result does not depend; 0: one per core.
    """
    for split, size in sizes.items():
        if size < 1:
            raise SettingError(f"{split}: {counted(size, 'utterance')}; ask for at least one")
    speakers = [speaker for split, size in sizes.items() for speaker in read_speakers(corpus, split)[:size]]
    synthesize("one", speakers[0].voice)  # raises here if espeak-ng is missing, before anything is written
    with _staging(Path(out)) as staging:
        task = functools.partial(_speak_all, corpus=corpus, say=say, directory=staging, seed=seed, sizes=sizes)
        spoken = dict(zip(speakers, parallel_map(task, speakers, jobs or available_jobs(), "synthesis"), strict=True))
        for split in SPLITS:
            utterances = [utt for speaker, utts in spoken.items() if speaker.split == split for utt in utts]
            _write_split(utterances, staging / split)
        shutil.copyfile(data_file(corpus, "lexicon.txt"), staging / "lexicon.txt")


def speak(ssml: str, speaker: Speaker, rng: np.random.Generator) -> tuple[Synthesis, np.ndarray, float]:
    """Synthesise a text once, with rate and pitch drawn around the speaker's own, and with silence before and after.

    Returns what espeak returned; its samples with the silence, float at 16 kHz; the seconds of the first silence.
    """
    synthesis = synthesize(
        ssml,
        speaker.voice,
        rate_wpm=round(speaker.rate_wpm * rng.uniform(0.85, 1.15)),
        pitch=int(np.clip(speaker.pitch + rng.integers(-6, 7), 0, 99)),
        pitch_range=speaker.pitch_range,
        ssml=True,
    )
    before_s, after_s = rng.uniform(0.1, 0.5, 2)
    lead = round(before_s * SAMPLE_RATE_HZ)
    samples_N = resample(synthesis.samples, synthesis.sample_rate_hz, SAMPLE_RATE_HZ)
    return synthesis, np.pad(samples_N, (lead, round(after_s * SAMPLE_RATE_HZ))), lead / SAMPLE_RATE_HZ


def read_speakers(corpus: str, split: str | None = None) -> list[Speaker]:
    rows = (line.split() for line in data_lines(corpus, "speakers.txt"))
    return [
        Speaker(key, part, voice, int(rate), int(pitch), int(span))
        for key, part, voice, rate, pitch, span in rows
        if split in (None, part)
    ]


def read_lexicon(corpus: str) -> dict[str, list[Phones]]:
    path = data_file(corpus, "lexicon.txt")
    return lexicon_entries(path.read_text(encoding="utf-8"), path)


def data_file(corpus: str, name: str) -> Path:
    return shipped("data") / corpus / name


def data_lines(corpus: str, name: str) -> list[str]:
    """The lines of a file of ``data/CORPUS``, without comments and empty lines."""
    text = data_file(corpus, name).read_text(encoding="utf-8")
    stripped = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in stripped if line]


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """Yield an empty directory beside `out`; move its contents into `out` if the block succeeds."""
    out = out.absolute()
    staging = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    with explained_disk_errors(out):
        for left in out.parent.glob(f".{out.name}.*.tmp"):  # left by runs that were killed
            # In a container, this process may have the number of the one that was killed.
            if left == staging or not _is_running(left.name.split(".")[-2]):
                shutil.rmtree(left, ignore_errors=True)
        staging.mkdir(parents=True)
        try:
            yield staging
            out.mkdir(parents=True, exist_ok=True)
            # The lexicon is removed first and added last: a corpus without one is not finished.
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


def _speak_all(
    speaker: Speaker, corpus: str, say: Say, directory: Path, seed: int, sizes: Mapping[str, int]
) -> list[_Written]:
    split_speakers = read_speakers(corpus, speaker.split)
    first, turns = split_speakers.index(speaker), min(len(split_speakers), sizes[speaker.split])
    background = _Background(corpus, [other for other in split_speakers if other != speaker])
    wav = directory / speaker.split / "wav"
    written = []
    for number in range(len(range(first, sizes[speaker.split], turns))):
        rng = np.random.default_rng([seed, int(speaker.id[1:]), number])
        key = f"{speaker.id}-{number:03d}"
        spoken = say(key, speaker, rng)
        condition = str(rng.choice(list(CONDITIONS), p=list(CONDITIONS.values())))
        samples_N = _in_room(spoken.samples_N, condition, background, rng)
        write_wav(wav / f"{key}.wav", samples_N, SAMPLE_RATE_HZ)
        written.append(_Written(key, speaker.id, spoken.text, condition, spoken.tracks))
    return written


@dataclass(frozen=True)
class _Background:
    corpus: str
    voices: list[Speaker]

    def noise(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw a background (N,): people talking, coloured noise, or hum over coloured noise."""
        kind = rng.choice(["babble", "colored", "hum"], p=[0.4, 0.4, 0.2])
        if kind == "babble":
            sentences = data_lines(self.corpus, "babble.txt")
            chosen = rng.choice(len(self.voices), BABBLERS, replace=False)
            talk = [_talking(self.voices[index], str(rng.choice(sentences))) for index in chosen]
            return babble(talk, count, rng)
        colored_N = colored_noise(count, rng.uniform(0, 6), rng)
        return colored_N if kind == "colored" else (colored_N + hum(count, SAMPLE_RATE_HZ, rng)) / np.sqrt(2)


def _talking(speaker: Speaker, sentence: str) -> np.ndarray:
    synthesis = synthesize(sentence, speaker.voice, speaker.rate_wpm, speaker.pitch, speaker.pitch_range)
    return resample(synthesis.samples, synthesis.sample_rate_hz, SAMPLE_RATE_HZ)


def _in_room(speech_N: np.ndarray, condition: str, background: _Background, rng: np.random.Generator) -> np.ndarray:
    """Apply the condition, the hiss and the level of the recording: float (N,) to int16 (N,)."""
    heard_N = speech_N
    if "reverb" in condition:
        response_M = room_response(
            SAMPLE_RATE_HZ, rng.uniform(*RT60_S), rng.uniform(1, 4), rng.uniform(*DIRECT_TO_REVERBERANT_DB), rng
        )
        heard_N = reverberate(heard_N, response_M)
    if "noise" in condition:
        heard_N = add_noise(heard_N, background.noise(len(heard_N), rng), rng.uniform(*SNR_DB))
    hiss_N = colored_noise(len(heard_N), rng.uniform(0, 4), rng)
    heard_N = add_noise(heard_N, hiss_N, rng.uniform(*FLOOR_SNR_DB))
    gain = 10 ** (rng.uniform(*LEVEL_DBFS) / 20) / active_rms(heard_N)
    gain = min(gain, 0.97 / np.abs(heard_N).max())
    return np.round(heard_N * gain * 32768).astype(np.int16)


def _write_split(utterances: Iterable[_Written], path: Path) -> None:
    listed = sorted(utterances, key=lambda utt: utt.id)
    recordings = {utt.id: f"wav/{utt.id}.wav" for utt in listed}
    rows = {utt.id: Utterance(utt.id, utt.id, utt.speaker, utt.text) for utt in listed}
    write_text(path / "conditions", "".join(f"{utt.id} {utt.condition}\n" for utt in listed))
    for name in listed[0].tracks:
        write_text(path / name, "".join(_ctm(utt.id, utt.tracks[name]) for utt in listed))
    write_datadir(DataDir(path, recordings, rows), path)


def _ctm(key: str, intervals: Iterable[Interval]) -> str:
    return "".join(f"{key} 1 {one.start_s:.4f} {one.end_s - one.start_s:.4f} {one.label}\n" for one in intervals)
