"""From frames to seconds: the times of phones and words in alignments, as CTM and TextGrid, and their confidences.

The confidence of a word says how far the likelihoods of its pdfs are below those of the best pdfs. The measure is the
Goodness of Pronunciation of Witt and Young (Speech Communication 30, 2000), the log likelihood of the aligned phone
minus that of the best competitor, per frame. They used a phone loop; here every pdf competes in every frame, and the
result is scaled so that it means the same for all models and recordings::

    d(phone)      = mean over its frames of  max_p L[t, p] - L[t, aligned pdf]
    D             = mean over the utterance's speech frames of  max_p L[t, p] - median_p L[t, p]
    c(phone)      = 1 - d(phone) / D
    c(word)       = 1 - mean over its phones of d / D, at least 0; c(utterance) likewise over all phones of its words

So 1 means that no pdf fits any frame better, 0 that a pdf picked at random would fit as well. All phones have the same
weight, whatever their length, because a wrong word often has one long vowel that fits by chance among phones that do
not. It is not a probability. Measured with triphones on unseen LibriSpeech speakers, correct words have 0.87 on average
(one in twenty is below 0.73), wrong words 0.52. Of a dozen measures (log likelihood ratio, posteriors of pdf and phone,
rank, ratio to the phone loop), this one and the unscaled ratio separated replaced from correct words best.

Axes: T frames, P pdfs, S phone segments, W words.
"""

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from speech3.config import FeatureConfig
from speech3.errors import FormatError
from speech3.hmm.model import Hmm
from speech3.hmm.transcript import NO_WORD, Alignment
from speech3.language import Lexicon
from speech3.runtime import progress, read_utf8, write_lines, write_text

_MIN_SPREAD = 1e-3
_GAP_S = 1e-4  # a step of the times in a TextGrid
_LONGEST_NAME = 200  # bytes; most file systems allow 255, including the `.TextGrid` after it


@dataclass(frozen=True, eq=False)
class Confidence:
    """Confidences in [0, 1], float64: of an utterance, of its words (W,), and of its phones and silences (S,)."""

    utterance: float
    words_W: np.ndarray
    phones_S: np.ndarray

    @property
    def worst(self) -> int:
        """Index of the word with the lowest confidence."""
        return int(np.argmin(self.words_W))


def spread(loglikes_TP: np.ndarray) -> np.ndarray:
    """(T,) float32: the best pdf's log likelihood minus the median pdf's."""
    middle = loglikes_TP.shape[1] // 2
    spread_T: np.ndarray = loglikes_TP.max(1) - np.partition(loglikes_TP, middle, axis=1)[:, middle]
    return spread_T


def confidence(alignment: Alignment, hmm: Hmm, blocks: Iterable[np.ndarray]) -> Confidence:
    """Compare an alignment with the best pdf of each frame; the formula is at the top of this module.

    `blocks`: float32 log likelihoods of all pdfs, without acoustic scale, of consecutive blocks of frames (T, P).
    """
    pdf_T, spoken_T = alignment.pdfs(hmm), alignment.words[alignment.segment] != NO_WORD
    below, spreads, first = list[np.ndarray](), list[np.ndarray](), 0
    for loglikes_TP in blocks:
        here = slice(first, first + len(loglikes_TP))
        below.append(loglikes_TP.max(1) - loglikes_TP[np.arange(len(loglikes_TP)), pdf_T[here]])
        spreads.append(spread(loglikes_TP[spoken_T[here]]))
        first = here.stop
    below_T = np.concatenate(below)
    scale = max(float(np.concatenate(spreads).mean()), _MIN_SPREAD)
    below_S = np.add.reduceat(below_T.astype(np.float64), alignment.starts[:-1]) / np.diff(alignment.starts) / scale
    spoken_S = alignment.words != NO_WORD
    word = alignment.words[spoken_S]
    counts_W = np.bincount(word)
    words_W = np.bincount(word, below_S[spoken_S]) / np.maximum(counts_W, 1)
    return Confidence(
        float(np.clip(1 - below_S[spoken_S].mean(), 0, 1)), np.clip(1 - words_W, 0, 1), np.clip(1 - below_S, 0, 1)
    )


