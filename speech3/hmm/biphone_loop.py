"""The phone loop of LF-MMI models: every left biphone has its own pdfs, and there is one output per three frames.

The outputs of such a model are not posteriors, so those of several contexts cannot be added up as in `phone_loop`; but
since the left neighbour is the only context, the loop can be searched exactly. The bigram is that of `phone_loop`, of
phones without stress and position in the word.

Axes: T output frames, P pdfs, N phones (N1: with the utterance's edge, 0), G phones of the loop (G1: with the edge, G).
"""

from dataclasses import dataclass

import numba
import numpy as np

from speech3.hmm.clustering import group_numbers
from speech3.hmm.first_and_loop import left_biphone_pdfs
from speech3.hmm.model import Hmm
from speech3.hmm.topology import FIRST_AND_LOOP

_NEVER = np.float32(-1e30)


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
            (G1, G1), from `phone_loop.phone_bigram`.
        """
        bigram_NN = np.ascontiguousarray(bigram[np.ix_(self.group_N, self.group_N)], np.float32)
        ends_N = np.ascontiguousarray(bigram[self.group_N, len(bigram) - 1], np.float32)
        outputs_TP = np.ascontiguousarray(outputs_TP, np.float32)
        return self.group_N[_search(outputs_TP, self.first_NN, self.loop_NN, bigram_NN, ends_N)]


def biphones(hmm: Hmm) -> Biphones | None:
    """The biphones of an HMM; None if its topology is not `FIRST_AND_LOOP`, or its tree asks about right neighbours."""
    if hmm.topology != FIRST_AND_LOOP or hmm.tree.width > 2:
        return None
    pdfs = left_biphone_pdfs(hmm)
    numbers = group_numbers(hmm.lexicon)
    return Biphones(pdfs[:, :, 0].copy(), pdfs[:, :, 1].copy(), np.concatenate([[numbers.max() + 1], numbers]))


@numba.njit(cache=True, nogil=True)
def _search(outputs, first, loop, bigram, ends):  # type: ignore[no-untyped-def] # pragma: no cover
    frames, phones = len(outputs), len(first)
    entered = np.zeros((frames, phones, phones), np.bool_)
    left_of = np.zeros((frames, phones), np.int32)  # left neighbour of the phone that ended in the previous frame
    score = np.full((phones, phones), _NEVER, np.float32)
    ended = np.empty(phones, np.float32)
    for p in range(1, phones):
        score[0, p] = bigram[0, p] + outputs[0, first[0, p]]
        entered[0, 0, p] = True
    for t in range(1, frames):
        for p in range(phones):
            ended[p] = _NEVER
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
