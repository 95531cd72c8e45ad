"""Softmax regression on data that nobody can separate: a convex loss with one minimum; importable by processes.

Axes: N frames, F inputs, C classes.
"""

import multiprocessing
import os
import time
from collections.abc import Generator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny import loss
from torch import nn

from speech3.engine.interface import WorkerParts

FEATURES, CLASSES, SIZES = 6, 4, (16, 7)  # minibatches of two sizes: the mean is over frames


@cache
def data(minibatches: int) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Minibatches; the classes are drawn from a softmax of the inputs, which differ in size."""
    rng, found = np.random.default_rng(3), []
    teacher = rng.normal(0, 1, (FEATURES, CLASSES))
    for number in range(minibatches):
        inputs = rng.normal(0, 1, (SIZES[number % 2], FEATURES)) * np.linspace(0.3, 3, FEATURES)
        logits = inputs @ teacher + rng.gumbel(size=(len(inputs), CLASSES)) * 2
        found.append((torch.from_numpy(inputs).float(), torch.from_numpy(logits.argmax(1))))
    return tuple(found)


@dataclass(frozen=True)
class Source:
    """The same minibatches in every epoch.

    Attributes
    ----------
    stuck
        Whoever is the first to draw minibatch 5 in a worker's process makes that file, with its pid in it, and is held
        up until ``go`` lies beside it.
    poison
        A minibatch of infinite inputs.
    """

    minibatches: int = 30
    stuck: Path | None = None
    poison: int | None = None
    rows: tuple[range, ...] | None = None

    def __len__(self) -> int:
        return self.minibatches

    def draw(self, epoch: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.stuck and number == 5 and multiprocessing.parent_process():
            self._hold_up(self.stuck)
        inputs, targets = data(self.minibatches)[number]
        return (inputs * float("inf") if number == self.poison else inputs), targets

    def _hold_up(self, path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return
        os.write(descriptor, str(os.getpid()).encode())
        os.close(descriptor)
        while not path.with_name("go").exists():
            time.sleep(0.001)


class Softmax(nn.Linear):
    """All zero; the inputs are scaled by a buffer, as an acoustic model's are."""

    def __init__(self) -> None:
        super().__init__(FEATURES, CLASSES)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)
        self.register_buffer("scale_F", torch.linspace(2, 0.5, FEATURES))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(B, F) to (B, C)."""
        return super().forward(inputs * self.scale_F)


def model() -> nn.Module:
    """A new one."""
    return Softmax()


@dataclass(frozen=True)
class Build:
    """Makes the parts, in this process or another."""

    source: Source = Source()
    dropout: float = 0.0

    def __call__(self, device: str = "cpu") -> WorkerParts:
        torch.set_num_threads(1)
        between = [nn.Dropout(self.dropout)] if self.dropout else []
        return WorkerParts(nn.Sequential(*between, model()), self.source, loss, seed=1)


def objective(linear: nn.Module, minibatches: int, weight_decay: float = 0.0) -> torch.Tensor:
    """Mean loss over all frames, in the model's precision."""
    inputs_NF, targets_N = (torch.cat(each) for each in zip(*data(minibatches), strict=True))
    parameters = list(linear.parameters())
    value = nn.functional.cross_entropy(linear(inputs_NF.to(parameters[0].dtype)), targets_N)
    return value + 0.5 * weight_decay * sum(parameter.square().sum() for parameter in parameters)


def least(minibatches: int, weight_decay: float = 0.0) -> float:
    """The least loss, by PyTorch's L-BFGS in float64."""
    linear = model().double()
    optimizer = torch.optim.LBFGS(
        linear.parameters(), max_iter=500, tolerance_grad=1e-9, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = objective(linear, minibatches, weight_decay)
        value.backward()
        return value

    optimizer.step(closure)
    return closure().item()


def through(steps: Generator[None, None, Any]) -> Any:
    """What a generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
