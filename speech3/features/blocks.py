"""Mel energies of a batch of recordings, gathered from chunks that fit the cache into blocks of thousands of frames.

The steps after the mel bins (logarithm, cosine transform, linear prediction) are many small operations; with few frames
each, most of the time would be call overhead.

Axes: N utterances, S samples, T frames, R frames of a block, M mel bins, F features.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from speech3.config import FeatureConfig
from speech3.features.mel import mel_energies
from speech3.features.spectrum import frames_at_once, power_spectra
from speech3.features.window import framing

_ROWS_CPU, _ROWS_GPU = 1 << 12, 1 << 20
# Libraries compute the last few rows differently from the rest. With a multiple of sixteen rows, a frame's features
# depend on the other frames of the block only in their last bit.
_MULTIPLE = 16


@dataclass(frozen=True)
class Block:
    """Mel energies of frames, one after another, and the places that they belong to.

    Attributes
    ----------
    energies_RM
        float32, at least zero; the last few rows may be padding with arbitrary values.
    log_energy_R
        Log energy of each frame, if the config asks for it.
    places
        First utterance, first frame, number of utterances, number of frames of each.
    """

    energies_RM: Tensor
    log_energy_R: Tensor | None
    places: list[tuple[int, int, int, int]]

    def put(self, feats_RF: Tensor, out_NTF: Tensor) -> None:
        """Copy the features of the frames to their places in `out_NTF`."""
        row = 0
        for first, start, n, t in self.places:
            out_NTF[first : first + n, start : start + t] = feats_RF[row : row + n * t].view(n, t, -1)
            row += n * t


def mel_blocks(waves_NS: Tensor, frames_N: list[int], config: FeatureConfig, sample_rate_hz: int) -> Iterator[Block]:
    """Yield the mel energies of all frames; parameters as for `power_spectra`.

    The caller may overwrite a block's tensors; the next block reuses them.
    """
    device = waves_NS.device
    wanted = max(
        _ROWS_CPU if device.type == "cpu" else _ROWS_GPU, frames_at_once(device, framing(config, sample_rate_hz))
    )
    wanted = min(wanted, len(frames_N) * max(frames_N))
    size = wanted + -wanted % _MULTIPLE
    energies_RM = waves_NS.new_empty(size, config.num_mel_bins)
    log_energy_R = waves_NS.new_empty(size) if config.use_energy else None
    places: list[tuple[int, int, int, int]] = []
    used = 0

    def block() -> Block:
        rows = used + -used % _MULTIPLE
        return Block(energies_RM[:rows], None if log_energy_R is None else log_energy_R[:rows], places)

    for chunk in power_spectra(waves_NS, frames_N, config, sample_rate_hz):
        n, t = chunk.power_NTB.shape[:2]
        if used + n * t > size:
            yield block()
            places, used = [], 0
        spectrum_RB = chunk.power_NTB.flatten(0, 1)
        if config.kind == "fbank" and not config.use_power:
            spectrum_RB.sqrt_()
        mel_energies(spectrum_RB, config, sample_rate_hz, energies_RM[used : used + n * t])
        if log_energy_R is not None and chunk.log_energy_NT is not None:
            log_energy_R[used : used + n * t] = chunk.log_energy_NT.flatten()
        places.append((chunk.first, chunk.start, n, t))
        used += n * t
    yield block()
