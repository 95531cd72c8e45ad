"""Time of an update with LF-MMI on a GPU, and the criterion's share of it.

    python tests/benchmarks/gpu_lfmmi.py [--device cuda:0]

The network, denominator and chunks of `sequence.py`, 32 and 128 chunks per minibatch. On a GPU the denominator is
computed by PyTorch's sparse products and autograd, the numerator on the CPU.

lfmmi_update_CHUNKS
    Seconds of speech per second of computation: numerators, forward pass, criterion, backward pass, a step of Muon.
lfmmi_share_CHUNKS, lfmmi_cpu_share_CHUNKS
    Time of the criterion over that of the update; and the same with the criterion on one core of the CPU, including the
    transfer of outputs and gradient.
"""

import statistics
from typing import Any

import torch
from engine import line
from gpu_timing import device_of_arguments, milliseconds, name_of, ratio, timed
from sequence import BINS, FRAMES, PDFS, problem
from torch import Tensor

from speech3.config.experiment import LfmmiSystemConfig
from speech3.engine.optimizers import Muon
from speech3.frames.chunks import Chunk
from speech3.models import build
from speech3.sequence.lfmmi import AlignmentNumerators, Denominator, LfMmi


def figures(graph: Denominator, chunks: list[Chunk], device: str) -> None:
    """Print the figures for a minibatch of these chunks."""
    make, criterion = AlignmentNumerators(graph, FRAMES), LfMmi(graph)
    config = LfmmiSystemConfig.model_validate({}).model
    model: Any = build(config, BINS, PDFS, seed=0).to(device).train()
    optimizer, parameters = Muon(model, (0.95, 0.98), weight_decay=0.1), list(model.parameters())
    frames = model.left_context + FRAMES + model.right_context
    feats = torch.randn(len(chunks), frames, BINS, generator=torch.Generator().manual_seed(0)).to(device)
    y_BTS = torch.randn(len(chunks), FRAMES // 3, PDFS, device=device).requires_grad_()
    here_BTS = y_BTS.detach().cpu().requires_grad_()

    def loss_of(outputs_BTS: Tensor) -> Tensor:
        loss, _ = criterion((outputs_BTS, outputs_BTS), make(chunks))
        (gradient_BTS,) = torch.autograd.grad(loss, outputs_BTS)
        return gradient_BTS

    def on_cpu() -> None:
        with torch.no_grad():
            here_BTS.copy_(y_BTS)
        loss_of(here_BTS).to(device)

    def update() -> None:
        loss, _ = criterion(model(feats), make(chunks))
        optimizer.step(torch.autograd.grad(loss, parameters), 1e-4)

    difference = float((loss_of(y_BTS).cpu() - loss_of(here_BTS)).norm() / loss_of(here_BTS).norm())
    assert difference < 1e-3, f"the gradients of the GPU and of the CPU differ by {difference:.1e}"
    measured = timed({"criterion": lambda: loss_of(y_BTS), "criterion_on_cpu": on_cpu, "update": update}, device)
    about = {"device": name_of(device), "difference": difference, **milliseconds(measured)}
    speed = len(chunks) * FRAMES / 100 / statistics.median(measured["update"])
    for name, value, unit, rival in (
        ("update", speed, "times real time", "none"),
        ("share", ratio(measured["criterion"], measured["update"]), "share", "the update"),
        ("cpu_share", ratio(measured["criterion_on_cpu"], measured["update"]), "share", "the update"),
    ):
        print(line(f"lfmmi_{name}_{len(chunks)}", value, unit, rival, **about), flush=True)


def main() -> None:
    """Print the figures."""
    torch.set_num_threads(1)
    device = device_of_arguments()
    for count in (32, 128) if device != "cpu" else (2,):
        figures(*problem(count), device)


if __name__ == "__main__":
    main()
