"""Power spectra of the frames of a batch of recordings, in chunks small enough to stay in a core's cache.

The mean of each frame is subtracted, then preemphasis and window follow (Kaldi feat/feature-window.cc, ProcessWindow).
Preemphasis of the whole recording, before it is cut into frames, would save a few per cent of the time; but a frame of
constant samples would then not be exactly zero, and its logarithm would be far from Kaldi's.

Axes: N utterances, S samples, T frames, L samples of a frame, B bins of the spectrum.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.features.window import Framing, framing, window

SAMPLE_SCALE = 32768.0  # Kaldi works on the values of 16-bit samples
EPSILON = torch.finfo(torch.float32).eps  # Kaldi's floor before every logarithm

# Input values of the FFT per chunk: on a CPU, few enough to stay in a core's caches together with its output (measured:
# with half as many it is a tenth slower, with a quarter a fifth); on a GPU, enough to keep it busy.
_CHUNK_CPU, _CHUNK_GPU = 1 << 19, 1 << 26


@dataclass
class Chunk:
    """Frames ``start`` to ``start + T`` of utterances ``first`` to ``first + N``."""

    first: int
    start: int
    power_NTB: Tensor
    log_energy_NT: Tensor | None


def frames_at_once(device: torch.device, sizes: Framing) -> int:
    """Largest number of frames in a chunk."""
    return max((_CHUNK_CPU if device.type == "cpu" else _CHUNK_GPU) // sizes.fft, 1)


@lru_cache(maxsize=16)
def _window(config: FeatureConfig, length: int, device: torch.device) -> Tensor:
    return (window(config, length) * SAMPLE_SCALE).to(device, torch.float32)


def power_spectra(waves_NS: Tensor, frames_N: list[int], config: FeatureConfig, sample_rate_hz: int) -> Iterator[Chunk]:
    """Yield the power spectra (and log energies, if the config asks for them) of all frames.

    Parameters
    ----------
    waves_NS
        float32; frame t of an utterance starts at sample t * shift.
    frames_N
        Frames of each utterance; a chunk of several utterances reaches to the end of the longest one.

    Yields
    ------
    Chunk
        Bins 0 to Nyquist. The tensors are reused: copy what is needed before asking for the next chunk.
    """
    sizes = framing(config, sample_rate_hz)
    on_cpu = waves_NS.device.type == "cpu"
    cut, power = (_cut_cpu, _power_cpu) if on_cpu else (_cut, _power)
    most = frames_at_once(waves_NS.device, sizes)
    buffer = waves_NS.new_zeros(min(most, len(frames_N) * max(frames_N)) * sizes.fft)
    rows = max(most // max(frames_N), 1)
    for first in range(0, len(frames_N), rows):
        longest = max(frames_N[first : first + rows])
        for start in range(0, longest, most):
            frames = min(most, longest - start)
            begin = start * sizes.shift
            part_NS = waves_NS[first : first + rows, begin : begin + sizes.span(frames)].contiguous()
            # The buffer's rows end in the zeros that pad a frame to the FFT's size; these are never overwritten.
            shape = (len(part_NS), frames, sizes.fft)
            windowed_NTD = buffer[: shape[0] * shape[1] * shape[2]].view(shape)
            log_energy_NT = cut(part_NS, windowed_NTD, config, sizes)
            yield Chunk(first, start, power(torch.fft.rfft(windowed_NTD)), log_energy_NT)


def _cut(part_NS: Tensor, out_NTD: Tensor, config: FeatureConfig, sizes: Framing) -> Tensor | None:
    """Write the windowed frames of a part of the recordings to `out_NTD`; return their log energies, if asked for."""
    out_NTL = out_NTD[..., : sizes.length]
    frames_NTL = part_NS.as_strided(out_NTL.shape, (part_NS.shape[1], sizes.shift, 1))
    if config.remove_dc_offset:
        frames_NTL = frames_NTL - frames_NTL.mean(-1, keepdim=True)
    log_energy_NT = None
    if config.use_energy and config.raw_energy:
        log_energy_NT = _log_energy(frames_NTL.square().sum(-1), SAMPLE_SCALE, config)
    coefficient = config.preemphasis_coefficient
    torch.sub(frames_NTL[..., 1:], frames_NTL[..., :-1], alpha=coefficient, out=out_NTL[..., 1:])
    torch.mul(frames_NTL[..., 0], 1 - coefficient, out=out_NTL[..., 0])  # the first sample is repeated before the frame
    out_NTL.mul_(_window(config, sizes.length, part_NS.device))
    if config.use_energy and not config.raw_energy:
        log_energy_NT = _log_energy(out_NTL.square().sum(-1), 1.0, config)
    return log_energy_NT


def _power(spectrum_NTB: Tensor) -> Tensor:
    squares_NTBC = torch.view_as_real(spectrum_NTB).square_()
    return squares_NTBC[..., 0] + squares_NTBC[..., 1]


def _cut_cpu(part_NS: Tensor, out_NTD: Tensor, config: FeatureConfig, sizes: Framing) -> Tensor | None:
    """As `_cut`, in one pass over the frames."""
    from speech3.features.spectrum_cpu import cut  # imports numba, which takes a second to load

    none_NT, energy_NT = part_NS.new_empty(0, 0), part_NS.new_empty(out_NTD.shape[:2])
    raw_NT = energy_NT if config.use_energy and config.raw_energy else none_NT
    windowed_NT = energy_NT if config.use_energy and not config.raw_energy else none_NT
    cut(
        part_NS.numpy(), sizes.shift, np.float32(config.preemphasis_coefficient), config.remove_dc_offset,
        _window(config, sizes.length, part_NS.device).numpy(), out_NTD.numpy(), raw_NT.numpy(), windowed_NT.numpy(),
    )  # fmt: skip
    if not config.use_energy:
        return None
    return _log_energy(energy_NT, SAMPLE_SCALE if config.raw_energy else 1.0, config)


def _power_cpu(spectrum_NTB: Tensor) -> Tensor:
    from speech3.features.spectrum_cpu import power

    out_NTB = torch.empty(spectrum_NTB.shape)
    parts_RC = torch.view_as_real(spectrum_NTB).flatten(0, 1).flatten(1)
    power(parts_RC.numpy(), out_NTB.flatten(0, 1).numpy())
    return out_NTB


def _log_energy(energy_NT: Tensor, scale: float, config: FeatureConfig) -> Tensor:
    floor = max(EPSILON, config.energy_floor)
    return energy_NT.mul_(scale**2).clamp_(min=floor).log_()
