"""Pitch and voicing: Kaldi's pitch tracker and its post-processing, equal to Kaldi's programs.

The tracker (`track`, compute-kaldi-pitch-feats; Ghahremani et al., A pitch extraction algorithm tuned for automatic
speech recognition, 2014) resamples (`pitch_resample`), correlates each frame with later samples (`pitch_nccf`), and
finds the best path through the lags (`pitch_viterbi`). `process` (process-kaldi-pitch-feats) turns that into features.

Axes: N utterances, S samples, T frames, P values of a frame, 2 correlation and pitch, O samples after resampling, R
rows: the frames of all utterances, concatenated into one long signal, with a few unused rows between utterances; L and
K lags, as in `pitch_nccf`.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from speech3.config import FeatureConfig, PitchConfig
from speech3.features.pitch_nccf import (
    RECOMPUTE_FRAME,
    PitchSizes,
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
from speech3.features.waves import check_waves

__all__ = ["process", "track"]

# Rows processed at once: on a CPU, few enough to stay in its caches; on a GPU, enough to keep it busy.
_ROWS_CPU, _ROWS_GPU = 512, 1 << 15


@dataclass
class _Placed:
    """One utterance within the long signal."""

    row: int
    frames: int
    early: int  # frames that Kaldi computes before it is told that the input is finished
    early_energy: float  # energy of the samples resampled by then
    energy: float


def track(waves_NS: Tensor, lengths_N: Tensor, config: FeatureConfig, sample_rate_hz: int) -> tuple[Tensor, Tensor]:
    """Correlation and pitch of each frame, equal to Kaldi's compute-kaldi-pitch-feats.

    Parameters
    ----------
    waves_NS
        float32 in [-1, 1), on any device. Samples beyond an utterance's length are ignored.
    lengths_N
        Samples of each utterance, integers.
    config
        `pitch` (None: the defaults), `frame_length`, `frame_shift` and `snip_edges` are used.

    Returns
    -------
    raw_NT2
        float32, on the device of `waves_NS`: normalised cross-correlation at the best lag, and the pitch in Hz; zeros
        beyond an utterance's frames.
    frames_N
        int64 on the CPU.

    Raises
    ------
    Speech3Error
        The config does not fit the sample rate.
    """
    check_waves(waves_NS, lengths_N, sample_rate_hz)
    sizes, pitch = pitch_sizes(config, sample_rate_hz), config.pitch or PitchConfig()
    signal_O, placed = _one_signal(waves_NS, lengths_N.tolist(), sizes)
    frames_N = torch.tensor([utterance.frames for utterance in placed], dtype=torch.int64)
    raw_NT2 = torch.zeros(len(placed), max(frames_N.tolist(), default=0), 2)
    if raw_NT2.numel():
        _track(signal_O, placed, pitch, sizes, raw_NT2)
    return raw_NT2.to(waves_NS.device), frames_N


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
    """Fill `raw_NT2` with correlation and pitch."""
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
    heard_R, energy_R = _energies(placed, rows)
    for start in range(0, rows, most):
        count = min(most, rows - start)
        frames_RW = signal_O.as_strided((count, sizes.span), (sizes.shift, 1), start * sizes.shift)
        heard, energy = (e_R[start : start + count].to(signal_O.device) for e_R in (heard_R, energy_R))
        found = correlate(frames_RW, heard, pitch, sizes)
        if not torch.equal(heard, energy):
            found.pitch_RL *= rescale(heard, energy, found.norm_R, pitch, sizes)[:, None]
        yield start, at_states(found.pitch_RL, sizes).cpu().numpy(), found.pov_RL.cpu().numpy()


def _energies(placed: list[_Placed], rows: int) -> tuple[Tensor, Tensor]:
    """The signal's energy as estimated for each row: when Kaldi first computes it, and after Kaldi's recomputation."""
    heard_R, energy_R = torch.zeros(rows), torch.zeros(rows)
    for utterance in placed:
        early, end = utterance.row + utterance.early, utterance.row + utterance.frames
        heard_R[utterance.row : early], heard_R[early:end] = utterance.early_energy, utterance.energy
        again = utterance.early < RECOMPUTE_FRAME and changed(utterance.early_energy, utterance.energy)
        energy_R[utterance.row : early] = utterance.energy if again else utterance.early_energy
        energy_R[early:end] = utterance.energy
    return heard_R, energy_R
