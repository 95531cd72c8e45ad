"""Run the tests and benchmarks that need a GPU, each part in a process of its own; `tests/gpu.sh` calls it.

A part that fails or hangs does not stop the others; one whose packages are missing is left out, with the reason.
``--device cpu`` runs the parts with small sizes, to find mistakes in them without a GPU.
"""

import argparse
import importlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import torch

ROOT = Path(__file__).resolve().parents[1]
NEEDS = ("pydantic", "yaml", "numba", "safetensors", "rich")  # modules that all parts need that import speech3
DATA = ("soundfile",)  # those of parts that import `speech3.data`, too; soundfile needs cffi
_TAIL, _WIDTH = 40, 200  # how many of the last lines of a failed part are shown, and how many characters of each
_NO_TESTS = 5  # pytest's exit status if everything in a file is skipped
_LOG = threading.Lock()  # parts that run at once write their output to the log one after the other
_LEAST_S = 20.0  # a part is not started if less time than this is left


@dataclass(frozen=True)
class Part:
    """One part of the tests and benchmarks.

    Attributes
    ----------
    group
        ``correctness`` or ``speed``.
    run
        Test files, or a script with its arguments.
    limit_s
        A part that takes longer is assumed to hang: several times the expected time, in seconds.
    """

    name: str
    group: str
    what: str
    run: tuple[str, ...]
    limit_s: int
    needs: tuple[str, ...] = NEEDS

    @property
    def is_script(self) -> bool:
        """Whether it is a script; if not, it consists of tests."""
        return self.run[0].startswith("tests/benchmarks")

    def command(self, device: str) -> list[str]:
        """The command, to be run from the root of the repository."""
        if self.is_script:
            return [sys.executable, self.run[0], "--device", device, *self.run[1:]]
        options = ("-v", "-p", "no:cacheprovider", "-o", "addopts=", "-rs", "--tb=short",
                   "-o", "faulthandler_timeout=60")  # fmt: skip
        return [sys.executable, "-m", "pytest", *options, *self.run]


def _tests(name: str, what: str, limit_s: int, *files: str, needs: Sequence[str] = ()) -> Part:
    return Part(name, "correctness", what, files, limit_s, (*NEEDS, "pytest", *needs))


def _speed(name: str, what: str, limit_s: int, script: str, *figures: str, needs: Sequence[str] = ()) -> Part:
    return Part(name, "speed", what, (f"tests/benchmarks/{script}", *figures), limit_s, (*NEEDS, *DATA, *needs))


