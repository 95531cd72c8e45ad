"""Pitch of a recording that is still being made (Kaldi OnlinePitchFeature and OnlineProcessPitch).

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

    A frame comes out when all paths of the tracker agree on it (or `max_frames_latency` later) and the frames of its
    normalisation window, and of its delta window, have come so far. There are as many as of the whole recording, and
    their values are the same if all comes in one piece. Else they may differ by this:

    - The ballast of a frame's correlation comes from the energy of the signal up to the end of its piece, not of the
      whole. At frame 500, or at the end if that is before, the tracker goes through the frames so far again with the
      energy it knows then, as Kaldi's does (`recompute_frame`); but what has been given out stays. So the path may be
      another one where it is a close choice: in quiet frames, above all in those before the first loud ones.
    - With `max_frames_latency` it is cut off before it is settled.

    Delta pitch gets no noise. What is kept is of bounded length: a few MB, and 120 MB after minutes of silence.

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
        self._wave_S, self._origin, self._samples = torch.zeros(0), 0, 0  # what is kept, where it begins; all so far
        self._signal_O, self._resampled = torch.zeros(self._sizes.lead), 0  # from the next frame on; all so far
        self._moments_2 = torch.zeros(2, dtype=torch.float64)
        self._frames = self._given = 0
        self._early: list[_Early] | None = []  # None: has been gone through again

    def accept(self, wave_S: Tensor) -> Tensor:
        """Take the next samples, float32 in [-1, 1); return the frames (T, P) that are final with them, T often 0."""
        self._wave_S = torch.cat([self._wave_S.to(wave_S.device), wave_S])
        self._samples += len(wave_S)
        return self._post.accept(self._advance(finished=False)).to(wave_S.device)

    def finish(self) -> Tensor:
        """Return all frames that are left."""
        device = self._wave_S.device
        raw_T2 = self._advance(finished=True)
        self._look_again()
        return self._post.accept(np.concatenate([raw_T2, self._tracker.finish()]), finished=True).to(device)

    def _advance(self, *, finished: bool) -> np.ndarray:
        """Correlate and track the frames that the samples so far make; the raw (T, 2) that became settled."""
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
        """Move what of the kept wave can be resampled to the signal, up to its sample `until`."""
        new_O = self._wave_S.new_empty(until - self._resampled)
        moments_2 = resample(self._wave_S, self._origin, self._resampled, new_O, self._sizes.resampler)
        self._moments_2 = self._moments_2.to(new_O.device) + moments_2
        self._signal_O = torch.cat([self._signal_O.to(new_O.device), new_O])
        self._resampled = until
        origin = max(self._sizes.resampler.first_sample(until), 0)
        self._wave_S, self._origin = self._wave_S[origin - self._origin :].clone(), origin

    def _track(self, signal_O: Tensor, frames: int) -> np.ndarray:
        """Of the next frames; the raw (T, 2) that became settled."""
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
        """Go through the early frames again if the signal's energy is another one by now."""
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
    """Some of the first frames: what it takes to go through them again."""

    heard_R: Tensor
    norm_R: Tensor
    nccf_RK: np.ndarray
    pov_RL: np.ndarray


class _OnlinePost:
    """`process`, of frames as they come; each waits for those that it looks at."""

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
