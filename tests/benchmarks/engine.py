"""Speed of the asynchronous engine as ratios: rivals take turns, medians over rounds, one JSON line per figure.

    OMP_NUM_THREADS=1 python tests/benchmarks/engine.py [NAME ...]

Network 440 - 4 x 512 - 3,000 (``dnn``) or 462 - 5 x 2048 - 10,217 (``dnn_zhang``), minibatch 256, one thread per
process, random packed frames. Shards sync after every third minibatch; if the name of a figure ends in ``_1``, after
each one, with unscaled pushes, as in the preset ``asgd``. Processes stay alive for all rounds; while another rival
runs, they are stopped. All figures of a network come from the same rounds. The whole takes less than five minutes if a
minibatch of ``dnn`` takes 50 ms.

asgd2_over_asgd1, asgd2_over_ddp2
    Frames per second, by its own `Progress`, of the shared world with two shards over those with one, and over those of
    world ddp with two.
bare2_over_bare1
    Speed of two bare loops at once over one alone: what two independent processes reach on this machine, which is the
    limit of asgd2_over_asgd1.
sync_share, sync_share_1, sync_share_zhang
    Time of syncs and of waiting for them, as a share of that time and of computing together, of both shards of asgd2,
    including the fetch at the beginning of a round.
engine1_over_bare, engine1_over_bare_1
    Speed of one shard over a bare loop of forward pass, backward pass and update on one resident minibatch in a process
    of the same kind, which runs first and last in each round and counts with the mean of both. The engine's speed is
    the lowest of these: ``world``, rounds of the shared world; ``metrics``, the second epoch of a whole `train` run
    (packed frames, metrics, checkpoints) by the seconds in its metrics; ``clock``, an hour of speech (on a GPU a
    hundred) at that speed, plus the time between two epochs on the run's clock beyond these seconds (512 held-out
    frames, the checkpoint). The run's epochs are as short as a round, and its shard syncs after every third minibatch;
    for ``_1``, ``clock`` is at the speed of ``world``.
pool_open_s, pool_open_mb
    As in `pool.py`.

With a GPU, `engine_gpu.py` adds its figures.
"""

import json
import os
import statistics
import sys
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pool
import torch
from engine_rivals import Case, bare, frames_per_s, in_turn, left_out, median_ratio, whole_run, world, written

from speech3.config import DnnConfig
from speech3.models.layers import gemm_library

ROUNDS = 5
HOUR = 360_000  # frames
HOURS_ON_A_GPU = 100  # where one hour takes two seconds
DNN = Case("dnn", bins=40, senones=3000, model=DnnConfig(), frames=100_000, minibatches=50)
ZHANG = Case(
    "dnn_zhang",
    bins=42,
    senones=10_217,
    model=DnnConfig(layers=5, width=2048, activation="sigmoid"),
    frames=12_000,
    minibatches=12,
)
WORLDS = {  # name, workers, sync_every
    "asgd1": ("shared", 1, 3),
    "asgd1_1": ("shared", 1, 1),
    "asgd2": ("shared", 2, 3),
    "asgd2_1": ("shared", 2, 1),
    "ddp2": ("ddp", 2, 3),
}
FIGURES = {  # the rivals of each
    "asgd2_over_asgd1": ("asgd2", "asgd1"),
    "asgd2_over_ddp2": ("asgd2", "ddp2"),
    "bare2_over_bare1": ("bare2", "bare"),
    "sync_share": ("asgd2",),
    "sync_share_1": ("asgd2_1",),
    "engine1_over_bare": ("asgd1", "run", "bare"),
    "engine1_over_bare_1": ("asgd1_1", "run", "bare"),
}


def line(name: str, value: float, unit: str, rival: str, **more: Any) -> str:
    """The JSON line of one figure."""
    return json.dumps({"name": name, "value": round(value, 4), "unit": unit, "rival": rival, **more})


def figures(
    case: Case, names: Collection[str], rounds: int = ROUNDS, *, suffix: str = "", runs: bool = True
) -> list[str]:
    """The named ones of `FIGURES` for one network, with `suffix` added to their names; `runs`: also of whole runs."""
    chosen = [name for name in FIGURES if name in names]
    rivals = {rival for name in chosen for rival in FIGURES[name] if runs or rival != "run"}
    measured = _measured(case, rivals, rounds)
    more = {
        "model": case.name,
        "device": case.device,
        "dtype": case.precision,
        "minibatch": case.minibatch,
        "rounds": rounds,
    }
    lines = []
    for name in chosen:
        if name.startswith("sync_share"):
            lines.append(_share(name + suffix, measured[FIGURES[name][0]], more))
        elif name.startswith("engine1"):
            lines.append(_engine(name + suffix, case, measured, more))
        else:
            ours, theirs = (_speeds(measured[rival]) for rival in FIGURES[name])
            medians = {
                f"{rival}_frames_per_s": round(statistics.median(speeds))
                for rival, speeds in zip(FIGURES[name], (ours, theirs), strict=True)
            }
            rival = (
                "world {}, {} workers".format(*WORLDS[FIGURES[name][1]]) if name != "bare2_over_bare1" else "one loop"
            )
            lines.append(line(name + suffix, median_ratio(ours, theirs), "ratio", rival, **more, **medians))
    return lines


