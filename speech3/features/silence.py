"""Digital silence: muted, edited or padded stretches of a recording, which no microphone recorded.

Log energies of zeros are at the floor of the logarithm, -15.9, ten standard deviations below speech (Kaldi's dither
raises them to about 4, a few below it). If such frames counted, 100 ms of them in an utterance would change the
features of its speech. So they are left out of every mean and variance, and their own normalised features are limited.

Axes: S samples, T frames, P samples of a part of a frame, B samples of a block, F features.
"""

import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.features.spectrum import SAMPLE_SCALE
from speech3.features.window import framing, mirror_edges

# Zeros, any other constant, or zeros and ones: decoders of compressed audio round and dither to within one 16-bit step.
# Noise of a microphone that was recorded with 16 bits has a variance of a whole step and more, as has Kaldi's dither.
_LARGEST_VARIANCE = 1 / 3 / SAMPLE_SCALE**2
# A frame that is silent for 10 of its 25 ms is neither speech nor background.
_PART = 0.4
# Equal frames of features in a row. Fewer may come from features of a longer shift that were repeated.
_LEAST_REPEATED = 5
_EQUAL = 1e-4  # more than equal frames differ by rounding


def silent_frames(wave_S: Tensor, frames: int, config: FeatureConfig, sample_rate_hz: int) -> Tensor:
    """Which of the first `frames` frames begin or end in digital silence, bool (T,).

    It depends on the samples of each frame alone, so a stream (whose frames are cut as `snip_edges` cuts them) finds
    the same frames.

    Parameters
    ----------
    wave_S
        float32 in [-1, 1), after dither.
    """
    silent_T = torch.zeros(frames, dtype=torch.bool, device=wave_S.device)
    if not frames:
        return silent_T
    sizes = framing(config, sample_rate_hz)
    if not config.snip_edges:
        wave_S = mirror_edges(wave_S[None], torch.tensor([len(wave_S)]), sizes, frames)[0]
    part = max(int(_PART * sizes.length), 2)
    if not _may_be_silent(wave_S, part):
        return silent_T
    for first in (0, sizes.length - part):
        parts_TP = wave_S[first : first + (frames - 1) * sizes.shift + part].unfold(0, part, sizes.shift)
        silent_T |= parts_TP.var(1, correction=0) <= _LARGEST_VARIANCE
    return silent_T


def _may_be_silent(wave_S: Tensor, part: int) -> bool:
    """A quick answer for most recordings: whether a block is so quiet that a silent part may contain it."""
    block = part // 2  # each part contains a whole block, wherever the part begins
    blocks = len(wave_S) // block
    variance_B = wave_S[: blocks * block].view(blocks, block).var(1, correction=0)
    return bool((variance_B <= _LARGEST_VARIANCE * part / block).any())


def repeated_frames(feats_TF: Tensor) -> Tensor:
    """Which frames are equal to their neighbours, `_LEAST_REPEATED` and more in a row, bool (T,).

    This is how digital silence looks in features whose recording is not at hand. Features of noise are never equal.
    """
    repeated_T = torch.zeros(len(feats_TF), dtype=torch.bool, device=feats_TF.device)
    if len(feats_TF) < _LEAST_REPEATED:
        return repeated_T
    equal_T = ((feats_TF[1:] - feats_TF[:-1]).abs() <= _EQUAL).all(1)  # not of NaN
    run_T = torch.cat([equal_T.new_zeros(1), ~equal_T]).cumsum(0)
    return torch.bincount(run_T)[run_T] >= _LEAST_REPEATED
