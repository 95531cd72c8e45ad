"""Cut a long recording into utterances: find where the words of its transcript are spoken, and where to cut.

Two passes, as in Kaldi's segment_long_utterances.sh and in Moreno et al. 1998, "A recursive algorithm for the forced
alignment of very long audio segments".

The first finds words, by one pass of token passing (Young, Russell and Thornton 1989) with a garbage model. The search
may leave the transcript's HMM after any word for a garbage state, and return at any word: the garbage state absorbs
speech that is not in the transcript, and a jump skips words that were not spoken. The likelihood of garbage is the
"online garbage model" of Bourlard, D'hoore and Boite (ICASSP 1994), computed from the likelihoods of the frame: it is
below that of the best pdf by a fraction `GARBAGE` of the distance from the best pdf to the median one, which lies
between the values of correct and of wrong words. Costs are multiples of that distance, so they suit any model. A token
remembers its words, not its states, and records that no token refers to are discarded, so memory does not grow with the
length of the recording.

Of the words found, the chain in the transcript's order that covers the most frames is kept, without isolated words
between stretches of garbage, and with words that were not found, to be aligned with their neighbours, if the gap has
time for them. The recording is then cut at pauses into parts. Forced alignment, the second pass, treats these as
utterances and determines the final times.

Axes: T frames, F features, P pdfs, S states of the transcript.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numba
import numpy as np
import torch

from speech3.config import FeatureConfig
from speech3.data import segment_name
from speech3.errors import DataError
from speech3.features import add_deltas, normalise, repeated_frames, splice
from speech3.hmm.alignment.times import FrameClock, Segment, frame_clock, spread
from speech3.hmm.model import Hmm
from speech3.hmm.train import Scorer
from speech3.hmm.transcript import NO_WORD, TranscriptGraph, transcript_graph
from speech3.language import UNKNOWN

LOCAL_S = 15.0  # least audio for the mean and variance of a part
GARBAGE = 0.27
# Costs of entering garbage and of jumping to a word other than the next, and the beam, in multiples of the distance
# from the best pdf to the median one.
ENTER, JUMP, BEAM = 1.0, 10.0, 18.0
_JUMP_EVERY = 4  # frames; the alignment that follows finds the exact start of a word
# After _SEARCH_ROW words in a row the position in the transcript is known. From there a jump may go _REACH words
# forward, or half as many back, and _REACH_PER_FRAME words further for each frame since then. A jump costs half to one
# of the _NEXT words, and _FAR_PRICE times as much beyond _NEAR words. (In garbage, single words often fit by chance,
# but seldom two in a row; if single words counted, the search would lose its place.)
_SEARCH_ROW = 8
_REACH, _REACH_PER_FRAME, _NEXT, _NEAR, _FAR_PRICE = 1000, 0.1, 20, 300, 1.5
_RECORDS = 1 << 21
LONG_UTTERANCE_S = 60.0  # an utterance longer than this is searched and cut
PART_S, LONGEST_PART_S = 20.0, 30.0
_SHORTEST_PART_S = 5.0  # as long as there are pauses to choose from
_CHUNK_S = 20.0  # of features scored and normalised together in the search
_SLOWEST, _FASTEST = 0.05, 10.0  # words per second that a transcript of the recording may have
_MIN_FOUND = 0.2  # of the words; with fewer, it is the transcript of another recording
_APART_S = 2.0  # longest pause between neighbouring words of one stretch
_ROW = 4  # found words in a row that are kept without neighbours
_SLOW_WORD_S, _FAST_WORD_S = 1.2, 0.12  # longest and shortest time for a word that was not found
_MAX_UNFOUND = 40  # words not found in one gap
_MARGIN_S = 0.3  # of audio kept around a stretch of words


@dataclass(frozen=True)
class LongPart:
    """Frames `start` to `end` (exclusive) of an utterance, and the indices of its words spoken there."""

    utterance: str
    start: int
    end: int
    words: tuple[int, ...]

    def times_s(self, clock: FrameClock) -> tuple[float, float]:
        """Start and end of the audio from which its frames are computed, in seconds from the utterance's beginning."""
        return self.start * clock.shift_s, self.end * clock.shift_s + 2 * clock.offset_s


