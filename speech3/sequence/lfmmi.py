"""Lattice-free maximum mutual information (Povey et al. 2016, "Purely sequence-trained neural networks for ASR").

The criterion of a chunk is the log probability of its transcript, summed over the paths of the numerator, minus that of
everything that could have been said, summed over the paths of the denominator. The loss is minus the criterion, plus
the squares of the outputs (l2) and, if the network has a second output, its cross-entropy against the posteriors of the
numerator.

**Denominator.** Its states are those of the phone language model, which determine the last two phones, so the
left-biphone tree gives their pdfs. HMM transitions have no probabilities, since these would be the same constant in
each frame. A chunk begins anywhere in an utterance, so the initial weight of a state is its average occupancy over the
first hundred output frames; a chunk may end in any state.

**Numerators from alignments** are the sequence of a chunk's aligned phones, each of which may begin some output frames
earlier or later than aligned. Their arcs have the probabilities of the phone language model, and their initial states
the initial weights of the denominator, so the criterion is never above zero. A pair of phones that does not occur in
training gets about the weight of the leak instead, for which this holds only approximately.

**Numerators from transcripts** allow all ways to pronounce the transcript of a whole utterance (Hadian et al. 2018,
"End-to-end speech recognition using lattice-free MMI"). The HMM of the transcript (`speech3.hmm.transcript`) is
composed with the phone language model, whose probabilities replace those of pronunciations and silences. A sequence of
phones counts once, however many paths through the lexicon produce it.

**A teacher** adds what it makes of the same chunk (Wong and Gales 2016, "Sequence student-teacher training of deep
neural networks"): the criterion is then a mean of the above and of minus the divergence of the network's distribution
over the paths of the denominator from the teacher's, whose gradient is the teacher's posteriors minus the network's.

Axes: B chunks (or utterances), T output frames of a chunk, S pdfs, J states and A arcs of a graph, N phones of a chunk,
K phones or states of all chunks of a batch, W words.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import numba
import numpy as np
import torch
from torch import Tensor

from speech3.errors import DataError, MismatchError, MissingError
from speech3.frames import Chunk, Taught, padded_frames, segment_labels, segment_numbers
from speech3.hmm import (
    FIRST_AND_LOOP,
    LARGEST_PSEUDO,
    SUBSAMPLING,
    Hmm,
    TranscriptGraph,
    left_biphone_pdfs,
    load_hmm,
    num_outputs,
    transcript_graph,
)
from speech3.io import DENOMINATOR_FILE, load_tensors, save_tensors
from speech3.language import Lexicon
from speech3.sequence.forward_backward import Attached, value_and_gradient
from speech3.sequence.graph import (
    NEVER,
    START,
    UNSEEN,
    Numerators,
    PhoneLm,
    SequenceGraph,
    average_occupancy,
    graph_arrays,
    numerator_posteriors,
)

_INITIAL_FRAMES = 100  # output frames, as in Kaldi's DenominatorGraph::SetInitialProbs
_STAY = 0.5  # probability of a phone's loop while occupancies are computed
_ARRAYS = "left", "phone", "ptr", "arc_phone", "next", "prob", "pdfs"
_MIN_CHUNKS = 4  # of which none fits its transcript: no longer chance, but a mistake
# Phones before a chunk, which determine the state of the phone language model: more than its order.
_HISTORY_PHONES = 10
_MAX_GRAPHS = 4096  # of utterances, about 10 kB each; those of a large corpus are made again when drawn
# The graph of one utterance: first, loop, final, arcs per state, source and weight of arcs.
_Graph = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Denominator(SequenceGraph):
    """The graph as arrays, and the phone language model from which it was made."""

    lm: PhoneLm
    # int32, by left phone (0: the beginning) and phone: the pdf of the phone's first frame, and that of the others
    pdfs_PP2: np.ndarray

    def save(self, directory: Path | str, about: dict[str, object] | None = None) -> None:
        """Write denominator.safetensors: the phone language model and the pdfs of its states."""
        lm = self.lm
        columns = lm.left_J, lm.phone_J, lm.ptr_J1, lm.arc_phone_A, lm.next_A, lm.prob_A, self.pdfs_PP2
        whole = {**(about or {}), "kind": "denominator", "num_pdfs": self.num_pdfs}
        save_tensors(Path(directory) / DENOMINATOR_FILE, dict(zip(_ARRAYS, columns, strict=True)), whole)


def make_denominator(lm: PhoneLm, hmm: Hmm) -> Denominator:
    """The denominator graph of a phone language model and a left-biphone tree, which must have the same phones."""
    phones = len(hmm.lexicon.phones)
    if phones < int(lm.phone_J.max()):
        raise MismatchError(
            f"the phone language model has phone {int(lm.phone_J.max())}, but the lexicon of the model has only "
            f"{phones} phones, so it was made for another lexicon; build the denominator again"
        )
    return assemble(lm, hmm.num_pdfs, left_biphone_pdfs(hmm))


def load_denominator(directory: Path | str) -> Denominator:
    """Read what `Denominator.save` wrote; repeated calls return the same object until the file changes."""
    path = Path(directory).resolve() / DENOMINATOR_FILE
    if not path.exists():
        raise MissingError(
            f"{path}: no such file, so {directory} cannot be used for LF-MMI; for training.objective=lfmmi use the "
            "HMM that the stage `hmm/lfmmi` of a recipe makes"
        )
    return _load(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _load(path: Path, _: int) -> Denominator:
    arrays, about = load_tensors(path, "denominator")
    *columns, pdfs_PP2 = (arrays[name] for name in _ARRAYS)
    return assemble(PhoneLm(*columns), about["num_pdfs"], pdfs_PP2)


def check_tree(directory: Path | str) -> None:
    """Refuse a denominator in a model directory that is not of its tree: others may have as many pdfs."""
    denominator, hmm = load_denominator(directory), load_hmm(directory)
    if denominator.num_pdfs != hmm.num_pdfs or not np.array_equal(denominator.pdfs_PP2, left_biphone_pdfs(hmm)):
        raise MismatchError(
            f"{directory}: its denominator, with {denominator.num_pdfs} pdfs, belongs to another tree than the one"
            f" there, which has {hmm.num_pdfs}; run the recipe's stage hmm again"
        )


def assemble(lm: PhoneLm, num_pdfs: int, pdfs_PP2: np.ndarray) -> Denominator:
    """The graph of a phone language model, with the pdfs of each phone after each left phone (`pdfs_PP2`)."""
    first_J, loop_J = (pdfs_PP2[lm.left_J, lm.phone_J, place] for place in (0, 1))
    loops_J = np.where(np.arange(lm.num_states) == START, 0, 1)
    initial_J = average_occupancy(lm, np.where(loops_J, _STAY, 0), _INITIAL_FRAMES)
    graph = graph_arrays(lm, num_pdfs, first_J, loop_J, loops_J, lm.prob_A, initial_J)
    return Denominator(**graph, lm=lm, pdfs_PP2=pdfs_PP2)


@dataclass(frozen=True, eq=False)
class LfMmi:
    """The loss of a minibatch of chunks, for any network; picklable."""

    denominator: Denominator
    leaky_hmm_coefficient: float = 0.1  # leak probability of the leaky HMM
    cross_entropy: float = 0.1  # weight of the second output's cross-entropy
    l2: float = 5e-5  # weight of half the sum of squares of a frame's outputs
    teaching: float = 0.0  # share of the teacher's posteriors in the numerator's

    def __call__(
        self, outputs: Tensor | tuple[Tensor, Tensor], numerators: Numerators | Taught
    ) -> tuple[Tensor, Tensor]:
        """Mean loss over frames of chunks that fit their transcript, and how many predict the numerator's best pdf.

        `outputs`: (B, T, S), or two such tensors: the second is trained by cross-entropy.

        Raises `Speech3Error`: the number of the network's outputs differs from that of the denominator's pdfs; none of
        many chunks fits its transcript (of a few, as in an epoch's last minibatch, that may be chance: their loss is
        zero).
        """
        y_BTS, second_BTS = outputs if isinstance(outputs, tuple) else (outputs, None)
        if y_BTS.shape[2] != self.denominator.num_pdfs:
            raise MismatchError(
                f"the network has {y_BTS.shape[2]} outputs, but the denominator {self.denominator.num_pdfs} pdfs: it "
                "was made for another tree; build the denominator again"
            )
        aligned: Numerators = numerators.targets if isinstance(numerators, Taught) else numerators
        # The criterion of each chunk; those without a path in the numerator contribute zero.
        clipped_BTS = y_BTS.clamp(-LARGEST_PSEUDO, LARGEST_PSEUDO)
        numerator_B, posterior_BTS = map(
            torch.from_numpy, numerator_posteriors(clipped_BTS.detach().cpu().numpy(), aligned)
        )
        numerator_B, posterior_BTS = numerator_B.to(y_BTS.device), posterior_BTS.to(y_BTS)
        denominator_B, all_BTS = value_and_gradient(clipped_BTS, self.denominator, self.leaky_hmm_coefficient)
        fits_B = numerator_B != -np.inf
        target_BTS = posterior_BTS
        if isinstance(numerators, Taught):
            teacher_BTS = numerators.outputs_BTS.to(y_BTS).clamp(-LARGEST_PSEUDO, LARGEST_PSEUDO)
            _, taught_BTS = value_and_gradient(teacher_BTS, self.denominator, self.leaky_hmm_coefficient)
            mixed_BTS = torch.lerp(posterior_BTS, taught_BTS.to(y_BTS), self.teaching)
            target_BTS = torch.where(fits_B[:, None, None], mixed_BTS, 0.0)
            # The divergence but for the part that does not depend on the network.
            likely_B = (taught_BTS * clipped_BTS.detach()).sum((1, 2), dtype=numerator_B.dtype)
            numerator_B = torch.lerp(numerator_B, likely_B, self.teaching)
        value_B = torch.where(fits_B, numerator_B - denominator_B, 0.0)
        gradient_BTS = torch.where(fits_B[:, None, None], target_BTS - all_BTS, 0.0)
        objective = Attached.apply(clipped_BTS, value_B, gradient_BTS).sum().to(y_BTS.dtype)
        # Regularisation, and the cross-entropy of the second output against the numerator's posteriors.
        loss = -objective + 0.5 * self.l2 * y_BTS.square().sum()
        judged_BTS = y_BTS.detach()
        if second_BTS is not None:
            loss = loss - self.cross_entropy * (second_BTS.log_softmax(2) * target_BTS).sum()
            judged_BTS = second_BTS.detach()
        # How often the network's largest output is the numerator's.
        best_BT = posterior_BTS.amax(2)
        said_BT = best_BT > 0
        if not said_BT.any() and loss.isfinite():  # the engine refuses a loss that is not finite
            if len(said_BT) < _MIN_CHUNKS:
                return 0.0 * loss, said_BT.sum()
            raise MismatchError(
                "LF-MMI: no chunk matches its transcript: the labels are those of another alignment, "
                "or training.lfmmi.tolerance is too small for training.speeds; pack the frames again or raise it"
            )
        found_BT1 = judged_BTS.argmax(2, keepdim=True)  # argmax is slow: one instead of two
        correct = ((posterior_BTS.gather(2, found_BT1).squeeze(2) == best_BT) & said_BT).sum()
        return loss / said_BT.sum(), correct


@dataclass(frozen=True, eq=False)
class AlignmentNumerators:
    """Makes the numerators of chunks."""

    denominator: Denominator
    frames: int  # input frames of a chunk, a multiple of `subsampling`
    subsampling: int = 3
    tolerance: int = 2  # output frames by which a phone may begin earlier or later than in the alignment
    leaky_hmm_coefficient: float = 0.1  # leak probability of the leaky HMM

    def __call__(self, chunks: Sequence[Chunk]) -> Numerators:
        lm, outputs = self.denominator.lm, self.frames // self.subsampling
        columns = lm.left_J, lm.phone_J, lm.ptr_J1, lm.arc_phone_A, lm.next_A, lm.prob_A
        fixed = self.subsampling, outputs, self.tolerance, self.leaky_hmm_coefficient
        graph = self.denominator.pdfs_PP2, self.denominator.initial_J, *columns
        found = [_chain(chunk.labels_T, chunk.start, chunk.speed, *fixed, *graph) for chunk in chunks]
        size_B = np.array([len(first_N) for first_N, *_ in found])
        first_K, loop_K, begin_K, low_K, high_K, enter_K = (np.concatenate(each) for each in zip(*found, strict=True))
        # Each phone but the first of a chunk has one arc, from the previous phone.
        ptr_B1 = np.append(0, size_B.cumsum())
        has_arc_K = np.ones(ptr_B1[-1], np.bool_)
        has_arc_K[ptr_B1[:-1]] = False
        place_K = np.arange(ptr_B1[-1]) - np.repeat(ptr_B1[:-1], size_B)
        arcs = np.append(0, has_arc_K.cumsum()), (place_K[has_arc_K] - 1).astype(np.int32), enter_K[has_arc_K]
        states = first_K, loop_K, begin_K, np.ones(len(first_K), np.bool_), low_K, high_K
        return Numerators(outputs, ptr_B1, *states, *arcs)


@numba.njit(cache=True, nogil=True)
def _chain(labels, start, speed, sub, outputs, tolerance, leak, pdfs, initial, left, phone, ptr, arc_phone, nxt, prob):  # type: ignore[no-untyped-def]
    # Frames that matter: the chunk, the tolerance around it, and a few phones before it for the language model.
    frames = len(labels)
    reach = int((tolerance + 2) * sub * speed) + 1
    first = max(0, min(start - reach, frames - 1))
    known = 0  # number of earlier phones found
    while first > 0 and (known < _HISTORY_PHONES or not labels[first] & 1):
        known += labels[first] & 1
        first -= 1
    last = min(frames, int(start + outputs * sub * speed) + reach + 1)
    # Phones, and the output in which each begins.
    count = 0
    for t in range(first, last):
        count += labels[t] & 1 or t == first
    phones, begins = np.empty(count + 1, np.int32), np.empty(count + 1, np.int32)
    n = 0
    phones[0], begins[0] = 0, 0
    for t in range(first, last):
        if labels[t] & 1 or t == first:
            n += 1
            phones[n] = labels[t] >> 1
            x = ((t - start) / speed - (sub // 2)) / sub  # an output stands for its middle frame
            begins[n] = int(np.ceil(x - 1e-9))
    # Follow the phone language model along them: pdfs, costs of entering, outputs in which each may be.
    size = n + 1
    pdf_first, pdf_loop = np.full(size, -1, np.int32), np.full(size, -1, np.int32)
    enter, begin = np.full(size, NEVER), np.full(size, NEVER)
    low, high = np.full(size, -1, np.int32), np.full(size, -1, np.int32)
    at_start = start <= 0
    if at_start:
        begin[0] = math.log(np.float64(initial[START]))
    else:
        high[0] = -2
    state, before = (START if first == 0 else -1), 0
    for k in range(1, size):
        arc = -1
        if state >= 0:
            a, end = ptr[state], ptr[state + 1]
            while a < end and arc_phone[a] < phones[k]:
                a += 1
            if a < end and arc_phone[a] == phones[k]:
                arc = a
        if arc >= 0:
            state = nxt[arc]
        else:  # not in the language model: continue from the bigram state, entered by the leak
            state = -1
            for j in range(1, len(phone)):
                if phone[j] == phones[k] and left[j] == before:
                    state = j
                    break
        weight = np.float64(initial[state]) if state >= 0 else UNSEEN
        enter[k] = math.log(prob[arc] if arc >= 0 else leak * weight)
        begin[k] = math.log(weight)
        pdf_first[k], pdf_loop[k] = pdfs[before, phones[k], 0], pdfs[before, phones[k], 1]
        low[k] = begins[k] - tolerance
        high[k] = max(low[k], begins[k + 1] - 1 + tolerance) if k + 1 < size else outputs
        if at_start:
            low[k] = max(low[k], 0)
        before = phones[k]
    # Drop phones that lie outside of the chunk even with the tolerance.
    from_k, to_k = 0, size
    while from_k < size - 1 and high[from_k] < -1:
        from_k += 1
    while to_k > from_k + 1 and low[to_k - 1] >= outputs:
        to_k -= 1
    for k in range(from_k, to_k):
        if not low[k] <= -1 <= high[k]:  # it does not begin before the chunk
            begin[k] = NEVER
    kept = slice(from_k, to_k)
    return pdf_first[kept], pdf_loop[kept], begin[kept], low[kept], high[kept], enter[kept]


def word_labels(lexicon: Lexicon, words: Sequence[str], frames: int) -> np.ndarray:
    """Labels (T,) int32 that contain the words but not their times: each word gets an equal share of the frames.

    Refused if there are no words, or more phones in their shortest pronunciations than outputs at a third of the rate.
    """
    if not words:
        raise DataError("has no transcript")
    phones = sum(min(len(pron.phones) for pron in lexicon.by_word[word]) for word in words)
    if (outputs := num_outputs(frames, SUBSAMPLING)) < phones:
        raise DataError(f"too short at a third of the frame rate: {phones} phones, {outputs} outputs")
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


@dataclass(frozen=True, eq=False)
class TranscriptNumerators:
    """Makes the numerators of whole utterances (`speech3.frames.chunks`)."""

    denominator: Denominator
    hmm: Hmm
    leaky_hmm_coefficient: float = 0.1
    _graphs: dict[bytes, _Graph] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, chunks: Sequence[Chunk]) -> Numerators:
        parts = [self._graph(segment_numbers(chunk.labels_T)) for chunk in chunks]
        first, loop, final, arcs, src, weight = (list(arrays) for arrays in zip(*parts, strict=True))
        frames = padded_frames(chunks, self.hmm.subsampling) // self.hmm.subsampling
        ptr_B1 = np.cumsum([0, *map(len, first)])
        begin_K = np.full(ptr_B1[-1], NEVER)
        begin_K[ptr_B1[:-1]] = math.log(self.denominator.initial_J[START])
        limits = np.zeros(ptr_B1[-1], np.int32), np.full(ptr_B1[-1], frames, np.int32)  # any frame, in any state
        states = np.concatenate(first), np.concatenate(loop), begin_K, np.concatenate(final), *limits
        into = np.cumsum([0, *np.concatenate(arcs)]), np.concatenate(src), np.concatenate(weight)
        return Numerators(frames, ptr_B1, *states, *into)

    def _graph(self, words_W: np.ndarray) -> _Graph:
        key = words_W.tobytes()
        if key not in self._graphs:
            words = [self._words[number] for number in words_W.tolist()]
            if len(self._graphs) >= _MAX_GRAPHS:
                self._graphs.pop(next(iter(self._graphs)))
            self._graphs[key] = _composed(
                transcript_graph(self.hmm, words), self.denominator, self._state_of, self.leaky_hmm_coefficient
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
    sources, weights = np.array([src for src, _ in arcs], np.int32), np.array([weight for _, weight in arcs])
    pdfs, sizes = (np.array(first, np.int32), np.array(loop, np.int32)), np.array([len(into) for into in arcs_in])
    return *pdfs, np.array(final), sizes, sources, weights


def _successors(graph: TranscriptGraph, states: int) -> list[set[int]]:
    after: list[set[int]] = [set() for _ in range(len(graph.phone) // states)]
    for copy in range(len(after)):
        first = copy * states
        for source in graph.pred_src[graph.pred_ptr[first] : graph.pred_ptr[first + 1]].tolist():
            after[source // states].add(copy)
    return after
