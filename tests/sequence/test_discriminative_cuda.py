"""MMI and sMBR on a GPU, by PyTorch's sparse products, against the compiled passes in float64.

Axes: N frames of all chunks, S senones.
"""

from typing import Any

import numpy as np
import pytest
import torch
from denominators import toy_senones
from torch import Tensor

from speech3.sequence.discriminative import Discriminative, senone_graph

SENONES, FRAMES, CHUNKS = 30, 50, 8


def computed(device: str, dtype: torch.dtype, changes: dict[str, Any]) -> tuple[Tensor, int, Tensor]:
    graph = senone_graph(*toy_senones(1, SENONES), SENONES, 10)
    loss_of = Discriminative(
        graph, np.full(SENONES, -3, np.float32), **{"smbr": False, "acoustic_scale": 0.5, **changes}
    )
    generator = torch.Generator().manual_seed(1)
    y_NS = 2 * torch.randn(CHUNKS * FRAMES, SENONES, generator=generator, dtype=torch.float64)
    senones_N = torch.randint(SENONES, (CHUNKS * FRAMES,), generator=generator)
    y_NS = y_NS.to(device, dtype).requires_grad_()
    loss, correct = loss_of(y_NS.view(CHUNKS, FRAMES, -1), senones_N.to(device))
    assert loss.device == torch.device(device) and loss.dtype == dtype
    (gradient,) = torch.autograd.grad(loss, y_NS)
    return loss.detach().double().cpu(), int(correct), gradient.double().cpu()


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=["float64", "float32"])
@pytest.mark.parametrize("changes", [{"boost": 0.1}, {"smbr": True, "cross_entropy": 0.1}], ids=["mmi", "smbr"])
def test_loss_and_gradient(dtype: torch.dtype, limit: float, changes: dict[str, Any], gpu: str) -> None:
    (loss, correct, gradient), (loss64, correct64, gradient64) = (
        computed(gpu, dtype, changes),
        computed("cpu", torch.float64, changes),
    )
    assert float((loss - loss64).abs()) < limit
    assert correct == correct64
    assert float((gradient - gradient64).norm() / gradient64.norm()) < limit