def local_features(feats_TF: np.ndarray, start: int, end: int, config: FeatureConfig) -> np.ndarray:
    """Features of a part of a recording, normalised over the part, and over the audio around it if the part is short.

    Microphone and speaker may change within an hour. Normalising the static features again undoes the normalisation
    over the whole recording; derivatives and spliced frames are computed anew.
    """
    if config.cmvn not in ("utterance", "speaker"):
        return feats_TF[start:end]
    least = round(LOCAL_S * 1000 / config.frame_shift)
    margin = max(0, least - (end - start)) // 2
    left, right = config.left_context, config.right_context
    own_TF, adapted_TX = np.split(feats_TF, [feats_TF.shape[1] - config.adapted], axis=1)
    dim = own_TF.shape[1] // ((config.deltas + 1) * (left + 1 + right))
    own = left * (config.deltas + 1) * dim  # first column of the frame itself, after the frames spliced before it
    static_TF = torch.from_numpy(own_TF[:, own : own + dim])
    around = slice(max(0, start - margin), end + margin)
    alone = config.model_copy(update={"global_stats": None})  # which are of features that are not normalised
    (normal_TF,) = normalise([static_TF[around]], alone, [repeated_frames(static_TF[around])])
    normal_TF = normal_TF[start - around.start :][: end - start]
    local_TF = splice(add_deltas(normal_TF, config.deltas, config.delta_window), left, right).numpy()
    return np.concatenate([local_TF, adapted_TX[start:end]], 1) if config.adapted else local_TF


@dataclass
class PartFeats(Mapping[str, np.ndarray]):
    """Features of utterances and of parts of utterances, computed on access; can be pickled."""

    feats: Mapping[str, np.ndarray]
    parts: Mapping[str, LongPart]
    config: FeatureConfig
    _last: tuple[str, np.ndarray] | None = field(default=None, repr=False)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.parts:
            return self.feats[name]
        part = self.parts[name]
        if self._last is None or self._last[0] != part.utterance:
            self._last = (part.utterance, self.feats[part.utterance])  # read once for all its parts
        return local_features(self._last[1], part.start, part.end, self.config)

    def __iter__(self) -> Iterator[str]:
        yield from self.feats
        yield from self.parts

    def __len__(self) -> int:
        return len(self.feats) + len(self.parts)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_last": None}


def joined(
    tracks: Mapping[str, Sequence[Segment]], parts: Mapping[str, LongPart], clock: FrameClock
) -> dict[str, list[Segment]]:
    """Join the segments of each recording's parts, with times in the recording; other utterances are not changed."""
    whole: dict[str, list[Segment]] = {}
    for name in sorted(
        tracks, key=lambda name: (parts[name].utterance, parts[name].start) if name in parts else (name, 0)
    ):
        part = parts.get(name)
        if part is None:
            whole[name] = list(tracks[name])
            continue
        begin_s, _ = part.times_s(clock)
        moved = [replace(s, start_s=s.start_s + begin_s, end_s=s.end_s + begin_s) for s in tracks[name]]
        whole.setdefault(part.utterance, []).extend(moved)
    return {name: _disjoint(track) for name, track in sorted(whole.items())}


def _disjoint(track: list[Segment]) -> list[Segment]:
    # Neighbouring parts overlap by the few milliseconds by which a frame's window is longer than the shift.
    ends = [min(a.end_s, b.start_s) if a.start_s < b.start_s else a.end_s for a, b in pairwise(track)]
    return [replace(s, end_s=end) for s, end in zip(track, ends, strict=False)] + track[-1:]


class AlignedWord(NamedTuple):
    """A word of the transcript and its frames (or outputs, if the model subsamples frames)."""

    word: int
    start: int
    end: int


def find_words(
    graph: TranscriptGraph, hmm: Hmm, chunks: Iterator[np.ndarray], acoustic_scale: float
) -> list[AlignedWord]:
    """Find the words of a transcript in a recording that may lack some of them and contain others.

    `chunks`: log likelihoods (T, P) of all pdfs, float32, of consecutive parts of the recording.
    Returns: in order of time; their frames are rows of `chunks`. After a jump back, the words are out of order.
    """
    search = _Search(graph, hmm, acoustic_scale)
    for loglikes_TP in chunks:
        search.advance(loglikes_TP)
    return search.result()


