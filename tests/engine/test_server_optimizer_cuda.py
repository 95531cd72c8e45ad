"""The server's step in Triton against PyTorch's operations: in Triton's interpreter, and on a GPU if any.

Whether a kernel is interpreted is settled when it is defined, so the interpreter has a process of its own: this file,
run as a program.
"""

import pytest
import torch

from speech3.engine import server_optimizer
from speech3.engine.server_optimizer import ServerOptimizer, ServerVectors, ShardVectors, step_torch

SIZES = (16, 4096, 5000)
CASES = [
    (ServerOptimizer(0.2), True, 1),
    (ServerOptimizer(None, momentum=0.9), True, 1),
    (ServerOptimizer(1.0, momentum=0.9, projection=True), False, 1),
    (ServerOptimizer(0.3, adagrad=0.05, decay=0.9), False, 1),
    (ServerOptimizer(1.0, momentum=0.5, adagrad=0.05, projection=True), True, 2),
]


def case(
    optimizer: ServerOptimizer, local: bool, size: int, device: str
) -> tuple[ServerVectors, ServerVectors, ShardVectors]:
    """The old state, a new one that is to be written, and a shard's side."""
    generator = torch.Generator().manual_seed(size)

    def drawn(spread: float = 1.0) -> torch.Tensor:
        return (spread * torch.randn(size, generator=generator)).to(device)

    push_P, fetched_P = drawn(0.02), drawn()
    velocity_P = drawn(0.01) - 0.3 * push_P
    slots = (velocity_P if optimizer.momentum else None, drawn().abs() if optimizer.adagrad else None)
    old = ServerVectors(drawn(), *slots)
    new = ServerVectors(*(None if t is None else torch.full_like(t, 7.0) for t in (old.parameters_P, *slots)))
    own = ShardVectors(fetched_P - push_P, fetched_P, None) if local else ShardVectors(fetched_P, None, push_P)
    return old, new, own


def compare(device: str) -> None:
    """All kinds of steps; a push that is not finite has a length that is not."""
    for optimizer, local, repeats in CASES:
        for size in SIZES:
            results = []
            for step in (server_optimizer._step_triton, step_torch):
                server_optimizer._step_of = lambda *_, step=step: step
                old, new, own = case(optimizer, local, size, device)
                lengths = [optimizer.step(old, new, own, staleness=2, minibatches=3) for _ in range(repeats)]
                results.append((lengths, new, own))
            (ours, new, own), (theirs, new_torch, own_torch) = results
            assert ours == pytest.approx(theirs, rel=1e-4)
            for mine, expected in ((new, new_torch), (own, own_torch)):
                for name, tensor in vars(mine).items():
                    if tensor is not None:
                        torch.testing.assert_close(tensor, getattr(expected, name), rtol=1e-5, atol=1e-6)
    server_optimizer._step_of = lambda *_: server_optimizer._step_triton
    old, new, own = case(ServerOptimizer(), True, 5000, device)
    own.parameters_P[4321] = float("nan")
    assert ServerOptimizer().step(old, new, own, staleness=0, minibatches=1) == float("inf")


def test_triton_step_equals_step_torch_in_interpreter(interpreted):
    interpreted(__file__)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_triton_step_equals_step_torch_on_gpu(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(server_optimizer, "_step_of", server_optimizer._step_of)  # is restored afterwards
    compare("cuda")


if __name__ == "__main__":
    compare("cpu")
