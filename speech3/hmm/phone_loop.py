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

from collections.abc import Iterable
from dataclasses import dataclass

import numba
import numpy as np

from speech3.hmm.clustering import group_numbers, left_biphone_pdfs, phone_groups
from speech3.hmm.model import FIRST_AND_LOOP, Hmm

_NEVER = np.float32(-np.inf)
_MIN_POSTERIOR = 1e-30  # floor of a posterior relative to the frame's largest; smaller ones change nothing
_STAYED, _ADVANCED, _BEGUN = range(3)  # how a path comes into a state


@dataclass(frozen=True, eq=False)
class LoopPhones:
    """The phones of a loop, their states, and the phone and state of each pdf."""

    silence_G: np.ndarray  # bool: the phone is left out of `best_phones` and of the reference
    place_P: np.ndarray  # int64: ``phone * S + state`` of each pdf
    # `stay_GS`, `advance_GS`, `leave_GS`: float32, log probabilities of staying in a state, of going to the phone's
    # next state, and of leaving the phone; minus infinity if impossible
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
        scores_TX = np.log(np.maximum(posterior_TX, _MIN_POSTERIOR)) - np.log(prior_X)
        return scores_TX.astype(np.float32).reshape(-1, *self.stay_GS.shape)


def loop_phones(hmm: Hmm) -> LoopPhones | None:
    """The loop's phones of an HMM; None if a pdf belongs to several or to none, so that alignments are ambiguous."""
    groups, tree = phone_groups(hmm.lexicon), hmm.tree
    shape = len(groups), tree.root.shape[1]
    place_P = np.full(hmm.num_pdfs, -1)
    for phone, group in enumerate(groups):
        for state in range(shape[1]):
            place = phone * shape[1] + state
            for pdf in tree.pdfs_below(tree.root[list(group), state]):
                if place_P[pdf] not in (-1, place):
                    return None
                place_P[pdf] = place
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

    `sequences`: phones numbered from 0, including silence (`LoopPhones.segments`).
    Returns: (G1, G1) float32 log probabilities of the second phone given the first; G stands for the utterance's edge.
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
    stay, advance, leave = (scale * each for each in (phones.stay_GS, phones.advance_GS, phones.leave_GS))
    column_1GS = np.arange(stay.size).reshape(1, *stay.shape)
    scores_TX = np.ascontiguousarray(scale * scores_TGS.reshape(len(scores_TGS), -1), np.float32)
    return phones.spoken(_search(scores_TX, column_1GS, column_1GS, stay, advance, leave, bigram))


