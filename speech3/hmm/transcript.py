"""The alignment of a transcript: its HMM, Viterbi search in that, and the phone and state that it finds in each frame.

The HMM has all pronunciations, optional silence and phones in context. Silence is optional before the first word and
after each word, as in Kaldi's L (utils/make_lexicon_fst.pl). States are in topological order, so that one sweep over
them is one step of the search, which is compiled and releases the GIL. An `Alignment` does not depend on the model that
made it.

Axes: P phone segments, T frames, S states of a transcript, A arcs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numba
import numpy as np

from speech3.errors import DataError
from speech3.hmm.model import LEFT, RIGHT, THREE_STATES, Hmm, Topology, Tree
from speech3.language import Lexicon, Silences

NO_WORD = -1
START = -1  # in place of the phone before the first
ANY = -1  # in place of a neighbour that the phone's pdfs do not depend on
Arc = tuple[int, float]  # source, log probability
_NEVER = np.float32(-np.inf)


@dataclass(frozen=True, eq=False)
class TranscriptGraph:
    """The S emitting states of one transcript, as arrays."""

    # `pdf`, `phone`, `word`, `state`, `copy`: (S,) int32: the labels of each state. `word` is its index in the
    # transcript, `NO_WORD` for silence; `state` is the index within the phone; `copy` numbers the occurrences of
    # phones, each in one context.
    pdf: np.ndarray
    phone: np.ndarray
    word: np.ndarray
    state: np.ndarray
    copy: np.ndarray
    # `pred_ptr`, `pred_src`, `pred_logp`: (S + 1,), (A,), (A,): the A arcs into the states, without self-loops and
    # without transition probabilities
    pred_ptr: np.ndarray
    pred_src: np.ndarray
    pred_logp: np.ndarray
    # `entry_logp`, `final_logp`: (S,) float32: log probability of starting and of ending in a state; minus infinity if
    # impossible
    entry_logp: np.ndarray
    final_logp: np.ndarray

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in vars(self).values() if isinstance(array, np.ndarray))

    @cached_property
    def min_frames(self) -> int:
        shortest = np.full(len(self.pdf), np.iinfo(np.int32).max // 2)
        for s in range(len(self.pdf)):
            sources = self.pred_src[self.pred_ptr[s] : self.pred_ptr[s + 1]]
            before = [shortest[src] for src in sources] + ([0] if np.isfinite(self.entry_logp[s]) else [])
            shortest[s] = 1 + min(before)
        return int(shortest[np.isfinite(self.final_logp)].min())

    @cached_property
    def reach(self) -> np.ndarray:
        """(S,) int32: for each state, the last state to which it or one before it has an arc."""
        reach = np.arange(len(self.pdf), dtype=np.int32)
        targets = np.repeat(reach, np.diff(self.pred_ptr))
        np.maximum.at(reach, self.pred_src, targets)
        return np.maximum.accumulate(reach)


@dataclass
class _Phones:
    """Phone occurrences and the arcs into them, before expansion by context."""

    phone: list[int] = field(default_factory=list)
    word: list[int] = field(default_factory=list)
    arcs_in: list[list[Arc]] = field(default_factory=list)

    def add(self, phone: int, word: int, arcs_in: list[Arc]) -> int:
        self.phone.append(phone)
        self.word.append(word)
        self.arcs_in.append(arcs_in)
        return len(self.phone) - 1

    def phone_at(self, node: int) -> int:
        return 0 if node == START else self.phone[node]

    def is_silence(self, node: int) -> bool:
        return node != START and self.word[node] == NO_WORD

    def ways_in(self, node: int) -> list[Arc]:
        """Arcs sorted by source phone, so that any tree gives the same choice between equally good pronunciations."""
        return sorted(self.arcs_in[node], key=lambda arc: self.phone_at(arc[0]))

    def lefts(self, node: int) -> list[int]:
        return sorted({self.phone_at(source) for source, _ in self.arcs_in[node]})


def _phone_graph(lexicon: Lexicon, words: Sequence[str]) -> tuple[_Phones, list[Arc]]:
    graph = _Phones()

    def with_silence(ends: list[tuple[Arc, float]]) -> list[Arc]:
        """Arcs into the next word's first phone, from the ends of the last word and their silence probabilities."""
        arcs = [(source, logp + math.log(prob)) for (source, logp), prob in ends]
        silence = graph.add(lexicon.silence, NO_WORD, arcs)
        return [(source, logp + math.log1p(-prob)) for (source, logp), prob in ends] + [(silence, 0.0)]

    def begin(ends: list[Arc], silences: Silences, prob: float = 1.0) -> list[Arc]:
        after_silence, after_word = math.log(prob * silences.given_silence), math.log(prob * silences.given_word)
        return [(s, logp + (after_silence if graph.is_silence(s) else after_word)) for s, logp in ends]

    ends = with_silence([((START, 0.0), lexicon.silence_prob)])
    for index, word in enumerate(words):
        after: list[tuple[Arc, float]] = []
        for pron in lexicon.by_word[word]:
            silences = lexicon.silences(pron)
            arcs = begin(ends, silences, pron.prob)
            for phone in pron.phones:
                arcs = [(graph.add(lexicon.phone_ids[phone], index, arcs), 0.0)]
            after += [(arc, silences.after) for arc in arcs]
        ends = with_silence(after)
    return graph, begin(ends, lexicon.end or Silences(lexicon.silence_prob))


