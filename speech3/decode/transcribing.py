"""`speech3 transcribe` beside sound files and text: standard input, JSON, TextGrids, lattices, and live audio.

`--stream` shows the words of arriving audio as they are recognised, and measures the latency.

Axes: S samples.
"""

import json
import shutil
import sys
import time
import wave
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
from rich.cells import cell_len

from speech3.data import PcmDecoder, arriving_bytes, checked_rate, sound_format
from speech3.decode.lattice_directory import check_lattices, lattices_about, ranked_paths, save_lattices
from speech3.decode.recognizer import Transcription
from speech3.decode.streaming import Stream
from speech3.decode.trained_model import Result, TrainedModel, warn_of_rate
from speech3.decode.word_lattice import WordLattice
from speech3.errors import DataError, OccupiedError, SettingError, Speech3Error, counted
from speech3.hmm import Segment, file_name, write_textgrid
from speech3.runtime import check_output, check_standard_input, content_digest, deferred_interrupt, read_utf8, say

_BLOCK = 1 << 20
STANDARD_INPUT = "standard_input"  # the name of its files
_WRITTEN = ".speech3_transcribe.jsonl"  # TextGrids that we have written: name, digest, recording
_USUAL_HZ = 16000  # assumed for raw samples if the model has no rate either
_MOST_S = 60.0  # latencies beyond this count as this long in percentiles
_REMEMBERED_S = 120.0  # of audio whose arrival times are kept: longer than a segment


def save_standard_input(path: Path, rate_hz: int | None = None) -> None:
    """Write standard input to a file: as it is, or as WAV if it is raw samples (16 bits, little endian, one channel).

    `rate_hz`: of raw samples; None if the input is a sound file.
    """
    remedy = "pipe a sound file into it, or raw samples (16 bits, one channel) with --rate HZ"
    rate_hz = None if rate_hz is None else checked_rate(rate_hz, "--rate")
    check_standard_input(remedy)
    data = sys.stdin.buffer
    if rate_hz is None:
        with path.open("wb") as out:
            shutil.copyfileobj(data, out)
    else:
        with wave.open(str(path), "wb") as out:
            out.setparams((1, 2, rate_hz, 0, "NONE", ""))
            block = data.read(_BLOCK)
            if block.startswith(b"RIFF") or sound_format(block):
                raise SettingError(
                    f"--rate {rate_hz}: standard input is a sound file, which has its sample rate; omit --rate"
                )
            while block:
                if len(block) % 2:  # only the last one can be
                    say("standard input: ends in the middle of a sample; 1 byte was left out")
                    block = block[:-1]
                out.writeframesraw(block)
                block = data.read(_BLOCK)
    if path.stat().st_size <= (0 if rate_hz is None else 44):
        raise DataError(f"standard input: is empty; {remedy}")


def with_raw_samples(error: Speech3Error) -> Speech3Error:
    """An error of `transcribe` with what to do if standard input was no sound file, but raw samples."""
    if not (str(error).startswith("standard input: ") and "not audio" in str(error)):
        return error
    return error.restated(f"{error}; if these are raw samples (16 bits, one channel), pass --rate HZ")


def check_names(files: Sequence[Path]) -> None:
    """Refuse two recordings whose TextGrids or lattices would have the same name."""
    named: dict[str, Path] = {}
    for path in files:
        if (other := named.setdefault(_key(path), path)) != path:
            raise SettingError(
                f"{other}, {path}: have the same name, so their results would have, too; transcribe them in two"
                " runs, into two directories"
            )


def claim_results(files: Sequence[Path], textgrids: Path | None, lattices: Path | None) -> None:
    """Refuse directories where results would replace other files, such as TextGrids that a person has made.

    What was written is listed in the directory with digests: later runs may replace it unless somebody has changed it.
    """
    if lattices:
        check_lattices(lattices, files)
    if not textgrids:
        return
    names = [f"{_key(path)}.TextGrid" for path in files]
    check_output(textgrids, files, names, option="--textgrid ")
    listed = textgrids / _WRITTEN
    lines = map(json.loads, read_utf8(listed).splitlines()) if listed.exists() else ()
    ours = {name: about for name, *about in lines}
    for name, path in zip(names, files, strict=True):
        grid, (digest, *recording) = textgrids / name, ours.get(name, [""])
        if not grid.exists():
            continue
        if digest != content_digest(grid):
            raise OccupiedError(
                f"{grid}: is not known to be from speech3 transcribe, or was changed since; nothing is replaced: move"
                " it away, or choose another directory"
            )
        if recording != [_recording(path)]:
            raise OccupiedError(
                f"{grid}: is the transcript of another recording ({''.join(recording)}); nothing is replaced: choose"
                " another directory"
            )


def _recording(name: Path | str) -> str:
    """Which recording a result is of; standard input replaces what it had before."""
    return "" if _key(name) == STANDARD_INPUT else str(Path(name).absolute())


