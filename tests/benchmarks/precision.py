"""Speed of a training step in bf16 over the same step in float32, on this processor.

    OMP_NUM_THREADS=1 python tests/benchmarks/precision.py

The presets ``dnn`` and ``cnn_kaldi`` (minibatches of 256 windows of 11 frames of 120 values) and ``cnn_tdnn`` (32
chunks of 150 frames of 40 values with their context, an output for every third) with 800 senones; cross-entropy,
forward and backward pass as in `speech3.engine.gradient`, update by SGD. Both precisions take turns in rounds; the
result is the median of the rounds' ratios.
"""

import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from speech3.config import ModelConfig, load_preset
from speech3.engine.optimizers import Sgd
from speech3.models import AcousticModel, build
from speech3.models.base import cross_entropy
from speech3.models.tdnn import Tdnn
from speech3.runtime.native import keep_freed_memory

SENONES, RATE, ROUNDS, STEPS = 800, 0.01, 9, 3
WINDOWS, CHUNKS, FRAMES = 256, 32, 150


def inputs_of(model: AcousticModel) -> tuple[Tensor, int]:
    """Random inputs of a minibatch, and its number of outputs."""
    if isinstance(model, Tdnn):
        frames = model.left_context + FRAMES + model.right_context
        return torch.randn(CHUNKS, frames, model.feat_dim), CHUNKS * FRAMES // model.subsampling
    return torch.randn(WINDOWS, model.window, model.feat_dim), WINDOWS


def step_of(family: str, precision: str) -> Callable[[], float]:
    """A training step."""
    config = load_preset(ModelConfig, "models", family)
    if family == "cnn_tdnn":
        config = config.model_copy(update={"subsampling": 3})
    model = build(config, 40 if family == "cnn_tdnn" else 120, SENONES, seed=1)
    inputs, count = inputs_of(model)
    targets_N = torch.randint(SENONES, (count,))
    sgd, parameters = Sgd(model), list(model.parameters())

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            outputs = model(inputs)
        loss, _ = cross_entropy(outputs.float().flatten(0, -2), targets_N)
        sgd.step(torch.autograd.grad(loss, parameters), RATE)
        return loss.item()

    return step


def main() -> None:
    """Print a JSON line for each family."""
    for family in ("dnn", "cnn_kaldi", "cnn_tdnn"):
        torch.manual_seed(1)
        steps = {precision: step_of(family, precision) for precision in ("float32", "bf16")}
        seconds: dict[str, list[float]] = {precision: [] for precision in steps}
        for round_ in range(-1, ROUNDS):  # the first warms up
            for precision, step in steps.items():
                start = time.perf_counter()
                for _ in range(STEPS * (1 if family == "cnn_tdnn" else 10)):
                    step()
                if round_ >= 0:
                    seconds[precision].append(time.perf_counter() - start)
        ratio = statistics.median(a / b for a, b in zip(seconds["float32"], seconds["bf16"], strict=True))
        print(
            json.dumps(
                {
                    "name": f"bf16_over_float32_{family}",
                    "value": round(ratio, 2),
                    "unit": "ratio",
                    "rival": "the same step in float32",
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    keep_freed_memory()
    main()
