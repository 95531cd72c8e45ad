"""Speed of a training step of the TDNN-F over the same network made of PyTorch's layers; results are compared, too.

    OMP_NUM_THREADS=1 python tests/benchmarks/tdnn.py

The preset ``cnn_tdnn`` without dropout (so that losses can be compared), minibatches of 32 chunks of 150 frames with
their context, cross-entropy at both outputs, one thread; forward, backward and update. The rival is made of nn.Conv2d,
nn.Conv1d (for each product over two times), nn.Linear, BatchNorm and ReLU, with cross_entropy and torch.optim.SGD, in
the faster of PyTorch's two memory formats; its semi-orthogonal constraint is written with matmul. Its input is
normalised beforehand. All rivals take turns in rounds; the result is the median of the rounds' ratios. As in training,
the process keeps freed memory, for all rivals. ``constraint_share`` is the time of the constraint alone over that of
our step.
"""

import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from speech3.config import CnnTdnnConfig
from speech3.config.experiment import LfmmiSystemConfig
from speech3.engine.optimizers import Sgd
from speech3.models import build
from speech3.models.base import cross_entropy
from speech3.models.layers import gemm_library
from speech3.models.tdnn import Tdnn, constrain
from speech3.runtime.native import keep_freed_memory

CHUNKS, FRAMES, BINS, SENONES, RATE = 32, 150, 40, 500, 0.01
ROUNDS, STEPS = 9, 3
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}

Step = Callable[[], float]


def preset() -> CnnTdnnConfig:
    """The config of the network that is measured."""
    config = LfmmiSystemConfig.model_validate({}).model
    assert isinstance(config, CnnTdnnConfig)
    return config.model_copy(update={"dropout": 0.0})


def ours(model: Tdnn, feats_BTF: Tensor, targets_N: Tensor) -> Step:
    """A training step of our network, beginning with the features."""
    sgd, parameters = Sgd(model), list(model.parameters())

    def step() -> float:
        main_BTS, xent_BTS = model(feats_BTF)
        loss = cross_entropy(main_BTS.flatten(0, 1), targets_N)[0] + cross_entropy(xent_BTS.flatten(0, 1), targets_N)[0]
        sgd.step(torch.autograd.grad(loss, parameters), RATE)
        return loss.item()

    return step


class StockLayer(nn.Module):
    """A factored layer made of nn.Conv1d, (B, D, T) to (B, D, T - 2)."""

    def __init__(self, config: CnnTdnnConfig) -> None:
        super().__init__()
        self.linear = nn.Conv1d(config.width, config.bottleneck, 2, bias=False)
        self.affine = nn.Conv1d(config.bottleneck, config.width, 2)
        self.norm, self.bypass = nn.BatchNorm1d(config.width), config.bypass

    @torch.no_grad()
    def constrain(self) -> None:
        """As `speech3.models.tdnn.constrain`, with matmul only."""
        m_OI = self.linear.weight.flatten(1)
        p_OO = m_OI @ m_OI.t()
        square, trace = p_OO.square().sum(), p_OO.trace()
        spread = square * len(p_OO) / trace**2
        nu = 0.125 if spread <= 1.02 else 0.0625 if spread <= 1.1 else 0.03125
        p_OO.diagonal().sub_(square / trace)
        m_OI.sub_(4 * nu * trace / square * (p_OO @ m_OI))

    def forward(self, x_BDT: Tensor) -> Tensor:
        """Apply the layer; all of it but the constraint is PyTorch's."""
        self.constrain()
        y_BDT = self.norm(self.affine(self.linear(x_BDT)).relu())
        return y_BDT + self.bypass * x_BDT[:, :, 1:-1]


