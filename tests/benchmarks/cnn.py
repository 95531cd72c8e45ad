"""Time of a training step of the CNN over that of the same network made of PyTorch's layers; results are compared, too.

    OMP_NUM_THREADS=1 python tests/benchmarks/cnn.py

The preset ``cnn`` without dropout (PyTorch's would only make the rival slower), minibatches of 256 windows of 11 x 120,
one thread; forward, backward and update. The rival is the whole step of an nn.Sequential of Conv2d, MaxPool2d,
BatchNorm, ReLU, Flatten and Linear with cross_entropy and torch.optim.SGD, with its input normalised and arranged
beforehand, in the faster of PyTorch's two memory formats. That is stricter than adding up the times of single layers,
which would include the overhead of calling each. All rivals take turns in rounds; the result is the median of the
rounds' ratios. As in training, the process keeps freed memory, for all rivals.

``gflops`` counts only the products: two operations per multiplication, three products per layer, two in the first.
"""

import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from speech3.config import CnnConfig, ModelConfig, load_preset
from speech3.engine.optimizers import Sgd
from speech3.models import build
from speech3.models.base import cross_entropy
from speech3.models.layers import gemm_library
from speech3.runtime.native import keep_freed_memory

WINDOW, FEATURES, SENONES, MINIBATCH, RATE = 11, 120, (800, 3000), 256, 0.01
ROUNDS, STEPS = 9, 3
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}

Step = Callable[[], float]


def preset() -> CnnConfig:
    """The config of the network that is measured."""
    config = load_preset(ModelConfig, "models", "cnn").model_copy(update={"dropout": 0.0})
    assert isinstance(config, CnnConfig)
    return config


def ours(model: nn.Module, feats_BWF: Tensor, targets_B: Tensor) -> Step:
    """A training step of our network, beginning with the features."""
    sgd, parameters = Sgd(model), list(model.parameters())

    def step() -> float:
        loss, _ = cross_entropy(model(feats_BWF), targets_B)
        sgd.step(torch.autograd.grad(loss, parameters), RATE)
        return loss.item()

    return step


def stock(model: nn.Module, memory_format: torch.memory_format, feats_BWF: Tensor, targets_B: Tensor) -> Step:
    """A training step of the same network made of PyTorch's layers."""
    config = preset()
    x_BCKW = feats_BWF.unflatten(2, (config.channels, -1)).permute(0, 2, 3, 1).contiguous(memory_format=memory_format)
    layers: list[nn.Module] = []
    channels = config.channels
    for each in config.convolutions:
        layers += [nn.Conv2d(channels, each.maps, each.kernel), nn.MaxPool2d((each.pool, 1))]
        layers += [nn.BatchNorm2d(each.maps), nn.ReLU()]
        channels = each.maps
    layers.append(nn.Flatten())
    for linear in products(model)[len(config.convolutions) : -1]:
        layers += [nn.Linear(linear.weight.shape[1], config.width), nn.BatchNorm1d(config.width), nn.ReLU()]
    chain = nn.Sequential(*layers, nn.Linear(config.width, len(products(model)[-1].weight)))
    for number, (theirs, mine) in enumerate(zip(products(chain), products(model), strict=True)):
        weight = mine.weight.detach()
        if number == len(config.convolutions):  # nn.Flatten gives maps x frequency x time, ours has the maps last
            weight = weight.unflatten(1, (-1, channels)).transpose(1, 2).flatten(1)
        theirs.load_state_dict({"weight": weight, "bias": mine.bias})
    chain.to(memory_format=memory_format)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(chain.parameters(), lr=RATE)

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(chain(x_BCKW), targets_B)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def products(model: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    """The layers with products, from first to last."""
    return [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]


def operations(model: nn.Module) -> int:
    """Number of operations in the products of one training step, per frame."""
    places, bins, frames = [], FEATURES // preset().channels, WINDOW
    for each in preset().convolutions:
        bins, frames = bins - each.kernel[0] + 1, frames - each.kernel[1] + 1
        places.append(bins * frames)
        bins //= each.pool
    places += [1] * (len(products(model)) - len(places))
    each_once = [2 * n * layer.weight.numel() for n, layer in zip(places, products(model), strict=True)]
    return 3 * sum(each_once) - each_once[0]


def measure(senones: int) -> dict[str, object]:
    """The ratio with this many outputs, and the values that it is computed from."""
    torch.manual_seed(1)
    model = build(preset(), FEATURES, senones, seed=1)
    batch = torch.randn(MINIBATCH, WINDOW, FEATURES), torch.randint(senones, (MINIBATCH,))
    rivals = {name: stock(model, memory_format, *batch) for name, memory_format in FORMATS.items()}
    steps = {"ours": ours(model, *batch), **rivals}
    losses = {name: [step() for _ in range(STEPS)] for name, step in steps.items()}  # warms up, too
    worst = max(abs(a - b) / b for a, b in zip(losses["ours"], losses["contiguous"], strict=True))
    assert worst < 1e-4, f"losses differ by {worst:.1e} of their value"
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(STEPS):
                step()
            seconds[name].append((time.perf_counter() - start) / STEPS)
    faster = min(FORMATS, key=lambda name: statistics.median(seconds[name]))
    ratio = statistics.median(mine / theirs for mine, theirs in zip(seconds["ours"], seconds[faster], strict=True))
    median_ms = {f"{name}_ms": round(1e3 * statistics.median(each), 1) for name, each in seconds.items()}
    gflops = round(operations(model) * MINIBATCH / statistics.median(seconds["ours"]) / 1e9)
    return {
        "value": round(ratio, 3),
        "rival": faster,
        **median_ms,
        "gflops": gflops,
        "loss_difference": float(f"{worst:.1e}"),
    }


def cnn_figure() -> None:
    """Print one JSON line; its value is the worse of the ratios with few and with many senones."""
    cases = {str(senones): measure(senones) for senones in SENONES}
    print(json.dumps({
        "name": "cnn_over_conv2d", "value": max(float(str(case["value"])) for case in cases.values()), "unit": "ratio",
        "rival": "nn.Sequential of Conv2d ... Linear + torch.optim.SGD", "product": gemm_library(), "senones": cases,
    }), flush=True)  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    keep_freed_memory()
    cnn_figure()