def transcript_graph(hmm: Hmm, words: Sequence[str]) -> TranscriptGraph:
    """Build the HMM of `words` (all in the lexicon; see `Lexicon.known`).

    Raises Speech3Error: there are no words.
    """
    if not words:
        raise DataError("the transcript has no words to align")
    # A phone has one copy for each pair of neighbours that it can have in the alternatives of the transcript.
    phones, ends = _phone_graph(hmm.lexicon, words)
    copies = _copies(phones, ends, hmm.lexicon.context_free, hmm.tree)
    states, exits = hmm.topology.states, hmm.topology.exits
    # Arcs into the first state of a copy come from the exits of copies before it, into others from the state before.
    ptr, src, logp, entry = [0], [], [], []
    for node, left, _ in copies:
        start = -math.inf
        free = phones.phone[node] in hmm.lexicon.context_free
        for source, value in phones.arcs_in[node] if free else phones.ways_in(node):
            if left not in (ANY, phones.phone_at(source)):
                continue
            if source == START:
                start = max(start, value)
            for before in _copies_leading_to(copies, phones, source, phones.phone[node]):
                src += [before * states + state for state in exits]
                logp += [value] * len(exits)
        ptr.append(len(src))
        entry += [start] + [-math.inf] * (states - 1)
        for _ in range(1, states):
            src.append(len(ptr) - 2)
            logp.append(0.0)
            ptr.append(len(src))
    # A path ends in the exits of the copies whose phone ends the transcript and that expect nothing after it.
    final = np.full(len(entry), -np.inf, np.float32)
    at_end = dict(ends)
    for (node, _, right), copy in copies.items():
        if node in at_end and right in (0, ANY):
            final[[copy * states + state for state in exits]] = at_end[node]
    windows = [(max(left, 0), phones.phone[node], max(right, 0)) for node, left, right in copies]
    return TranscriptGraph(
        pdf=np.array([hmm.pdfs(*window) for window in windows], np.int32).reshape(-1),
        phone=np.repeat(np.array([phone for _, phone, _ in windows], np.int32), states),
        word=np.repeat(np.array([phones.word[node] for node, _, _ in copies], np.int32), states),
        state=np.tile(np.arange(states, dtype=np.int32), len(copies)),
        copy=np.repeat(np.arange(len(copies), dtype=np.int32), states),
        pred_ptr=np.array(ptr, np.int32),
        pred_src=np.array(src, np.int32),
        pred_logp=np.array(logp, np.float32),
        entry_logp=np.array(entry, np.float32),
        final_logp=final,
    )


