"""Timing on a device, shared by the GPU benchmarks: rivals take turns after a warm-up, medians over rounds.

On a GPU a round is timed by events on its stream, so it includes time in which the GPU waits for the host to launch
kernels. The GPU's clock rates are not fixed. With ``--device cpu`` the same code runs with small sizes, to test it.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping

import torch
from engine_rivals import in_turn

ROUNDS, ROUND_S = 7, 0.2  # a round of one rival repeats its work for about so long
Work = Callable[[], object]


def device_of_arguments() -> str:
    """The device on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    device: str = parser.parse_args().device
    return device


def name_of(device: str) -> str:
    """The name of the device that the figures are for."""
    return device if device == "cpu" else torch.cuda.get_device_name(device)


def seconds(work: Work, repeats: int, device: str) -> float:
    """Mean seconds of one of many calls in sequence."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        return (time.perf_counter() - start) / repeats
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats


def timed(works: Mapping[str, Work], device: str) -> dict[str, list[float]]:
    """Seconds of each rival in each round, taking turns, after three warm-up runs each."""
    round_s, rounds = (ROUND_S, ROUNDS) if device != "cpu" else (0.0, 2)
    repeats = {}
    for name, work in works.items():
        for _ in range(3 if device != "cpu" else 1):
            work()
        repeats[name] = max(1, int(round_s / seconds(work, 1, device)))
    rivals = {name: _round(work, repeats[name], device) for name, work in works.items()}
    return in_turn(rivals, rounds)


def _round(work: Work, repeats: int, device: str) -> Callable[[], float]:
    return lambda: seconds(work, repeats, device)


def ratio(ours: list[float], theirs: list[float]) -> float:
    """Median over the rounds."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def milliseconds(measured: Mapping[str, list[float]]) -> dict[str, float]:
    """The medians in milliseconds, as additional fields of a figure."""
    return {f"{name}_ms": round(1e3 * statistics.median(each), 4) for name, each in measured.items()}


def captured(work: Work, device: str) -> Work:
    """The same work, recorded once as a CUDA graph and replayed; on the CPU the work itself."""
    if device == "cpu":
        return work
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
