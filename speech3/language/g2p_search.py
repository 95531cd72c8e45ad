"""Beam search for the phones of a word: the most probable sequences of graphones whose letters are the word's.

The search goes from letter to letter. A hypothesis is a state of the n-gram model of graphones and the phones so far.
Of those that have both in common one is kept, with the sum of their probabilities. At the end, hypotheses with the same
phones count together: a pronunciation has the probability of all its cuts into graphones (the sum that Bisani and Ney
2008 approximate by the best cut).

Axes: I letters of the word, K keys (none, one or two letters), G graphones, H hypotheses, L phones.
"""

from typing import NamedTuple

import numpy as np

from speech3.language.ngrams import step
from speech3.runtime import jit

_WITHOUT_LETTERS = 3  # graphones without letters that may follow one another
_STATE, _BACK, _GRAPHONE, _ROUND, _NEXT = range(5)  # columns of the hypotheses
_MIX, _SHIFT, _ONE = np.uint64(0x9E3779B97F4A7C15), np.uint64(29), np.uint64(1)


class Choices(NamedTuple):
    """The graphones by their letters."""

    first_K: np.ndarray  # (K + 1,) int64: where the graphones of each key begin
    word_G: np.ndarray  # int64: their numbers in the n-gram model
    phones_G2: np.ndarray  # (G, 2) int64: their phones, -1 for none


@jit
def search(trie, start, end_word, choices, key_I3, beam, width):  # type: ignore[no-untyped-def] # pragma: no cover
    """Find pronunciations: phones (H, L), -1 before their beginning, and log10 probabilities with the word's letters.

    `trie`, `start`, `end_word`: the n-gram model, its state at the start of a word, and the number of `</s>`.
    `key_I3`: (I + 1, 3) int64: the keys of the 0, 1 and 2 letters that follow each place; -1 where no graphone has
    them.
    `beam`: how many times less probable than the best at the same letter a hypothesis may be, as a log10.
    `width`: how many hypotheses go on from each letter.
    """
    letters, size = len(key_I3) - 1, 1
    info_H5, score_H, phones_H = np.empty((256, 5), np.int64), np.empty(256, np.float64), np.empty(256, np.uint64)
    score_H[0], phones_H[0] = 0.0, _ONE
    _put(info_H5, 0, start, -1, -1, 0, -1)
    head_I, best_I = np.full(letters + 1, -1), np.full(letters + 1, -np.inf)
    head_I[0], best_I[0] = 0, 0.0
    known = {_ONE: np.int64(0)}  # by a hash of place, round, state and phones
    for place in range(letters + 1):
        # Graphones without letters lead to the same place, in the next round.
        for turn in range(_WITHOUT_LETTERS + 1):
            kept_H = _kept(info_H5, score_H, head_I[place], turn, best_I[place] - beam, width)
            for hypothesis in kept_H:
                for length in range(1 if turn == _WITHOUT_LETTERS else 0, 3):
                    key = key_I3[place, length]
                    if key < 0:
                        continue
                    to = place + length
                    to_round = turn + 1 if length == 0 else 0
                    for graphone in range(choices.first_K[key], choices.first_K[key + 1]):
                        _, prob, state = step(trie, info_H5[hypothesis, _STATE], choices.word_G[graphone])
                        score = score_H[hypothesis] + prob
                        if score < best_I[to] - beam:
                            continue
                        best_I[to] = max(best_I[to], score)
                        hashed = _hashed(phones_H[hypothesis], choices.phones_G2[graphone])
                        same = _mixed(_mixed(hashed, to * (_WITHOUT_LETTERS + 1) + to_round), state)
                        if same in known:
                            score_H[known[same]] = _log_sum(score_H[known[same]], score)
                            continue
                        if size == len(score_H):
                            info_H5 = np.concatenate((info_H5, np.empty_like(info_H5)))
                            score_H = np.concatenate((score_H, np.empty_like(score_H)))
                            phones_H = np.concatenate((phones_H, np.empty_like(phones_H)))
                        _put(info_H5, size, state, hypothesis, graphone, to_round, head_I[to])
                        score_H[size], phones_H[size] = score, hashed
                        known[same] = np.int64(size)
                        head_I[to] = size
                        size += 1
    # The end of the word; hypotheses with the same phones.
    ends = {_ONE: np.int64(0)}
    ends.clear()
    last = head_I[letters]
    while last >= 0:
        score_H[last] += step(trie, info_H5[last, _STATE], end_word)[1]
        if phones_H[last] in ends:
            first = ends[phones_H[last]]
            score_H[first] = _log_sum(score_H[first], score_H[last])
        else:
            ends[phones_H[last]] = last
        last = info_H5[last, _NEXT]
    return _traced(ends, info_H5, score_H, choices.phones_G2)


@jit
def _kept(info_H5, score_H, head, turn, least, width):  # type: ignore[no-untyped-def] # pragma: no cover
    """The hypotheses of a place and round that are in the beam, the best first."""
    count, hypothesis = 0, head
    while hypothesis >= 0:
        count += info_H5[hypothesis, _ROUND] == turn and score_H[hypothesis] >= least
        hypothesis = info_H5[hypothesis, _NEXT]
    found_H, hypothesis = np.empty(count, np.int64), head
    count = 0
    while hypothesis >= 0:
        if info_H5[hypothesis, _ROUND] == turn and score_H[hypothesis] >= least:
            found_H[count] = hypothesis
            count += 1
        hypothesis = info_H5[hypothesis, _NEXT]
    return found_H[np.argsort(-score_H[found_H])][:width]


@jit
def _hashed(hashed, phones_2):  # type: ignore[no-untyped-def] # pragma: no cover
    for phone in phones_2:
        if phone >= 0:
            hashed = _mixed(hashed, phone)
    return hashed


@jit
def _mixed(hashed, number):  # type: ignore[no-untyped-def] # pragma: no cover
    hashed = (hashed ^ np.uint64(number + 1)) * _MIX
    return hashed ^ (hashed >> _SHIFT)


@jit
def _put(info_H5, row, state, back, graphone, turn, following):  # type: ignore[no-untyped-def] # pragma: no cover
    # One by one, and a hash above for tuples as keys: numba takes seconds to compile the assignment of a row.
    info_H5[row, _STATE], info_H5[row, _BACK], info_H5[row, _GRAPHONE] = state, back, graphone
    info_H5[row, _ROUND], info_H5[row, _NEXT] = turn, following


@jit
def _log_sum(one, other):  # type: ignore[no-untyped-def] # pragma: no cover
    return max(one, other) + np.log10(1 + 10.0 ** -abs(one - other))


@jit
def _traced(ends, info_H5, score_H, phones_G2):  # type: ignore[no-untyped-def] # pragma: no cover
    longest = 0
    for last in ends.values():
        length, hypothesis = 0, last
        while info_H5[hypothesis, _BACK] >= 0:
            length += 2
            hypothesis = info_H5[hypothesis, _BACK]
        longest = max(longest, length)
    phones_HL, found_H = np.full((len(ends), longest), -1), np.empty(len(ends), np.float64)
    for row, last in enumerate(ends.values()):
        found_H[row] = score_H[last]
        hypothesis, place = last, longest
        while info_H5[hypothesis, _BACK] >= 0:
            for side in (1, 0):
                phone = phones_G2[info_H5[hypothesis, _GRAPHONE], side]
                if phone >= 0:
                    place -= 1
                    phones_HL[row, place] = phone
            hypothesis = info_H5[hypothesis, _BACK]
    return phones_HL, found_H