@numba.njit(cache=True, nogil=True)
def _search(scores, entering, repeating, stay, advance, leave, bigram):  # type: ignore[no-untyped-def]
    """The phones on the best path, by Viterbi.

    `entering`, `repeating`: (C, G, S), the column of `scores` for the first and for the later frames of a state, after
    each of C left neighbours: all phones and the edge (C = G + 1), or any (C = 1).
    """
    frames, (contexts, phones, states) = len(scores), entering.shape
    edge = phones
    came = np.zeros((frames, contexts, phones, states), np.int8)
    before = np.zeros((frames, phones), np.int32)  # the phone before one that begins here, if neighbours do not matter
    ended_in = np.zeros((frames, phones, 2), np.int32)  # context and state in which each phone ended before each frame
    old = np.full((contexts, phones, states), _NEVER, np.float32)
    new = np.full((contexts, phones, states), _NEVER, np.float32)
    ended, begun = np.empty(phones + 1, np.float32), np.empty((contexts, phones), np.float32)
    for t in range(frames):
        # The best score with which each phone may end before this frame; before the first, only the edge does.
        ended[:], ended[edge] = _NEVER, 0.0 if t == 0 else _NEVER
        for c in range(contexts):
            for g in range(phones):
                for s in range(states):
                    if old[c, g, s] + leave[g, s] > ended[g]:
                        ended[g] = old[c, g, s] + leave[g, s]
                        ended_in[t, g, 0], ended_in[t, g, 1] = c, s
        # The best phone before each that may begin.
        begun[:] = _NEVER
        for h in range(phones + 1):
            c = h if contexts > 1 else 0
            for g in range(phones):
                if ended[h] + bigram[h, g] > begun[c, g]:
                    begun[c, g], before[t, g] = ended[h] + bigram[h, g], h
        # Into each state: stay, advance, or begin the phone.
        y = scores[t]
        for c in range(contexts):
            for g in range(phones):
                for s in range(states):
                    value, way = old[c, g, s] + stay[g, s] + y[repeating[c, g, s]], _STAYED
                    score = y[entering[c, g, s]]
                    if s > 0 and old[c, g, s - 1] + advance[g, s - 1] + score > value:
                        value, way = old[c, g, s - 1] + advance[g, s - 1] + score, _ADVANCED
                    if s == 0 and begun[c, g] + score > value:
                        value, way = begun[c, g] + score, _BEGUN
                    new[c, g, s], came[t, c, g, s] = value, way
        old, new = new, old
    # Trace the best path back from its last state.
    best, context, phone, state = _NEVER, 0, -1, 0
    for c in range(contexts):
        for g in range(phones):
            for s in range(states):
                if old[c, g, s] + leave[g, s] + bigram[g, edge] > best:
                    best = old[c, g, s] + leave[g, s] + bigram[g, edge]
                    context, phone, state = c, g, s
    found, count = np.zeros(frames, np.int64), 0
    if phone < 0:
        return found[:0]
    for t in range(frames - 1, -1, -1):
        way = came[t, context, phone, state]
        if way == _ADVANCED:
            state -= 1
        elif way == _BEGUN:
            found[count] = phone
            count += 1
            if t > 0:
                phone = context if contexts > 1 else before[t, phone]
                context, state = ended_in[t, phone, 0], ended_in[t, phone, 1]
    return found[:count][::-1].copy()


@dataclass(frozen=True, eq=False)
class Biphones:
    """The pdfs of each phone after each left neighbour, and the phone of the loop to which it belongs."""

    # `first_NN`, `loop_NN`: (N1, N1) int32: pdf of the first frame and pdf of the later frames, by left phone (0: none)
    # and phone
    first_NN: np.ndarray
    loop_NN: np.ndarray
    group_N: np.ndarray  # (N1,) int64: the phone of the loop to which each phone belongs; for 0, the edge, G

    def best_phones(self, outputs_TP: np.ndarray, bigram: np.ndarray) -> np.ndarray:
        """The phones (int64, numbers of the loop) on the best path, including silence.

        `outputs_TP`: float32, the outputs of the network.
        `bigram`: (G1, G1), from `phone_bigram`.
        """
        # The edge comes last in the search.
        group_N = np.roll(self.group_N, -1)
        entering, repeating = (np.roll(pdfs_NN, -1, axis=0)[:, 1:, None] for pdfs_NN in (self.first_NN, self.loop_NN))
        free = np.zeros((len(group_N) - 1, 1), np.float32)  # transitions have no probabilities
        bigram_NN = np.ascontiguousarray(bigram[np.ix_(group_N, group_N)], np.float32)
        outputs_TP = np.ascontiguousarray(outputs_TP, np.float32)
        return group_N[_search(outputs_TP, entering, repeating, free, free, free, bigram_NN)]


def biphones(hmm: Hmm) -> Biphones | None:
    """The biphones of an HMM; None if its topology is not `FIRST_AND_LOOP`, or its tree asks about right neighbours."""
    if hmm.topology != FIRST_AND_LOOP or hmm.tree.width > 2:
        return None
    pdfs = left_biphone_pdfs(hmm)
    numbers = group_numbers(hmm.lexicon)
    return Biphones(pdfs[:, :, 0].copy(), pdfs[:, :, 1].copy(), np.concatenate([[numbers.max() + 1], numbers]))