def _measured(case: Case, wanted: Collection[str], rounds: int) -> dict[str, list[Any]]:
    """The measurement of each rival in each round; ``bare`` is from its beginning, ``bare_after`` from its end."""
    with ExitStack() as stack:
        directory, rivals = stack.enter_context(written(case)), dict[str, Callable[[], Any]]()
        if "bare" in wanted:
            rivals["bare"] = stack.enter_context(bare(case, directory))
        for name in (name for name in WORLDS if name in wanted):
            rivals[name] = stack.enter_context(world(case, directory, *WORLDS[name]))
        if "bare2" in wanted:
            rivals["bare2"] = stack.enter_context(bare(case, directory, loops=2))
        if "run" in wanted:
            rivals["run"] = _run(case.as_run, stack.enter_context(written(case.as_run)))
        if "bare" in wanted:
            rivals["bare_after"] = rivals["bare"]
        measured = in_turn(rivals, rounds)
    if "bare" in measured:
        measured["bare"] = [
            statistics.mean(pair) for pair in zip(measured["bare"], measured.pop("bare_after"), strict=True)
        ]
    return measured


def _run(case: Case, directory: Path) -> Callable[[], tuple[float, float]]:
    return lambda: whole_run(case, directory)


def _speeds(measured: list[Any]) -> list[float]:
    """Frames per second of a world or of bare loops."""
    return measured if isinstance(measured[0], float) else frames_per_s(measured)


def _share(name: str, measured: list[Any], more: dict[str, Any]) -> str:
    shares = [
        sum(shard.sync_s + shard.wait_s for shard in done.shards)
        / sum(shard.compute_s + shard.sync_s + shard.wait_s for shard in done.shards)
        for done in measured
    ]
    limit = "limit 0.06" if "_1" in name else "limit 0.03"
    speed = round(statistics.median(frames_per_s(measured)))
    return line(name, statistics.median(shares), "share", limit, **more, asgd2_frames_per_s=speed)


def _engine(name: str, case: Case, measured: dict[str, list[Any]], more: dict[str, Any]) -> str:
    """Speed of the whole engine with one shard over a bare loop."""
    each = "asgd1_1" if "bare_1" in name else "asgd1"
    loops, shard = measured["bare"], frames_per_s(measured[each])
    by = {"world": median_ratio(shard, loops)}
    if "run" in measured:
        speeds, between_s = [speed for speed, _ in measured["run"]], [seconds for _, seconds in measured["run"]]
        in_run, clocked = shard if each == "asgd1_1" else speeds, HOUR * (1 if case.device == "cpu" else HOURS_ON_A_GPU)
        hours = [clocked / (clocked / speed + seconds) for speed, seconds in zip(in_run, between_s, strict=True)]
        by["clock"] = median_ratio(hours, loops)
        more = more | {
            "between_epochs_s": round(statistics.median(between_s), 3),
            "clock_of_frames": clocked,
            "run_epoch_frames": case.as_run.frames,
        }
        if each == "asgd1":
            by["metrics"] = median_ratio(speeds, loops)
    rival = "bare loop, resident minibatch" + (", CUDA graph" if case.device != "cpu" else "")
    return line(
        name,
        min(by.values()),
        "ratio",
        rival,
        by={key: round(value, 4) for key, value in by.items()},
        **more,
        product=gemm_library(),
        bare_frames_per_s=round(statistics.median(loops)),
        sync_share=round(statistics.median(done.shards[0].sync_share for done in measured[each]), 4),
    )


def main(names: list[str]) -> None:
    """Print the named figures, or all."""
    torch.set_num_threads(1)
    known = [*FIGURES, "sync_share_zhang", "pool_open_s", "pool_open_mb"]
    known += ["engine1_over_bare_bf16", "asgd4_over_asgd1", "sync_bandwidth"]
    if unknown := set(names) - set(known):
        sys.exit(f"no such figure: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if (load := os.getloadavg()[0]) > 0.5:
        print(f"this machine is busy (load {load:.1f}): the figures will not be worth much", file=sys.stderr)
    wanted = names or known
    if set(FIGURES) & set(wanted):
        print(*figures(DNN, wanted), sep="\n", flush=True)
    if "sync_share_zhang" in wanted:
        print(*figures(ZHANG, ["sync_share"], suffix="_zhang"), sep="\n", flush=True)
    if {"pool_open_s", "pool_open_mb"} & set(wanted):
        pool.main()
    if torch.cuda.is_available():
        import engine_gpu

        engine_gpu.main(wanted)
    elif on_gpu := sorted({"engine1_over_bare", "asgd4_over_asgd1", "sync_bandwidth"} & set(wanted)):
        left_out(f"{', '.join(on_gpu)} on a GPU", "PyTorch sees none here")


if __name__ == "__main__":
    main(sys.argv[1:])