class Stock(nn.Module):
    """The same network made of PyTorch's layers: (B, 1, F, T) to outputs (B * T, S)."""

    def __init__(self, config: CnnTdnnConfig, model: Tdnn) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 1
        for number, each in enumerate(config.convolutions):
            stride = each.stride, 1 if number else config.subsampling
            layers += [nn.Conv2d(channels, each.maps, each.kernel, stride), nn.BatchNorm2d(each.maps), nn.ReLU()]
            channels = each.maps
        self.convolutions = nn.Sequential(*layers)
        self.affine = nn.Linear(model.front.affine.weight.shape[1], config.width)
        self.norm = nn.BatchNorm1d(config.width)
        self.layers = nn.Sequential(*(StockLayer(config) for _ in range(config.layers)))
        self.heads = nn.ModuleList(
            nn.Sequential(
                nn.Linear(config.width, config.prefinal),
                nn.ReLU(),
                nn.BatchNorm1d(config.prefinal),
                nn.Linear(config.prefinal, SENONES),
            )
            for _ in range(2)
        )
        self._take(model)

    @torch.no_grad()
    def _take(self, model: Tdnn) -> None:
        """Copy the parameters of our network."""
        front, channels = model.front, model.front.convolutions[-1].convolution.out_channels
        for theirs, block in zip(self.convolutions[::3], front.convolutions, strict=True):
            mine = block.convolution
            theirs.load_state_dict({"weight": mine.weight.transpose(2, 3), "bias": mine.bias})
        weight = (
            front.affine.weight.unflatten(1, (-1, channels)).transpose(1, 2).flatten(1)
        )  # theirs has the maps first
        self.affine.load_state_dict({"weight": weight, "bias": front.affine.bias})
        for theirs, mine in zip(self.layers, model.layers, strict=True):
            theirs.linear.weight.copy_(mine.linear.weight.permute(1, 2, 0))
            theirs.affine.weight.copy_(mine.affine.weight.unflatten(1, (2, -1)).transpose(1, 2))
            theirs.affine.bias.copy_(mine.affine.bias)
        outputs = (model.prefinal, model.output), (model.xent_prefinal, model.xent_output)
        for theirs, (prefinal, output) in zip(self.heads, outputs, strict=True):
            theirs[0].load_state_dict(prefinal.affine.state_dict())
            theirs[3].load_state_dict(output.state_dict())

    def forward(self, x_BCKT: Tensor) -> list[Tensor]:
        """Compute both outputs."""
        x_BCKT = self.convolutions(x_BCKT)
        x_BTD = self.affine(x_BCKT.flatten(1, 2).transpose(1, 2)).relu()
        x_BDT = self.layers(self.norm(x_BTD.transpose(1, 2)))
        x_ND = x_BDT.transpose(1, 2).flatten(0, 1)
        return [head(x_ND) for head in self.heads]


def stock(model: Tdnn, memory_format: torch.memory_format, feats_BTF: Tensor, targets_N: Tensor) -> Step:
    """A training step of the stock network."""
    network = Stock(preset(), model).to(memory_format=memory_format)  # type: ignore[call-overload]
    x_BCKT = feats_BTF.transpose(1, 2)[:, None].contiguous(memory_format=memory_format)
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)

    def step() -> float:
        optimizer.zero_grad()
        loss = sum(nn.functional.cross_entropy(outputs_NS, targets_N) for outputs_NS in network(x_BCKT))
        assert isinstance(loss, Tensor)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def constraint_ms(model: Tdnn) -> float:
    """Seconds of the constraint of all layers, the best of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for layer in model.layers:
            constrain(layer.linear.weight)
        best = min(best, time.perf_counter() - start)
    return 1e3 * best


def main() -> None:
    """Print one JSON line."""
    torch.manual_seed(1)
    model = build(preset(), BINS, SENONES, seed=1)
    assert isinstance(model, Tdnn)
    for output in (model.output, model.xent_output):  # initially zero, so no gradient would pass below them
        nn.init.normal_(output.weight, std=0.05)
    feats_BTF = torch.randn(CHUNKS, model.left_context + FRAMES + model.right_context, BINS)
    targets_N = torch.randint(SENONES, (CHUNKS * FRAMES // 3,))
    rivals = {name: stock(model, memory_format, feats_BTF, targets_N) for name, memory_format in FORMATS.items()}
    steps = {"ours": ours(model, feats_BTF, targets_N), **rivals}
    # Two steps, which also warm up; in later steps PyTorch's two memory formats differ by more than 1e-5.
    losses = {name: [step() for _ in range(2)] for name, step in steps.items()}
    worst = max(abs(a - b) / b for a, b in zip(losses["ours"], losses["contiguous"], strict=True))
    assert worst < 1e-5, f"losses differ by {worst:.1e} of their value"
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(STEPS):
                step()
            seconds[name].append((time.perf_counter() - start) / STEPS)
    faster = min(FORMATS, key=lambda name: statistics.median(seconds[name]))
    ratio = statistics.median(theirs / mine for mine, theirs in zip(seconds["ours"], seconds[faster], strict=True))
    median_ms = {f"{name}_ms": round(1e3 * statistics.median(each), 1) for name, each in seconds.items()}
    print(json.dumps({
        "name": "tdnn_over_stock", "value": round(ratio, 3), "unit": "ratio",
        "rival": f"nn.Conv2d, nn.Conv1d, nn.Linear + torch.optim.SGD, {faster}", "product": gemm_library(), **median_ms,
        "constraint_share": round(constraint_ms(model) / median_ms["ours_ms"], 4),
        "loss_difference": float(f"{worst:.1e}"),
    }), flush=True)  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    keep_freed_memory()
    main()
