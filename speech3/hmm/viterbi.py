"""Viterbi search through the HMM of a transcript, with beam pruning (compiled; it releases the GIL)."""

import numba
import numpy as np

from speech3.hmm.model import Hmm
from speech3.hmm.transcript import TranscriptGraph

_NEVER = np.float32(-np.inf)


def best_path(
    graph: TranscriptGraph,
    hmm: Hmm,
    loglikes_TU: np.ndarray,
    column: np.ndarray,
    beam: float,
    acoustic_scale: float = 0.1,
) -> tuple[np.ndarray, float] | None:
    """Find the best state sequence.

    Parameters
    ----------
    loglikes_TU
        (T, U) float32, one column for each pdf that the graph uses.
    column
        (S,) int32: the column of each state.
    beam
        States further than this (in scaled log probability) below the frame's best are pruned.
    acoustic_scale
        Scale of the log likelihoods and, as in Kaldi's align scripts (``--self-loop-scale=0.1``), of the transitions.

    Returns
    -------
    (T,) int32 states and the path's log probability per frame, or None if no path within the beam reaches the end.
    """
    stay, leave = hmm.transitions(graph.pdf, graph.state, acoustic_scale)
    states, score = _search(
        np.ascontiguousarray(loglikes_TU, np.float32),
        column.astype(np.int32),
        stay,
        leave,
        graph.pred_ptr,
        graph.pred_src,
        graph.pred_logp,
        graph.entry_logp,
        graph.final_logp,
        graph.reach,
        np.float32(acoustic_scale),
        np.float32(beam),
    )
    return (states, float(score) / len(states)) if np.isfinite(score) else None


@numba.njit(cache=True, nogil=True)
def _search(loglikes, column, stay, leave, ptr, src, logp, entry, final, reach, scale, beam):  # type: ignore[no-untyped-def] # pragma: no cover
    frames, states = loglikes.shape[0], len(column)
    back = np.full((frames, states), -1, np.int32)
    old = np.full(states, _NEVER, np.float32)
    new = np.full(states, _NEVER, np.float32)
    low, high = states, -1
    for s in range(states):
        if entry[s] > _NEVER:
            old[s] = entry[s] + scale * loglikes[0, column[s]]
            low, high = min(low, s), max(high, s)
    for t in range(1, frames):
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