class _Search:
    def __init__(self, graph: TranscriptGraph, hmm: Hmm, acoustic_scale: float) -> None:
        states, self.subsampling = len(graph.pdf), hmm.subsampling
        self.scale = np.float32(acoustic_scale)
        self.pdf, self.word = graph.pdf.astype(np.int32), graph.word.astype(np.int32)
        self.stay, self.leave = hmm.transitions(graph.pdf, graph.state, acoustic_scale)
        target = np.repeat(np.arange(states, dtype=np.int32), np.diff(graph.pred_ptr))
        order = np.argsort(graph.pred_src, kind="stable")
        self.target, self.logp = target[order], graph.pred_logp[order].astype(np.float32)
        self.ptr = np.searchsorted(graph.pred_src[order], np.arange(states + 1)).astype(np.int32)
        crossing = self.word[graph.pred_src] != self.word[target]
        begins = np.isfinite(graph.entry_logp)
        begins[target[crossing & (self.word[graph.pred_src] == NO_WORD)]] = True  # the copies with silence before them
        ends = np.isfinite(graph.final_logp)
        ends[graph.pred_src[crossing]] = True
        self.ends = ends & (self.word != NO_WORD)
        entries = np.flatnonzero(begins & (self.word != NO_WORD)).astype(np.int32)
        entries = entries[np.argsort(self.word[entries], kind="stable")]
        self.entries = entries
        words = int(self.word.max()) + 1
        self.entry_ptr = np.searchsorted(self.word[entries], np.arange(words + 2)).astype(np.int32)
        self.tokens = np.full((2, 3, states), -1, np.int32)  # record, first frame of the word, frame of the last visit
        self.scores = np.full((2, states), -np.inf, np.float32)
        self.active = np.zeros((2, states), np.int32)
        self.memo = np.full((2, states), -1, np.int32)
        # Word, first frame, frame after it, previous record, words in a row, last word of a long row, frame after it.
        self.records = np.zeros((_RECORDS, 7), np.int32)
        # Frame, which of the two halves is current, number of active states, number of records, garbage's record.
        self.now = np.array([0, 0, 0, 0, -1], np.int64)
        self.garbage = np.zeros(1, np.float32)

    def advance(self, loglikes_TP: np.ndarray) -> None:
        loglikes_TP = np.ascontiguousarray(loglikes_TP, np.float32)
        spread_T = spread(loglikes_TP)
        # Costs compete with stretches of speech, which have fewer rows if the model subsamples frames.
        way = np.float32(self.scale * max(float(spread_T.mean()), 1e-3) / self.subsampling)
        garbage_T = self.scale * (loglikes_TP.max(1) - np.float32(GARBAGE) * spread_T)
        try:
            self._run(loglikes_TP, garbage_T.astype(np.float32), way)
        except MemoryError as error:
            raise DataError(
                f"too many word hypotheses after {int(self.now[0])} scores (over {_RECORDS:,}); cut the recording in "
                f"two"
            ) from error

    def _run(self, loglikes_TP: np.ndarray, garbage_T: np.ndarray, way: np.float32) -> None:
        words = (self.pdf, self.word, self.stay, self.leave, self.ptr, self.target, self.logp)
        places = (self.ends, self.entries, self.entry_ptr)
        state = (self.tokens, self.scores, self.active, self.memo, self.records, self.now, self.garbage)
        costs = (self.scale, np.float32(ENTER * way), np.float32(JUMP * way), np.float32(BEAM * way))
        jumps = (max(1, _JUMP_EVERY // self.subsampling), _REACH_PER_FRAME * self.subsampling)
        _advance(loglikes_TP, garbage_T, words, places, state, costs, jumps)

    def result(self) -> list[AlignedWord]:
        """The words of the best token, which is in garbage or at the end of a word."""
        frame, half, count, _, record = (int(value) for value in self.now)
        best, words = float(self.garbage[0]), []
        for s in self.active[half, :count]:
            score = float(self.scores[half, s] + self.leave[s])
            if self.ends[s] and score > best:
                best, record = score, int(self.tokens[half, 0, s])
                words = [AlignedWord(int(self.word[s]), int(self.tokens[half, 1, s]), frame)]
        while record >= 0:
            word, start, end, record = (int(value) for value in self.records[record, :4])
            words.append(AlignedWord(word, start, end))
        return words[::-1]


@numba.njit(cache=True, nogil=True)
def _advance(loglikes, garbage_T, words, places, state, costs, jumps):  # type: ignore[no-untyped-def]
    """Advance the search by the rows of `loglikes`; the arrays in `state` are changed."""
    pdf, word, stay, leave, ptr, target, logp = words
    ends, entries, entry_ptr = places
    tokens, scores, active, memo, records, now, garbage = state
    scale, enter, jump, beam = costs
    jump_every, reach_a_frame = jumps
    for row in range(len(loglikes)):
        # Records are word ends; those that no token refers to are collected when the table is nearly full.
        t, half, count, used, record = now[0], now[1], now[2], now[3], now[4]
        other = 1 - half
        if used > len(records) - 2 * count - 1000:
            used, record = _collect(records, used, tokens[half, 0], active[half], count, record)
            memo[0, :] = -1
            if used > len(records) - 2 * count - 1000:
                raise MemoryError
        # Within the transcript: stay, move on, or leave at the end of a word (the best one is kept for garbage).
        new = 0
        inside, source = np.float32(-np.inf), -1
        for i in range(count):
            s = active[half, i]
            old, behind, first = scores[half, s], tokens[half, 0, s], tokens[half, 1, s]
            new = _relax(s, old + stay[s], behind, first, t, scores[other], tokens[other], active[other], new)
            gone = old + leave[s]
            for a in range(ptr[s], ptr[s + 1]):
                d = target[a]
                value = gone + logp[a]
                if tokens[other, 2, d] == t and scores[other, d] >= value:
                    continue
                if word[s] == word[d]:
                    new = _relax(d, value, behind, first, t, scores[other], tokens[other], active[other], new)
                else:
                    link = behind
                    if word[s] >= 0:
                        used, link = _record(records, used, memo, s, t, word[s], first, behind)
                    new = _relax(d, value, link, t, t, scores[other], tokens[other], active[other], new)
            if ends[s] and gone - enter > inside:
                inside, source = gone - enter, s
        waiting = garbage[0]
        # From garbage into words: without cost into the next one, else at the cost of a jump.
        following = records[record, 0] + 1 if record >= 0 else 0
        if waiting > -beam:
            for i in range(
                entry_ptr[min(following, len(entry_ptr) - 1)], entry_ptr[min(following + 1, len(entry_ptr) - 1)]
            ):
                new = _relax(entries[i], waiting, record, t, t, scores[other], tokens[other], active[other], new)
        if t % jump_every == 0 and waiting > -0.3 * enter:  # garbage is about as good as any word: position lost
            base = records[record, 5] + 1 if record >= 0 else 0
            reach = int(_REACH + reach_a_frame * (t - (records[record, 6] if record >= 0 else 0)))
            low, high = max(base - reach // 2, 0), min(base + reach, len(entry_ptr) - 1)
            for i in range(entry_ptr[low], entry_ptr[high]):
                d = entries[i]
                on = word[d] - base
                price = jump * (0.5 if 0 <= on < _NEXT else 1.0 if abs(on) < _NEAR else _FAR_PRICE)
                new = _relax(d, waiting - price, record, t, t, scores[other], tokens[other], active[other], new)
        # Into garbage, if leaving a word is better than having waited.
        if inside > waiting:
            s = source
            used, record = _record(records, used, memo, s, t, word[s], tokens[half, 1, s], tokens[half, 0, s])
            waiting = inside
        waiting += garbage_T[row]
        # Add this frame's scores, prune, and make the best score zero.
        best = waiting
        for i in range(new):
            d = active[other, i]
            scores[other, d] += scale * loglikes[row, pdf[d]]
            best = max(best, scores[other, d])
        kept = 0
        for i in range(new):
            d = active[other, i]
            if scores[other, d] >= best - beam:
                scores[other, d] -= best
                active[other, kept] = d
                kept += 1
        garbage[0] = waiting - best
        now[0], now[1], now[2], now[3], now[4] = t + 1, other, kept, used, record


@numba.njit(cache=True, nogil=True, inline="always")
def _relax(s, value, behind, first, t, scores, tokens, active, count):  # type: ignore[no-untyped-def]
    if tokens[2, s] != t:
        tokens[2, s] = t
        active[count] = s
        count += 1
    elif value <= scores[s]:
        return count
    scores[s] = value
    tokens[0, s], tokens[1, s] = behind, first
    return count


@numba.njit(cache=True, nogil=True, inline="always")
def _record(records, used, memo, s, t, word, first, behind):  # type: ignore[no-untyped-def]
    if memo[0, s] == t:  # already made for another arc from this state
        return used, memo[1, s]
    records[used, 0], records[used, 1], records[used, 2], records[used, 3] = word, first, t, behind
    row, anchor, known = 1, -1, 0
    if behind >= 0:
        row = records[behind, 4] + 1 if records[behind, 0] == word - 1 else 1
        anchor, known = records[behind, 5], records[behind, 6]
    if row >= _SEARCH_ROW:
        anchor, known = word, t
    records[used, 4], records[used, 5], records[used, 6] = row, anchor, known
    memo[0, s], memo[1, s] = t, used
    return used + 1, used


@numba.njit(cache=True, nogil=True)
def _collect(records, used, links, active, count, record):  # type: ignore[no-untyped-def]
    """Keep only the records that an active state or garbage refers back to."""
    place = np.full(used, -1, np.int32)
    # Mark: all records on the way back from the garbage model (-1) and from each active state.
    for i in range(-1, count):
        r = record if i < 0 else links[active[i]]
        while r >= 0 and place[r] < 0:
            place[r] = 0
            r = records[r, 3]
    # Sweep: move the marked ones together, and renumber what refers to them.
    kept = 0
    for r in range(used):  # a record comes after the one that it refers to
        if place[r] < 0:
            continue
        place[r] = kept
        before = records[r, 3]
        records[kept] = records[r]
        records[kept, 3] = place[before] if before >= 0 else -1
        kept += 1
    for i in range(count):
        if links[active[i]] >= 0:
            links[active[i]] = place[links[active[i]]]
    return kept, place[record] if record >= 0 else -1


@dataclass(frozen=True)
class Gap:
    """A part where recording and transcript do not match: frames without words, words without frames, or both."""

    start: int
    end: int
    words: tuple[int, ...]


@dataclass(frozen=True)
class LongLayout:
    """The parts of a recording, in order, and the gaps between them."""

    parts: tuple[LongPart, ...]
    gaps: tuple[Gap, ...]
    words: int

    @property
    def found(self) -> int:
        return sum(len(part.words) for part in self.parts)


def check_rate(words: int, duration_s: float) -> None:
    """Check that a transcript has a plausible number of words for the length of its recording.

    Raises Speech3Error: it has too few or too many words per second.
    """
    if words < _SLOWEST * duration_s:
        raise DataError(
            f"{words} words for {duration_s:,.0f} s of audio, one in {duration_s / max(words, 1):.0f} s: not a"
            " transcript of the whole recording; add the other words, or select their part of it (a line of `segments`)"
        )
    if words > _FASTEST * duration_s:
        raise DataError(
            f"{words:,} words for {duration_s:,.0f} s of audio, {words / duration_s:.0f} per second: too fast for"
            " speech; keep only the words of this recording"
        )


def lay_out_long(
    hmm: Hmm,
    scorer: Scorer,
    utterance: str,
    words: Sequence[str],
    feats_TF: np.ndarray,
    config: FeatureConfig,
    acoustic_scale: float = 0.1,
) -> LongLayout:
    """Find the words of a long utterance, and cut it into parts of at most `PART_S`, longer only where pauses are rare.

    `words`: all in the lexicon; see `Lexicon.known`.
    `feats_TF`: float32, as extracted with `config`.
    Raises Speech3Error: the transcript cannot belong to the recording: it is far too short or too long, or too few
    words are found.
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
    step, frames = hmm.subsampling, len(feats_TF)
    found = in_order([AlignedWord(f.word, f.start * step, min(f.end * step, frames)) for f in outputs], len(words))
    found = [f for f in found if words[f.word] != UNKNOWN]  # spoken noise fits anything; its neighbours locate it
    stretches = _stretches(found, len(words), rate)
    if sum(len(inside) for _, inside in stretches) < _MIN_FOUND * len(words):
        raise DataError(
            f"only {sum(len(inside) for _, inside in stretches):,} of the {len(words):,} words of the transcript were"
            f" found in {len(feats_TF) / rate:,.0f} s of audio; use the transcript of this recording, and a model of"
            " its language"
        )
    parts: list[LongPart] = []
    for number, (stretch, inside) in enumerate(stretches):
        after = parts[-1].end if parts else 0
        before = stretches[number + 1][0][0].start if number + 1 < len(stretches) else len(feats_TF)
        parts += _cut(utterance, stretch, inside, after, before, rate)
    return LongLayout(tuple(parts), tuple(_gaps(parts, len(words), len(feats_TF), rate)), len(words))


def in_order(found: Sequence[AlignedWord], words: int) -> list[AlignedWord]:
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


_Stretch = tuple[list[AlignedWord], tuple[int, ...]]  # words found without a break, and the words in the stretch


def _stretches(found: Sequence[AlignedWord], words: int, rate: float) -> list[_Stretch]:
    while True:
        rows: list[list[AlignedWord]] = []
        for f in found:
            if rows and _in_one_stretch(rows[-1][-1], f, rate):
                rows[-1].append(f)
            else:
                rows.append([f])
        kept = [row for row in rows if len(row) >= min(_ROW, words)]
        if len(kept) == len(rows):
            return [(row, _inside(row, rate)) for row in rows]
        found = [f for row in kept for f in row]


def _in_one_stretch(a: AlignedWord, b: AlignedWord, rate: float) -> bool:
    """Can the gap between two found words hold the words between them, so that both belong to one stretch?"""
    unfound, gap_s = b.word - a.word - 1, (b.start - a.end) / rate
    if not unfound:
        return gap_s <= _APART_S
    return unfound <= _MAX_UNFOUND and gap_s <= max(_APART_S, unfound * _SLOW_WORD_S)


def _inside(row: Sequence[AlignedWord], rate: float) -> tuple[int, ...]:
    """Words of a stretch: those found, and those between them if the gap has time for them."""
    inside = [row[0].word]
    for a, b in pairwise(row):
        unfound = range(a.word + 1, b.word)
        if (b.start - a.end) / rate >= len(unfound) * _FAST_WORD_S:
            inside += unfound
        inside.append(b.word)
    return tuple(inside)


def _cut(
    utterance: str, row: Sequence[AlignedWord], inside: Sequence[int], after: int, before: int, rate: float
) -> list[LongPart]:
    """Cut a stretch at the longest pauses that leave parts of the right length; never where words were not found."""
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
        parts.append(LongPart(utterance, start, end, tuple(inside[first : place[b.word]])))
        start, first = end, place[b.word]
    return [*parts, LongPart(utterance, start, last, tuple(inside[first:]))]


def _pause(
    pauses: Sequence[tuple[AlignedWord, AlignedWord]], start: int, rate: float
) -> tuple[AlignedWord, AlignedWord] | None:
    """The longest pause that ends a part of the right length, else the next pause; None if there is none."""
    for shortest_s, longest_s in ((_SHORTEST_PART_S, PART_S), (_SHORTEST_PART_S, LONGEST_PART_S), (1.0, np.inf)):
        reach = [p for p in pauses if shortest_s * rate <= (p[0].end + p[1].start) / 2 - start <= longest_s * rate]
        if reach and longest_s == np.inf:
            return reach[0]
        longest = max(reach, key=lambda p: p[1].start - p[0].end, default=None)
        if longest and (longest_s > PART_S or longest[1].start - longest[0].end >= 0.1 * rate):
            return longest
    return None


def _gaps(parts: Sequence[LongPart], words: int, frames: int, rate: float) -> Iterator[Gap]:
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


def part_names(parts: Iterable[LongPart], rate: float) -> dict[str, LongPart]:
    """The parts by the names of their segments; `rate` in frames per second."""
    return {segment_name(part.utterance, part.start / rate, part.end / rate): part for part in parts}


def part_texts(parts: Mapping[str, LongPart], texts: Mapping[str, str | None]) -> dict[str, str | None]:
    spelled = {part.utterance: (texts[part.utterance] or "").split() for part in parts.values()}
    return {name: " ".join(spelled[part.utterance][word] for word in part.words) for name, part in parts.items()}
