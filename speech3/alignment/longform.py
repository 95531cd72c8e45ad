"""Cut a long recording into utterances: find where the words of its transcript are spoken, and where to cut.

`longsearch` finds the words. This module keeps the chain of words in the transcript's order that covers the most
frames, drops isolated words between stretches of garbage, and keeps words that were not found, to be aligned with their
neighbours, if the gap has time for them. It then cuts the recording at pauses into parts. Forced alignment treats these
as utterances and determines the final times (two passes, as in Kaldi's segment_long_utterances.sh and in Moreno et al.
1998, "A recursive algorithm for the forced alignment of very long audio segments").
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from speech3.alignment.longparts import Part, local_features
from speech3.alignment.longsearch import Found, find_words
from speech3.alignment.times import frame_clock
from speech3.config import FeatureConfig
from speech3.corpus.datadir import segment_name
from speech3.errors import Speech3Error
from speech3.hmm.model import Hmm
from speech3.hmm.passes import Scorer
from speech3.hmm.transcript import transcript_graph
from speech3.lexicon.lexicon import UNKNOWN

LONG_S = 60.0  # an utterance longer than this is searched and cut
PART_S, LONGEST_PART_S = 20.0, 30.0
_SHORTEST_PART_S = 5.0  # as long as there are pauses to choose from
_CHUNK_S = 20.0  # of features scored and normalised together in the search
_SLOWEST, _FASTEST = 0.05, 10.0  # words per second that a transcript of the recording may have
_LEAST_FOUND = 0.2  # of the words; with fewer, it is the transcript of another recording
_APART_S = 2.0  # longest pause between neighbouring words of one stretch
_ROW = 4  # found words in a row that are kept without neighbours
_SLOW_WORD_S, _FAST_WORD_S = 1.2, 0.12  # longest and shortest time for a word that was not found
_MOST_UNFOUND = 40  # words not found in one gap
_MARGIN_S = 0.3  # of audio kept around a stretch of words


@dataclass(frozen=True)
class Gap:
    """A part where recording and transcript do not match: frames without words, words without frames, or both."""

    start: int
    end: int
    words: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The parts of a recording, in order, and the gaps between them."""

    parts: tuple[Part, ...]
    gaps: tuple[Gap, ...]
    words: int

    @property
    def found(self) -> int:
        """Number of words that are in a part."""
        return sum(len(part.words) for part in self.parts)


def check_rate(words: int, duration_s: float) -> None:
    """Check that a transcript has a plausible number of words for the length of its recording.

    Raises
    ------
    Speech3Error
        It has too few or too many words per second.
    """
    if words < _SLOWEST * duration_s:
        raise Speech3Error(
            f"{words} words for {duration_s:,.0f} s of audio, one in {duration_s / max(words, 1):.0f} s: not a"
            " transcript of the whole recording; give all words, or select their part of it (a line of `segments`)"
        )
    if words > _FASTEST * duration_s:
        raise Speech3Error(
            f"{words:,} words for {duration_s:,.0f} s of audio, {words / duration_s:.0f} per second: too fast for"
            " speech; give the words of this recording only"
        )


def lay_out(
    hmm: Hmm, scorer: Scorer, utterance: str, words: Sequence[str], feats_TF: np.ndarray, config: FeatureConfig,
    acoustic_scale: float = 0.1,
) -> Layout:  # fmt: skip
    """Find the words of a long utterance, and cut it into parts of at most `PART_S`, longer only where pauses are rare.

    Parameters
    ----------
    words
        All in the lexicon; see `Lexicon.known`.
    feats_TF
        float32, as extracted with `config`.

    Raises
    ------
    Speech3Error
        The transcript cannot belong to the recording: it is far too short or too long, or too few words are found.
    """
    rate = 1 / frame_clock(config).shift_s
    check_rate(len(words), len(feats_TF) / rate)
    graph = transcript_graph(hmm, words)

    def scores() -> Iterator[np.ndarray]:
        step = round(_CHUNK_S * rate / hmm.subsampling) * hmm.subsampling  # chunks begin where outputs begin
        for start in range(0, len(feats_TF), step):
            end = min(start + step, len(feats_TF))
            yield scorer.loglikes(local_features(feats_TF, start, end, config))

    outputs = find_words(graph, hmm, scores(), acoustic_scale)
    found = in_order([_in_frames(f, hmm.subsampling, len(feats_TF)) for f in outputs], len(words))
    found = [f for f in found if words[f.word] != UNKNOWN]  # spoken noise fits anything; its neighbours locate it
    stretches = _stretches(found, len(words), rate)
    if sum(len(inside) for _, inside in stretches) < _LEAST_FOUND * len(words):
        raise Speech3Error(
            f"only {sum(len(inside) for _, inside in stretches):,} of the {len(words):,} words of the transcript were"
            f" found in {len(feats_TF) / rate:,.0f} s of audio; give the transcript of this recording, and a model of"
            " its language"
        )
    parts: list[Part] = []
    for number, (stretch, inside) in enumerate(stretches):
        after = parts[-1].end if parts else 0
        before = stretches[number + 1][0][0].start if number + 1 < len(stretches) else len(feats_TF)
        parts += _cut(utterance, stretch, inside, after, before, rate)
    return Layout(tuple(parts), tuple(_gaps(parts, len(words), len(feats_TF), rate)), len(words))


