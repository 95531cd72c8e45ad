"""Frames on the training device, and the windows gathered from them.

Axes: B minibatch, W context window, F feature bins, P spans, R copied rows, U utterances (U1: and the end of the last).
"""

import math
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from speech3.frames.packed import PackedFrames

_SHARE_OF_FREE = 0.8  # share of the device's free memory for frames; the rest is for the model and its computations


def window_indices(centers_B: Tensor, first_B: Tensor, last_B: Tensor, offsets_W: Tensor) -> Tensor:
    """Frame numbers (B, W) of the windows around `centers_B`; edge frames are repeated beyond an utterance's ends.

    Parameters
    ----------
    centers_B, first_B, last_B
        int64: the middle frame, and the first and last frame of its utterance.
    offsets_W
        int64: the frames of a window, relative to its middle.
    """
    return torch.clamp(centers_B[:, None] + offsets_W, first_B[:, None], last_B[:, None])


class Resident:
    """Some frames of a packed file, or all of them, on a device.

    Parameters
    ----------
    device
        The device of the copy.
    left, right
        Context, in frames; it is also available for the first and last frame of a span.
    spans
        First frame and end of each span to copy, in ascending order. None: all frames, which on the CPU are not copied
        but gathered from the memory map.
    """

    def __init__(
        self, packed: PackedFrames, device: torch.device, left: int, right: int,
        spans: Sequence[tuple[int, int]] | None = None,
    ) -> None:  # fmt: skip
        self.device, self.left, self.right = device, left, right
        self.spans_first_P: Tensor | None = None
        # Frames begin in the utterance whose number is that of offsets not above them, minus 1: with these arrays, no
        # subtraction is needed. On a GPU each operation takes the host some microseconds, more than the GPU.
        offsets_U1 = on_device(packed.offsets_U1, device)
        self.offsets_U1, self.last_U1 = offsets_U1, offsets_U1 - 1
        self.first_U1 = offsets_U1.roll(1)
        self.window_W = torch.arange(-left, right + 1, device=device)
        frames_NF, senones_N = on_device(packed.frames_NF), on_device(packed.senones_N)
        if spans is None:
            self.frames_RF, self.senones_R = frames_NF.to(device), senones_N.to(device)
            return
        rows = [(max(0, first - left), min(len(packed), end + right)) for first, end in spans]
        bases = np.cumsum([0, *(end - first for first, end in rows)])
        self.spans_first_P = torch.tensor([first for first, _ in spans], device=device)
        shifts = [first - int(base) for (first, _), base in zip(rows, bases[:-1], strict=True)]
        self.shift_P = torch.tensor(shifts, device=device)
        self.frames_RF = torch.empty((int(bases[-1]), packed.dim), dtype=frames_NF.dtype, device=device)
        self.senones_R = torch.empty(int(bases[-1]), dtype=senones_N.dtype, device=device)
        for (first, end), base in zip(rows, bases[:-1].tolist(), strict=True):
            self.frames_RF[base : base + end - first].copy_(frames_NF[first:end])
            self.senones_R[base : base + end - first].copy_(senones_N[first:end])

    def gather(self, centers_B: Tensor) -> tuple[Tensor, Tensor]:
        """Windows (B, W, F) around the given frames of the corpus, and their senones (B,), in the types of the file."""
        after_B = torch.searchsorted(self.offsets_U1, centers_B, right=True)
        first_B, last_B = self.first_U1.index_select(0, after_B), self.last_U1.index_select(0, after_B)
        indices_BW = window_indices(centers_B, first_B, last_B, self.window_W)
        if self.spans_first_P is not None:
            span_B = torch.searchsorted(self.spans_first_P, centers_B, right=True) - 1
            shift_B = self.shift_P.index_select(0, span_B)
            indices_BW, centers_B = indices_BW - shift_B[:, None], centers_B - shift_B
        feats_BWF = self.frames_RF.index_select(0, indices_BW.view(-1)).view(*indices_BW.shape, -1)
        return feats_BWF, self.senones_R.index_select(0, centers_B)


def on_device(array: np.ndarray, device: torch.device | str = "cpu") -> Tensor:
    """A tensor of an array that may be read-only; on the CPU it is not copied."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # it is never written to
        return torch.from_numpy(array).to(device)


def fits(packed: PackedFrames, chunk_frames: int, free: float, sharers: int = 1) -> bool:
    """Whether the frames fit on a device: all of them, or with `chunk_frames` two chunks, the old one and the new.

    Parameters
    ----------
    free
        Free bytes, of which four fifths may be used.
    sharers
        Number of processes that each have a copy there.
    """
    frame_bytes = packed.dim * packed.frames_NF.itemsize + packed.senones_N.itemsize
    return sharers * (2 * chunk_frames or len(packed)) * frame_bytes <= _SHARE_OF_FREE * free


def free_bytes(device: torch.device) -> float:
    """Free memory of a GPU, in bytes; infinite for other devices."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else math.inf
