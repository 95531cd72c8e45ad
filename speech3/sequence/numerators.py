"""Numerators of LF-MMI as arrays, and their forward-backward: graphs of the transcript of each chunk of a batch.

A numerator is a small graph whose only cycles are the loops of its states. Each state is a phone with its left
neighbour: the arcs into it emit the pdf of the phone's first frame, its loop emits that of the later frames. Numerators
come from alignments (`speech3.sequence.alignments`) or from transcripts alone (`speech3.sequence.transcripts`).

Axes: B chunks, T output frames of a chunk, S pdfs, K states of all chunks, A arcs of all chunks.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np

UNSEEN = 1e-8  # initial weight of a phone that the phone language model lacks after its left neighbour
NEVER = -1e30


@dataclass(frozen=True, eq=False)
class Numerators:
    """The numerators of a batch of chunks.

    Attributes
    ----------
    frames
        Output frames of a chunk.
    ptr_B1
        int64: the states of chunk b are ``ptr[b]`` up to ``ptr[b + 1]``, in topological order.
    first_K, loop_K
        int32 pdfs; -1 for the start of an utterance, which emits nothing.
    begin_K
        float64 log weight of being in the state before the chunk begins; `NEVER`: impossible.
    final_K
        bool: the chunk may end in the state.
    low_K, high_K
        int32: only output frames from low through high may be in the state.
    arc_ptr_K1, src_A, weight_A
        Arcs sorted by the state that they enter: int64, int32 (from the chunk's first state on), float64 log weight.
    """

    frames: int
    ptr_B1: np.ndarray
    first_K: np.ndarray
    loop_K: np.ndarray
    begin_K: np.ndarray
    final_K: np.ndarray
    low_K: np.ndarray
    high_K: np.ndarray
    arc_ptr_K1: np.ndarray
    src_A: np.ndarray
    weight_A: np.ndarray

    @cached_property
    def fits_B(self) -> np.ndarray:
        """bool: a path through the numerator fits the chunk, whatever the network's outputs are."""
        return _fits(
            self.frames, self.ptr_B1, self.first_K, self.begin_K, self.final_K, self.low_K, self.high_K,
            self.arc_ptr_K1, self.src_A,
        )  # fmt: skip

    def __len__(self) -> int:
        """Number of output frames of the chunks that fit their numerators; the loss is a mean over these."""
        return int(self.fits_B.sum()) * self.frames

    @property
    def left_out(self) -> int:
        """Number of output frames of the other chunks."""
        return (len(self.ptr_B1) - 1) * self.frames - len(self)


def numerator_posteriors(y_BTS: np.ndarray, numerators: Numerators) -> tuple[np.ndarray, np.ndarray]:
    """Log of the total probability of each chunk, and its gradient: the posterior of each pdf.

    Parameters
    ----------
    y_BTS
        float32 or float64, outputs of the network.

    Returns
    -------
    log_z_B, posterior_BTS
        float64, and the type of `y_BTS`. If no path fits a chunk, they are minus infinity and zero.
    """
    n = numerators
    return _posteriors(
        y_BTS, n.ptr_B1, n.first_K, n.loop_K, n.begin_K, n.final_K, n.low_K, n.high_K, n.arc_ptr_K1, n.src_A,
        n.weight_A,
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _fits(frames, ptr, first, begin, final, low, high, arc_ptr, src):  # type: ignore[no-untyped-def] # pragma: no cover
    fits = np.zeros(len(ptr) - 1, np.bool_)
    for c in range(len(fits)):
        base, size = ptr[c], ptr[c + 1] - ptr[c]
        before, after = begin[base : base + size] > NEVER / 2, np.zeros(size, np.bool_)
        for t in range(frames):
            for k in range(size):
                g = base + k
                after[k] = False
                if first[g] < 0 or t < low[g] or t > high[g]:
                    continue
                after[k] = before[k]
                for a in range(arc_ptr[g], arc_ptr[g + 1]):
                    after[k] |= before[src[a]]
            before, after = after, before
        for k in range(size):
            fits[c] |= before[k] and final[base + k]
    return fits


@numba.njit(cache=True, nogil=True)
def _log_add(a, b):  # type: ignore[no-untyped-def] # pragma: no cover
    top, other = (a, b) if a > b else (b, a)
    return top + math.log1p(math.exp(other - top)) if other > NEVER / 2 else top


@numba.njit(cache=True, nogil=True)
def _posteriors(y, ptr, first, loop, begin, final, low, high, arc_ptr, src, weight):  # type: ignore[no-untyped-def] # pragma: no cover
    chunks, frames, _ = y.shape
    log_z, posterior = np.full(chunks, -np.inf), np.zeros_like(y)
    for c in range(chunks):
        base, size, yc, post = ptr[c], ptr[c + 1] - ptr[c], y[c], posterior[c]
        alpha, beta = np.full((frames + 1, size), NEVER), np.full((frames + 1, size), NEVER)
        alpha[0] = begin[base : base + size]
        for t in range(frames):
            for k in range(size):
                g = base + k
                if first[g] < 0 or t < low[g] or t > high[g]:
                    continue
                into = NEVER
                for a in range(arc_ptr[g], arc_ptr[g + 1]):
                    into = _log_add(into, alpha[t, src[a]] + weight[a])
                alpha[t + 1, k] = _log_add(into + yc[t, first[g]], alpha[t, k] + yc[t, loop[g]])
        total = NEVER
        for k in range(size):
            if final[base + k]:
                total = _log_add(total, alpha[frames, k])
                beta[frames, k] = 0.0
        if not total > NEVER / 2:
            if not total <= NEVER / 2:
                log_z[c] = np.nan
            continue
        log_z[c] = total
        for t in range(frames - 1, -1, -1):
            for k in range(size):
                g = base + k
                if first[g] < 0 or t < low[g] or t > high[g]:
                    continue
                after = beta[t + 1, k]
                if after <= NEVER / 2 or alpha[t + 1, k] <= NEVER / 2:
                    continue
                stay = yc[t, loop[g]] + after
                looped = math.exp(alpha[t, k] + stay - total)
                post[t, loop[g]] += looped
                post[t, first[g]] += max(math.exp(alpha[t + 1, k] + after - total) - looped, 0.0)
                if alpha[t, k] > NEVER / 2:
                    beta[t, k] = _log_add(beta[t, k], stay)
                move = yc[t, first[g]] + after
                for a in range(arc_ptr[g], arc_ptr[g + 1]):
                    beta[t, src[a]] = _log_add(beta[t, src[a]], move + weight[a])
    return log_z, posterior
