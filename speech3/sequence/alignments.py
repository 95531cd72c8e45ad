"""Numerators of LF-MMI from alignments: the phones of a chunk with a tolerance in time, made when the chunk is drawn.

A chunk is a stretch of an utterance, possibly at another speed. Its numerator is the sequence of the aligned phones,
each of which may begin some output frames earlier or later than aligned (Povey et al. 2016). Its arcs have the
probabilities of the phone language model, and its initial states the initial weights of the denominator. So every
path of the numerator is a path of the denominator with the same weight, and the criterion is never above zero. A pair
of phones that does not occur in training, as may happen in held-out speech, gets about the weight of the leak instead.

Alignments are packed as labels of their frames (`speech3.frames.segments`).

Axes: N phones of a chunk, B chunks, K phones of all chunks of a batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np

from speech3.frames.chunks import Chunk
from speech3.sequence.denominator import Denominator
from speech3.sequence.numerators import NEVER, UNSEEN, Numerators
from speech3.sequence.phone_lm import START

_EARLIER = 10  # phones before a chunk, which determine the state of the phone language model: more than its order


@dataclass(frozen=True, eq=False)
class AlignmentNumerators:
    """Makes the numerators of chunks.

    Attributes
    ----------
    frames
        Input frames of a chunk, a multiple of `subsampling`.
    tolerance
        Output frames by which a phone may begin earlier or later than in the alignment.
    leak
        Leak probability of the leaky HMM.
    """

    denominator: Denominator
    frames: int
    subsampling: int = 3
    tolerance: int = 2
    leak: float = 0.1

    def __call__(self, chunks: Sequence[Chunk]) -> Numerators:
        """The numerators of a batch."""
        lm, graph = self.denominator.lm, self.denominator
        outputs = self.frames // self.subsampling
        found = [
            _chain(
                chunk.labels_T, chunk.start, chunk.speed, self.subsampling, outputs, self.tolerance, self.leak,
                graph.pdfs_PP2, graph.initial_J, lm.left_J, lm.phone_J, lm.ptr_J1, lm.arc_phone_A, lm.next_A, lm.prob_A,
            )
            for chunk in chunks
        ]  # fmt: skip
        size_B = np.array([len(first_N) for first_N, *_ in found])
        first_K, loop_K, begin_K, low_K, high_K, enter_K = (np.concatenate(each) for each in zip(*found, strict=True))
        # Each phone but the first of a chunk has one arc, from the previous phone.
        ptr_B1 = np.append(0, size_B.cumsum())
        has_arc_K = np.ones(ptr_B1[-1], np.bool_)
        has_arc_K[ptr_B1[:-1]] = False
        place_K = np.arange(ptr_B1[-1]) - np.repeat(ptr_B1[:-1], size_B)
        return Numerators(
            outputs, ptr_B1, first_K, loop_K, begin_K, np.ones(len(first_K), np.bool_), low_K, high_K,
            arc_ptr_K1=np.append(0, has_arc_K.cumsum()), src_A=(place_K[has_arc_K] - 1).astype(np.int32),
            weight_A=enter_K[has_arc_K],
        )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _chain(labels, start, speed, sub, outputs, tolerance, leak, pdfs, initial, left, phone, ptr, arc_phone, nxt, prob):  # type: ignore[no-untyped-def] # pragma: no cover
    frames = len(labels)
    reach = int((tolerance + 2) * sub * speed) + 1
    first = max(0, min(start - reach, frames - 1))
    known = 0  # number of earlier phones found
    while first > 0 and (known < _EARLIER or not labels[first] & 1):
        known += labels[first] & 1
        first -= 1
    last = min(frames, int(start + outputs * sub * speed) + reach + 1)
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
        else:
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
    from_k, to_k = 0, size
    while from_k < size - 1 and high[from_k] < -1:
        from_k += 1
    while to_k > from_k + 1 and low[to_k - 1] >= outputs:
        to_k -= 1
    for k in range(from_k, to_k):
        if not low[k] <= -1 <= high[k]:  # it does not begin before the chunk
            begin[k] = NEVER
    return (
        pdf_first[from_k:to_k], pdf_loop[from_k:to_k], begin[from_k:to_k], low[from_k:to_k], high[from_k:to_k],
        enter[from_k:to_k],
    )  # fmt: skip
