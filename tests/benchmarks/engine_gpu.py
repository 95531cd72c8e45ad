"""The engine's figures on a GPU; `engine.py` also prints them if there is one.

    python tests/benchmarks/engine_gpu.py [--device cuda:0] [NAME ...]

With ``--device cpu`` a tiny network runs through the same code, to test it.

engine1_over_bare, engine1_over_bare_1, engine1_over_bare_bf16
    ``dnn_zhang`` in float32 and in bf16 (without whole runs, minibatches of 1,024 and of 256), as on the CPU, but the
    bare loop is recorded as a CUDA graph, and the engine has ``training.cuda_graph``, which records forward and
    backward passes.
sync_share_zhang
    As on the CPU, with two shards on the same GPU.
asgd4_over_asgd1
    Four shards on the same GPU, which access the server by CUDA IPC, over one shard; minibatches of 256 and of 1,024.
sync_bandwidth
    A sync of ``dnn_zhang`` with local updates has to read the server's parameters, the shard's and those it fetched,
    and to write all three. The figure is these bytes over the time of a sync (including launches, norms and waiting for
    the GPU), as a share of the bytes that a device-to-device copy of the parameters reads and writes over its time.
asgd2_over_ddp2
    With two GPUs: one shard on each, over DDP with NCCL.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from engine import DNN, ROUNDS, ZHANG, figures, line
from engine_rivals import Case, frames_per_s, in_turn, left_out, median_ratio, world, written

from speech3.config import DnnConfig
from speech3.engine.interface import USED
from speech3.engine.server import make_server, memory_layout, private_memory, tensors_on_gpu
from speech3.engine.shard import Shard
from speech3.frames.packed import open_packed
from speech3.train.parts import make_parts

_SYNCS = 200  # per round
_VALUES_MOVED = 6  # read or written per parameter in a sync


def main(wanted: Collection[str], device: str = "cuda:0") -> None:
    """Print the wanted figures."""
    zhang = replace(ZHANG, device=device, frames=400_000, minibatches=400, cuda_graph=device != "cpu")
    dnn, rounds = replace(DNN, device=device, minibatches=3000), ROUNDS
    if device == "cpu":
        network = DnnConfig(layers=1, width=32, left_context=1, right_context=1)
        zhang = dnn = Case("tiny", bins=4, senones=5, model=network, frames=6000, minibatches=8)
        rounds = 1
    if engine1 := [name for name in ("engine1_over_bare", "engine1_over_bare_1") if name in wanted]:
        print(*figures(zhang, engine1, rounds), sep="\n", flush=True)
    if "engine1_over_bare_bf16" in wanted:
        for minibatch in (1024, 256) if device != "cpu" else (256,):
            in_bf16 = replace(zhang, precision="bf16", minibatch=minibatch)
            for figure in figures(in_bf16, ["engine1_over_bare"], rounds, suffix="_bf16", runs=False):
                print(figure, flush=True)
    if "sync_share_zhang" in wanted:
        print(*figures(zhang, ["sync_share"], rounds, suffix="_zhang"), sep="\n", flush=True)
    if "asgd4_over_asgd1" in wanted:
        for case in (zhang, dnn):
            for minibatch in (256, 1024) if device != "cpu" else (256,):
                minibatches = case.minibatches * 256 // minibatch
                sized = replace(case, minibatch=minibatch, minibatches=minibatches, frames=minibatch * minibatches)
                print(four_shards(sized, rounds), flush=True)
    if "sync_bandwidth" in wanted:
        print(sync_bandwidth(replace(zhang, frames=2000), rounds), flush=True)
    if "asgd2_over_ddp2" in wanted and torch.cuda.device_count() > 1:
        on_two = replace(zhang, device="cuda", frames=zhang.minibatches * zhang.minibatch)
        print(*figures(on_two, ["asgd2_over_ddp2"]), sep="\n", flush=True)
    elif "asgd2_over_ddp2" in wanted:
        left_out("asgd2_over_ddp2 over NCCL", "it needs two GPUs")


def four_shards(case: Case, rounds: int = ROUNDS) -> str:
    """Print the speed of four shards over one."""
    with written(case) as directory, ExitStack() as stack:
        rivals = {
            name: stack.enter_context(world(case, directory, "shared", workers))
            for name, workers in (("asgd4", 4), ("asgd1", 1))
        }
        measured = {name: frames_per_s(done) for name, done in in_turn(rivals, rounds).items()}
    return line(
        "asgd4_over_asgd1",
        median_ratio(measured["asgd4"], measured["asgd1"]),
        "ratio",
        "world shared, 1 worker",
        model=case.name,
        device=case.device,
        minibatch=case.minibatch,
        rounds=rounds,
        asgd1_frames_per_s=round(statistics.median(measured["asgd1"])),
    )


def sync_bandwidth(case: Case, rounds: int = ROUNDS) -> str:
    """Print the bandwidth of a sync over that of a copy."""
    with written(case) as directory:
        sync, copy, megabytes = _sync_and_copy(case, directory)
        measured = in_turn({"sync": lambda: _seconds(sync), "copy": lambda: _seconds(copy)}, rounds)
    sync_s, copy_s = (statistics.median(measured[name]) for name in ("sync", "copy"))
    share = statistics.median(
        _VALUES_MOVED / 2 * copy_s / sync_s for sync_s, copy_s in zip(measured["sync"], measured["copy"], strict=True)
    )
    return line(
        "sync_bandwidth",
        share,
        "share",
        "device-to-device copy",
        model=case.name,
        device=case.device,
        rounds=rounds,
        sync_ms=round(1e3 * sync_s, 3),
        copy_ms=round(1e3 * copy_s, 3),
        parameters_mb=round(megabytes, 1),
    )


def _sync_and_copy(case: Case, directory: Path) -> tuple[Callable[[], None], Callable[[], None], float]:
    config = case.config(directory, "shared", 1)
    device, asgd = torch.device(case.device), config.training.asgd
    shard = Shard(make_parts(config, open_packed(directory / "train.frames"), device), asgd)
    push, own = shard.pushes[0], shard.sgd.parameters
    memory = private_memory(memory_layout(own, asgd, 1, 1))
    whole = make_server(memory, asgd, own, nullcontext(), tensors_on_gpu(own, asgd))
    whole.load({"parameters": own.vector_K})
    server = whole.partitions[0]

    def visit() -> int:
        push.pack()
        ended = server.sync(push)
        push.unpack()
        return ended

    visit()  # fetches

    def sync() -> None:
        push.numbers = [0]
        assert visit() == USED

    source_P, target_P = own.parameters_P.clone(), own.parameters_P.clone()

    def copy() -> None:
        target_P.copy_(source_P)

    return sync, copy, own.num_parameters * 4 / 1e6


def _seconds(act: Callable[[], None]) -> float:
    """Mean seconds of one of many calls in sequence."""
    start = time.perf_counter()
    for _ in range(_SYNCS):
        act()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / _SYNCS


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    known = [
        "engine1_over_bare",
        "engine1_over_bare_1",
        "engine1_over_bare_bf16",
        "sync_share_zhang",
        "asgd4_over_asgd1",
        "sync_bandwidth",
        "asgd2_over_ddp2",
    ]
    parser.add_argument("names", nargs="*", choices=[[], *known])
    given = parser.parse_args()
    main(given.names or known, given.device)
