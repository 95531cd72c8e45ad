"""Find the words of a long transcript in a long recording: one pass of token passing with a garbage model.

The search may leave the transcript's HMM after any word for a garbage state, and return at any word: the garbage state
absorbs speech that is not in the transcript, and a jump skips words that were not spoken. The likelihood of garbage is
the "online garbage model" of Bourlard, D'hoore and Boite (ICASSP 1994), computed from the likelihoods of the frame: it
is below that of the best pdf by a fraction `GARBAGE` of the distance from the best pdf to the median one, which lies
between the values of correct and of wrong words (see `confidence`). Costs are multiples of that distance, so they suit
any model.

A token remembers its words, not its states (token passing: Young, Russell and Thornton 1989), and records that no token
refers to are discarded, so memory does not grow with the length of the recording.

Axes: T frames, P pdfs, S states of the transcript.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numba
import numpy as np

from speech3.alignment.confidence import spread
from speech3.errors import Speech3Error
from speech3.hmm.model import Hmm
from speech3.hmm.transcript import NO_WORD, TranscriptGraph

GARBAGE = 0.27
# Costs of entering garbage and of jumping to a word other than the next, and the beam, in multiples of that distance.
ENTER, JUMP, BEAM = 1.0, 10.0, 18.0
_JUMP_EVERY = 4  # frames; the alignment that follows finds the exact start of a word
# After _ROW words in a row the position in the transcript is known. From there a jump may go _REACH words forward, or
# half as many back, and _REACH_PER_FRAME words further for each frame since then. A jump costs half to one of the _NEXT
# words, and _FAR_PRICE times as much beyond _NEAR words. (In garbage, single words often fit by chance, but seldom two
# in a row; if single words counted, the search would lose its place.)
_ROW = 8
_REACH, _REACH_PER_FRAME, _NEXT, _NEAR, _FAR_PRICE = 1000, 0.1, 20, 300, 1.5
_RECORDS = 1 << 21


class Found(NamedTuple):
    """A word of the transcript and its frames (or outputs, if the model subsamples frames)."""

    word: int
    start: int
    end: int


def find_words(graph: TranscriptGraph, hmm: Hmm, chunks: Iterator[np.ndarray], acoustic_scale: float) -> list[Found]:
    """Find the words of a transcript in a recording that may lack some of them and contain others.

    Parameters
    ----------
    chunks
        Log likelihoods (T, P) of all pdfs, float32, of consecutive parts of the recording.

    Returns
    -------
    list of Found
        In order of time; their frames are rows of `chunks`. After a jump back, the words are out of order.
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
        """Search through the next frames."""
        loglikes_TP = np.ascontiguousarray(loglikes_TP, np.float32)
        spread_T = spread(loglikes_TP)
        # Costs compete with stretches of speech, which have fewer rows if the model subsamples frames.
        way = np.float32(self.scale * max(float(spread_T.mean()), 1e-3) / self.subsampling)
        garbage_T = self.scale * (loglikes_TP.max(1) - np.float32(GARBAGE) * spread_T)
        try:
            self._run(loglikes_TP, garbage_T.astype(np.float32), way)
        except MemoryError as error:
            raise Speech3Error(
                f"too many word hypotheses after {int(self.now[0])} scores (over {_RECORDS:,}); cut the recording in "
                f"two"
            ) from error

    def _run(self, loglikes_TP: np.ndarray, garbage_T: np.ndarray, way: np.float32) -> None:
        _advance(
            loglikes_TP, garbage_T, self.pdf, self.word, self.stay, self.leave, self.ptr,
            self.target, self.logp, self.ends, self.entries, self.entry_ptr, self.tokens, self.scores, self.active,
            self.memo, self.records, self.now, self.garbage, self.scale, np.float32(ENTER * way),
            np.float32(JUMP * way), np.float32(BEAM * way), max(1, _JUMP_EVERY // self.subsampling),
            _REACH_PER_FRAME * self.subsampling,
        )  # fmt: skip

    def result(self) -> list[Found]:
        """The words of the best token, which is in garbage or at the end of a word."""
        frame, half, count, _, record = (int(value) for value in self.now)
        best, words = float(self.garbage[0]), []
        for s in self.active[half, :count]:
            score = float(self.scores[half, s] + self.leave[s])
            if self.ends[s] and score > best:
                best, record = score, int(self.tokens[half, 0, s])
                words = [Found(int(self.word[s]), int(self.tokens[half, 1, s]), frame)]
        while record >= 0:
            word, start, end, record = (int(value) for value in self.records[record, :4])
            words.append(Found(word, start, end))
        return words[::-1]


@numba.njit(cache=True, nogil=True)
def _advance(  # type: ignore[no-untyped-def] # pragma: no cover
    loglikes, garbage_T, pdf, word, stay, leave, ptr, target, logp, ends, entries, entry_ptr, tokens, scores, active,
    memo, records, now, garbage, scale, enter, jump, beam, jump_every,
    reach_a_frame,
):  # fmt: skip
    for row in range(len(loglikes)):
        t, half, count, used, record = now[0], now[1], now[2], now[3], now[4]
        other = 1 - half
        if used > len(records) - 2 * count - 1000:
            used, record = _collect(records, used, tokens[half, 0], active[half], count, record)
            memo[0, :] = -1
            if used > len(records) - 2 * count - 1000:
                raise MemoryError
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
        if inside > waiting:
            s = source
            used, record = _record(records, used, memo, s, t, word[s], tokens[half, 1, s], tokens[half, 0, s])
            waiting = inside
        waiting += garbage_T[row]
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
def _relax(s, value, behind, first, t, scores, tokens, active, count):  # type: ignore[no-untyped-def] # pragma: no cover
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
def _record(records, used, memo, s, t, word, first, behind):  # type: ignore[no-untyped-def] # pragma: no cover
    if memo[0, s] == t:  # already made for another arc from this state
        return used, memo[1, s]
    records[used, 0], records[used, 1], records[used, 2], records[used, 3] = word, first, t, behind
    row, anchor, known = 1, -1, 0
    if behind >= 0:
        row = records[behind, 4] + 1 if records[behind, 0] == word - 1 else 1
        anchor, known = records[behind, 5], records[behind, 6]
    if row >= _ROW:
        anchor, known = word, t
    records[used, 4], records[used, 5], records[used, 6] = row, anchor, known
    memo[0, s], memo[1, s] = t, used
    return used + 1, used


@numba.njit(cache=True, nogil=True)
def _collect(records, used, links, active, count, record):  # type: ignore[no-untyped-def] # pragma: no cover
    """Keep only the records that an active state or garbage refers back to."""
    place = np.full(used, -1, np.int32)
    for i in range(-1, count):
        r = record if i < 0 else links[active[i]]
        while r >= 0 and place[r] < 0:
            place[r] = 0
            r = records[r, 3]
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
