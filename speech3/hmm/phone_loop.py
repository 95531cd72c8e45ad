"""A phone loop: the phones that an acoustic model recognises without a lexicon, for its phone error rate.

Phones that differ only in stress, tone or position in the word are one phone here. Any phone may follow any other, with
the probabilities of a phone bigram; silence is one of the phones, and is left out of the comparison.

With posteriors (`LoopPhones`), a state of such a phone stands for all its tied states in all contexts: its score is the
logarithm of the sum of their posteriors over the sum of their priors, which is what a network with context-independent
states would have. (If it were the score of the best tied state, states of rare contexts would win too often.) So the
loop needs no context expansion, and a frame costs G * G steps. Neighbours that do not fit a context are not excluded,
so a decoder with full contexts makes somewhat fewer errors.

The outputs of LF-MMI models (`Biphones`) are not posteriors, so those of several contexts cannot be added up; but since
the left neighbour is the only context, the loop is searched exactly. There is one output per three frames.

Axes: T frames or outputs, P pdfs, G phones of the loop (G1: with the utterance's edge, G), S states of a phone, N
phones of the HMM (N1: with the edge, 0).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numba
import numpy as np

from speech3.hmm.clustering import group_numbers, phone_groups
from speech3.hmm.first_and_loop import left_biphone_pdfs
from speech3.hmm.model import FIRST_AND_LOOP, Hmm

_NEVER = np.float32(-np.inf)
_LEAST = 1e-30  # floor of a posterior relative to the frame's largest; smaller ones change nothing
_NO_BIPHONE = np.float32(-1e30)


@dataclass(frozen=True, eq=False)
class LoopPhones:
    """The phones of a loop, their states, and the phone and state of each pdf.

    Attributes
    ----------
    silence_G
        bool: the phone is left out of `best_phones` and of the reference.
    place_P
        int64: ``phone * S + state`` of each pdf.
    stay_GS, advance_GS, leave_GS
        float32, log probabilities of staying in a state, of going to the phone's next state, and of leaving the phone;
        minus infinity if impossible.
    """

    silence_G: np.ndarray
    place_P: np.ndarray
    stay_GS: np.ndarray
    advance_GS: np.ndarray
    leave_GS: np.ndarray

    def segments(self, pdfs_T: np.ndarray) -> np.ndarray:
        """The phones of an alignment, int64, including silence.

        A phone begins where the phone changes, where its states start over, and at each frame of a state without a
        self-loop.
        """
        phone_T, state_T = np.divmod(self.place_P[pdfs_T], self.stay_GS.shape[1])
        repeats_T = np.isfinite(self.stay_GS)[phone_T, state_T]
        anew_T = (phone_T[1:] != phone_T[:-1]) | (state_T[1:] < state_T[:-1])
        anew_T |= (state_T[1:] == state_T[:-1]) & ~repeats_T[1:]
        return phone_T[np.concatenate([[True], anew_T])]

    def spoken(self, phones: np.ndarray) -> np.ndarray:
        return phones[~self.silence_G[phones]]

    def scores(self, logits_TP: np.ndarray, log_prior_P: np.ndarray) -> np.ndarray:
        """(T, G, S) float32: log posteriors minus log priors, up to a constant per frame, from a network's logits."""
        order_P = np.argsort(self.place_P, kind="stable")
        first = np.searchsorted(self.place_P[order_P], np.arange(self.stay_GS.size))
        likely_TP = np.exp(logits_TP - logits_TP.max(1, keepdims=True))[:, order_P]
        posterior_TX = np.add.reduceat(likely_TP, first, axis=1)
        prior_X = np.add.reduceat(np.exp(log_prior_P)[order_P], first)
        scores_TX = np.log(np.maximum(posterior_TX, _LEAST)) - np.log(prior_X)
        return scores_TX.astype(np.float32).reshape(-1, *self.stay_GS.shape)


def loop_phones(hmm: Hmm) -> LoopPhones | None:
    """The loop's phones of an HMM; None if a pdf belongs to several or to none, so that alignments are ambiguous."""
    groups, tree = phone_groups(hmm.lexicon), hmm.tree
    shape = len(groups), tree.root.shape[1]
    place_P = np.full(hmm.num_pdfs, -1)
    for phone, group in enumerate(groups):
        for state in range(shape[1]):
            nodes = tree.root[list(group), state].tolist()
            while nodes:
                node = nodes.pop()
                if tree.side[node] >= 0:
                    nodes += [int(tree.yes[node]), int(tree.no[node])]
                elif place_P[tree.yes[node]] in (-1, phone * shape[1] + state):
                    place_P[tree.yes[node]] = phone * shape[1] + state
                else:
                    return None
    if len(np.unique(place_P)) < shape[0] * shape[1] or place_P.min() < 0:
        return None
    silence_G = np.array([hmm.lexicon.phones[group[0] - 1] in hmm.lexicon.silence_phones for group in groups])
    return LoopPhones(silence_G, place_P, *_transitions(hmm, place_P))