@dataclass(frozen=True)
class Segment:
    """A phone or a word, from `start_s` to `end_s` seconds after the utterance's beginning.

    `confidence`, if known, comes from `speech3.hmm.alignment.times` in an alignment, and from
    `speech3.decode.lattice_paths` after decoding. A recognised word is `guessed` if it was spelled from its phones,
    as a word that the graph lacks.
    """

    start_s: float
    end_s: float
    label: str
    confidence: float | None = None
    guessed: bool = False

    @property
    def marked(self) -> str:
        """The label, in angle brackets if it is a guess."""
        return f"<{self.label}>" if self.guessed else self.label


@dataclass(frozen=True)
class FrameClock:
    """Times of frames, and of the outputs of a model that has one per `subsampling` frames.

    A frame stands for `shift_s` seconds around the middle of its window. With Kaldi's ``snip_edges`` the first window
    starts at sample 0, so the first frame begins half of (window - shift) later. Kaldi's own CTM ignores that.
    """

    shift_s: float
    offset_s: float
    subsampling: int = 1

    def edges(self, starts: np.ndarray, duration_s: float | None) -> np.ndarray:
        """Seconds of segment boundaries given in outputs; the first and the last are the ends of the recording."""
        seconds = np.asarray(starts) * (self.subsampling * self.shift_s) + self.offset_s
        seconds[0] = 0.0
        seconds[-1] = seconds[-1] + self.offset_s if duration_s is None else duration_s
        return seconds


def frame_clock(config: FeatureConfig, subsampling: int = 1) -> FrameClock:
    """The clock of features extracted with `config`, and of outputs at every `subsampling`-th frame.

    As in extraction, a shift is a whole number of samples: at 22,050 Hz, 10 ms are 220 samples, or 9.977 ms.
    """
    length_s, shift_s = config.frame_length / 1000, config.frame_shift / 1000
    if config.sample_frequency and config.kind != "given":
        from speech3.features import frame_sizes  # PyTorch, which takes seconds; who reads CTM does not need it

        sizes = frame_sizes(config, config.sample_frequency)
        length_s, shift_s = sizes.length / config.sample_frequency, sizes.shift / config.sample_frequency
    return FrameClock(shift_s, (length_s - shift_s) / 2 if config.snip_edges else 0.0, subsampling)


def phone_segments(
    alignment: Alignment,
    lexicon: Lexicon,
    clock: FrameClock,
    duration_s: float | None = None,
    confidence: Confidence | None = None,
) -> list[Segment]:
    """Every phone and silence of an alignment, without gaps; phones without their position in the word."""
    edges = clock.edges(alignment.places, duration_s).tolist()
    labels = [lexicon.base_phone(lexicon.phones[phone - 1]) for phone in alignment.phones]
    values = [None] * len(labels) if confidence is None else confidence.phones_S.tolist()
    return [Segment(a, b, label, c) for a, b, label, c in zip(edges[:-1], edges[1:], labels, values, strict=True)]


def word_segments(
    alignment: Alignment,
    words: Sequence[str],
    clock: FrameClock,
    duration_s: float | None = None,
    words_W: Sequence[float] | np.ndarray | None = None,
) -> list[Segment]:
    """Every word of an alignment, with its confidence from `words_W` if given; silence is left out."""
    edges, segments = clock.edges(alignment.places, duration_s), []
    change = np.flatnonzero(np.diff(alignment.words)) + 1
    first = np.concatenate([[0], change])
    last = np.concatenate([change, [len(alignment.words)]])
    for begin, end in zip(first, last, strict=True):
        index = int(alignment.words[begin])
        if index != NO_WORD:
            confidence = None if words_W is None else float(words_W[index])
            segments.append(Segment(float(edges[begin]), float(edges[end]), words[index], confidence))
    return segments


def write_ctm(path: Path | str, tracks: Mapping[str, Sequence[Segment]]) -> None:
    """Write NIST CTM: ``utterance channel start duration label``, then the confidence if known."""
    shown = progress(tracks.items(), len(tracks), Path(path).name)
    write_lines(path, (ctm_line(utterance, s) + "\n" for utterance, segments in shown for s in segments))


