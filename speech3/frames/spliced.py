"""Chunks of consecutive frames (`speech3.frames.chunks`) as the inputs of networks that are not time-delay networks.

Axes: B chunks, L frames of a chunk with its context, T frames of a chunk, W context window, F feature bins, N frames of
all chunks, one chunk after the other, K steps.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from speech3.frames.sequences import SequenceInputs


@dataclass(frozen=True)
class Windows:
    """Inputs of models of windows; a chunk has W - 1 frames of context."""

    window: int

    def __call__(self, feats_BLF: Tensor) -> Tensor:
        """(N, W, F): the windows around all frames."""
        return feats_BLF.unfold(1, self.window, 1).transpose(2, 3).flatten(0, 1)


@dataclass(frozen=True)
class Steps:
    """Inputs of recurrent models, whose state begins with zeros in every chunk.

    Attributes
    ----------
    before
        Steps before a chunk, in which the state settles.
    delay, lookahead
        As in `speech3.frames.sequences`; a chunk has that many frames more of context after it.
    """

    window: int
    before: int
    delay: int
    lookahead: int

    def __call__(self, feats_BLF: Tensor) -> SequenceInputs:
        """The steps of all chunks; those with targets are in the order N."""
        feats_KBWF = feats_BLF.transpose(0, 1).unfold(0, self.window, 1).transpose(2, 3)
        steps, chunks = feats_KBWF.shape[:2]
        own, on = steps - self.lookahead, feats_BLF.device
        chunk_B1 = torch.arange(chunks, device=on)[:, None]
        scored_BT = torch.arange(self.before + self.delay, own, device=on) * chunks + chunk_B1
        return SequenceInputs(
            feats_KBWF, torch.full((chunks,), steps, device=on), torch.ones(chunks, dtype=torch.bool, device=on),
            scored_BT.flatten(), own, place=(0, 0), steps_A=torch.arange(steps * chunks, device=on),
        )  # fmt: skip
