"""Speed and size of the ternary code, on one thread; results are compared first.

    OMP_NUM_THREADS=1 python tests/benchmarks/codec.py

Network 440 - 4 x 512 - 3000 (2.55 million parameters), coded layer by layer, with tensors of fewer than 8,192 values as
floats; one real gradient. All rivals take turns in rounds; results are medians of the rounds' ratios.

ternary_pack_over_torch
    Time of the straightforward formulation in PyTorch (statistics, rand, compare, shift) over ours, both with
    statistics.
ternary_roundtrip_share
    Time to pack, unpack and add over that of one training step of 256 frames.
push_ratio
    Bytes of float32 over bytes sent to the server.
mean_ratio
    Bytes of float32 over bytes received with the mean of four workers, including scales.
"""

import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from speech3.config import DnnConfig
from speech3.engine.codecs import Ternary, as_floats, layout
from speech3.engine.optimizers import Sgd
from speech3.engine.papers.terngrad import encode_levels
from speech3.models import build
from speech3.models.base import cross_entropy
from speech3.models.layers import gemm_library

WINDOW, BINS, SENONES, MINIBATCH, RATE, CLIP, FLOAT_BELOW = 11, 40, 3000, 256, 0.1, 2.5, 8192
ROUNDS, WORKERS = 25, 4


def obvious(tensors: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Scale and bytes of each tensor, four values per byte."""
    coded = []
    for g in tensors:
        clipped = g.clamp(-(limit := CLIP * g.std()), limit)
        scale = clipped.abs().max()
        sent = torch.rand_like(g) * scale < clipped.abs()
        codes = (sent.to(torch.uint8) | ((sent & (g < 0)).to(torch.uint8) << 1)).view(-1, 4)
        coded.append((scale, codes[:, 0] | (codes[:, 1] << 2) | (codes[:, 2] << 4) | (codes[:, 3] << 6)))
    return coded


def main() -> None:
    """Print a JSON line for each figure."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = build(DnnConfig(layers=4, width=512), BINS, SENONES, seed=1)
    sgd = Sgd(model)
    parameters = list(model.parameters())
    inputs, targets = torch.randn(MINIBATCH, WINDOW, BINS), torch.randint(SENONES, (MINIBATCH,))

    def gradient() -> tuple[Tensor, ...]:
        return torch.autograd.grad(cross_entropy(model(inputs), targets)[0], parameters)

    flat = sgd.parameters.zeros_like()
    for view, g in zip(flat.views, gradient(), strict=True):
        view.copy_(g)
    codec = Ternary(layout(flat.views, floats=as_floats(flat.views, below=FLOAT_BELOW)), CLIP)
    whole = Ternary(layout(flat.views), CLIP)
    coded = [view for view in flat.views if view.numel() >= FLOAT_BELOW]
    message, out_P = codec.encode(flat.vector_K, 1), torch.zeros_like(flat.vector_K)
    for (scale, _), ours in zip(obvious(coded), message.view(torch.float32), strict=False):
        assert abs(float(scale) - float(ours)) < 1e-4 * float(scale)

    def step() -> None:
        sgd.step(gradient(), RATE)

    seconds: dict[str, list[float]] = {}
    rivals: dict[str, Callable[[], object]] = {
        "step": step,
        "torch": lambda: obvious(coded),
        "pack": lambda: codec.encode(flat.vector_K, 1),
        "add": lambda: codec.add(message, out_P),
    }
    for round_ in range(-2, ROUNDS):  # the first warm up
        for name, rival in rivals.items():
            start = time.perf_counter()
            rival()
            if round_ >= 0:
                seconds.setdefault(name, []).append(time.perf_counter() - start)

    def line(name: str, value: float, unit: str, **more: object) -> None:
        print(json.dumps({"name": name, "value": round(value, 4), "unit": unit, **more}))

    values = sum(view.numel() for view in flat.views)
    ms = {f"{name}_ms": round(1e3 * statistics.median(each), 3) for name, each in seconds.items()}
    over = statistics.median(r / m for r, m in zip(seconds["torch"], seconds["pack"], strict=True))
    line("ternary_pack_over_torch", over, "ratio", rival="torch: std, max, rand, compare, shift", values=values, **ms)
    shares = [(p + a) / s for p, a, s in zip(seconds["pack"], seconds["add"], seconds["step"], strict=True)]
    line("ternary_roundtrip_share", statistics.median(shares), "share", rival="a step of ours", product=gemm_library())
    plain = flat.vector_K.nbytes
    all_coded = round(plain / whole.encode(flat.vector_K, 1).numel(), 2)
    line("push_ratio", plain / message.numel(), "ratio", bytes=message.numel(), no_floats=all_coded)
    digits = torch.randint(2 * WORKERS + 1, (16 * whole.layout.words,))
    down = encode_levels(digits, 2 * WORKERS + 1).nbytes + 4 * len(whole.layout.sizes_B)
    line("mean_ratio", plain / down, "ratio", workers=WORKERS, levels=2 * WORKERS + 1, bytes=down)


if __name__ == "__main__":
    main()