PARTS = (
    Part("machine", "correctness", "what the GPU is and can do; memory shared by processes",
         ("tests/benchmarks/gpu_machine.py",), 120, ()),
    _tests("codec", "ternary code: Triton against numba", 150, "tests/engine/test_codec_cuda.py",
           "tests/engine/test_server_optimizer_cuda.py", needs=["triton"]),
    _tests("cells", "clipped LSTM: Triton against plain steps", 150, "tests/models/test_clipped_cuda.py",
           needs=["triton"]),
    _tests("features", "features, pitch, augmentation against the CPU", 150, "tests/features/test_features_cuda.py"),
    _tests("frames", "minibatches: frames on the GPU, in chunks, on the host", 120,
           "tests/frames/test_minibatches_cuda.py", needs=DATA),
    _tests("models", "DNN, CNN, LSTM, TDNN against the CPU in float64", 150, "tests/models/test_models_cuda.py",
           needs=DATA),
    _tests("lfmmi", "LF-MMI, MMI and sMBR against the CPU in float64", 150, "tests/sequence/test_lfmmi_cuda.py",
           "tests/sequence/test_discriminative_cuda.py", needs=DATA),
    _tests("shards", "1, 2 and 4 shards by CUDA IPC; kill -9 during a sync", 150, "tests/engine/test_shared_cuda.py"),
    _tests("graph", "forward and backward as a CUDA graph", 90, "tests/engine/test_cuda_graphs.py"),
    _tests("ddp", "DDP of one process over NCCL, plain and ternary", 150, "tests/engine/test_ddp_cuda.py"),
    _tests("training", "whole runs in every world, resumed", 150, "tests/train/test_training_cuda.py",
           needs=DATA),
    _speed("dnn", "5 x 2048, 10,217 senones, over torch.mm", 120, "gpu_dnn.py"),
    _speed("sync", "a sync's share, and its bandwidth", 150, "engine_gpu.py", "sync_share_zhang", "sync_bandwidth"),
    _speed("bf16", "the same in bf16", 280, "engine_gpu.py", "engine1_over_bare_bf16"),
    _speed("lstm", "clipped LSTM over cuDNN", 150, "gpu_lstm.py", needs=["triton"]),
    _speed("extraction", "features over torchaudio", 120, "gpu_features.py"),
    _speed("update", "an update by LF-MMI", 150, "gpu_lfmmi.py"),
    # Late, since it takes longest and prints nothing before its end.
    _speed("engine", "one shard over a bare loop in a CUDA graph", 240, "engine_gpu.py", "engine1_over_bare",
           "engine1_over_bare_1"),
    _speed("four", "four shards over one", 280, "engine_gpu.py", "asgd4_over_asgd1"),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The result of a part: ``ok``, ``failed`` or ``left out``, and the reason."""

    part: Part
    result: str
    why: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.part.name:<12}{self.result:<10}{self.seconds:6.0f} s  {self.why}".rstrip()


def missing(part: Part) -> list[str]:
    """The modules that a part needs and that cannot be imported."""
    found = []
    for name in part.needs:
        try:
            importlib.import_module(name)
        except ImportError:
            found.append(name)
    return found


def run(part: Part, device: str, limit_s: float, log: TextIO | None) -> Outcome:
    """Run a part and print its figures as they come; if it fails, print its last lines."""
    start, said, whole = time.monotonic(), deque[str](maxlen=_TAIL), list[str]()
    # Plugins of pytest that happen to be installed on the machine are not loaded.
    environment = {**os.environ, "SPEECH3_TEST_DEVICE": device, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    process = subprocess.Popen(
        part.command(device),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env=environment,
    )
    timer = threading.Timer(limit_s, _end, [process])
    timer.start()
    skipped, last, not_run = "", "", list[str]()
    assert process.stdout
    for line in process.stdout:
        whole.append(line)
        line = line.rstrip()
        if line.startswith("{"):
            print(line, flush=True)
            continue
        said.append(line[:_WIDTH])
        last = line.strip(" =") or last
        if line.startswith("SKIPPED"):
            skipped = line.split(": ", 1)[-1]
            not_run.append(f"skipped: {skipped}"[:_WIDTH])
        if ": not run, " in line:  # a script's `left_out`
            not_run.append(line[:_WIDTH])
    status, hung = process.wait(), time.monotonic() - start >= limit_s
    timer.cancel()
    _end(process)  # in case it did not end all processes that it started
    seconds = time.monotonic() - start
    if log:
        with _LOG:
            log.writelines([f"== {part.name}\n", *whole])
            log.flush()
    if not part.is_script and skipped and not hung and status in (0, _NO_TESTS) and not re.search(r"\d+ passed", last):
        return Outcome(part, "left out", skipped, seconds)
    if status or hung:
        print("\n".join([f"== {part.name} failed", *(f"    {line}" for line in said)]), flush=True)
        why = f"ended after {limit_s:.0f} s: it hung or is too slow" if hung else f"exit status {status}"
        return Outcome(part, "failed", why, seconds)
    return Outcome(part, "ok", "; ".join([*([last] if " passed" in last else []), *not_run]), seconds)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a process and all processes that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def chosen(names: str) -> list[Part]:
    """The named parts and those of the named groups, in order; all parts if nothing is named."""
    wanted = {name for name in names.split(",") if name}
    known = {name for part in PARTS for name in (part.name, part.group)}
    if unknown := wanted - known:
        sys.exit(f"gpu: no such part: {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    return [part for part in PARTS if not wanted or wanted & {part.name, part.group}]


def main() -> int:
    """Run the parts and print the summary; return the exit status."""
    parser = argparse.ArgumentParser(prog="tests/gpu.sh", description=__doc__)
    parser.add_argument("--only", default="", help="parts or groups (correctness, speed), separated by commas")
    parser.add_argument("--device", default="cuda:0", help="cpu: run the parts with small sizes")
    parser.add_argument("--minutes", type=float, default=1e6, help="end all parts after this many minutes")
    parser.add_argument("--log", type=Path, help="file for everything that the parts print")
    parser.add_argument("--jobs", type=int, default=1, help="how many parts that consist of tests run at once")
    given = parser.parse_args()
    parts, end = chosen(given.only), time.monotonic() + 60 * given.minutes
    if given.device != "cpu" and not torch.cuda.is_available():
        print(f"gpu: PyTorch {torch.__version__} sees no GPU here; --device cpu runs the parts without one")
        return 2
    name = given.device if given.device == "cpu" else torch.cuda.get_device_name(given.device)
    log = given.log.open("w") if given.log else None

    def outcome(part: Part) -> Outcome:
        left_s = end - time.monotonic()
        if lacking := missing(part):
            result = Outcome(part, "left out", f"no {', '.join(lacking)}")
        elif left_s < _LEAST_S:
            result = Outcome(part, "left out", "no time left")
        else:
            print(f"== {part.name}: {part.what}", flush=True)
            result = run(part, given.device, min(part.limit_s, left_s - 5), log)
        print(f"== {result}", flush=True)
        return result

    # Tests may share the GPU and the processor; what is timed has both for itself.
    timed = [part for part in parts if part.is_script]
    with ThreadPoolExecutor(given.jobs) as pool:
        outcomes = list(pool.map(outcome, (part for part in parts if not part.is_script)))
    outcomes = sorted([*outcomes, *map(outcome, timed)], key=lambda outcome: parts.index(outcome.part))
    counts = [f"{sum(o.result == result for o in outcomes)} {result}" for result in ("ok", "failed", "left out")]
    print(f"summary: {name}, torch {torch.__version__}: {', '.join(counts)}")
    print(*outcomes, sep="\n", flush=True)
    return int(any(outcome.result == "failed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
