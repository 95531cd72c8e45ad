"""Pitch and voicing, equal to Kaldi's programs, of whole recordings and of one in progress.

`track_pitch` (compute-kaldi-pitch-feats; Ghahremani et al. 2014) runs the steps of `pitch_tracking`: it resamples,
correlates each frame with later samples, and finds the best path through the lags. `process`
(process-kaldi-pitch-feats) turns that into features. `OnlinePitch` does both piece by piece.

Axes: N utterances, S samples, T frames, P values of a frame, 2 correlation and pitch, O samples after resampling, R
rows: the frames of all utterances, concatenated into one long signal, with a few unused rows between utterances; W, L
and K as in `pitch_tracking`.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from speech3.config import FeatureConfig, PitchConfig
from speech3.features.context import delta_filters
from speech3.features.pitch_tracking import (
    RECOMPUTE_FRAME,
    PitchSizes,
    Tracker,
    at_states,
    changed,
    correlate,
    pitch_sizes,
    resample,
    rescale,
    variance,
)
from speech3.features.spectrum import check_waves

# Rows processed at once: on a CPU, few enough to stay in its caches; on a GPU, enough to keep it busy.
_ROWS_CPU, _ROWS_GPU = 512, 1 << 15


def track_pitch(
    waves_NS: Tensor, lengths_N: Tensor, config: FeatureConfig, sample_rate_hz: int
) -> tuple[Tensor, Tensor]:
    """Correlation and pitch of each frame, equal to Kaldi's compute-kaldi-pitch-feats.

    Arguments and errors as for `static_features`; of the config, `pitch` (None: the defaults), `frame_length`,
    `frame_shift` and `snip_edges` are used.

    Returns `raw_NT2`, float32 on the device of `waves_NS` (normalised cross-correlation at the best lag, and the pitch
    in Hz; zeros beyond an utterance's frames), and `frames_N`, int64 on the CPU.
    """
    check_waves(waves_NS, lengths_N, sample_rate_hz)
    sizes, pitch = pitch_sizes(config, sample_rate_hz), config.pitch or PitchConfig()
    signal_O, placed = _one_signal(waves_NS, lengths_N.tolist(), sizes)
    frames_N = torch.tensor([utterance.frames for utterance in placed], dtype=torch.int64)
    raw_NT2 = torch.zeros(len(placed), max(frames_N.tolist(), default=0), 2)
    if raw_NT2.numel():
        _track(signal_O, placed, pitch, sizes, raw_NT2)
    return raw_NT2.to(waves_NS.device), frames_N


@dataclass
class _Placed:
    row: int
    frames: int
    early: int  # frames that Kaldi computes before it is told that the input is finished
    early_energy: float  # energy of the samples resampled by then
    energy: float


def _one_signal(waves_NS: Tensor, lengths: list[int], sizes: PitchSizes) -> tuple[Tensor, list[_Placed]]:
    """All utterances, resampled and concatenated: row r begins at sample r * shift."""
    samples = [sizes.resampler.count(length, finished=True) for length in lengths]
    frames = [sizes.frames(count, finished=True) for count in samples]
    rows = [
        -(-max(sizes.lead + count, (t - 1) * sizes.shift + sizes.span) // sizes.shift) if t else 0
        for count, t in zip(samples, frames, strict=True)
    ]
    signal_O = waves_NS.new_zeros(sum(rows) * sizes.shift + sizes.span)
    placed, row = [], 0
    for wave_S, length, count, t, used in zip(waves_NS, lengths, samples, frames, rows, strict=True):
        early_samples = sizes.resampler.count(length, finished=False)
        early, early_energy, energy = sizes.frames(early_samples, finished=False), 0.0, 0.0
        if t:
            begin = row * sizes.shift + sizes.lead
            out_O = signal_O[begin : begin + count]
            moments_2 = resample(wave_S[:length], 0, 0, out_O[:early_samples], sizes.resampler)
            early_energy = variance(moments_2, early_samples)
            moments_2 += resample(wave_S[:length], 0, early_samples, out_O[early_samples:], sizes.resampler)
            energy = variance(moments_2, count)
        placed.append(_Placed(row, t, early, early_energy, energy))
        row += used
    return signal_O, placed


def _track(signal_O: Tensor, placed: list[_Placed], pitch: PitchConfig, sizes: PitchSizes, raw_NT2: Tensor) -> None:
    tracker, out = Tracker(pitch, sizes), raw_NT2.numpy()
    waiting = deque((n, utterance) for n, utterance in enumerate(placed) if utterance.frames)
    given = 0  # frames written of the first waiting utterance
    for start, nccf_RK, pov_RL in _correlated(signal_O, placed, pitch, sizes):
        stop = start + len(nccf_RK)
        while waiting and waiting[0][1].row < stop:
            n, utterance = waiting[0]
            end = utterance.row + utterance.frames
            part = slice(max(utterance.row - start, 0), min(end, stop) - start)
            pieces = [tracker.push(nccf_RK[part], pov_RL[part])]
            if end <= stop:
                pieces.append(tracker.finish())
                waiting.popleft()
            for raw_T2 in pieces:
                out[n, given : given + len(raw_T2)] = raw_T2
                given += len(raw_T2)
            if end > stop:
                break
            given = 0


def _correlated(
    signal_O: Tensor, placed: list[_Placed], pitch: PitchConfig, sizes: PitchSizes
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield chunks of rows: the first row, correlations with ballast (R, K) and without (R, L)."""
    rows = (len(signal_O) - sizes.span) // sizes.shift
    most = _ROWS_CPU if signal_O.device.type == "cpu" else _ROWS_GPU
    first_R, energy_R = _energies(placed, rows)
    for start in range(0, rows, most):
        count = min(most, rows - start)
        frames_RW = signal_O.as_strided((count, sizes.span), (sizes.shift, 1), start * sizes.shift)
        first, energy = (e_R[start : start + count].to(signal_O.device) for e_R in (first_R, energy_R))
        found = correlate(frames_RW, first, pitch, sizes)
        if not torch.equal(first, energy):
            found.pitch_RL *= rescale(first, energy, found.norm_R, pitch, sizes)[:, None]
        yield start, at_states(found.pitch_RL, sizes).cpu().numpy(), found.pov_RL.cpu().numpy()


def _energies(placed: list[_Placed], rows: int) -> tuple[Tensor, Tensor]:
    """The signal's energy as estimated for each row: when Kaldi first computes it, and after Kaldi's recomputation."""
    first_R, energy_R = torch.zeros(rows), torch.zeros(rows)
    for utterance in placed:
        early, end = utterance.row + utterance.early, utterance.row + utterance.frames
        first_R[utterance.row : early], first_R[early:end] = utterance.early_energy, utterance.energy
        again = utterance.early < RECOMPUTE_FRAME and changed(utterance.early_energy, utterance.energy)
        energy_R[utterance.row : early] = utterance.energy if again else utterance.early_energy
        energy_R[early:end] = utterance.energy
    return first_R, energy_R


def process(raw_NT2: Tensor, frames_N: Tensor, config: PitchConfig, noise_NT: Tensor | None = None) -> Tensor:
    """Voicing feature, normalised log pitch, delta pitch, raw log pitch, in this order; those that `config` asks for.

    `raw_NT2`: float32, from `track_pitch`; values beyond an utterance's frames are ignored.
    `noise_NT`: standard normal; added to delta pitch, scaled by `delta_pitch_noise_stddev`.
    Returns float32; zeros beyond an utterance's frames.
    """
    frames, device = raw_NT2.shape[1], raw_NT2.device
    if raw_NT2.shape[0] * frames == 0:
        return raw_NT2.new_zeros(*raw_NT2.shape[:2], config.dim)
    t_T, frames_N1 = torch.arange(frames, device=device), frames_N.to(device)[:, None]
    beyond_NT = t_T >= frames_N1
    nccf_NT = raw_NT2[..., 0].masked_fill(beyond_NT, 0.0)
    log_pitch_NT = raw_NT2[..., 1].masked_fill(beyond_NT, 1.0).log_()
    columns = []
    if config.add_pov_feature:
        columns.append(pov_feature(nccf_NT).mul_(config.pov_scale).add_(config.pov_offset))
    if config.add_normalized_log_pitch:
        columns.append(_normalised(log_pitch_NT, nccf_NT, beyond_NT, frames_N1, config).mul_(config.pitch_scale))
    if config.add_delta_pitch:
        delta_NT = _deltas(log_pitch_NT, frames_N1, config.delta_window)
        if noise_NT is not None:
            delta_NT.add_(noise_NT, alpha=config.delta_pitch_noise_stddev)
        columns.append(delta_NT.mul_(config.delta_pitch_scale))
    if config.add_raw_log_pitch:
        columns.append(log_pitch_NT)
    return torch.stack(columns, -1).masked_fill_(beyond_NT[..., None], 0.0)


def pov_feature(nccf_NT: Tensor) -> Tensor:
    """A voicing feature that is roughly Gaussian (Kaldi NccfToPovFeature)."""
    return (1.0001 - nccf_NT.clamp(-1, 1)).pow_(0.15).sub_(1.0)


def voicing_probability(nccf_NT: Tensor) -> Tensor:
    """Probability of voicing (Kaldi NccfToPov)."""
    n_NT = nccf_NT.abs().clamp_(max=1.0)
    rise_NT = 5.4 * torch.exp(7.5 * (n_NT - 1)) + 4.2 * torch.exp(20 * (n_NT - 1))
    return torch.sigmoid_(rise_NT.add_(4.8 * n_NT).sub_(2 * torch.exp(-10 * n_NT)).sub_(5.2))


def _normalised(
    log_pitch_NT: Tensor, nccf_NT: Tensor, beyond_NT: Tensor, frames_N1: Tensor, config: PitchConfig
) -> Tensor:
    voicing_NT = voicing_probability(nccf_NT).double().masked_fill_(beyond_NT, 0.0)
    t_T = torch.arange(log_pitch_NT.shape[1], device=log_pitch_NT.device)
    first_T = (t_T - config.normalization_left_context).clamp_(min=0)
    last_NT = torch.minimum(t_T + config.normalization_right_context + 1, frames_N1)

    def around(values_NT: Tensor) -> Tensor:
        sums_NT = functional.pad(values_NT.cumsum(1), (1, 0))
        return sums_NT.gather(1, last_NT) - sums_NT[:, first_T]

    weight_NT = around(voicing_NT)
    mean_NT = around(voicing_NT * log_pitch_NT).div_(weight_NT.masked_fill_(beyond_NT, 1.0))
    return log_pitch_NT - mean_NT.float()


def _deltas(log_pitch_NT: Tensor, frames_N1: Tensor, window: int) -> Tensor:
    """First derivative, with the first and the last frame of each utterance repeated beyond the edges."""
    frames = log_pitch_NT.shape[1]
    t_T = torch.arange(-window, frames + window, device=log_pitch_NT.device)
    index_NT = torch.minimum(t_T, frames_N1 - 1).clamp_(min=0)
    padded_NT = log_pitch_NT.gather(1, index_NT)
    delta_NT = torch.zeros_like(log_pitch_NT)
    for j, tap in enumerate(delta_filters(1, window)[1].tolist()):
        delta_NT.add_(padded_NT[:, j : j + frames], alpha=tap)
    return delta_NT


class OnlinePitch:
    """`track_pitch` and `process` for one utterance: `accept` its samples piece by piece, then `finish`.

    A frame is returned when all paths of the tracker agree on it (or after `max_frames_latency` frames) and its windows
    are complete. With one piece the values are those of the whole recording. Otherwise they may differ in quiet frames,
    mostly before the first loud ones: the ballast of a correlation depends on the energy of the signal so far, and
    frames returned before frame 500, where the tracker recomputes as Kaldi's does (`recompute_frame`), do not change.
    Delta pitch gets no noise. Memory is bounded: a few MB, or 120 MB after minutes of silence.
    """

    def __init__(self, config: FeatureConfig, sample_rate_hz: int) -> None:
        self._pitch = config.pitch or PitchConfig()
        self._sizes = pitch_sizes(config, sample_rate_hz)
        self._tracker = Tracker(self._pitch, self._sizes, self._pitch.max_frames_latency)
        self._post = _OnlinePost(self._pitch)
        self._wave_S, self._origin, self._samples = torch.zeros(0), 0, 0  # kept samples, their start; number so far
        self._signal_O, self._resampled = torch.zeros(self._sizes.lead), 0  # from the next frame on; number so far
        self._moments_2 = torch.zeros(2, dtype=torch.float64)
        self._frames = self._given = 0
        self._early: list[_Early] | None = []  # None: already recomputed

    def accept(self, wave_S: Tensor) -> Tensor:
        """Take the next samples, float32 in [-1, 1); return the frames (T, P) that they make final, T often 0."""
        self._wave_S = torch.cat([self._wave_S.to(wave_S.device), wave_S])
        self._samples += len(wave_S)
        return self._post.accept(self._advance(finished=False)).to(wave_S.device)

    def finish(self) -> Tensor:
        device = self._wave_S.device
        raw_T2 = self._advance(finished=True)
        self._recompute_early()
        return self._post.accept(np.concatenate([raw_T2, self._tracker.finish()]), finished=True).to(device)

    def _advance(self, *, finished: bool) -> np.ndarray:
        """Correlate and track all frames that the samples so far allow; the raw (T, 2) of those that became settled."""
        sizes = self._sizes
        self._resample(sizes.resampler.count(self._samples, finished=finished))
        first, last = self._frames, sizes.frames(self._resampled, finished=finished)
        missing = (last - first - 1) * sizes.shift + sizes.span - len(self._signal_O) if last > first else 0
        self._signal_O = functional.pad(self._signal_O, (0, max(missing, 0)))  # at the end of the signal only
        raw = [np.empty((0, 2), np.float32)]
        while self._frames < last:
            stop = min(last, self._frames + _ROWS_CPU, RECOMPUTE_FRAME if self._frames < RECOMPUTE_FRAME else last)
            raw.append(self._track(self._signal_O[(self._frames - first) * sizes.shift :], stop - self._frames))
            if stop == RECOMPUTE_FRAME:
                self._recompute_early()
        self._signal_O = self._signal_O[(last - first) * sizes.shift :].clone()
        return np.concatenate(raw)

    def _resample(self, until: int) -> None:
        new_O = self._wave_S.new_empty(until - self._resampled)
        moments_2 = resample(self._wave_S, self._origin, self._resampled, new_O, self._sizes.resampler)
        self._moments_2 = self._moments_2.to(new_O.device) + moments_2
        self._signal_O = torch.cat([self._signal_O.to(new_O.device), new_O])
        self._resampled = until
        origin = max(self._sizes.resampler.first_sample(until), 0)
        self._wave_S, self._origin = self._wave_S[origin - self._origin :].clone(), origin

    def _track(self, signal_O: Tensor, frames: int) -> np.ndarray:
        sizes, pitch = self._sizes, self._pitch
        frames_RW = signal_O.as_strided((frames, sizes.span), (sizes.shift, 1))
        energy_R = signal_O.new_full((frames,), variance(self._moments_2, self._resampled))
        found = correlate(frames_RW, energy_R, pitch, sizes)
        nccf_RK, pov_RL = at_states(found.pitch_RL, sizes).cpu().numpy(), found.pov_RL.cpu().numpy()
        if self._early is not None:
            self._early.append(_Early(energy_R.cpu(), found.norm_R.cpu(), nccf_RK, pov_RL))
        raw_T2 = self._tracker.push(nccf_RK, pov_RL)
        self._frames, self._given = self._frames + frames, self._given + len(raw_T2)
        return raw_T2

    def _recompute_early(self) -> None:
        """Recompute the early frames if the estimate of the signal's energy has changed since."""
        early, self._early = self._early, None
        if not early:
            return
        first_R, norm_R = torch.cat([e.first_R for e in early]), torch.cat([e.norm_R for e in early])
        energy = variance(self._moments_2, self._resampled)
        if any(changed(first, energy) for first in first_R.unique().tolist()):
            scale_R = rescale(first_R, torch.full_like(first_R, energy), norm_R, self._pitch, self._sizes)
            nccf_RK = np.concatenate([e.nccf_RK for e in early]) * scale_R.numpy()[:, None]
            self._tracker.again(nccf_RK, np.concatenate([e.pov_RL for e in early]), self._given)


@dataclass
class _Early:
    first_R: Tensor
    norm_R: Tensor
    nccf_RK: np.ndarray
    pov_RL: np.ndarray


class _OnlinePost:
    """`process` for frames as they arrive; each waits for the later frames in its windows."""

    def __init__(self, pitch: PitchConfig) -> None:
        self._pitch = pitch
        self._left = max(pitch.normalization_left_context, pitch.delta_window)
        self._right = pitch.right_context
        self._raw_T2 = np.empty((0, 2), np.float32)  # from frame self._first on
        self._first = self._next = 0

    def accept(self, raw_T2: np.ndarray, *, finished: bool = False) -> Tensor:
        self._raw_T2 = np.concatenate([self._raw_T2, raw_T2])
        frames = len(self._raw_T2)
        end = self._first + frames - (0 if finished else self._right)
        if end <= self._next:
            return torch.empty(0, self._pitch.dim)
        feats_NTP = process(torch.from_numpy(self._raw_T2)[None], torch.tensor([frames]), self._pitch)
        feats_TP = feats_NTP[0, self._next - self._first : end - self._first]
        first = max(end - self._left, self._first)
        self._raw_T2 = self._raw_T2[first - self._first :].copy()
        self._first, self._next = first, end
        return feats_TP
