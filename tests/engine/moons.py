"""Two half moons, a network and losses that are no speech's; importable by processes that are spawned.

Axes: N items, C classes.
"""

import math
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


def moons(items: int = 1200, seed: int = 1) -> TensorDataset:
    """Points (N, 2) of two half circles that reach into each other, and which of them each is of."""
    generator = torch.Generator().manual_seed(seed)
    angle_N = math.pi * torch.rand(items, generator=generator)
    moon_N = torch.arange(items) % 2
    sign_N = 1 - 2 * moon_N
    points_N2 = torch.stack([moon_N + sign_N * angle_N.cos() - 0.5, sign_N * (angle_N.sin() - 0.25)], 1)
    return TensorDataset(points_N2 + 0.1 * torch.randn(items, 2, generator=generator), moon_N)


def network(seed: int = 2, classes: int = 2) -> nn.Sequential:
    """2 - 16 - 2 with batch normalisation."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, classes))


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """Of points that were not trained on."""
    points_N2, moon_N = moons(1000, seed=9).tensors
    model.eval()
    return (model(points_N2).argmax(1) == moon_N).float().mean().item()


@dataclass
class Watched:
    """The moons, and what happens when they are read.

    Attributes
    ----------
    bad
        Items that cannot be read.
    kills
        A file: the first worker that finds it, in the midst of training, removes it and dies by SIGKILL.
    begun
        A file that a worker makes in the midst of training.
    pause_s
        That each item takes.
    read
        Numbers of the items that were read in this process.
    """

    data: TensorDataset
    bad: frozenset[int] = frozenset()
    kills: Path | None = None
    begun: Path | None = None
    pause_s: float = 0.0
    read: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        self.read.append(index)
        if index in self.bad:
            raise ValueError("the moon is eclipsed")
        if len(self.read) > 200 and multiprocessing.parent_process():
            self._in_the_midst()
        time.sleep(self.pause_s)
        return self.data[index]

    def _in_the_midst(self) -> None:
        if self.begun:
            self.begun.touch()
        if self.kills:
            try:
                self.kills.unlink()
            except FileNotFoundError:
                return
            os.kill(os.getpid(), signal.SIGKILL)
