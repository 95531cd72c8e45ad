"""Pitch of a recording in progress (Kaldi OnlinePitchFeature and OnlineProcessPitch).

Axes: S samples, O samples after resampling, T frames, P values of a frame, 2 correlation and pitch; R, W, L, K as in
`pitch_nccf`.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from speech3.config import FeatureConfig, PitchConfig
from speech3.features.pitch_nccf import (
    RECOMPUTE_FRAME,
    at_states,
    changed,
    correlate,
    pitch_sizes,
    rescale,
    variance,
)
from speech3.features.pitch_post import process
from speech3.features.pitch_resample import resample
from speech3.features.pitch_viterbi import Tracker

_ROWS = 512  # frames correlated at once


class OnlinePitch:
    """`track` and `process` for one utterance: `accept` its samples piece by piece, then `finish`.

    A frame is returned when all paths of the tracker agree on it (or after `max_frames_latency` frames) and the frames
    of its normalisation window and its delta window have arrived. There are as many frames as in the whole recording,
    and their values are the same if all samples come in one piece. Otherwise they may differ for two reasons:

    - The ballast of a frame's correlation depends on the energy of the signal up to the end of its piece, not of the
      whole signal. At frame 500, or at the end if that is earlier, the tracker recomputes the frames so far with the
      energy known by then, as Kaldi's does (`recompute_frame`); but frames that were returned before do not change. So
      the path may differ where the choice is close: in quiet frames, mostly in those before the first loud ones.
    - With `max_frames_latency` frames are returned before all paths agree.

    Delta pitch gets no noise. Memory is bounded: a few MB, or 120 MB after minutes of silence.

    Raises
    ------
    Speech3Error
        The config does not fit the sample rate.
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
        """Return all remaining frames."""
        device = self._wave_S.device
        raw_T2 = self._advance(finished=True)
        self._look_again()
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
            stop = min(last, self._frames + _ROWS, RECOMPUTE_FRAME if self._frames < RECOMPUTE_FRAME else last)
            raw.append(self._track(self._signal_O[(self._frames - first) * sizes.shift :], stop - self._frames))
            if stop == RECOMPUTE_FRAME:
                self._look_again()
        self._signal_O = self._signal_O[(last - first) * sizes.shift :].clone()
        return np.concatenate(raw)

    def _resample(self, until: int) -> None:
        """Resample the kept wave up to sample `until` of the signal, and drop what is no longer needed of it."""
        new_O = self._wave_S.new_empty(until - self._resampled)
        moments_2 = resample(self._wave_S, self._origin, self._resampled, new_O, self._sizes.resampler)
        self._moments_2 = self._moments_2.to(new_O.device) + moments_2
        self._signal_O = torch.cat([self._signal_O.to(new_O.device), new_O])
        self._resampled = until
        origin = max(self._sizes.resampler.first_sample(until), 0)
        self._wave_S, self._origin = self._wave_S[origin - self._origin :].clone(), origin

    def _track(self, signal_O: Tensor, frames: int) -> np.ndarray:
        """Correlate and track the next frames; the raw (T, 2) of those that became settled."""
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

    def _look_again(self) -> None:
        """Recompute the early frames if the estimate of the signal's energy has changed since."""
        early, self._early = self._early, None
        if not early:
            return
        heard_R, norm_R = torch.cat([e.heard_R for e in early]), torch.cat([e.norm_R for e in early])
        energy = variance(self._moments_2, self._resampled)
        if any(changed(heard, energy) for heard in heard_R.unique().tolist()):
            scale_R = rescale(heard_R, torch.full_like(heard_R, energy), norm_R, self._pitch, self._sizes)
            nccf_RK = np.concatenate([e.nccf_RK for e in early]) * scale_R.numpy()[:, None]
            self._tracker.again(nccf_RK, np.concatenate([e.pov_RL for e in early]), self._given)


@dataclass
class _Early:
    """Some of the first frames: what is needed to recompute them."""

    heard_R: Tensor
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
