"""Speed of the asynchronous engine as ratios: rivals in turn, medians over rounds, one JSON line a figure.

    OMP_NUM_THREADS=1 python tests/benchmarks/engine.py [NAME ...]

Network 440 - 4 x 512 - 3,000 (``dnn``) or 462 - 5 x 2048 - 10,217 (``dnn_zhang``), minibatch 256, `sync_every` 3, one
thread a process, made-up packed frames. Processes stay alive for all rounds; those of a rival are stopped meanwhile.

asgd2_over_asgd1, asgd2_over_ddp2
    Frames a second, by its own `Progress`, of the shared world with two shards over one, and over world ddp with two.
sync_share, sync_share_zhang
    Seconds in syncs and waiting for them over those and computing, of both shards of asgd2; the fetch with which a
    round begins is in it.
engine1_over_bare
    One shard over a bare loop of forward, backward, step on one resident minibatch in a process of the same kind. The
    engine's figure is the lowest of three: rounds of the shared world; the second epoch of a whole `train` run
    (an hour of speech; packed frames, metrics, checkpoints) by the seconds in its metrics; and that epoch by the
    clock, with all that the coordinator does between two epochs, held-out frames (512) and checkpoint included. The
    bare loop runs before and after each whole run and counts with the mean of both.
pool_open_s, pool_open_mb
    As `pool.py` prints them.

With a GPU, `engine_gpu.py` adds its lines.
"""

import json
import os
import statistics
import sys
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pool
import torch
from engine_rivals import Case, bare, frames_per_s, in_turn, left_out, median_ratio, whole_run, world, written

from speech3.config import DnnConfig
from speech3.models.linear import product

ROUNDS = 5
DNN = Case("dnn", bins=40, senones=3000, model=DnnConfig(), frames=200_000, minibatches=240)
ZHANG = Case(
    "dnn_zhang", bins=42, senones=10_217, model=DnnConfig(layers=5, width=2048, activation="sigmoid"),
    frames=12_000, minibatches=36,
)  # fmt: skip
_RIVALS = {"asgd2_over_asgd1": ("shared", 1), "asgd2_over_ddp2": ("ddp", 2)}


def line(name: str, value: float, unit: str, rival: str, **more: Any) -> str:
    """One figure."""
    return json.dumps({"name": name, "value": round(value, 4), "unit": unit, "rival": rival, **more})


def two_shards(case: Case, names: Collection[str], rounds: int = ROUNDS) -> list[str]:
    """Of the ratios of two shards over others, those that are named, and the share of their time that syncs take."""
    with written(case) as directory, ExitStack() as stack:
        rivals = {"asgd2": stack.enter_context(world(case, directory, "shared", 2))}
        for name in (name for name in _RIVALS if name in names):
            rivals[name] = stack.enter_context(world(case, directory, *_RIVALS[name]))
        measured = in_turn(rivals, rounds)
    ours = frames_per_s(measured["asgd2"])
    more = {"model": case.name, "device": case.device, "asgd2_frames_per_s": round(statistics.median(ours))}
    lines = []
    for name in rivals:
        if name != "asgd2":
            theirs = frames_per_s(measured[name])
            rival = f"world {_RIVALS[name][0]}, {_RIVALS[name][1]} workers"
            more_yet = {"rival_frames_per_s": round(statistics.median(theirs)), "rounds": rounds}
            lines.append(line(name, median_ratio(ours, theirs), "ratio", rival, **more, **more_yet))
    for name in (name for name in names if name.startswith("sync_share")):
        shares = [
            sum(shard.sync_s + shard.wait_s for shard in done.shards)
            / sum(shard.compute_s + shard.sync_s + shard.wait_s for shard in done.shards)
            for done in measured["asgd2"]
        ]
        lines.append(line(name, statistics.median(shares), "share", "limit 0.03", **more, rounds=rounds))
    return lines


def one_shard(case: Case, rounds: int = ROUNDS) -> list[str]:
    """The whole engine with one shard over a bare loop."""
    with written(case) as directory, bare(case, directory) as loop, world(case, directory, "shared", 1) as shard:
        rivals: dict[str, Callable[[], Any]] = {
            "before": loop, "world": shard, "run": lambda: whole_run(case, directory), "after": loop
        }  # fmt: skip
        measured = in_turn(rivals, rounds)
    loops = [statistics.mean(pair) for pair in zip(measured["before"], measured["after"], strict=True)]
    by = {
        "world": median_ratio(frames_per_s(measured["world"]), loops),
        "metrics": median_ratio([seconds for seconds, _ in measured["run"]], loops),
        "clock": median_ratio([clock for _, clock in measured["run"]], loops),
    }
    rival = "bare loop, resident minibatch" + (", CUDA graph" if case.device != "cpu" else "")
    return [line(
        "engine1_over_bare", min(by.values()), "ratio", rival, by={name: round(value, 4) for name, value in by.items()},
        model=case.name, device=case.device, dtype="float32", product=product(),
        bare_frames_per_s=round(statistics.median(loops)), rounds=rounds,
        sync_share=round(statistics.median(done.shards[0].sync_share for done in measured["world"]), 4),
    )]  # fmt: skip


def main(names: list[str]) -> None:
    """Print the named figures, or all."""
    torch.set_num_threads(1)
    known = [*_RIVALS, "sync_share", "sync_share_zhang", "engine1_over_bare", "pool_open_s", "pool_open_mb"]
    known += ["asgd4_over_asgd1", "sync_bandwidth"]
    if unknown := set(names) - set(known):
        sys.exit(f"no such figure: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if (load := os.getloadavg()[0]) > 0.5:
        print(f"this machine is busy (load {load:.1f}): the figures will not be worth much", file=sys.stderr)
    wanted = names or known
    if workers := [name for name in wanted if name in (*_RIVALS, "sync_share")]:
        print(*two_shards(DNN, workers), sep="\n", flush=True)
    if "sync_share_zhang" in wanted:
        print(*two_shards(ZHANG, ["sync_share_zhang"]), sep="\n", flush=True)
    if "engine1_over_bare" in wanted:
        print(*one_shard(replace(DNN, frames=360_000)), sep="\n", flush=True)
    if {"pool_open_s", "pool_open_mb"} & set(wanted):
        pool.main()
    if torch.cuda.is_available():
        import engine_gpu

        engine_gpu.main(wanted)
    elif on_gpu := sorted({"engine1_over_bare", "asgd4_over_asgd1", "sync_bandwidth"} & set(wanted)):
        left_out(f"{', '.join(on_gpu)} on a GPU", "PyTorch sees none here")


if __name__ == "__main__":
    main(sys.argv[1:])
