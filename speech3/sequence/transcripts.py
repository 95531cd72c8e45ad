"""Numerators of LF-MMI without an alignment: all ways to say a transcript in the whole of its utterance.

Hadian et al. 2018, "End-to-end speech recognition using lattice-free MMI". The HMM of the transcript, in which are
every pronunciation of its words and silence where it may be (`speech3.hmm.transcript`), is composed with the phone
language model of the denominator, whose probabilities take the place of those of pronunciations and silences. A
sequence of phones is counted once, however many ways through the lexicon lead to it. So each path of the numerator is a
path of the denominator with the same weight, and the criterion is below zero; only a phone that the language model has
not seen where the transcript has it is entered through the leak, as in `numerator`, where that is nearly so.

Transcripts are packed as a label for each frame, twice the word, and one more where a word begins: `word_labels`.

Axes: T frames (in posteriors: output frames), W words, B utterances, K states of all utterances of a batch, A arcs,
S pdfs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numba
import numpy as np

from speech3.errors import Speech3Error
from speech3.frames.chunks import Chunk
from speech3.frames.whole import padded_frames
from speech3.hmm.first_and_loop import SUBSAMPLING
from speech3.hmm.lexicon import Lexicon
from speech3.hmm.model import Hmm
from speech3.hmm.topology import FIRST_AND_LOOP, num_outputs
from speech3.hmm.transcript import TranscriptGraph, transcript_graph
from speech3.sequence.denominator import Denominator
from speech3.sequence.numerator import NEVER, UNSEEN, log_add
from speech3.sequence.phone_lm import START

_KEPT_GRAPHS = 4096  # of utterances, some 10 kilobytes each; those of a large corpus are made anew when drawn


def word_labels(lexicon: Lexicon, words: Sequence[str], frames: int) -> np.ndarray:
    """Labels (T,) int32 that say what is said and nothing about when: the words share the frames out equally.

    Raises
    ------
    Speech3Error
        There are no words, or more phones in their shortest pronunciations than outputs at a third of the frames.
    """
    if not words:
        raise Speech3Error("has no transcript")
    phones = sum(min(len(pron.phones) for pron in lexicon.by_word[word]) for word in words)
    if (outputs := num_outputs(frames, SUBSAMPLING)) < phones:
        raise Speech3Error(f"shorter than its phones at a third of the frames: {phones} phones, {outputs} outputs")
    number = lexicon.word_numbers
    starts = np.linspace(0, frames, len(words) + 1).round().astype(np.int64)
    labels_T = np.repeat(np.array([2 * number[word] for word in words], np.int32), np.diff(starts))
    labels_T[starts[:-1]] += 1
    return labels_T


def words_of(labels_T: np.ndarray) -> np.ndarray:
    """(W,) int: the numbers of the words that `word_labels` were made of."""
    words_W: np.ndarray = labels_T[(labels_T & 1) == 1] >> 1
    return words_W


def spoken_at_random(lexicon: Lexicon, words: Sequence[str], generator: np.random.Generator) -> list[int]:
    """One way to say the words: pronunciations and silences drawn by the probabilities that the lexicon gives them."""
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


@dataclass(frozen=True, eq=False)
class TranscriptNumerators:
    """The numerators of a batch of whole utterances, padded to the same length.

    Attributes
    ----------
    frames
        Output frames of an utterance with its padding.
    begin
        Log weight of beginning.
    ptr_B1
        int64: the states of utterance b are those from ``ptr[b]`` up to ``ptr[b + 1]``. The first is the beginning,
        which emits nothing.
    first_K, loop_K
        int32 pdfs; -1 of the beginning.
    final_K
        bool: the utterance may end there.
    arc_ptr_K1, src_A, weight_A
        Arcs by the state they lead to: int64, int32 (counted from the utterance's first state), float64 log weight.
    """

    frames: int
    begin: float
    ptr_B1: np.ndarray
    first_K: np.ndarray
    loop_K: np.ndarray
    final_K: np.ndarray
    arc_ptr_K1: np.ndarray
    src_A: np.ndarray
    weight_A: np.ndarray

    def __len__(self) -> int:
        """Output frames of the batch."""
        return (len(self.ptr_B1) - 1) * self.frames


_Graph = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # as of one utterance above


@dataclass(frozen=True, eq=False)
class TranscriptMaker:
    """Makes the numerators of whole utterances (`speech3.frames.whole`)."""

    denominator: Denominator
    hmm: Hmm
    leak: float = 0.1
    _graphs: dict[bytes, _Graph] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, chunks: Sequence[Chunk]) -> TranscriptNumerators:
        """The numerators of a batch."""
        parts = [self._graph(words_of(chunk.labels_T)) for chunk in chunks]
        first, loop, final, arcs, src, weight = (list(arrays) for arrays in zip(*parts, strict=True))
        subsampling = self.hmm.subsampling
        return TranscriptNumerators(
            frames=padded_frames(chunks, subsampling) // subsampling,
            begin=math.log(self.denominator.initial_J[START]),
            ptr_B1=np.cumsum([0, *map(len, first)]), first_K=np.concatenate(first), loop_K=np.concatenate(loop),
            final_K=np.concatenate(final), arc_ptr_K1=np.cumsum([0, *np.concatenate(arcs)]),
            src_A=np.concatenate(src), weight_A=np.concatenate(weight),
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
    """Compose with the phone language model; phone occurrences that the same phones lead to become one state."""
    lm, states = denominator.lm, FIRST_AND_LOOP.states
    phone_C, after = graph.phone[::states].tolist(), _successors(graph, states)
    ends_C = np.isfinite(graph.final_logp).reshape(-1, states).any(1)
    entries = set(np.flatnonzero(np.isfinite(graph.entry_logp[::states])).tolist())
    # A state: the occurrences that it may be, that of the language model or -1, the phone before, the phone.
    begin = (frozenset[int](), START, 0, 0)
    number, waiting = {begin: 0}, [begin]
    first, loop, final, arcs_in = [-1], [-1], [False], [list[tuple[int, float]]()]
    for place, (occurrences, state, _, left) in enumerate(waiting):  # which grows meanwhile
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
    """The phone occurrences that may follow each."""
    after: list[set[int]] = [set() for _ in range(len(graph.phone) // states)]
    for copy in range(len(after)):
        first = copy * states
        for source in graph.pred_src[graph.pred_ptr[first] : graph.pred_ptr[first + 1]].tolist():
            after[source // states].add(copy)
    return after


def transcript_posteriors(y_BTS: np.ndarray, numerators: TranscriptNumerators) -> tuple[np.ndarray, np.ndarray]:
    """Log of the total probability, and the posterior of each pdf, which is its gradient.

    Parameters
    ----------
    y_BTS
        float32 or float64, outputs of the network.

    Returns
    -------
    log_z_B, posterior_BTS
        float64, and `y_BTS`'s type. Where an utterance is too short for its transcript they are minus infinity and
        zero.
    """
    n = numerators
    return _posteriors(
        y_BTS, n.begin, n.ptr_B1, n.first_K, n.loop_K, n.final_K, n.arc_ptr_K1, n.src_A, n.weight_A
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _posteriors(y, begin, ptr, first, loop, final, arc_ptr, src, weight):  # type: ignore[no-untyped-def] # pragma: no cover
    utterances, frames, _ = y.shape
    log_z, posterior = np.full(utterances, -np.inf), np.zeros_like(y)
    for u in range(utterances):
        base, size, yu, post = ptr[u], ptr[u + 1] - ptr[u], y[u], posterior[u]
        alpha, beta = np.full((frames + 1, size), NEVER), np.full((frames + 1, size), NEVER)
        alpha[0, 0] = begin
        for t in range(frames):
            for k in range(1, size):
                g = base + k
                into = NEVER
                for a in range(arc_ptr[g], arc_ptr[g + 1]):
                    into = log_add(into, alpha[t, src[a]] + weight[a])
                alpha[t + 1, k] = log_add(into + yu[t, first[g]], alpha[t, k] + yu[t, loop[g]])
        total = NEVER
        for k in range(size):
            if final[base + k]:
                total = log_add(total, alpha[frames, k])
                beta[frames, k] = 0.0
        if not total > NEVER / 2:
            if not total <= NEVER / 2:
                log_z[u] = np.nan
            continue
        log_z[u] = total
        for t in range(frames - 1, -1, -1):
            for k in range(1, size):
                g = base + k
                after = beta[t + 1, k]
                if after <= NEVER / 2 or alpha[t + 1, k] <= NEVER / 2:
                    continue
                stay = yu[t, loop[g]] + after
                looped = math.exp(alpha[t, k] + stay - total)
                post[t, loop[g]] += looped
                post[t, first[g]] += max(math.exp(alpha[t + 1, k] + after - total) - looped, 0.0)
                if alpha[t, k] > NEVER / 2:
                    beta[t, k] = log_add(beta[t, k], stay)
                move = yu[t, first[g]] + after
                for a in range(arc_ptr[g], arc_ptr[g + 1]):
                    beta[t, src[a]] = log_add(beta[t, src[a]], move + weight[a])
    return log_z, posterior
