"""Framing: cutting a recording into frames (Kaldi feat/feature-window.cc).

Axes: N utterances, S samples, L samples of a frame.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.errors import Speech3Error


@dataclass(frozen=True)
class Framing:
    """Frame length, frame shift and FFT size in samples."""

    length: int
    shift: int
    fft: int
    snip_edges: bool

    def frames(self, samples: int) -> int:
        """Number of frames in a recording (Kaldi NumFrames)."""
        if self.snip_edges:
            return 0 if samples < self.length else 1 + (samples - self.length) // self.shift
        return (samples + self.shift // 2) // self.shift

    def span(self, frames: int) -> int:
        """Number of samples from the start of the first to the end of the last of `frames` frames."""
        return (frames - 1) * self.shift + self.length


def framing(config: FeatureConfig, sample_rate_hz: int) -> Framing:
    """Sizes at a sample rate, truncated to whole samples as Kaldi truncates them.

    Raises
    ------
    Speech3Error
        Frames are shorter than two samples, or their shift is shorter than one.
    """
    length = int(sample_rate_hz * 0.001 * config.frame_length)
    shift = int(sample_rate_hz * 0.001 * config.frame_shift)
    if length < 2 or shift < 1:
        raise Speech3Error(
            f"frame_length {config.frame_length:g} ms and frame_shift {config.frame_shift:g} ms are {length} and "
            f"{shift} samples at {sample_rate_hz} Hz; at least 2 and 1 are needed: make them longer"
        )
    fft = 1 << (length - 1).bit_length() if config.round_to_power_of_two else length
    return Framing(length, shift, fft, config.snip_edges)


def window(config: FeatureConfig, length: int) -> Tensor:
    """The window function of `config`, float64 (L,)."""
    i_L = torch.arange(length, dtype=torch.float64)
    cosine_L = torch.cos(2 * math.pi / (length - 1) * i_L)
    match config.window_type:
        case "povey":
            return (0.5 - 0.5 * cosine_L).clamp(min=0).pow(0.85)
        case "hanning":
            return 0.5 - 0.5 * cosine_L
        case "hamming":
            return 0.54 - 0.46 * cosine_L
        case "sine":
            return torch.sin(math.pi / (length - 1) * i_L)
        case "rectangular":
            return torch.ones_like(i_L)
        case "blackman":
            second_L = torch.cos(4 * math.pi / (length - 1) * i_L)
            return config.blackman_coeff - 0.5 * cosine_L + (0.5 - config.blackman_coeff) * second_L


def mirror_edges(waves_NS: Tensor, lengths_N: Tensor, sizes: Framing, frames: int) -> Tensor:
    """Extend recordings by their mirror image, so that frame t of ``snip_edges=false`` starts at sample t * shift.

    Kaldi centres frame t on sample t * shift + shift / 2 and reflects the recording at its edges as often as needed,
    which makes a periodic signal of twice its length.
    """
    start = sizes.shift // 2 - sizes.length // 2
    index_S = torch.arange(start, start + sizes.span(frames), device=waves_NS.device)
    lengths_N1 = lengths_N.to(waves_NS.device).clamp(min=1)[:, None]
    phase_NS = index_S.remainder(2 * lengths_N1)
    return waves_NS.gather(1, torch.minimum(phase_NS, 2 * lengths_N1 - 1 - phase_NS))