def _copies(
    phones: _Phones, ends: list[Arc], context_free: frozenset[int], tree: Tree
) -> dict[tuple[int, int, int], int]:
    """Number each possible (phone occurrence, left phone, right phone) that the tree can distinguish.

    Silence has one copy for all contexts.
    """
    rights: list[set[int]] = [set() for _ in phones.phone]
    for node, arcs in enumerate(phones.arcs_in):
        for source, _ in arcs:
            if source != START:
                rights[source].add(phones.phone[node])
    for source, _ in ends:
        rights[source].add(0)
    copies: dict[tuple[int, int, int], int] = {}
    for node, phone in enumerate(phones.phone):
        free = phone in context_free
        for left in [ANY] if free or LEFT not in tree.sides else phones.lefts(node):
            for right in [ANY] if free or RIGHT not in tree.sides else sorted(rights[node]):
                copies[node, left, right] = len(copies)
    return copies


def _copies_leading_to(copies: dict[tuple[int, int, int], int], phones: _Phones, source: int, phone: int) -> list[int]:
    if source == START:
        return []
    ways = ((source, left, right) for left in (ANY, *phones.lefts(source)) for right in (ANY, phone))
    return [copies[way] for way in ways if way in copies]


def best_path(
    graph: TranscriptGraph,
    hmm: Hmm,
    loglikes_TU: np.ndarray,
    column: np.ndarray,
    beam: float,
    acoustic_scale: float = 0.1,
) -> tuple[np.ndarray, float] | None:
    """Find the best state sequence.

    `loglikes_TU`: (T, U) float32, one column for each pdf that the graph uses.
    `column`: (S,) int32: the column of each state.
    `beam`: states further than this (in scaled log probability) below the frame's best are pruned.
    `acoustic_scale`: scale of the log likelihoods and, as in Kaldi's align scripts (``--self-loop-scale=0.1``), of the
    transitions.
    Returns: (T,) int32 states and the path's log probability per frame, or None if no path within the beam reaches the
    end.
    """
    stay, leave = hmm.transitions(graph.pdf, graph.state, acoustic_scale)
    loglikes_TU, column = np.ascontiguousarray(loglikes_TU, np.float32), column.astype(np.int32)
    arcs = (graph.pred_ptr, graph.pred_src, graph.pred_logp, graph.entry_logp, graph.final_logp, graph.reach)
    scale, width = np.float32(acoustic_scale), np.float32(beam)
    states, score = _search(loglikes_TU, column, stay, leave, *arcs, scale, width)
    return (states, float(score) / len(states)) if np.isfinite(score) else None


@numba.njit(cache=True, nogil=True)
def _search(loglikes, column, stay, leave, ptr, src, logp, entry, final, reach, scale, beam):  # type: ignore[no-untyped-def]
    frames, states = loglikes.shape[0], len(column)
    back = np.full((frames, states), -1, np.int32)
    old = np.full(states, _NEVER, np.float32)
    new = np.full(states, _NEVER, np.float32)
    # The first frame. States from low to high are active.
    low, high = states, -1
    for s in range(states):
        if entry[s] > _NEVER:
            old[s] = entry[s] + scale * loglikes[0, column[s]]
            low, high = min(low, s), max(high, s)
    for t in range(1, frames):
        # Into each state that an active one reaches: the best of its self-loop and its arcs.
        top, best = reach[high], _NEVER
        for s in range(low, top + 1):
            value, where = old[s] + stay[s], s
            for a in range(ptr[s], ptr[s + 1]):
                candidate = old[src[a]] + leave[src[a]] + logp[a]
                if candidate > value:
                    value, where = candidate, src[a]
            if value > _NEVER:
                value += scale * loglikes[t, column[s]]
                best = max(best, value)
            new[s], back[t, s] = value, where
        # Prune, and empty the old scores for the next frame.
        for s in range(low, high + 1):
            old[s] = _NEVER
        first, last = states, -1
        for s in range(low, top + 1):
            if new[s] < best - beam:
                new[s] = _NEVER
            elif new[s] > _NEVER:
                first, last = min(first, s), s
        if last < 0:
            return np.zeros(frames, np.int32), _NEVER
        old, new, low, high = new, old, first, last
    # Trace the best path back from its last state.
    end, score = -1, _NEVER
    for s in range(states):
        value = old[s] + leave[s] + final[s]
        if value > score:
            end, score = s, value
    path = np.zeros(frames, np.int32)
    if end >= 0:
        for t in range(frames - 1, -1, -1):
            path[t] = end
            end = back[t, end]
    return path, score


