"""Speed of our training step over the stock one (`nn.Linear`, `torch.optim.SGD`); results are compared, too.

    OMP_NUM_THREADS=1 python tests/benchmarks/step.py

Network 440 - 4 x 512 - 3000, minibatch 256, one thread. Both take turns in rounds; the result is the median of the
rounds' ratios. Every round starts from the same parameters, because SGD amplifies rounding differences step by step.
"""

import itertools
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from speech3.config import DnnConfig
from speech3.engine.optimizers import Sgd
from speech3.models import build
from speech3.models.base import cross_entropy
from speech3.models.layers import gemm_library

WINDOW, BINS, SENONES, MINIBATCH, RATE = 11, 40, 3000, 256, 0.1
ROUNDS, STEPS = 15, 8


Step = Callable[[Tensor, Tensor], float]


def stock() -> tuple[Step, list[nn.Parameter]]:
    """A training step with nn.Linear, ReLU, cross_entropy and torch.optim.SGD."""
    widths = [WINDOW * BINS, 512, 512, 512, 512]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(512, SENONES))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step(inputs: Tensor, targets: Tensor) -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, list(model.parameters())


def ours() -> tuple[Step, list[nn.Parameter]]:
    """Our training step."""
    model = build(DnnConfig(layers=4, width=512), BINS, SENONES, seed=1)
    sgd = Sgd(model)
    parameters = list(model.parameters())

    def step(inputs: Tensor, targets: Tensor) -> float:
        loss, _ = cross_entropy(model(inputs), targets)
        sgd.step(torch.autograd.grad(loss, parameters), RATE)
        return loss.item()

    return step, parameters


def main() -> None:
    """Print one JSON line."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    batches = [(torch.randn(MINIBATCH, WINDOW, BINS), torch.randint(SENONES, (MINIBATCH,))) for _ in range(STEPS)]
    (our_step, our_parameters), (their_step, their_parameters) = ours(), stock()
    initial = [parameter.detach().clone() for parameter in our_parameters]
    seconds: dict[str, list[float]] = {"ours": [], "stock": []}
    worst = 0.0
    for round_ in range(-1, ROUNDS):  # the first warms up
        losses = {}
        for name, step, parameters in (("ours", our_step, our_parameters), ("stock", their_step, their_parameters)):
            with torch.no_grad():
                for parameter, value in zip(parameters, initial, strict=True):
                    parameter.copy_(value)
            start = time.perf_counter()
            losses[name] = [step(*batch) for batch in batches]
            if round_ >= 0:
                seconds[name].append((time.perf_counter() - start) / STEPS)
        worst = max(worst, *(abs(a - b) / b for a, b in zip(losses["ours"], losses["stock"], strict=True)))
    assert worst < 1e-5, f"losses differ by {worst:.1e} of their value"
    ratio = statistics.median(theirs / mine for mine, theirs in zip(seconds["ours"], seconds["stock"], strict=True))
    print(
        json.dumps(
            {
                "name": "step_over_stock",
                "value": round(ratio, 3),
                "unit": "ratio",
                "rival": "nn.Linear + torch.optim.SGD",
                "product": gemm_library(),
                "loss_difference": float(f"{worst:.1e}"),
                "ours_ms": round(1e3 * statistics.median(seconds["ours"]), 2),
                "stock_ms": round(1e3 * statistics.median(seconds["stock"]), 2),
            }
        )
    )


if __name__ == "__main__":
    main()
