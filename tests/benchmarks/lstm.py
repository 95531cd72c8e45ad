"""Speed of the LSTM with cell clipping over PyTorch's own layers; results are compared, too.

    OMP_NUM_THREADS=1 python tests/benchmarks/lstm.py

One thread, float32, forward and backward passes with the gradients of weights and inputs, clip 50 (`nn.LSTM` has none;
with these inputs no cell comes near it). Rivals take turns in rounds; results are medians of the rounds' ratios. As in
training, the process keeps freed memory, for all rivals, except for allocations above 32 MB, such as those of `nn.LSTM`
for 20x64x440x640 and 100x32x40x320: page faults are up to a quarter of its time there. The CNN's figure
(tests/benchmarks/cnn.py) comes last.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from cnn import cnn_figure
from torch import Tensor, nn

from speech3.models.clipped import clipped_lstm
from speech3.models.layers import gemm_library
from speech3.runtime.native import keep_freed_memory

SHAPES = [(20, 10, 440, 320), (20, 40, 440, 512), (20, 64, 440, 640), (100, 32, 40, 320), (20, 10, 640, 640)]
CLIP = 50.0
ROUNDS, ROUND_S = 9, 0.15  # a round of one rival repeats its step for about so long

Step = Callable[[], Sequence[Tensor]]  # outputs, gradients


def lstm_steps(frames: int, streams: int, inputs: int, cells: int, device: str = "cpu") -> dict[str, Step]:
    """A step each of our LSTM, of nn.LSTM and of a loop of nn.LSTMCell and clamp, with the same weights and inputs."""
    lstm, cell = nn.LSTM(inputs, cells, device=device), nn.LSTMCell(inputs, cells, device=device)
    nn.init.zeros_(lstm.bias_hh_l0)  # ours has one bias
    for parameter, value in zip(cell.parameters(), lstm.parameters(), strict=True):
        parameter.data.copy_(value.data)
    x_TBI = torch.randn(frames, streams, inputs, device=device, requires_grad=True)
    d_y_TBC = torch.randn(frames, streams, cells, device=device)
    state_BC = torch.zeros(streams, cells, device=device)
    w_ih_GI, w_hh_GC, bias_G, _ = lstm.parameters()

    def ours() -> Sequence[Tensor]:
        y_TBC, _, _ = clipped_lstm(x_TBI, state_BC, state_BC, w_ih_GI, w_hh_GC, bias_G, clip=CLIP)
        return y_TBC, *torch.autograd.grad(y_TBC, [x_TBI, w_ih_GI, w_hh_GC, bias_G], d_y_TBC)

    def nn_lstm() -> Sequence[Tensor]:
        y_TBC, _ = lstm(x_TBI, (state_BC[None], state_BC[None]))
        return y_TBC, *torch.autograd.grad(y_TBC, [x_TBI, *lstm.parameters()], d_y_TBC)

    def cell_loop() -> Sequence[Tensor]:
        h_BC, c_BC, outputs = state_BC, state_BC, []
        for x_BI in x_TBI.unbind():
            h_BC, c_BC = cell(x_BI, (h_BC, c_BC))
            c_BC = c_BC.clamp(-CLIP, CLIP)
            outputs.append(h_BC)
        y_TBC = torch.stack(outputs)
        return y_TBC, *torch.autograd.grad(y_TBC, [x_TBI, *cell.parameters()], d_y_TBC)

    return {"ours": ours, "nn.LSTM": nn_lstm, "loop of nn.LSTMCell and clamp": cell_loop}


def check(steps: dict[str, Step], limit: float = 2e-5) -> None:
    """Check that all compute the same, but for float32 rounding that accumulates over the frames."""
    ours, *others = (step() for step in steps.values())
    for theirs in others:
        for a, b in zip(ours, theirs, strict=False):  # theirs have a second bias
            difference = ((a - b).abs().max() / b.abs().max()).item()
            assert difference < limit, f"results differ by {difference:.1e} of the largest"


def measure(steps: dict[str, Step]) -> dict[str, list[float]]:
    """Milliseconds of a step in each round; the rivals take turns."""
    repeats = {}
    for name, step in steps.items():
        start = time.perf_counter()
        step()
        repeats[name] = max(1, int(ROUND_S / (time.perf_counter() - start)))
    milliseconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                step()
            milliseconds[name].append(1e3 * (time.perf_counter() - start) / repeats[name])
    return milliseconds


def figure(name: str, value: float, rival: str, **more: object) -> None:
    """Print one JSON line."""
    print(json.dumps({"name": name, "value": round(value, 3), "unit": "ratio", "rival": rival, **more}), flush=True)


def clipped_figures() -> None:
    """Speed of the clipped LSTM over nn.LSTM by shape, the median and worst of these, and over the loop."""
    over_lstm, over_loop = [], []
    for shape in SHAPES:
        steps = lstm_steps(*shape)
        check(steps)
        milliseconds = measure(steps)
        ours, lstm, loop = milliseconds.values()
        over_lstm.append(statistics.median(a / b for a, b in zip(ours, lstm, strict=True)))
        over_loop.append(statistics.median(a / b for a, b in zip(ours, loop, strict=True)))
        medians = {name: round(statistics.median(values), 2) for name, values in milliseconds.items()}
        figure(f"clipped_over_nn_lstm_{'x'.join(map(str, shape))}", over_lstm[-1], "nn.LSTM", milliseconds=medians)
    figure("clipped_over_nn_lstm", statistics.median(over_lstm), "nn.LSTM", product=gemm_library())
    figure("clipped_over_nn_lstm_worst", max(over_lstm), "nn.LSTM")
    figure("clipped_over_cell_loop", statistics.median(over_loop), "loop of nn.LSTMCell and clamp")


def main() -> None:
    """Print the figures."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    keep_freed_memory()
    clipped_figures()
    cnn_figure()


if __name__ == "__main__":
    main()
