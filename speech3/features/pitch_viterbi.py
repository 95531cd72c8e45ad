"""Viterbi search of the pitch tracker: at each frame one of K lags, with high correlation and small changes over time.

A change of k lags costs k^2 times a factor, so the lowest costs of reaching the lags are the lower envelope of K
parabolas, found in one pass over them (Felzenszwalb and Huttenlocher, Distance transforms of sampled functions, 2012).
This is exact, as is Kaldi's search (feat/pitch-functions.cc, ComputeBacktraces), which narrows bounds.

The best paths into the lags of one frame do not cross. So all of them agree on the frames up to the one where the
lowest and the highest path meet; these frames are returned and forgotten.

Axes: R new frames, T frames kept, L lags in samples, K lags on a logarithmic scale.
"""

import math

import numba
import numpy as np

from speech3.config import PitchConfig
from speech3.features.pitch_nccf import PitchSizes
from speech3.io.compiled import jit

# Frames that are kept, about 5 minutes. If paths do not agree for longer (in silence), the best one is taken.
_MOST_KEPT = 1 << 15


class Tracker:
    """Takes the correlations of frames and returns their correlation and pitch once the path is settled."""

    def __init__(self, pitch: PitchConfig, sizes: PitchSizes, latency: int = 0) -> None:
        """Make a tracker that returns frames after at most `latency` frames; 0: when all paths agree."""
        weights_LK = sizes.lag_weights_LK
        lags, states = weights_LK.shape
        self._lags_K = sizes.lags_K
        self._latency = min(latency or _MOST_KEPT, _MOST_KEPT)
        self._soft_min_f0 = np.float32(pitch.soft_min_f0)
        change = np.float32(math.log1p(pitch.delta_pitch) ** 2)
        self._factor = max(change * np.float32(pitch.penalty_factor), np.float32(1e-30))  # 0 would leave no parabolas
        self._weights_KL = np.ascontiguousarray(weights_LK.T)
        self._forward_K = np.zeros(states, np.float32)
        self._back_TK = np.empty((0, states), np.int16)
        self._pov_TL = np.empty((0, lags), np.float32)
        self._first = self._last = 0  # the rows of these two arrays that are kept

    def push(self, nccf_RK: np.ndarray, pov_RL: np.ndarray) -> np.ndarray:
        """Add frames.

        Parameters
        ----------
        nccf_RK
            float32: correlations with ballast, at the states' lags.
        pov_RL
            float32: correlations without ballast, at whole lags.

        Returns
        -------
        ndarray
            float32 (frames that became settled, 2): correlation, and pitch in Hz.
        """
        self._add(nccf_RK, pov_RL)
        back_TK = self._back_TK[self._first : self._last]
        settled, state = agreed(back_TK)
        if len(back_TK) - settled > self._latency:
            settled = len(back_TK) - self._latency
            state = state_before(back_TK[settled:], int(self._forward_K.argmin()))
        return self._give(settled, state)

    def again(self, nccf_RK: np.ndarray, pov_RL: np.ndarray, given: int) -> None:
        """Replace all frames pushed so far by these; the first `given`, which have been returned, stay as they are."""
        self._first = self._last
        self._forward_K[:] = 0
        self._add(nccf_RK, pov_RL)
        self._first += given

    def finish(self) -> np.ndarray:
        """Return the remaining frames, as `push` does, and reset the tracker."""
        rest = self._give(self._last - self._first, int(self._forward_K.argmin()))
        self._forward_K[:] = 0
        return rest

    def _add(self, nccf_RK: np.ndarray, pov_RL: np.ndarray) -> None:
        kept, frames = self._last - self._first, len(nccf_RK)
        if self._last + frames > len(self._back_TK):
            # Move the kept rows to the front of the same array or of a new one, large enough that this happens rarely.
            for name in ("_back_TK", "_pov_TL"):
                old = getattr(self, name)
                new = (
                    old if 2 * (kept + frames) <= len(old) else np.empty((3 * (kept + frames), old.shape[1]), old.dtype)
                )
                new[:kept] = old[self._first : self._last]
                setattr(self, name, new)
            self._first, self._last = 0, kept
        new_rows = slice(self._last, self._last + frames)
        self._pov_TL[new_rows] = pov_RL
        search(nccf_RK, self._lags_K, self._soft_min_f0, self._factor, self._forward_K, self._back_TK[new_rows])
        self._last += frames

    def _give(self, frames: int, state: int) -> np.ndarray:
        """Trace back from `state` in the last of the first `frames` kept frames; return and forget these frames."""
        raw_T2 = np.empty((frames, 2), np.float32)
        rows = slice(self._first, self._first + frames)
        trace(self._back_TK[rows], self._pov_TL[rows], self._weights_KL, self._lags_K, state, raw_T2)
        self._first += frames
        return raw_T2