def ctm_line(utterance: str, segment: Segment) -> str:
    """One line of a CTM, without the newline."""
    sixth = "" if segment.confidence is None else f" {segment.confidence:.3f}"
    return f"{utterance} 1 {segment.start_s:.3f} {segment.end_s - segment.start_s:.3f} {segment.marked}{sixth}"


def unmarked(label: str, said: Collection[str]) -> str:
    """The word of a CTM's label; a guess is in angle brackets there (`Segment.marked`), not in the text (`said`)."""
    bare = label[1:-1]
    return bare if label == f"<{bare}>" and label not in said and bare in said else label


def read_ctm(path: Path | str) -> dict[str, list[Segment]]:
    """Read what `write_ctm` wrote, or another CTM with or without confidences; ``;;`` begins a comment.

    Raises Speech3Error: the file cannot be read, a line is not one of a CTM, or an utterance has two channels, whose
    words would be taken for those of one.
    """
    tracks: dict[str, list[Segment]] = {}
    channels: dict[str, str] = {}
    for number, line in enumerate(read_utf8(path).splitlines(), start=1):
        if not line.strip() or line.startswith(";;"):
            continue
        try:
            utterance, channel, start, duration, label, *rest = line.split()
            start_s, duration_s, *confidence = (float(each) for each in (start, duration, *rest[:1]))
        except ValueError as error:
            raise FormatError(
                f"{path}:{number}: not a line of a CTM: write utterance, channel, start, duration, word and, where it "
                f"is known, its confidence"
            ) from error
        if not (0 <= start_s < math.inf and 0 <= duration_s < math.inf):
            raise FormatError(f"{path}:{number}: start {start} and duration {duration} must be seconds, not below 0")
        if (first := channels.setdefault(utterance, channel)) != channel:
            raise FormatError(
                f"{path}:{number}: {utterance} has the channels {first} and {channel}; give each a name of its own"
            )
        tracks.setdefault(utterance, []).append(
            Segment(start_s, start_s + duration_s, label, confidence[0] if confidence else None)
        )
    return tracks


def file_name(utterance: str) -> str:
    """A file name for an utterance, different for each; characters that are not allowed are written as in ``%2F``."""
    name = re.sub(r'[/\\:*?"<>|%\x00-\x1f]|^\.', lambda match: f"%{ord(match[0]):02X}", utterance)
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    digest = hashlib.blake2b(utterance.encode(), digest_size=8).hexdigest()
    return name.encode()[: _LONGEST_NAME - 20].decode(errors="ignore") + f"%{digest}"


def write_textgrid(path: Path | str, tiers: Mapping[str, Sequence[Segment]], duration_s: float) -> None:
    """Write Praat's long text format; times that are not covered become empty intervals, as Praat requires."""
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", f"xmax = {duration_s:.4f}"]
    lines += ["tiers? <exists>", f"size = {len(tiers)}", "item []:"]
    for number, (name, segments) in enumerate(tiers.items(), 1):
        filled = _filled(segments, duration_s)
        tier = ['class = "IntervalTier"', f'name = "{name}"', "xmin = 0", f"xmax = {duration_s:.4f}"]
        lines += [f"    item [{number}]:", *(f"        {line}" for line in tier)]
        lines.append(f"        intervals: size = {len(filled)}")
        for index, s in enumerate(filled, 1):
            label = s.label.replace('"', '""')
            interval = (f"xmin = {s.start_s:.4f}", f"xmax = {s.end_s:.4f}", f'text = "{label}"')
            lines += [f"        intervals [{index}]:", *(f"            {line}" for line in interval)]
    write_text(path, "\n".join(lines) + "\n")


def _filled(segments: Sequence[Segment], duration_s: float) -> list[Segment]:
    """The segments without gaps between them: longer ones are empty segments, shorter ones belong to the next."""
    filled, now = list[Segment](), 0.0
    for s in segments:
        if s.start_s > now + _GAP_S:
            filled.append(Segment(now, s.start_s, ""))
            now = s.start_s
        filled.append(replace(s, start_s=min(now, s.end_s)))
        now = max(now, s.end_s)
    if now < duration_s - _GAP_S:
        filled.append(Segment(now, duration_s, ""))
    elif filled:
        filled[-1] = replace(filled[-1], end_s=duration_s)
    return filled
