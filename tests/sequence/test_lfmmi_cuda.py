"""LF-MMI's loss and gradient on a GPU, by PyTorch's sparse products, against the compiled passes in float64.

Axes: B chunks, T outputs of a chunk, S pdfs.
"""

import numpy as np
import pytest
import torch
from denominators import toy_denominator
from torch import Tensor

from speech3.frames.chunks import Chunk
from speech3.frames.packed import segment_labels
from speech3.sequence.graph import Numerators
from speech3.sequence.lfmmi import AlignmentNumerators, LfMmi

OUTPUTS = 30
GRAPH = toy_denominator(2, phones=20, pdfs=40)


def numerators(chunks: int = 8) -> Numerators:
    """Of random phones; most of them never followed one another."""
    generator, made = np.random.default_rng(1), []
    for _ in range(chunks):
        lengths = generator.integers(4, 12, 30)
        labels = segment_labels(generator.integers(1, 21, 30), np.cumsum([0, *lengths]))
        made.append(Chunk(labels, int(generator.integers(0, len(labels) - 3 * OUTPUTS))))
    return AlignmentNumerators(GRAPH, 3 * OUTPUTS)(made)


def computed(device: str, dtype: torch.dtype, scale: float = 2.0) -> tuple[Tensor, int, Tensor]:
    """The loss, how many outputs are right, and the gradients of both outputs, (2, B, T, S)."""
    drawn = torch.randn(2, 8, OUTPUTS, GRAPH.num_pdfs, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    both = [(scale * each).to(device, dtype).requires_grad_() for each in drawn]
    loss, correct = LfMmi(GRAPH)((both[0], both[1]), numerators())
    assert loss.device == torch.device(device) and loss.dtype == dtype
    gradients = torch.stack(torch.autograd.grad(loss, both))
    return loss.detach().double().cpu(), int(correct), gradients.double().cpu()


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=["float64", "float32"])
@pytest.mark.parametrize("scale", [0.0, 2.0, 15.0])
def test_loss_and_gradient(dtype: torch.dtype, limit: float, scale: float, gpu: str) -> None:
    (loss, correct, gradients), (loss64, correct64, gradients64) = (
        computed(gpu, dtype, scale),
        computed("cpu", torch.float64, scale),
    )
    assert float((loss - loss64).abs() / loss64.abs()) < limit
    assert scale == 0 or correct == correct64
    for found, expected in zip(gradients, gradients64, strict=True):
        assert float((found - expected).norm() / expected.norm()) < limit


def test_outputs_that_are_not_numbers_give_a_loss_that_is_none(gpu: str) -> None:
    loss, _, _ = computed(gpu, torch.float32, float("nan"))
    assert loss.isnan()
