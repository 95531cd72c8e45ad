"""Framing (Kaldi feat/feature-window.cc), and power spectra in chunks small enough to stay in a core's cache.

The mean of each frame is subtracted, then preemphasis and window follow. Preemphasis before framing would save a few
per cent of the time, but a frame of constant samples would not be exactly zero, and its logarithm far from Kaldi's. On
the CPU the steps before and after the FFT are compiled, as single passes over a frame (`cut`, `power`); as tensor
operations, which other devices use, they take as long as the FFT.

Axes: N utterances, S samples, T frames, L samples of a frame, D values of the FFT's input, R rows, B bins of the
spectrum, C real and imaginary parts.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.data import checked_rate
from speech3.errors import DataError, SettingError

# Sums may be reordered and fused with products; otherwise the compiler could not vectorise the loops.
_njit = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "nsz", "contract"})
_REMEDY = "pass float32 from -1 to 1, one row for each utterance, and the number of samples of each"
SAMPLE_SCALE = 32768.0  # Kaldi works on the values of 16-bit samples
EPSILON = torch.finfo(torch.float32).eps  # Kaldi's floor before every logarithm
# Input values of the FFT per chunk: on a CPU, few enough to stay in a core's caches together with its output (measured:
# with half as many it is a tenth slower, with a quarter a fifth); on a GPU, enough to keep it busy.
_CHUNK_CPU, _CHUNK_GPU = 1 << 19, 1 << 26


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


def frame_sizes(config: FeatureConfig, sample_rate_hz: int) -> Framing:
    """Sizes at a sample rate, truncated to whole samples as Kaldi truncates them.

    Raises Speech3Error: frames are shorter than two samples, or their shift is shorter than one.
    """
    length = int(sample_rate_hz * 0.001 * config.frame_length)
    shift = int(sample_rate_hz * 0.001 * config.frame_shift)
    if length < 2 or shift < 1:
        raise SettingError(
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


@dataclass
class FrameBlock:
    """Frames ``start`` to ``start + T`` of utterances ``first`` to ``first + N``."""

    first: int
    start: int
    power_NTB: Tensor
    log_energy_NT: Tensor | None


def power_spectra(
    waves_NS: Tensor, frames_N: list[int], config: FeatureConfig, sample_rate_hz: int
) -> Iterator[FrameBlock]:
    """Yield the power spectra (and log energies, if the config asks for them) of all frames, bins 0 to Nyquist.

    - `waves_NS`: float32; frame t of an utterance starts at sample t * shift.
    - `frames_N`: frames of each utterance; a chunk of several utterances reaches to the end of the longest one.

    The tensors are reused: copy what is needed before asking for the next chunk.
    """
    sizes = frame_sizes(config, sample_rate_hz)
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
            yield FrameBlock(first, start, power(torch.fft.rfft(windowed_NTD)), log_energy_NT)


def frames_at_once(device: torch.device, sizes: Framing) -> int:
    return max((_CHUNK_CPU if device.type == "cpu" else _CHUNK_GPU) // sizes.fft, 1)


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
    energy_NT = part_NS.new_empty(out_NTD.shape[:2] if config.use_energy else (0, 0))
    coefficient, window_L = np.float32(config.preemphasis_coefficient), _window(config, sizes.length, part_NS.device)
    options = sizes.shift, coefficient, config.remove_dc_offset, config.raw_energy
    cut(part_NS.numpy(), *options, window_L.numpy(), out_NTD.numpy(), energy_NT.numpy())
    if not config.use_energy:
        return None
    return _log_energy(energy_NT, SAMPLE_SCALE if config.raw_energy else 1.0, config)


def _power_cpu(spectrum_NTB: Tensor) -> Tensor:
    out_NTB = torch.empty(spectrum_NTB.shape)
    parts_RC = torch.view_as_real(spectrum_NTB).flatten(0, 1).flatten(1)
    power(parts_RC.numpy(), out_NTB.flatten(0, 1).numpy())
    return out_NTB


@_njit
def cut(
    part_NS: np.ndarray,
    shift: int,
    coefficient: np.float32,
    remove_dc_offset: bool,
    raw_energy: bool,
    window_L: np.ndarray,
    out_NTD: np.ndarray,
    energy_NT: np.ndarray,
) -> None:
    """Write frames with mean removal, preemphasis and window applied, and their energies unless `energy_NT` is empty.

    Arrays are contiguous float32. Only the first L values of a row of `out_NTD` are written. The energy is that before
    preemphasis if `raw_energy`, else that of the result.
    """
    length = len(window_L)
    one = np.float32(1)
    for n in range(out_NTD.shape[0]):
        for t in range(out_NTD.shape[1]):
            frame_L, row_L = part_NS[n, t * shift : t * shift + length], out_NTD[n, t]
            mean = np.float32(0)
            if remove_dc_offset:
                for i in range(length):
                    mean += frame_L[i]
                mean /= np.float32(length)
            row_L[0] = (one - coefficient) * (frame_L[0] - mean) * window_L[0]
            for i in range(1, length):
                row_L[i] = ((frame_L[i] - mean) - coefficient * (frame_L[i - 1] - mean)) * window_L[i]
            if energy_NT.size:
                energy = np.float32(0)
                for i in range(length):
                    value = frame_L[i] - mean if raw_energy else row_L[i]
                    energy += value * value
                energy_NT[n, t] = energy


@_njit
def power(spectrum_RC: np.ndarray, out_RB: np.ndarray) -> None:
    """Write the squared magnitudes of spectra with interleaved real and imaginary parts to `out_RB`."""
    for r in range(out_RB.shape[0]):
        for b in range(out_RB.shape[1]):
            real, imaginary = spectrum_RC[r, 2 * b], spectrum_RC[r, 2 * b + 1]
            out_RB[r, b] = real * real + imaginary * imaginary


@lru_cache(maxsize=16)
def _window(config: FeatureConfig, length: int, device: torch.device) -> Tensor:
    return (window(config, length) * SAMPLE_SCALE).to(device, torch.float32)


def _log_energy(energy_NT: Tensor, scale: float, config: FeatureConfig) -> Tensor:
    floor = max(EPSILON, config.energy_floor)
    return energy_NT.mul_(scale**2).clamp_(min=floor).log_()


def check_waves(waves_NS: Any, lengths_N: Any, sample_rate_hz: Any) -> None:
    """Refuse arguments from which features would be wrong, or an error come much later."""
    checked_rate(sample_rate_hz, "sample_rate_hz")
    # Samples that are no numbers are no error here: they may be padding, and harm only their own recording.
    check_wave(waves_NS, "waves_NS", 2, finite=False)
    if not isinstance(lengths_N, Tensor) or lengths_N.dim() != 1 or lengths_N.is_floating_point():
        raise SettingError(f"lengths_N: is {_kind(lengths_N)}, not a tensor (N,) of integers; {_REMEDY}")
    if len(lengths_N) != len(waves_NS):
        raise SettingError(f"lengths_N: {len(lengths_N)} lengths of {len(waves_NS)} waveforms; {_REMEDY}")
    if len(lengths_N) and not 0 <= int(lengths_N.min()) <= int(lengths_N.max()) <= waves_NS.shape[1]:
        raise SettingError(f"lengths_N: must be from 0 to {waves_NS.shape[1]}, the samples of waves_NS; {_REMEDY}")


def check_wave(wave: Any, name: str, axes: int, *, finite: bool = True) -> None:
    """Refuse what is no tensor of (finite) float samples with that many axes; the message names the argument."""
    if not isinstance(wave, Tensor) or wave.dim() != axes or not wave.is_floating_point():
        raise DataError(f"{name}: is {_kind(wave)}, not a float tensor of {axes} axes; {_REMEDY}")
    if finite and wave.device.type == "cpu" and not torch.isfinite(wave).all():  # on a GPU, the check would wait for it
        raise DataError(f"{name}: has samples that are not finite numbers; {_REMEDY}")


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    return f"of type {type(value).__name__}"