@jit
def search(nccf_RK, lags_K, soft_min_f0, factor, forward_K, back_RK):  # type: ignore[no-untyped-def] # pragma: no cover
    """One Viterbi step per frame, which updates the path costs `forward_K`, minus the smallest of them.

    `back_RK` gets the state before each state. Parabolas are compared in float64; the costs are float32 and rounded as
    in Kaldi (so terms must not be reordered): in quiet frames these roundings decide the path.
    """
    states, one = len(forward_K), np.float32(1)
    inverse = 1.0 / np.float64(factor)
    half_K = 0.5 / np.maximum(np.arange(states), 1)
    height_K = np.empty(states)
    centre_K, start_K = np.empty(states, np.int32), np.empty(states)  # of the envelope's parabolas, from the left
    begins_K = np.empty(states, np.int32)  # the centre of the parabola that begins at a state, or 0
    value_K = np.empty(states, np.float32)
    for r in range(len(nccf_RK)):
        for i in range(states):
            height_K[i] = forward_K[i] * inverse + np.float64(i * i)
            begins_K[i] = 0
        top, centre_K[0], start_K[0] = 0, 0, -1e-300
        for j in range(1, states):
            cross = (height_K[j] - height_K[centre_K[top]]) * half_K[j - centre_K[top]]
            while cross <= start_K[top]:
                top -= 1
                if top < 0:
                    break
                cross = (height_K[j] - height_K[centre_K[top]]) * half_K[j - centre_K[top]]
            if top < 0:
                top, centre_K[0] = 0, j
            elif cross < states - 1:
                top += 1
                centre_K[top], start_K[top] = j, cross
        begins_K[0] = centre_K[0]
        for a in range(1, top + 1):  # where two begin at the same state, only the second one counts
            begins_K[int(start_K[a]) + 1] = centre_K[a]
        centre, least = np.int32(0), np.float32(np.inf)
        for i in range(states):
            centre = max(centre, begins_K[i])  # rather than a loop for each parabola: no branches to predict
            back_RK[r, i] = centre
            nccf = nccf_RK[r, i]
            before = np.float32((i - centre) * (i - centre)) * factor + forward_K[centre]
            value_K[i] = before + ((one - nccf) + (soft_min_f0 * nccf) * lags_K[i])
            least = min(least, value_K[i])
        for i in range(states):
            forward_K[i] = value_K[i] - least


@numba.njit(cache=True, nogil=True)
def agreed(back_TK):  # type: ignore[no-untyped-def] # pragma: no cover
    """How many of the first frames all paths agree on, and the state in the last of those (Kaldi ComputeLatency)."""
    low, high = 0, back_TK.shape[1] - 1
    for t in range(len(back_TK) - 1, 0, -1):
        low, high = back_TK[t, low], back_TK[t, high]
        if low == high:
            return t, low
    return 0, 0


@numba.njit(cache=True, nogil=True)
def state_before(back_TK, state):  # type: ignore[no-untyped-def] # pragma: no cover
    """The state before the first of these frames on the path to `state` of the last one."""
    for t in range(len(back_TK) - 1, -1, -1):
        state = back_TK[t, state]
    return state


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def trace(back_TK, pov_TL, weights_KL, lags_K, state, raw_T2):  # type: ignore[no-untyped-def] # pragma: no cover
    """Fill `raw_T2` from its last frame to its first."""
    for t in range(len(raw_T2) - 1, -1, -1):
        total = np.float32(0)
        for lag in range(pov_TL.shape[1]):
            total += weights_KL[state, lag] * pov_TL[t, lag]
        raw_T2[t, 0], raw_T2[t, 1] = total, 1.0 / lags_K[state]
        state = back_TK[t, state]