@dataclass(frozen=True, eq=False)
class Alignment:
    """The alignment of one utterance (T frames, P phone segments)."""

    phones: np.ndarray  # (P,) int32, phone numbers
    words: np.ndarray  # (P,) int32: index of the word in the transcript, `NO_WORD` for silence
    starts: np.ndarray  # (P + 1,) int32: first frame of each segment, then T
    states: np.ndarray  # (T,) int8: state within the phone
    score: float  # log probability per frame, as returned by `best_path`
    # (P + 1,) float64, if known: boundaries of the segments in frames, not rounded to whole ones
    # (`speech3.hmm.alignment.boundaries`). The first is 0, the last T.
    edges: np.ndarray | None = None

    @property
    def num_frames(self) -> int:
        return len(self.states)

    @property
    def places(self) -> np.ndarray:
        """(P + 1,) float64 boundaries in frames: `edges`, or else `starts`."""
        return np.array(self.starts if self.edges is None else self.edges, np.float64)

    @cached_property
    def segment(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.phones), dtype=np.int32), np.diff(self.starts))

    def windows(self) -> np.ndarray:
        """(P, 3) int32: left phone, phone, right phone of each segment; 0 beyond the ends."""
        padded = np.concatenate([[0], self.phones, [0]]).astype(np.int32)
        return np.stack([padded[:-2], padded[1:-1], padded[2:]], axis=1)

    def phone_pdfs(self, hmm: Hmm) -> np.ndarray:
        """(P, states of a phone) int32: the pdf of each state of each segment under the tree of `hmm`."""
        return np.array([hmm.pdfs(*window) for window in self.windows().tolist()], np.int32)

    def pdfs(self, hmm: Hmm) -> np.ndarray:
        """(T,) int32: the senone of each frame under the tree of `hmm`."""
        return np.asarray(self.phone_pdfs(hmm)[self.segment, self.states])


def from_path(graph: TranscriptGraph, path: np.ndarray, score: float) -> Alignment:
    """Convert a path through a transcript's HMM, (T,) states, to an alignment."""
    copy = graph.copy[path]
    first = np.flatnonzero(np.concatenate([[True], copy[1:] != copy[:-1]]))
    starts = np.concatenate([first, [len(path)]]).astype(np.int32)
    at = path[first]
    return Alignment(graph.phone[at], graph.word[at], starts, graph.state[path].astype(np.int8), score)


def evened_out(alignment: Alignment, topology: Topology = THREE_STATES) -> Alignment:
    lengths = np.diff(alignment.starts)
    place = np.arange(alignment.num_frames) - np.repeat(alignment.starts[:-1], lengths)
    part_T = alignment.segment * topology.min_frames + place * topology.min_frames // np.repeat(lengths, lengths)
    return replace(alignment, states=topology.states_of_parts(part_T))


def equal_alignment(
    lexicon: Lexicon, words: Sequence[str], num_frames: int, topology: Topology = THREE_STATES
) -> Alignment | None:
    """Divide the frames equally among silence, the first pronunciation of each word, and silence (a flat start).

    Returns None if there are fewer frames than these phones need.
    """
    phones, index = [lexicon.silence], [NO_WORD]
    for number, word in enumerate(words):
        spoken = lexicon.by_word[word][0].phones
        phones += [lexicon.phone_ids[phone] for phone in spoken]
        index += [number] * len(spoken)
    phones, index = [*phones, lexicon.silence], [*index, NO_WORD]
    parts = len(phones) * topology.min_frames
    if num_frames < parts:
        return None
    edges = np.linspace(0, num_frames, parts + 1).round().astype(np.int32)
    states = topology.states_of_parts(np.repeat(np.arange(parts), np.diff(edges)))
    starts = edges[:: topology.min_frames]
    return Alignment(np.array(phones, np.int32), np.array(index, np.int32), starts, states, 0.0)
