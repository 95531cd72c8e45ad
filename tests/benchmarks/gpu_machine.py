"""Describes the GPU, its peak speeds, and whether processes can share its memory, as a reference for the other figures.

    python tests/benchmarks/gpu_machine.py [--device cuda:0]

It imports only torch, not speech3, so it runs where the other benchmarks cannot. For the copy, both the bytes read and
the bytes written count.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
import torch.multiprocessing
from torch import Tensor

ROUNDS, REPEATS = 5, 10


def line(name: str, value: object, unit: str, **more: object) -> None:
    """Print one figure."""
    print(json.dumps({"name": name, "value": value, "unit": unit, "rival": None, **more}), flush=True)


def versions() -> dict[str, str]:
    """Versions of the packages that the project needs, or "missing"."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "cuda": str(torch.version.cuda)}
    for package in ("triton", "numba", "numpy", "safetensors", "typer", "rich", "pydantic", "torchaudio", "hypothesis"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def seconds(work: Callable[[], object], device: str) -> float:
    """Seconds of one call, the median of some rounds."""
    measured = []
    for _ in range(ROUNDS + 1):  # the first one warms up
        start = time.perf_counter()
        for _ in range(REPEATS):
            work()
        if device != "cpu":
            torch.cuda.synchronize(device)
        measured.append((time.perf_counter() - start) / REPEATS)
    return statistics.median(measured[1:])


def add_one(tensor: Tensor, done: Any) -> None:
    """Runs in another process: write to the shared tensor."""
    tensor += 1
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
    done.set()


def shared_between_processes(device: str) -> bool:
    """Whether this process sees what another one writes into a shared tensor (CUDA IPC)."""
    context = torch.multiprocessing.get_context("spawn")
    tensor, done = torch.zeros(1000, device=device), context.Event()
    process = context.Process(target=add_one, args=(tensor, done))
    process.start()
    done.wait(60)
    process.join(10)
    return bool((tensor == 1).all())


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    device = parser.parse_args().device
    on_gpu = device != "cpu"
    about: dict[str, object] = {}
    if on_gpu:
        found = torch.cuda.get_device_properties(device)
        about = {
            "multiprocessors": found.multi_processor_count,
            "memory_gb": round(found.total_memory / 1e9, 1),
            "capability": f"{found.major}.{found.minor}",
            "gpus": torch.cuda.device_count(),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "cudnn": torch.backends.cudnn.version(),
        }
    line("machine", torch.cuda.get_device_name(device) if on_gpu else device, "name", **about, **versions())
    shared = shared_between_processes(device)
    line("memory_of_processes_shared", shared, "bool")
    source = torch.randn(2**30 // 4 if on_gpu else 2**20, device=device)
    target = torch.empty_like(source)
    line("copy", round(2 * source.nbytes / seconds(lambda: target.copy_(source), device) / 1e9, 1), "GB/s")
    size = 8192 if on_gpu else 128
    for name, precision, dtype in (
        ("float32", "highest", torch.float32),
        ("tf32", "high", torch.float32),
        ("bf16", "highest", torch.bfloat16),
    ):
        torch.set_float32_matmul_precision(precision)
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        taken_s = seconds(lambda a=a, b=b: a @ b, device)  # type: ignore[misc]
        line(f"mm_{name}", round(2 * size**3 / taken_s / 1e12, 2), "TFLOP/s", size=size)
    assert shared, "the memory of another process is not seen: no world shared on this GPU"


if __name__ == "__main__":
    main()
