"""Numerators of LF-MMI without an alignment: all ways to pronounce the transcript of a whole utterance.

Hadian et al. 2018, "End-to-end speech recognition using lattice-free MMI". The HMM of the transcript, with every
pronunciation of its words and optional silence (`speech3.hmm.transcript`), is composed with the phone language model of
the denominator, whose probabilities replace those of pronunciations and silences. A sequence of phones counts once,
however many paths through the lexicon produce it. So each path of the numerator is a path of the denominator with the
same weight, and the criterion is below zero. The exception, as in `alignments`, is a phone that the language model has
not seen after its history: it is entered through the leak, for which this holds only approximately.

Transcripts are packed as labels of frames, which do not give the times of the words (`word_labels`).

Axes: T frames, W words, B utterances, K states of all utterances of a batch, A arcs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from speech3.errors import Speech3Error
from speech3.frames.chunks import Chunk
from speech3.frames.segments import segment_labels, segment_numbers
from speech3.frames.whole import padded_frames
from speech3.hmm.first_and_loop import SUBSAMPLING
from speech3.hmm.model import Hmm
from speech3.hmm.topology import FIRST_AND_LOOP, num_outputs
from speech3.hmm.transcript import TranscriptGraph, transcript_graph
from speech3.lexicon.lexicon import Lexicon
from speech3.sequence.denominator import Denominator
from speech3.sequence.numerators import NEVER, UNSEEN, Numerators
from speech3.sequence.phone_lm import START

_KEPT_GRAPHS = 4096  # of utterances, about 10 kB each; those of a large corpus are made again when drawn


def word_labels(lexicon: Lexicon, words: Sequence[str], frames: int) -> np.ndarray:
    """Labels (T,) int32 that contain the words but not their times: each word gets an equal share of the frames.

    Raises
    ------
    Speech3Error
        There are no words, or more phones in their shortest pronunciations than outputs at a third of the frame rate.
    """
    if not words:
        raise Speech3Error("has no transcript")
    phones = sum(min(len(pron.phones) for pron in lexicon.by_word[word]) for word in words)
    if (outputs := num_outputs(frames, SUBSAMPLING)) < phones:
        raise Speech3Error(f"too short at a third of the frame rate: {phones} phones, {outputs} outputs")
    numbers_W = np.array([lexicon.word_numbers[word] for word in words])
    return segment_labels(numbers_W, np.linspace(0, frames, len(words) + 1).round().astype(np.int64))


def random_phones(lexicon: Lexicon, words: Sequence[str], generator: np.random.Generator) -> list[int]:
    """The phones of one way to say the words: pronunciations and silences drawn by their lexicon probabilities."""
    phones: list[int] = []
    silence = lexicon.silence_prob
    for word in words:
        if generator.random() < silence:
            phones.append(lexicon.silence)
        prons = lexicon.by_word[word]
        weights = np.array([pron.prob for pron in prons])
        chosen = prons[generator.choice(len(prons), p=weights / weights.sum())] if len(prons) > 1 else prons[0]
        phones += [lexicon.phone_ids[phone] for phone in chosen.phones]
        silence = lexicon.silences(chosen).after
    return [*phones, lexicon.silence] if generator.random() < silence else phones


# The graph of one utterance: first, loop, final, arcs per state, source and weight of arcs.
_Graph = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class TranscriptNumerators:
    """Makes the numerators of whole utterances (`speech3.frames.whole`)."""

    denominator: Denominator
    hmm: Hmm
    leak: float = 0.1
    _graphs: dict[bytes, _Graph] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, chunks: Sequence[Chunk]) -> Numerators:
        """The numerators of a batch."""
        parts = [self._graph(segment_numbers(chunk.labels_T)) for chunk in chunks]
        first, loop, final, arcs, src, weight = (list(arrays) for arrays in zip(*parts, strict=True))
        frames = padded_frames(chunks, self.hmm.subsampling) // self.hmm.subsampling
        ptr_B1 = np.cumsum([0, *map(len, first)])
        begin_K = np.full(ptr_B1[-1], NEVER)
        begin_K[ptr_B1[:-1]] = math.log(self.denominator.initial_J[START])
        return Numerators(
            frames, ptr_B1, np.concatenate(first), np.concatenate(loop), begin_K, np.concatenate(final),
            low_K=np.zeros(ptr_B1[-1], np.int32), high_K=np.full(ptr_B1[-1], frames, np.int32),
            arc_ptr_K1=np.cumsum([0, *np.concatenate(arcs)]), src_A=np.concatenate(src),
            weight_A=np.concatenate(weight),
        )  # fmt: skip

    def _graph(self, words_W: np.ndarray) -> _Graph:
        key = words_W.tobytes()
        if key not in self._graphs:
            words = [self._words[number] for number in words_W.tolist()]
            if len(self._graphs) >= _KEPT_GRAPHS:
                self._graphs.pop(next(iter(self._graphs)))
            self._graphs[key] = _composed(
                transcript_graph(self.hmm, words), self.denominator, self._state_of, self.leak
            )
        return self._graphs[key]

    @cached_property
    def _words(self) -> list[str]:
        return list(self.hmm.lexicon.word_numbers)

    @cached_property
    def _state_of(self) -> dict[tuple[int, int], int]:
        """The first state of the phone language model by the last two phones before it."""
        lm = self.denominator.lm
        pairs = zip(lm.left_J.tolist(), lm.phone_J.tolist(), strict=True)
        return {pair: state for state, pair in reversed(list(enumerate(pairs)))}


def _composed(
    graph: TranscriptGraph, denominator: Denominator, state_of: dict[tuple[int, int], int], leak: float
) -> _Graph:
    """Compose with the phone language model; phone occurrences reached by the same phones become one state."""
    lm, states = denominator.lm, FIRST_AND_LOOP.states
    phone_C, after = graph.phone[::states].tolist(), _successors(graph, states)
    ends_C = np.isfinite(graph.final_logp).reshape(-1, states).any(1)
    entries = set(np.flatnonzero(np.isfinite(graph.entry_logp[::states])).tolist())
    # A state: its possible occurrences, the state of the language model or -1, the left phone, the phone.
    begin = (frozenset[int](), START, 0, 0)
    number, waiting = {begin: 0}, [begin]
    first, loop, final, arcs_in = [-1], [-1], [False], [list[tuple[int, float]]()]
    for place, (occurrences, state, _, left) in enumerate(waiting):  # which grows during the loop
        following = set().union(*(after[each] for each in occurrences)) if place else entries
        for phone in sorted({phone_C[each] for each in following}):
            reached = frozenset(each for each in following if phone_C[each] == phone)
            arc = lm.arc(state, phone) if state >= 0 else -1
            target = int(lm.next_A[arc]) if arc >= 0 else state_of.get((left, phone), -1)
            seen = float(denominator.initial_J[target]) if target >= 0 else UNSEEN
            node = (reached, target, left, phone)
            if node not in number:
                number[node] = len(waiting)
                waiting.append(node)
                pdfs = denominator.pdfs_PP2[left, phone].tolist()
                first.append(pdfs[0])
                loop.append(pdfs[1])
                final.append(bool(ends_C[list(reached)].any()))
                arcs_in.append([])
            arcs_in[number[node]].append((place, math.log(lm.prob_A[arc] if arc >= 0 else leak * seen)))
    arcs = [arc for into in arcs_in for arc in into]
    return (
        np.array(first, np.int32), np.array(loop, np.int32), np.array(final), np.array([len(into) for into in arcs_in]),
        np.array([src for src, _ in arcs], np.int32), np.array([weight for _, weight in arcs]),
    )  # fmt: skip


def _successors(graph: TranscriptGraph, states: int) -> list[set[int]]:
    """The phone occurrences that may follow each phone occurrence."""
    after: list[set[int]] = [set() for _ in range(len(graph.phone) // states)]
    for copy in range(len(after)):
        first = copy * states
        for source in graph.pred_src[graph.pred_ptr[first] : graph.pred_ptr[first + 1]].tolist():
            after[source // states].add(copy)
    return after