def write_results(
    results: Iterable[Transcription],
    show: Callable[[Transcription], None],
    recognizer: TrainedModel,
    textgrids: Path | None = None,
    lattices: Path | None = None,
) -> None:
    """Show each result; write its TextGrid to the directory `textgrids`, and all lattices to `lattices`.

    A TextGrid has the name of its recording, the times of the recording, and tiers ``words`` and ``phones``.
    """

    def each() -> Iterator[tuple[str, WordLattice]]:
        for result in results:
            show(result)
            if textgrids:
                silent = recognizer.hmm.lexicon.silence_phones
                words = [replace(word, label=word.marked, guessed=False) for word in result.words]
                tiers = {"words": words, "phones": [s for s in result.phones if s.label not in silent]}
                within = {name: [_until(s, result.duration_s) for s in tier] for name, tier in tiers.items()}
                path = textgrids / f"{_key(result.name)}.TextGrid"
                with deferred_interrupt():
                    write_textgrid(path, within, result.duration_s)
                    with (textgrids / _WRITTEN).open("a", encoding="utf-8") as stream:
                        stream.write(json.dumps([path.name, content_digest(path), _recording(result.name)]) + "\n")
            for name, lattice in result.lattices.items():
                yield _key(result.name) + name.removeprefix(result.name), lattice

    if not lattices:
        for _ in each():
            pass
        return
    save_lattices(lattices, each(), recognizer.graph.words, lattices_about(recognizer, recognizer.graph))


def _key(name: Path | str) -> str:
    """The name of a recording's results: that of its file, without blanks, which Kaldi's keys must not have."""
    return file_name("_".join(Path(name).stem.split()))


def _until(segment: Segment, end_s: float) -> Segment:
    return replace(segment, start_s=min(segment.start_s, end_s), end_s=min(segment.end_s, end_s))


def transcription_json(result: Transcription) -> str:
    """A JSON line: file, duration and text of a recording, its words with start, end and confidence, and its N best.

    In the list of words, those that were guessed from their phones are in angle brackets. Times are in seconds;
    confidences are probabilities, left out where they are unknown.
    """
    words = [word_of(word.marked, word.start_s, word.end_s, word.confidence) for word in result.words]
    about = {"file": result.name, "duration": round(result.duration_s, 3), "text": result.text, "words": words}
    if result.nbest:
        about["nbest"] = list(ranked_paths(result.nbest))
    return json.dumps(about, ensure_ascii=False)


def word_of(word: str, start_s: float | None, end_s: float | None, confidence: float | None) -> dict[str, Any]:
    """A word as a JSON object; unknown values are left out."""
    about = {"start": start_s, "end": end_s, "confidence": confidence}
    return {"word": word, **{key: round(value, 4) for key, value in about.items() if value is not None}}


@dataclass
class Latencies:
    """Mean and percentiles of latencies in bounded memory: percentiles are exact to a millisecond, within a minute."""

    count: int = 0
    total_s: float = 0.0
    _of_ms: Counter[int] = field(default_factory=Counter)  # how many there are of each number of milliseconds

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total_s += seconds
        self._of_ms[round(1000 * min(max(seconds, -_MOST_S), _MOST_S))] += 1

    def percentile_s(self, percent: float) -> float:
        found = np.repeat(list(self._of_ms), list(self._of_ms.values()))
        return float(np.percentile(found, percent)) / 1000

    def __str__(self) -> str:
        return f"mean {self.total_s / self.count:.2f} s, 95th percentile {self.percentile_s(95):.2f} s"


@dataclass
class Meter:
    """Measures latency: the time from the arrival of the end of a word to its result."""

    busy_s: float = 0.0  # seconds spent on recognition
    duration_s: float = 0.0  # seconds of audio
    # until_final, until_shown: of the words with a known end time: to the final result, and to the first partial (or
    # final) result with at least as many words
    until_final: Latencies = field(default_factory=Latencies)
    until_shown: Latencies = field(default_factory=Latencies)
    _arrivals: deque[tuple[float, float]] = field(default_factory=deque)  # seconds of audio, and when they had arrived
    _shown: list[float] = field(default_factory=list)  # times when the segment first had 1, 2, ... words

    def arrived(self, duration_s: float, now_s: float) -> None:
        """Record that `duration_s` of audio in all had arrived at `now_s`."""
        self.duration_s = duration_s
        self._arrivals.append((duration_s, now_s))
        while self._arrivals[0][0] < duration_s - _REMEMBERED_S:
            self._arrivals.popleft()

    def partial(self, text: str, now_s: float) -> None:
        """Record that the current segment had these words at `now_s`."""
        self._shown += [now_s] * (len(text.split()) - len(self._shown))

    def final(self, result: Result, now_s: float) -> None:
        """Record that the segment's final result was known at `now_s`."""
        self.partial(result.text, now_s)
        for word, shown_s in zip(result.words, self._shown, strict=False):
            if word.end_s is not None:
                came_s = next((at for until, at in self._arrivals if until >= word.end_s), now_s)
                self.until_final.add(now_s - came_s)
                self.until_shown.add(shown_s - came_s)
        self._shown = []

    def summary(self) -> str:
        rate = f"real-time factor {self.busy_s / self.duration_s:.3f}" if self.duration_s else "no audio"
        if not self.until_final.count:
            return f"{self.duration_s:.1f} s of audio, no words; {rate}"
        return (
            f"{self.duration_s:.1f} s of audio, {counted(self.until_final.count, 'word')}; from the end of a word until"
            f" it is first shown: {self.until_shown}; until it is final: {self.until_final}; {rate}"
        )


