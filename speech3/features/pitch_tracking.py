"""The steps of the pitch tracker: resampling, cross-correlation, Viterbi search (Kaldi feat/pitch-functions.cc).

Resampling (feat/resample.cc): a new sample is the old signal weighted by a windowed sinc. For any two rates the filters
repeat, so a block of the new signal is the product of a stretch of the old one with a matrix. Correlation of every
frame with later samples is by FFT, in float64: the rounding errors of float32 would mask a quiet frame before a loud
one. Sizes and their float32 roundings are Kaldi's.

Search: at each frame one of K lags, with high correlation and small changes over time. A change of k lags costs k^2
times a factor, so the costs of reaching the lags are the lower envelope of K parabolas, found in one pass (Felzenszwalb
and Huttenlocher 2012, "Distance transforms of sampled functions"). The best paths into the lags of one frame do not
cross, so all agree up to the frame where the lowest and the highest meet; frames until there are returned.

Axes: S samples, O samples after resampling, I samples under the filters of some of those, B blocks; R new frames, T
frames kept, W samples of a window and its largest lag, L lags in samples, K lags on a logarithmic scale (states).
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numba
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from speech3.config import FeatureConfig, PitchConfig
from speech3.errors import SettingError
from speech3.features.spectrum import SAMPLE_SCALE
from speech3.runtime import jit

_GROUP = 40  # new samples of one product, about a frame shift: larger matrices hold more and more zeros
_AT_ONCE_CPU, _AT_ONCE_GPU = 1 << 15, 1 << 24  # new samples
# Kaldi recomputes the frames before this one (its recompute_frame) once it knows the signal's energy better, if old and
# new energy differ by more than this fraction of their sum.
RECOMPUTE_FRAME, _RECOMPUTE_CHANGE = 500, 0.01
_MAX_STATES = 10000
_MIN_NORM = torch.finfo(torch.float32).tiny
# Frames that are kept, about 5 minutes. If paths do not agree for longer (in silence), the best one is taken.
_MAX_KEPT = 1 << 15


@dataclass(frozen=True, eq=False)
class Resampler:
    """Made by `resampler`."""

    rates: tuple[int, int]
    reach_s: float  # half of a filter's width
    block_in: int  # samples from one block to the next
    block_out: int  # the same after resampling
    reach: int  # samples before a block that its filters cover
    groups: tuple[tuple[int, np.ndarray], ...]  # first sample, counted from `reach` before the block; matrix (I, O)

    @property
    def width(self) -> int:
        start, last_IO = self.groups[-1]
        return start + len(last_IO)

    def first_sample(self, resampled: int) -> int:
        """The first sample that this new sample is computed from, or one before it."""
        return resampled // self.block_out * self.block_in - self.reach

    def count(self, samples: int, *, finished: bool) -> int:
        """Number of new samples (Kaldi GetNumOutputSamples); if not `finished`, of those that need no later sample."""
        rate_in, rate_out = self.rates
        ticks = math.lcm(rate_in, rate_out)
        duration = samples * (ticks // rate_in) - (0 if finished else math.floor(np.float32(self.reach_s) * ticks))
        return max(-(-duration // (ticks // rate_out)), 0)


def low_pass(seconds: np.ndarray, cutoff_hz: float, zeros: int) -> np.ndarray:
    """A low-pass filter with `zeros` zero crossings under a Hann window (Kaldi FilterFunc)."""
    inside = np.abs(seconds) < zeros / (2 * cutoff_hz)
    hann = 0.5 * (1 + np.cos(2 * np.pi * cutoff_hz / zeros * seconds))
    return np.where(inside, 2 * cutoff_hz * np.sinc(2 * cutoff_hz * seconds) * hann, 0)


def resampler(rate_in: int, rate_out: int, cutoff_hz: float, zeros: int) -> Resampler:
    """The resampler from one rate to another, with a low-pass filter of `zeros` zero crossings."""
    base = math.gcd(rate_in, rate_out)
    repeats = max(_GROUP * base // rate_out, 1)  # of the shortest span of whole samples at both rates
    block_in, block_out = repeats * rate_in // base, repeats * rate_out // base
    reach_s = zeros / (2.0 * cutoff_hz)
    reach = math.ceil(rate_in * reach_s)
    groups = []
    for first in range(0, block_out, _GROUP):
        outputs_O = np.arange(first, min(first + _GROUP, block_out))
        start, end = first * rate_in // rate_out - reach, int(outputs_O[-1]) * rate_in // rate_out + reach + 2
        distance_IO = np.arange(start, end)[:, None] / rate_in - outputs_O / rate_out
        distance_IO = distance_IO.astype(np.float32).astype(np.float64)  # as Kaldi rounds it
        filters_IO = low_pass(distance_IO, cutoff_hz, zeros) / rate_in
        groups.append((start + reach, (filters_IO * SAMPLE_SCALE).astype(np.float32)))
    return Resampler((rate_in, rate_out), reach_s, block_in, block_out, reach, tuple(groups))


def resample(piece_S: Tensor, origin: int, first: int, out_O: Tensor, by: Resampler) -> Tensor:
    """Fill `out_O` with the resampled signal from its sample `first` on, on Kaldi's scale (16-bit values).

    `piece_S`: float32 in [-1, 1): the signal from its sample `origin` on. Outside of it the signal is taken as zero.
    Returns float64 (2): sum and sum of squares of `out_O`.
    """
    moments_2 = out_O.new_zeros(2, dtype=torch.float64)
    step = _AT_ONCE_CPU if out_O.device.type == "cpu" else _AT_ONCE_GPU
    for start, part_O in zip(range(first, first + len(out_O), step), out_O.split(step), strict=False):
        part_O.copy_(_resample(piece_S, origin, start, start + len(part_O), by))
        part64_O = part_O.double()
        moments_2 += torch.stack([part64_O.sum(), part64_O.square_().sum()])
    return moments_2


def _resample(piece_S: Tensor, origin: int, first: int, last: int, by: Resampler) -> Tensor:
    skipped = first // by.block_out
    blocks = -(-last // by.block_out) - skipped
    begin = skipped * by.block_in - by.reach - origin
    end = begin + (blocks - 1) * by.block_in + by.width
    part_S = piece_S[max(begin, 0) : max(end, 0)]
    before = min(max(-begin, 0), end - begin)
    padded_S = functional.pad(part_S, (before, end - begin - before - len(part_S)))
    blocks_BI = padded_S.as_strided((blocks, by.width), (by.block_in, 1))
    groups = _groups_on(by, piece_S.device)
    parts = [blocks_BI[:, start : start + len(matrix_IO)] @ matrix_IO for start, matrix_IO in groups]
    new_BO = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    skipped *= by.block_out
    return new_BO.flatten()[first - skipped : last - skipped]


@lru_cache(maxsize=16)
def _groups_on(by: Resampler, device: torch.device) -> list[tuple[int, Tensor]]:
    return [(start, torch.from_numpy(matrix_IO).to(device)) for start, matrix_IO in by.groups]


@dataclass(frozen=True, eq=False)
class PitchSizes:
    """Sizes in samples after resampling, and lags. Made by `pitch_sizes`."""

    window: int
    shift: int
    first_lag: int
    last_lag: int
    snip_edges: bool
    lags_K: np.ndarray  # seconds, float32
    lag_weights_LK: np.ndarray  # float32: interpolates correlations at lags L to lags K
    resampler: Resampler

    @property
    def span(self) -> int:
        return self.window + self.last_lag

    @property
    def lead(self) -> int:
        """Zeros before the signal, so that frame t begins at t * shift."""
        return 0 if self.snip_edges else self.span // 2 - self.shift // 2

    def frames(self, samples: int, *, finished: bool) -> int:
        """Number of frames in this many resampled samples (Kaldi NumFramesAvailable, but in exact arithmetic)."""
        length = self.window if finished else self.span
        if samples < length:
            return 0
        if self.snip_edges:
            return (samples - length) // self.shift + 1
        return (2 * (samples if finished else samples - (length + 1) // 2) + self.shift) // (2 * self.shift)


@lru_cache(maxsize=16)
def pitch_sizes(config: FeatureConfig, sample_rate_hz: int) -> PitchSizes:
    pitch = config.pitch or PitchConfig()
    rate = int(pitch.resample_freq)
    if 2 * pitch.lowpass_cutoff > min(sample_rate_hz, rate):
        raise SettingError(
            f"lowpass_cutoff {pitch.lowpass_cutoff:g} Hz of pitch must be at most half of the sample rate,"
            f" {sample_rate_hz} Hz, and of resample_freq, {rate} Hz: lower it"
        )
    if math.log(pitch.max_f0 / pitch.min_f0) / math.log1p(pitch.delta_pitch) > _MAX_STATES:
        raise SettingError(f"delta_pitch {pitch.delta_pitch:g} makes more than {_MAX_STATES} pitches: make it larger")
    milliseconds = (config.frame_length, config.frame_shift)
    window, shift = (int(np.float32(rate) * np.float32(ms) / 1000.0) for ms in milliseconds)
    margin_s = pitch.upsample_filter_width / (2.0 * rate)
    first, last = math.ceil(rate * (1 / pitch.max_f0 - margin_s)), math.floor(rate * (1 / pitch.min_f0 + margin_s))
    if window < 2 or shift < 1 or first < 0:
        raise SettingError(
            f"pitch cannot be tracked with frame_length {config.frame_length:g} ms, frame_shift"
            f" {config.frame_shift:g} ms, max_f0 {pitch.max_f0:g} Hz at resample_freq {rate} Hz: use longer frames,"
            " a lower max_f0 or a higher resample_freq"
        )
    lags_K = _lags(pitch)
    return PitchSizes(
        window=window,
        shift=shift,
        first_lag=first,
        last_lag=last,
        snip_edges=config.snip_edges,
        lags_K=lags_K,
        lag_weights_LK=_lag_weights(pitch, lags_K, first, last, rate),
        resampler=resampler(sample_rate_hz, rate, pitch.lowpass_cutoff, pitch.lowpass_filter_width),
    )


def _lags(pitch: PitchConfig) -> np.ndarray:
    """Lags in seconds, a geometric progression (Kaldi SelectLags), rounded at each step as in Kaldi."""
    lag, last = np.float32(1 / pitch.max_f0), np.float32(1 / pitch.min_f0)
    ratio = 1 + float(np.float32(pitch.delta_pitch))
    lags = []
    while lag <= last:
        lags.append(lag)
        lag = np.float32(float(lag) * ratio)
    return np.array(lags, dtype=np.float32)


def _lag_weights(pitch: PitchConfig, lags_K: np.ndarray, first: int, last: int, rate: int) -> np.ndarray:
    offset_K = lags_K - np.float32(first) / np.float32(rate)
    place_L = np.arange(last + 1 - first, dtype=np.float32) / np.float32(rate)
    distance_LK = (offset_K - place_L[:, None]).astype(np.float64)
    return (low_pass(distance_LK, rate / 2, pitch.upsample_filter_width) / rate).astype(np.float32)


@dataclass
class Correlations:
    """Normalised cross-correlations of frames with later samples, at L lags."""

    pitch_RL: Tensor  # with ballast, so small where the frame is quiet: for the tracker
    pov_RL: Tensor  # without ballast: for the probability of voicing
    norm_R: Tensor  # energy of the frame times energy of the lagged frame, mean over the lags


def correlate(frames_RW: Tensor, energy_R: Tensor, pitch: PitchConfig, sizes: PitchSizes) -> Correlations:
    """Normalised correlations of frames (Kaldi ComputeCorrelation, ComputeNccf).

    `frames_RW`: float32, on Kaldi's scale.
    `energy_R`: float32, energy of the signal (`variance`), as estimated for each frame.
    """
    # Inner products of frame and lagged frame, by FFT.
    window, lags = sizes.window, slice(sizes.first_lag, sizes.last_lag + 1)
    points = _fft_points(sizes.span)
    centred_R2W = frames_RW.new_empty(len(frames_RW), 2, points, dtype=torch.float64)
    later_RW, now_RW = centred_R2W[:, 0, : sizes.span], centred_R2W[:, 1, :window]
    centred_R2W[:, 0, sizes.span :], centred_R2W[:, 1, window:] = 0, 0
    if pitch.preemph_coeff:  # a frame's first sample is repeated before the frame
        before_RW = torch.cat([frames_RW[:, :1], frames_RW[:, :-1]], 1)
        frames_RW = frames_RW.sub(before_RW, alpha=pitch.preemph_coeff)
    mean_R1 = frames_RW[:, :window].mean(1, dtype=torch.float64, keepdim=True)
    torch.sub(frames_RW, mean_R1, out=later_RW)
    now_RW.copy_(later_RW[:, :window])
    spectra_R2B = torch.fft.rfft(centred_R2W)
    inner_RL = torch.fft.irfft(spectra_R2B[:, 0] * spectra_R2B[:, 1].conj(), points)[:, lags].float()

    # Their energies, as differences of running sums.
    squares_RW = torch.cumsum(later_RW * later_RW, 1)  # square() takes twice as long as the product
    later_RL = squares_RW[:, sizes.first_lag + window - 1 :].clone()
    before = max(sizes.first_lag - 1, 0)  # a lag of 0 has nothing before its window
    later_RL[:, max(1 - sizes.first_lag, 0) :] -= squares_RW[:, before : sizes.last_lag]
    norm_RL = (squares_RW[:, window - 1, None] * later_RL).clamp_(min=0).float()

    pitch_RL = _normalised(inner_RL, norm_RL + _ballast(energy_R, pitch, sizes)[:, None])
    return Correlations(pitch_RL, _normalised(inner_RL, norm_RL), norm_RL.mean(1))


def _normalised(inner_RL: Tensor, norm_RL: Tensor) -> Tensor:
    # Without energy the inner product is 0, too, and so is the result. Rounding errors may exceed the bounds.
    return inner_RL.div(norm_RL.clamp(min=_MIN_NORM).sqrt_()).clamp_(-1, 1)


@lru_cache(maxsize=16)
def _lag_weights_on(sizes: PitchSizes, device: torch.device) -> Tensor:
    return torch.from_numpy(sizes.lag_weights_LK).to(device)


@lru_cache(maxsize=16)
def _fft_points(least: int) -> int:
    """The smallest even size of at least `least` that has no prime factors but 2, 3 and 5."""
    points = least + least % 2
    while True:
        rest = points
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return points
        points += 2


def at_states(nccf_RL: Tensor, sizes: PitchSizes) -> Tensor:
    return nccf_RL @ _lag_weights_on(sizes, nccf_RL.device)


def variance(moments_2: Tensor, samples: int) -> float:
    """Kaldi's estimate of a signal's energy: its mean square less the square of its mean."""
    total, squares = moments_2.tolist()
    samples = max(samples, 1)
    return max(squares / samples - (total / samples) ** 2, 0.0)


def changed(energy: float, later: float) -> bool:
    """Whether the estimate has changed enough for Kaldi to recompute."""
    return abs(energy - later) > _RECOMPUTE_CHANGE * (energy + later)


def rescale(first_R: Tensor, energy_R: Tensor, norm_R: Tensor, pitch: PitchConfig, sizes: PitchSizes) -> Tensor:
    """Factors (R) that adapt `pitch_RL` to a new estimate of the signal's energy.

    An approximation, as in Kaldi's RecomputeBacktraces: it uses `norm_R`, the mean over the lags.
    """
    old_R, new_R = (norm_R + _ballast(e_R, pitch, sizes) for e_R in (first_R, energy_R))
    return (old_R / new_R).sqrt_().masked_fill_(new_R < _MIN_NORM, 1.0)


def _ballast(energy_R: Tensor, pitch: PitchConfig, sizes: PitchSizes) -> Tensor:
    return (energy_R * sizes.window).square_().mul_(pitch.nccf_ballast)


class Tracker:
    """Takes the correlations of frames and returns their correlation and pitch once the path is settled."""

    def __init__(self, pitch: PitchConfig, sizes: PitchSizes, latency: int = 0) -> None:
        """Make a tracker that returns frames after at most `latency` frames; 0: when all paths agree."""
        weights_LK = sizes.lag_weights_LK
        lags, states = weights_LK.shape
        self._lags_K = sizes.lags_K
        self._latency = min(latency or _MAX_KEPT, _MAX_KEPT)
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

        `nccf_RK`: float32, correlations with ballast, at the states' lags.
        `pov_RL`: float32, correlations without ballast, at whole lags.
        Returns float32 (frames that became settled, 2): correlation, and pitch in Hz.
        """
        self._add(nccf_RK, pov_RL)
        back_TK = self._back_TK[self._first : self._last]
        settled, state = agreed(back_TK)
        if len(back_TK) - settled > self._latency:
            settled = len(back_TK) - self._latency
            state = state_before(back_TK[settled:], int(self._forward_K.argmin()))
        return self._emit(settled, state)

    def again(self, nccf_RK: np.ndarray, pov_RL: np.ndarray, given: int) -> None:
        """Replace all frames pushed so far by these; the first `given`, which have been returned, stay as they are."""
        self._first = self._last
        self._forward_K[:] = 0
        self._add(nccf_RK, pov_RL)
        self._first += given

    def finish(self) -> np.ndarray:
        """Return the remaining frames, as `push` does, and reset the tracker."""
        rest = self._emit(self._last - self._first, int(self._forward_K.argmin()))
        self._forward_K[:] = 0
        return rest

    def _add(self, nccf_RK: np.ndarray, pov_RL: np.ndarray) -> None:
        kept, frames = self._last - self._first, len(nccf_RK)
        if self._last + frames > len(self._back_TK):
            # Move the kept rows to the front of the same array or of a new one, large enough that this happens rarely.
            for name in ("_back_TK", "_pov_TL"):
                old = getattr(self, name)
                fits = 2 * (kept + frames) <= len(old)
                new = old if fits else np.empty((3 * (kept + frames), old.shape[1]), old.dtype)
                new[:kept] = old[self._first : self._last]
                setattr(self, name, new)
            self._first, self._last = 0, kept
        new_rows = slice(self._last, self._last + frames)
        self._pov_TL[new_rows] = pov_RL
        search(nccf_RK, self._lags_K, self._soft_min_f0, self._factor, self._forward_K, self._back_TK[new_rows])
        self._last += frames

    def _emit(self, frames: int, state: int) -> np.ndarray:
        """Trace back from `state` in the last of the first `frames` kept frames; return and forget these frames."""
        raw_T2 = np.empty((frames, 2), np.float32)
        rows = slice(self._first, self._first + frames)
        trace(self._back_TK[rows], self._pov_TL[rows], self._weights_KL, self._lags_K, state, raw_T2)
        self._first += frames
        return raw_T2


