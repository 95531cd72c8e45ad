"""Speed of the LSTM with cell clipping on a GPU over cuDNN's, which has no clipping, and over a loop of clipped cells.

    python tests/benchmarks/gpu_lstm.py [--device cuda:0]

As in `lstm.py`, forward and backward passes with all gradients, with the same weights and inputs; results are compared
first. cuDNN computes float32 in tf32 by default, ours does not: both are measured in float32, and both in tf32. A
frame of ours takes a product and a Triton kernel, for whose launch a GPU may have to wait; ``graph`` is the same
recorded as a CUDA graph.

clipped_over_cudnn_SHAPE_PRECISION, clipped_graph_over_cudnn_SHAPE_PRECISION
    Time of ours over that of nn.LSTM; SHAPE is frames x streams x inputs x cells.
clipped_over_cell_loop_SHAPE_PRECISION
    Time of ours over that of a loop of nn.LSTMCell and clamp.
"""

import torch
from engine import line
from gpu_timing import captured, device_of_arguments, milliseconds, name_of, ratio, timed
from lstm import check, lstm_steps

SHAPES = [(20, 64, 440, 640), (20, 256, 440, 640), (100, 32, 40, 320)]
SMALL = [(3, 4, 5, 6)]


def main() -> None:
    """Print the figures."""
    device = device_of_arguments()
    torch.manual_seed(1)
    for shape in SHAPES if device != "cpu" else SMALL:
        for name in ("float32", "tf32"):
            torch.backends.cudnn.allow_tf32 = name == "tf32"
            torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
            steps = lstm_steps(*shape, device=device)
            check(steps, 1e-4 if name == "float32" else 2e-2)
            ours, cudnn, loop = steps.values()
            works = {"ours": ours, "cudnn": cudnn, "loop": loop, "graph": captured(ours, device)}
            measured = timed(works, device)
            about = {"device": name_of(device), **milliseconds(measured)}
            case = f"{'x'.join(map(str, shape))}_{name}"
            for figure, who, rival, against in (
                ("clipped_over_cudnn", "ours", "cudnn", "nn.LSTM"),
                ("clipped_graph_over_cudnn", "graph", "cudnn", "nn.LSTM"),
                ("clipped_over_cell_loop", "ours", "loop", "loop of nn.LSTMCell and clamp"),
            ):
                value = ratio(measured[who], measured[rival])
                print(line(f"{figure}_{case}", value, "ratio", against, **about), flush=True)


if __name__ == "__main__":
    main()
