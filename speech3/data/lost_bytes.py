"""Bytes that a transfer in text mode took from 16-bit PCM, or put into it: from there on, the sound is noise.

Such a transfer makes one byte of two (0x0D 0x0A becomes 0x0A) or two of one. After it, each sample has a byte of one
true sample and a byte of the next. The right alignment is the one in which neighbouring samples differ less; where it
changes, a byte is missing, or is too much if the file has more bytes than its header says.

Axes: B bytes, S samples, K blocks.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speech3.data import audio
from speech3.data.containers import Pcm16, pcm16
from speech3.errors import FormatError

_BLOCK = 128  # samples
_SMOOTHER = 2.0  # bits: in a block, the other alignment has differences that are smaller by a factor of 4
_CHANGE = 40.0  # bits: what the rest must gain for a change of the alignment to be believed
_MIN_GAIN = 3.0  # bits per block, in which the right alignment is better: noise and music gain much less
_MOST = 200  # bytes put back, or taken out, in one recording
_MOST_EQUAL = 0.9
_NEAR = 24.0  # bits
_WINDOW = 64  # bytes
_CR, _LF = 0x0D, 0x0A


@dataclass(frozen=True)
class Damage:
    """Where bytes are missing or too many."""

    first_s: float  # seconds from the beginning
    count: int  # how many places were found
    inserted: bool
    mended: bool  # whether correcting them makes all of the recording smooth

    def __str__(self) -> str:
        what = f"{self.count} bytes" if self.count > 1 else "one byte"
        from_ = f"from {self.first_s:.2f} s on" if self.count == 1 else f"the first at {self.first_s:.2f} s"
        how = "too much" if self.inserted else "lost"
        return (
            f"{what} {'are' if self.count > 1 else 'is'} {how}, {from_}, so that noise follows: a transfer in text mode"
        )


def find_damage(location: Path | str, *, directory: Path | None = None) -> Damage | None:
    """Look for bytes that are missing or too many; None if there are none, or if this is not 16-bit PCM.

    The arguments are those of `audio.read_file`.
    """
    found = _read(location, directory)
    return _mend(*found)[0] if found else None


def write_mended(location: Path | str, out: Path, *, directory: Path | None = None) -> None:
    """Write the recording, 16-bit PCM, with the bytes put back, or taken out, as a wav file."""
    found = _read(location, directory)
    if not found:
        raise FormatError(f"{location}: is not 16-bit PCM")
    about, _ = found
    _, data_B = _mend(*found)
    whole = len(data_B) - len(data_B) % (2 * about.channels)
    samples_SC = data_B[:whole].view(f"{about.order}i2").astype(np.int16).reshape(-1, about.channels)
    audio.write_pcm(out, samples_SC, about.rate_hz)


def _read(location: Path | str, directory: Path | None) -> tuple[Pcm16, np.ndarray] | None:
    with audio.open_bytes(location, directory) as stream:
        about = pcm16(stream)
        if about is None:
            return None
        stream.seek(about.begin)
        return about, np.frombuffer(stream.read(about.end - about.begin), np.uint8)


def _mend(about: Pcm16, data_B: np.ndarray) -> tuple[Damage | None, np.ndarray]:
    if not _has_low_bytes(data_B, about):
        return None, data_B
    inserted = about.claimed is not None and about.claimed < len(data_B)
    first, count = 0, 0
    while count < _MOST and (block := _first_change(data_B, about)) is not None:
        place = _place(data_B, about, block, inserted)
        first, count = first if count else place, count + 1
        data_B = _corrected(data_B, about, place, inserted)
    if not count:
        return None, data_B
    left = _first_change(data_B, about) is not None
    return Damage(first / (2 * about.channels * about.rate_hz), count, inserted, not left), data_B


def _differences(data_B: np.ndarray, about: Pcm16, first: int) -> np.ndarray:
    """log2 of the differences between samples of one channel that begin at the byte `first`, float32."""
    end = len(data_B) - (len(data_B) - first) % 2
    samples_S = np.ascontiguousarray(data_B[first:end]).view(f"{about.order}i2").astype(np.float32)
    return np.asarray(np.log2(np.abs(samples_S[about.channels :] - samples_S[: -about.channels]) + 1))


def _costs(data_B: np.ndarray, about: Pcm16, first: int, blocks: int) -> np.ndarray:
    return np.asarray(_differences(data_B, about, first)[: blocks * _BLOCK].reshape(blocks, _BLOCK).mean(1))


def _has_low_bytes(data_B: np.ndarray, about: Pcm16) -> bool:
    """Whether the low bytes say anything: not in sound of 8 bits or less that was converted to 16."""
    low_B = data_B[about.order == ">" :: 2]
    return len(low_B) > 0 and np.bincount(low_B).max() < _MOST_EQUAL * len(low_B)


def _first_change(data_B: np.ndarray, about: Pcm16) -> int | None:
    """The block in which the better alignment first changes from that of the header; None if it never does."""
    if len(data_B) < 4 * _BLOCK + 2 * about.channels:
        return None
    blocks = (len(data_B) - 2 - 2 * about.channels) // (2 * _BLOCK)
    cost_K, other_K = (_costs(data_B, about, first, blocks) for first in (0, 1))
    gain_K = cost_K - other_K  # of the other alignment
    if not (gain_K > _SMOOTHER).any():
        return None
    # The change that gains most, and then the end of what it gains: later changes may undo it.
    best = _best_path(gain_K)
    changed = np.flatnonzero(best)
    if not len(changed):
        return None
    begin = int(changed[0])
    end = int(np.flatnonzero(~best[begin:])[0]) + begin if (~best[begin:]).any() else len(best)
    heard_K = gain_K[begin:end]
    heard_K = heard_K[np.abs(heard_K) > 0.5]  # silence and noise are alike in both alignments
    return begin if len(heard_K) and heard_K.mean() > _MIN_GAIN else None


def _best_path(gain_K: np.ndarray) -> np.ndarray:
    """Whether each block is in the other alignment: the path with the largest gain less the cost of its changes."""
    same, other = 0.0, -_CHANGE
    came = np.zeros((len(gain_K), 2), bool)  # from the other state
    for block, gain in enumerate(gain_K.tolist()):
        came[block] = other - _CHANGE > same, same - _CHANGE > other
        same, other = max(same, other - _CHANGE), max(other, same - _CHANGE) + gain
    states = np.zeros(len(gain_K), bool)
    state = other > same
    for block in range(len(gain_K) - 1, -1, -1):
        states[block] = state
        if came[block, int(state)]:
            state = not state
    return states


def _place(data_B: np.ndarray, about: Pcm16, block: int, inserted: bool) -> int:
    low = max(0, (block - 2) * 2 * _BLOCK)
    part_B = data_B[low : (block + 2) * 2 * _BLOCK]
    before, after = _differences(part_B, about, 0), _differences(part_B, about, 1)
    # Costs of all differences whose later sample ends before a byte, and of those whose earlier one begins after it.
    before_B = np.concatenate([[0.0], np.cumsum(before)])
    after_B = np.concatenate([np.cumsum(after[::-1])[::-1], [0.0]])
    places = np.arange(len(part_B))
    ended = np.clip(places // 2 - about.channels, 0, len(before))
    begun = np.clip((places + inserted) // 2, 0, len(after))
    cost_B = before_B[ended] + after_B[begun]
    near = low + np.flatnonzero(cost_B <= cost_B.min() + _NEAR)
    near = near[np.abs(near - (low + int(np.argmin(cost_B)))) <= _WINDOW // 2]
    rough = {int(place): _roughness(data_B, about, int(place), inserted) for place in near}
    best = min(rough, key=lambda place: rough[place])
    wanted = _CR if inserted else _LF
    textual = [place for place in rough if data_B[place] == wanted and rough[place] <= 1.5 * rough[best] + 256]
    return min(textual, key=lambda place: rough[place]) if textual else best


def _roughness(data_B: np.ndarray, about: Pcm16, place: int, inserted: bool) -> float:
    begin = max(0, place - _WINDOW * about.channels)
    begin -= begin % (2 * about.channels)
    part_B = _corrected(data_B[begin : place + _WINDOW * about.channels], about, place - begin, inserted)
    samples_S = _samples(part_B, about)
    return float(np.abs(samples_S[about.channels :] - samples_S[: -about.channels]).sum())


def _samples(data_B: np.ndarray, about: Pcm16) -> np.ndarray:
    whole = np.ascontiguousarray(data_B[: len(data_B) - len(data_B) % 2])
    return whole.view(f"{about.order}i2").astype(np.int64)


def _corrected(data_B: np.ndarray, about: Pcm16, place: int, inserted: bool) -> np.ndarray:
    """Take a byte out, or put one back: the 0x0D of a line end, or the one with which the sample fits best."""
    if inserted:
        return np.delete(data_B, place)
    whole_B = np.insert(data_B, place, _CR)
    if data_B[place] != _LF:
        whole_B[place] = _fitting(whole_B, about, place)
    return whole_B


def _fitting(data_B: np.ndarray, about: Pcm16, place: int) -> int:
    """The value of a byte that brings its sample closest to the mean of its neighbours."""
    sample, width = place // 2, about.channels
    around_S = _samples(data_B[: 2 * (sample + width + 1)], about)
    neighbours = [around_S[at] for at in (sample - width, sample + width) if 0 <= at < len(around_S)]
    tried_VB = np.repeat(data_B[None, 2 * sample : 2 * sample + 2], 256, axis=0)
    if not neighbours or tried_VB.shape[1] < 2:
        return 0
    tried_VB[:, place % 2] = np.arange(256)
    values_V = tried_VB.copy().view(f"{about.order}i2")[:, 0].astype(np.int64)
    return int(np.argmin(np.abs(values_V - np.mean(neighbours))))
