"""The DNN's training step on a GPU compared with `torch.mm` for its products alone.

    python tests/benchmarks/gpu_dnn.py [--device cuda:0]

Network 440 - 5 x 2048 sigmoids - 10,217, minibatch 1,024. The rival is the three products of each layer (two of the
first), one `torch.mm` each with the same shapes and precision, into preallocated outputs. Ours is the whole step:
forward pass, cross-entropy, backward pass, update. Precisions: float32, tf32 (in products only) and bf16 by autocast. A
GPU may wait for the host between small kernels; ``graph`` is the same step recorded as a CUDA graph, the most that the
engine could reach.

dnn_over_mm_PRECISION, dnn_graph_over_mm_PRECISION
    Time of the products over time of the step: 1 if nothing else took any time.
dnn_graph_loss
    Checks that a step of the graph computes the same as a step without it.
"""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from engine import line
from gpu_timing import Work, captured, device_of_arguments, milliseconds, name_of, ratio, timed
from torch import Tensor

from speech3.config import DnnConfig
from speech3.engine.gradient import precision
from speech3.engine.optimizers import Sgd
from speech3.models import build
from speech3.models.base import cross_entropy

BINS, RATE = 40, 0.01
PRECISIONS = ("float32", "tf32", "bf16")


@contextmanager
def computing(name: str, device: str) -> Iterator[None]:
    """Computes in a precision, as ``training.precision`` does."""
    with precision(name), torch.autocast(torch.device(device).type, torch.bfloat16, enabled=name == "bf16"):
        yield


class Network:
    """The network, a minibatch, and the steps of both rivals."""

    def __init__(self, device: str) -> None:
        self.device = device
        on_gpu = device != "cpu"
        self.minibatch, self.senones = (1024, 10_217) if on_gpu else (64, 120)
        config = DnnConfig(layers=5, width=2048 if on_gpu else 64, activation="sigmoid")
        self.model = build(config, BINS, self.senones, seed=1).to(device).train()
        self.sgd, self.parameters = Sgd(self.model), list(self.model.parameters())
        generator = torch.Generator().manual_seed(1)
        self.feats = torch.randn(self.minibatch, self.model.window, BINS, generator=generator).to(device)
        self.targets = torch.randint(self.senones, (self.minibatch,), generator=generator).to(device)
        self.loss = torch.zeros((), device=device)

    def step(self) -> None:
        """One training step."""
        loss, _ = cross_entropy(self.model(self.feats).float(), self.targets)
        self.sgd.step(torch.autograd.grad(loss, self.parameters), RATE)
        self.loss.copy_(loss.detach())

    def products(self, dtype: torch.dtype) -> Work:
        """Only the products of a step."""
        drawn: list[tuple[Tensor, Tensor, Tensor]] = []

        def product(a: Tensor, b: Tensor) -> None:
            drawn.append((a, b, torch.empty(len(a), b.shape[1], device=self.device, dtype=dtype)))

        for number, weight in enumerate(p for p in self.parameters if p.dim() == 2):
            w_OI = weight.detach().to(dtype)
            x_BI, g_BO = (torch.randn(self.minibatch, n, device=self.device, dtype=dtype) for n in w_OI.t().shape)
            product(x_BI, w_OI.t())
            product(g_BO.t(), x_BI)
            if number:
                product(g_BO, w_OI)

        def run() -> None:
            for a, b, out in drawn:
                torch.mm(a, b, out=out)

        return run

    @property
    def operations(self) -> int:
        """Number of operations in the products of a step."""
        sizes = [p.numel() for p in self.parameters if p.dim() == 2]
        return 2 * self.minibatch * (3 * sum(sizes) - sizes[0])


def graph_computes_the_same(device: str) -> float:
    """The largest relative difference of the losses of five steps."""
    plain, recorded = Network(device), Network(device)
    replay = captured(recorded.step, device)
    plain.sgd.parameters.vector_K.copy_(recorded.sgd.parameters.vector_K)  # recording has made steps
    worst = 0.0
    for _ in range(5):
        plain.step()
        replay()
        worst = max(worst, abs(recorded.loss.item() / plain.loss.item() - 1))
    return worst


def main() -> None:
    """Print the figures."""
    device = device_of_arguments()
    for name in PRECISIONS:
        network = Network(device)
        step = _within(network.step, name, device)
        mm = _within(network.products(torch.bfloat16 if name == "bf16" else torch.float32), name, device)
        measured = timed({"mm": mm, "step": step, "graph": captured(step, device)}, device)
        rates = {
            f"{who}_frames_per_s": round(network.minibatch / statistics.median(measured[who]))
            for who in ("step", "graph")
        }
        tflops = network.operations / statistics.median(measured["mm"]) / 1e12
        for figure, who in (("dnn_over_mm", "step"), ("dnn_graph_over_mm", "graph")):
            print(
                line(
                    f"{figure}_{name}",
                    ratio(measured["mm"], measured[who]),
                    "ratio",
                    "torch.mm, the same products",
                    device=name_of(device),
                    minibatch=network.minibatch,
                    senones=network.senones,
                    mm_tflops=round(tflops, 3),
                    **rates,
                    **milliseconds(measured),
                ),
                flush=True,
            )
    worst = graph_computes_the_same(device)
    print(line("dnn_graph_loss", worst, "relative difference", "the step without a graph", device=name_of(device)))
    assert worst < 1e-4, f"the graph's losses differ by {worst:.1e}"


def _within(work: Work, name: str, device: str) -> Work:
    # Around each step, not around all steps: autocast keeps its copies of the weights until its block ends.
    def run() -> None:
        with computing(name, device):
            work()

    return run


if __name__ == "__main__":
    main()