def _transitions(hmm: Hmm, place_P: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`LoopPhones.stay_GS`, `advance_GS` and `leave_GS`.

    A state's self-loop probability is the mean over its pdfs; the rest is divided equally between the next state and
    leaving the phone. If the topology is not weighted, all log probabilities are 0.
    """
    topology, count_X = hmm.topology, np.bincount(place_P)
    repeats_S, states = topology.loops_S, topology.states
    ends_S = np.isin(np.arange(states), topology.exits)
    goes_on_S = np.arange(states) < states - 1
    stay_GS = (np.bincount(place_P, hmm.self_loop) / count_X).reshape(-1, states) * repeats_S
    with np.errstate(divide="ignore"):
        leaving_GS = np.log1p(-stay_GS) - np.log(goes_on_S + ends_S.astype(int))
        each = (np.log(stay_GS), leaving_GS, leaving_GS) if topology.weighted else (np.zeros_like(stay_GS),) * 3
    allowed = repeats_S, goes_on_S, ends_S
    stay, advance, leave = (
        np.where(may_S, log_GS, _NEVER).astype(np.float32) for log_GS, may_S in zip(each, allowed, strict=True)
    )
    return stay, advance, leave


def phone_bigram(sequences: Iterable[np.ndarray], num_phones: int) -> np.ndarray:
    """Estimate a phone bigram with add-one smoothing.

    Parameters
    ----------
    sequences
        Phones numbered from 0, including silence (`LoopPhones.segments`).

    Returns
    -------
    (G1, G1) float32 log probabilities of the second phone given the first; G stands for the utterance's edge.
    """
    counts_GG = np.ones((num_phones + 1, num_phones + 1))
    for phones in sequences:
        padded = np.concatenate([[num_phones], phones, [num_phones]])
        np.add.at(counts_GG, (padded[:-1], padded[1:]), 1)
    return np.log(counts_GG / counts_GG.sum(1, keepdims=True)).astype(np.float32)


def best_phones(phones: LoopPhones, bigram: np.ndarray, scores_TGS: np.ndarray, acoustic_scale: float) -> np.ndarray:
    """The phones of the best path through the loop, int64, without silence.

    Parameters
    ----------
    bigram
        (G1, G1), from `phone_bigram`.
    scores_TGS
        float32, from `LoopPhones.scores`.
    acoustic_scale
        Scale of the scores and of the transitions, as in `speech3.hmm.transcript.best_path`.
    """
    scale = np.float32(acoustic_scale)
    parts = (scale * part for part in (scores_TGS, phones.stay_GS, phones.advance_GS, phones.leave_GS))
    scores, stay, advance, leave = (np.ascontiguousarray(part, np.float32) for part in parts)
    return phones.spoken(_search(scores, stay, advance, leave, bigram))


def edit_distance(reference: Sequence[int] | np.ndarray, hypothesis: Sequence[int] | np.ndarray) -> int:
    """Number of substitutions, deletions and insertions: the Levenshtein distance."""
    return int(_distance(np.asarray(reference, np.int64), np.asarray(hypothesis, np.int64)))


@numba.njit(cache=True, nogil=True)
def _search(scores, stay, advance, leave, bigram):  # type: ignore[no-untyped-def] # pragma: no cover
    frames, phones, states = scores.shape
    edge = phones
    came = np.zeros((frames, phones, states), np.int8)  # from: 0 this state, 1 the previous one, 2 another phone
    phone_before = np.full((frames, phones), -1, np.int16)
    state_before = np.zeros((frames, phones), np.int8)  # where each phone ended in the previous frame
    old = np.full((phones, states), _NEVER, np.float32)
    new = np.full((phones, states), _NEVER, np.float32)
    ended = np.full(phones, _NEVER, np.float32)
    for g in range(phones):
        old[g, 0] = bigram[edge, g] + scores[0, g, 0]
    for t in range(1, frames):
        # The best score with which each phone may end before this frame.
        for g in range(phones):
            ended[g] = _NEVER
            for s in range(states):
                if old[g, s] + leave[g, s] > ended[g]:
                    ended[g], state_before[t, g] = old[g, s] + leave[g, s], s
        # Into each state: stay, advance, or enter the phone from another.
        for g in range(phones):
            for s in range(states):
                value, way = old[g, s] + stay[g, s], 0
                if s > 0 and old[g, s - 1] + advance[g, s - 1] > value:
                    value, way = old[g, s - 1] + advance[g, s - 1], 1
                if s == 0:
                    for h in range(phones):
                        if ended[h] + bigram[h, g] > value:
                            value, way = ended[h] + bigram[h, g], 2
                            phone_before[t, g] = h
                new[g, s], came[t, g, s] = value + scores[t, g, s], way
        old, new = new, old
    # Trace the best path back from its last state; a phone begins where it was entered.
    best, phone, state = _NEVER, -1, 0
    for g in range(phones):
        for s in range(states):
            value = old[g, s] + leave[g, s] + bigram[g, edge]
            if value > best:
                best, phone, state = value, g, s
    found = np.zeros(frames, np.int64)
    count = 0
    if phone < 0:
        return found[:0]
    for t in range(frames - 1, -1, -1):
        if t == 0 or came[t, phone, state] == 2:
            found[count] = phone
            count += 1
            if t > 0:
                phone = phone_before[t, phone]
                state = state_before[t, phone]
        elif came[t, phone, state] == 1:
            state -= 1
    return found[:count][::-1].copy()


@numba.njit(cache=True, nogil=True)
def _distance(reference, hypothesis):  # type: ignore[no-untyped-def] # pragma: no cover
    row = np.arange(len(hypothesis) + 1)
    for i in range(len(reference)):
        diagonal, row[0] = row[0], i + 1
        for j in range(len(hypothesis)):
            replaced = diagonal + (reference[i] != hypothesis[j])
            diagonal = row[j + 1]
            row[j + 1] = min(replaced, row[j + 1] + 1, row[j] + 1)
    return row[-1]


@dataclass(frozen=True, eq=False)
class Biphones:
    """The pdfs of each phone after each left neighbour, and the phone of the loop to which it belongs.

    Attributes
    ----------
    first_NN, loop_NN
        (N1, N1) int32: pdf of the first frame and pdf of the later frames, by left phone (0: none) and phone.
    group_N
        (N1,) int64: the phone of the loop to which each phone belongs; for 0, the edge, G.
    """

    first_NN: np.ndarray
    loop_NN: np.ndarray
    group_N: np.ndarray

    def best_phones(self, outputs_TP: np.ndarray, bigram: np.ndarray) -> np.ndarray:
        """The phones (int64, numbers of the loop) on the best path, including silence.

        Parameters
        ----------
        outputs_TP
            float32, the outputs of the network.
        bigram
            (G1, G1), from `phone_bigram`.
        """
        bigram_NN = np.ascontiguousarray(bigram[np.ix_(self.group_N, self.group_N)], np.float32)
        ends_N = np.ascontiguousarray(bigram[self.group_N, len(bigram) - 1], np.float32)
        outputs_TP = np.ascontiguousarray(outputs_TP, np.float32)
        return self.group_N[_search_biphones(outputs_TP, self.first_NN, self.loop_NN, bigram_NN, ends_N)]


def biphones(hmm: Hmm) -> Biphones | None:
    """The biphones of an HMM; None if its topology is not `FIRST_AND_LOOP`, or its tree asks about right neighbours."""
    if hmm.topology != FIRST_AND_LOOP or hmm.tree.width > 2:
        return None
    pdfs = left_biphone_pdfs(hmm)
    numbers = group_numbers(hmm.lexicon)
    return Biphones(pdfs[:, :, 0].copy(), pdfs[:, :, 1].copy(), np.concatenate([[numbers.max() + 1], numbers]))


@numba.njit(cache=True, nogil=True)
def _search_biphones(outputs, first, loop, bigram, ends):  # type: ignore[no-untyped-def] # pragma: no cover
    frames, phones = len(outputs), len(first)
    entered = np.zeros((frames, phones, phones), np.bool_)
    left_of = np.zeros((frames, phones), np.int32)  # left neighbour of the phone that ended in the previous frame
    score = np.full((phones, phones), _NO_BIPHONE, np.float32)
    ended = np.empty(phones, np.float32)
    for p in range(1, phones):
        score[0, p] = bigram[0, p] + outputs[0, first[0, p]]
        entered[0, 0, p] = True
    for t in range(1, frames):
        # Each phone's best left neighbour if it ended before this frame; then stay in a biphone, or enter it.
        for p in range(phones):
            ended[p] = _NO_BIPHONE
        for before in range(phones):
            for p in range(1, phones):
                if score[before, p] > ended[p]:
                    ended[p], left_of[t, p] = score[before, p], before
        y = outputs[t]
        for left in range(phones):
            for p in range(1, phones):
                stay = score[left, p] + y[loop[left, p]]
                enter = ended[left] + bigram[left, p] + y[first[left, p]]
                entered[t, left, p] = enter > stay
                score[left, p] = max(stay, enter)
    # Trace the best path back from its last biphone.
    best, left, phone = np.float32(-np.inf), 0, 0
    for before in range(phones):
        for p in range(1, phones):
            if score[before, p] + ends[p] > best:
                best, left, phone = score[before, p] + ends[p], before, p
    found, count = np.zeros(frames, np.int64), 0
    for t in range(frames - 1, -1, -1):
        if entered[t, left, phone]:
            found[count] = phone
            count += 1
            phone = left
            if t > 0:
                left = left_of[t, phone]
    return found[:count][::-1].copy()