class Display(Protocol):
    def partial(self, text: str) -> None: ...

    def final(self, result: Result) -> None:
        """Show the words of a segment that has ended."""


@dataclass
class Terminal:
    """Shows the words so far on one line that is overwritten; only their end if they are too long for the line."""

    out: TextIO
    _shown: str = ""

    def partial(self, text: str) -> None:
        text = _fitted(text, shutil.get_terminal_size().columns - 1)
        if text != self._shown:
            self.out.write(f"\r\x1b[K{text}")
            self.out.flush()
            self._shown = text

    def final(self, result: Result) -> None:
        self.out.write(f"\r\x1b[K{result.text}\n")
        self.out.flush()
        self._shown = ""


def _fitted(text: str, room: int) -> str:
    """As much of the end of a text as fits into `room` columns; a Chinese character takes two."""
    if cell_len(text) <= room:
        return text
    begin = 0
    while begin < len(text) and cell_len(text[begin:]) > room - 3:
        begin += 1
    return "..." + text[begin:]


@dataclass
class Lines:
    """Writes a line for each change: ``partial TEXT`` or ``final TEXT``, or a JSON object."""

    out: TextIO
    as_json: bool
    _shown: str = ""

    def partial(self, text: str) -> None:
        if text and text != self._shown:
            self._write(json.dumps({"partial": text}, ensure_ascii=False) if self.as_json else f"partial {text}")
        self._shown = text

    def final(self, result: Result) -> None:
        words = [word_of(word.marked, word.start_s, word.end_s, word.confidence) for word in result.words]
        whole = {"final": result.text, "words": words}
        self._write(json.dumps(whole, ensure_ascii=False) if self.as_json else f"final {result.text}")
        self._shown = ""

    def _write(self, line: str) -> None:
        self.out.write(line + "\n")
        self.out.flush()


def transcribe_arriving(recognizer: TrainedModel, source: str, rate_hz: int | None, *, as_json: bool = False) -> None:
    """Transcribe standard input (``-``) or a growing file; finally print latency and real-time factor.

    `rate_hz`: sampling rate of raw samples; None for the model's own.

    Raises `Speech3Error`: there is no audio, or it cannot be used; the model cannot process streams.
    """
    said_hz = None if rate_hz is None else checked_rate(rate_hz, "--rate")
    model_hz = recognizer.features.sample_frequency or _USUAL_HZ
    _warm_up(recognizer, said_hz or model_hz)
    name = "standard input" if source == "-" else source
    decoder, meter = PcmDecoder(name, said_hz, model_hz), Meter()
    display = Terminal(sys.stdout) if sys.stdout.isatty() and not as_json else Lines(sys.stdout, as_json)
    stream: Stream | None = None
    with deferred_interrupt() as interrupt:
        for wave_S in _samples(decoder, arriving_bytes(source, lambda: interrupt.pressed)):
            if stream is None:
                stream = Stream(recognizer, decoder.rate_hz)
                warn_of_rate(name, decoder.rate_hz, model_hz)
            take(stream, wave_S, meter, display)
        if interrupt and stream is None:
            say("interrupted before there was any sound")
            return
        fault = "" if interrupt else decoder.fault()
        if stream is not None:
            end(stream, meter, display)
    if interrupt:
        say("interrupted: the words up to that point are above")
    if fault:
        say(f"warning: {fault}")
    say(meter.summary())


def _warm_up(recognizer: TrainedModel, rate_hz: int) -> None:
    """Recognise noise, so that errors of the model are reported and compiled code is loaded before audio arrives."""
    stream = Stream(recognizer, rate_hz)
    stream.accept(np.random.default_rng(0).uniform(-0.1, 0.1, rate_hz))
    stream.finish()
    if speller := recognizer.graph.speller:
        speller([f"<{speller.model.phones[0]}>"])


def _samples(decoder: PcmDecoder, blocks: Iterator[bytes]) -> Iterator[np.ndarray]:
    for data in blocks:
        wave_S = decoder.feed(data)
        if len(wave_S):
            yield wave_S
        if decoder.ended:
            return


def take(stream: Stream, wave_S: np.ndarray, meter: Meter, display: Display) -> None:
    began = time.perf_counter()
    meter.arrived(stream.duration_s + len(wave_S) / stream.rate_hz, began)
    partial = stream.accept(wave_S)
    now = time.perf_counter()
    meter.busy_s += now - began
    for result in stream.ended():
        meter.final(result, now)
        display.final(result)
    meter.partial(partial, now)
    display.partial(partial)


def end(stream: Stream, meter: Meter, display: Display) -> None:
    began = time.perf_counter()
    result = stream.finish()
    now = time.perf_counter()
    meter.busy_s += now - began
    meter.final(result, now)
    if result.words:
        display.final(result)
    else:
        display.partial("")