def _in_frames(found: Found, subsampling: int, frames: int) -> Found:
    return Found(found.word, found.start * subsampling, min(found.end * subsampling, frames))


def in_order(found: Sequence[Found], words: int) -> list[Found]:
    """The chain of found words, in order of time and of the transcript, that covers the most frames."""
    heaviest = np.zeros(words + 1)  # frames of the best chain whose last word is before this one
    last = np.full(words + 1, -1)
    before = np.full(len(found), -1)
    for number, f in enumerate(found):
        weight, before[number] = heaviest[f.word] + f.end - f.start, last[f.word]
        better = f.word + 1 + np.flatnonzero(heaviest[f.word + 1 :] < weight)
        heaviest[better], last[better] = weight, number
    chain, number = [], int(last[words])
    while number >= 0:
        chain.append(found[number])
        number = int(before[number])
    return chain[::-1]


_Stretch = tuple[list[Found], tuple[int, ...]]  # words found without a break, and the words in the stretch


def _stretches(found: Sequence[Found], words: int, rate: float) -> list[_Stretch]:
    while True:
        rows: list[list[Found]] = []
        for f in found:
            if rows and _together(rows[-1][-1], f, rate):
                rows[-1].append(f)
            else:
                rows.append([f])
        kept = [row for row in rows if len(row) >= min(_ROW, words)]
        if len(kept) == len(rows):
            return [(row, _inside(row, rate)) for row in rows]
        found = [f for row in kept for f in row]


def _together(a: Found, b: Found, rate: float) -> bool:
    """Can the gap between two found words hold the words between them, so that both belong to one stretch?"""
    unfound, gap_s = b.word - a.word - 1, (b.start - a.end) / rate
    if not unfound:
        return gap_s <= _APART_S
    return unfound <= _MOST_UNFOUND and gap_s <= max(_APART_S, unfound * _SLOW_WORD_S)


def _inside(row: Sequence[Found], rate: float) -> tuple[int, ...]:
    """Words of a stretch: those found, and those between them if the gap has time for them."""
    inside = [row[0].word]
    for a, b in pairwise(row):
        unfound = range(a.word + 1, b.word)
        if (b.start - a.end) / rate >= len(unfound) * _FAST_WORD_S:
            inside += unfound
        inside.append(b.word)
    return tuple(inside)


def _cut(
    utterance: str, row: Sequence[Found], inside: Sequence[int], after: int, before: int, rate: float
) -> list[Part]:
    """Cut a stretch at the longest pauses that give parts of the right length; never where words were not found."""
    margin = round(_MARGIN_S * rate)
    start = max(after, row[0].start - min(margin, max(0, row[0].start - after) // 2))
    last = row[-1].end + min(margin, max(0, before - row[-1].end) // 2)
    place = {word: number for number, word in enumerate(inside)}
    pauses = [(a, b) for a, b in pairwise(row) if place[b.word] == place[a.word] + 1]
    parts, first = [], 0
    while last - start > PART_S * rate:
        chosen = _pause(pauses, start, rate)
        if chosen is None:
            break
        a, b = chosen
        end = (a.end + b.start) // 2
        parts.append(Part(utterance, start, end, tuple(inside[first : place[b.word]])))
        start, first = end, place[b.word]
    return [*parts, Part(utterance, start, last, tuple(inside[first:]))]


def _pause(pauses: Sequence[tuple[Found, Found]], start: int, rate: float) -> tuple[Found, Found] | None:
    """The longest pause that ends a part of the right length, else the next pause; None if there is none."""
    for shortest_s, longest_s in ((_SHORTEST_PART_S, PART_S), (_SHORTEST_PART_S, LONGEST_PART_S), (1.0, np.inf)):
        reach = [p for p in pauses if shortest_s * rate <= (p[0].end + p[1].start) / 2 - start <= longest_s * rate]
        if reach and longest_s == np.inf:
            return reach[0]
        longest = max(reach, key=lambda p: p[1].start - p[0].end, default=None)
        if longest and (longest_s > PART_S or longest[1].start - longest[0].end >= 0.1 * rate):
            return longest
    return None


def _gaps(parts: Sequence[Part], words: int, frames: int, rate: float) -> Iterator[Gap]:
    """The gaps between the parts, before the first and after the last; without words only those longer than a pause.

    Words of a part's stretch for which there was no time are listed in the gap before the part.
    """
    inside = {word for part in parts for word in part.words}
    at, next_word = 0, 0
    for start, end, last in [*((p.start, p.end, p.words[-1]) for p in parts), (frames, frames, words)]:
        missing = tuple(word for word in range(next_word, last) if word not in inside)
        if missing or start - at > _APART_S * rate:
            yield Gap(at, start, missing)
        at, next_word = end, last + 1


def part_names(parts: Iterable[Part], rate: float) -> dict[str, Part]:
    """The parts by the names of their segments; `rate` in frames per second."""
    return {segment_name(part.utterance, part.start / rate, part.end / rate): part for part in parts}


def part_texts(parts: Mapping[str, Part], texts: Mapping[str, str | None]) -> dict[str, str | None]:
    """The transcript of each part."""
    spelled = {part.utterance: (texts[part.utterance] or "").split() for part in parts.values()}
    return {name: " ".join(spelled[part.utterance][word] for word in part.words) for name, part in parts.items()}