@jit
def search(nccf_RK, lags_K, soft_min_f0, factor, forward_K, back_RK):  # type: ignore[no-untyped-def]
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
        # The lower envelope of the parabolas: remove those from its right end that the next one lies below.
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
        # Each state's best predecessor is the centre of the parabola above it; add its cost and that of the state.
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
def agreed(back_TK):  # type: ignore[no-untyped-def]
    """How many of the first frames all paths agree on, and the state in the last of those (Kaldi ComputeLatency)."""
    low, high = 0, back_TK.shape[1] - 1
    for t in range(len(back_TK) - 1, 0, -1):
        low, high = back_TK[t, low], back_TK[t, high]
        if low == high:
            return t, low
    return 0, 0


@numba.njit(cache=True, nogil=True)
def state_before(back_TK, state):  # type: ignore[no-untyped-def]
    """The state before the first of these frames on the path to `state` of the last one."""
    for t in range(len(back_TK) - 1, -1, -1):
        state = back_TK[t, state]
    return state


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def trace(back_TK, pov_TL, weights_KL, lags_K, state, raw_T2):  # type: ignore[no-untyped-def]
    """Fill `raw_T2` from its last frame to its first."""
    for t in range(len(raw_T2) - 1, -1, -1):
        total = np.float32(0)
        for lag in range(pov_TL.shape[1]):
            total += weights_KL[state, lag] * pov_TL[t, lag]
        raw_T2[t, 0], raw_T2[t, 1] = total, 1.0 / lags_K[state]
        state = back_TK[t, state]
