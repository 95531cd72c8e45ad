"""Kill and stop shards at random moments while they train on the digits, and count lost minibatches (must be 0).

`tests/chaos.sh KILLS [SEED]`. The digits are synthesised once, in exp/chaos. Training runs as a user starts it, in a
process of its own; its shards are found in /proc, and the holder of the server's lock in /proc/locks. A shard to be
killed inside a sync is stopped when it holds the lock, and killed only if it still holds it then. Every fifth shard is
only stopped: it hangs, and the engine must notice that and end it. If training ends before the last kill, it is run
again, so kills, restarts and counts are sums over all runs.

`throughput_kept` is from a simulation with 32 shards and 62 faults in 30 minutes, for which the best published figure
is 97.7 % of the throughput without faults. A third of the faults are hangs; a restart takes as long as it took here.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from speech3.frames.minibatches import num_minibatches
from speech3.frames.packed import open_packed
from speech3.io.checkpoint import read_about
from speech3.runtime import read_metrics

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = Path(sys.executable).with_name("speech3")
MINIBATCH, EPOCHS = 64, 40
MODEL = {"layers": 3, "width": 256}  # so small that a sync takes some tenths of the time of a minibatch
TRAINING = {
    "world": "shared",
    "workers": 2,
    "minibatch": MINIBATCH,
    "schedule": "constant",
    "learning_rate": 0.05,
    "asgd": {"warm_start": 0.25, "sync_every": 1},
}
DELAY_S = 1.0  # at most, before a kill
PATIENCE_S = 60.0  # at most, until a shard is started, is found inside a sync, or is ended because it hangs
SHARDS, FAULTS, MINUTES, MINIBATCH_S = 32, 62, 30, 8.0  # simulated


@dataclass
class Count:
    """The counts that are printed at the end."""

    kills: int = 0
    in_sync: int = 0
    lost: int = 0
    finished: bool = True
    runs: int = 0
    returned: int = 0
    restarts: int = 0
    used: int = 0
    dropped: int = 0
    heldout_accuracy: float = 0.0
    hangs: int = 0
    restart_s: float = 5.0  # median time from a kill until all shards are at work again
    throughput_kept: float = 0.0


def main() -> int:
    """Parse the arguments, run, print the counts; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--experiment", type=Path, help="a finished recipe, in place of exp/chaos")
    given = parser.parse_args()
    experiment = given.experiment or _digits(ROOT / "exp" / "chaos")
    with tempfile.TemporaryDirectory(prefix="speech3-chaos-") as scratch:
        count = chaos(given.kills, random.Random(given.seed), experiment, Path(scratch))
    count.throughput_kept = round(throughput_kept(count.restart_s, random.Random(given.seed)), 4)
    print(json.dumps(vars(count)))
    return int(bool(count.lost) or not count.finished)


def chaos(kills: int, dice: random.Random, experiment: Path, scratch: Path) -> Count:
    """Train repeatedly until `kills` shards have been killed."""
    count, restarts_s = Count(), list[float]()
    while count.finished and (not count.runs or count.kills < kills):
        count.runs += 1
        out = scratch / f"run{count.runs}"
        epochs = min(EPOCHS, 4 * max(1, kills - count.kills))
        with _training(experiment, out, epochs) as process:
            ended = 0.0
            while count.kills < kills and process.poll() is None:
                shards = _all_at_work(process)
                if ended and shards:
                    restarts_s.append(time.monotonic() - ended)
                    count.restart_s = round(statistics.median(restarts_s), 2)
                ended = _end_one(process, shards, dice, count)
            count.finished = process.wait() == 0
        _account(out, _frames(experiment), count)
        if not count.finished or count.lost or count.restarts > count.kills:
            print(out.with_suffix(".log").read_text(), file=sys.stderr)
    return count


def throughput_kept(restart_s: float, dice: random.Random) -> float:
    """The throughput of world shared with faults, as a share of that without, on the virtual clock."""
    sys.path.insert(0, str(ROOT / "tests" / "engine"))
    import tiny

    from speech3.config import AsgdConfig
    from speech3.engine.backends.one_process import Simulated, Times
    from speech3.engine.flat import flatten

    batches = tiny.Batches(round(SHARDS * MINUTES * 60 / MINIBATCH_S))
    faults = [(dice.randrange(SHARDS), dice.uniform(0, MINUTES * 60)) for _ in range(FAULTS)]
    hangs, deaths = tuple(faults[: FAULTS // 3]), tuple(faults[FAULTS // 3 :])
    times = Times((MINIBATCH_S,) * SHARDS, 0.01, jitter=0.1, restart_s=restart_s)
    seconds = []
    for each in (times, replace(times, failures=deaths, hangs=hangs)):
        world = Simulated(tiny.Build(batches)(), AsgdConfig(sync_every=1), each)
        world.load({"parameters": flatten(tiny.model()).vector_K})
        *_, done = world.epoch(1, tiny.waiting(batches), tiny.rate(0.01, 1, batches))
        assert done.used == len(batches)
        seconds.append(done.seconds)
    without, with_faults = seconds
    return without / with_faults


def _digits(out: Path) -> Path:
    from conftest import TINY  # imported here, because under pytest there are several modules of that name

    command = [PROGRAM, "recipe", "digits", "--out", out, "--to", "train", *TINY]
    subprocess.run(list(map(str, command)), check=True, stdout=sys.stderr, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return out


def _frames(experiment: Path) -> Path:
    return next((experiment / "frames").rglob("train.frames")).parent


@contextmanager
def _training(experiment: Path, out: Path, epochs: int) -> Iterator[subprocess.Popen[bytes]]:
    conf = out.with_suffix(".yaml")
    values = {
        "frames": str(_frames(experiment)),
        "hmm": str(experiment / "tri"),
        "model": MODEL,
        "training": {**TRAINING, "max_epochs": epochs},
    }
    conf.write_text(yaml.safe_dump(values))
    with out.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            [str(PROGRAM), "train", str(conf), "--out", str(out)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


# Killing.


def _end_one(process: subprocess.Popen[bytes], shards: list[int], dice: random.Random, count: Count) -> float:
    """Stop or kill a shard after a random delay, every second time in a sync; return the time (0: none was ended)."""
    time.sleep(dice.uniform(0, DELAY_S))
    if process.poll() is not None or not shards:
        return 0.0
    victim = dice.choice(shards)
    if count.kills % 5 == 4 and _send(victim, signal.SIGSTOP):
        _gone(victim)
        count.kills, count.hangs = count.kills + 1, count.hangs + 1
        return time.monotonic()
    inside = bool(count.kills % 2)
    if inside:
        lock = _server_lock(process.pid)
        victim = _stopped_inside(process, shards, lock) or 0
    if victim and _send(victim, signal.SIGKILL):
        count.kills += 1
        count.in_sync += inside
        _gone(victim)
        return time.monotonic()
    return 0.0


def _all_at_work(process: subprocess.Popen[bytes]) -> list[int]:
    """The shards, once each of them has held the server's lock; empty if training ends before that."""
    seen: set[int] = set()
    lock = 0
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None:
        lock = lock or _server_lock(process.pid)
        shards = _shards(process.pid)
        seen = (seen | {_holder(lock)}) & set(shards)
        if len(seen) == TRAINING["workers"]:
            return sorted(seen)
        if time.monotonic() > deadline:
            raise SystemExit(f"error: {TRAINING['workers']} shards were not at work within {PATIENCE_S:.0f} s")
        time.sleep(0.001)
    return []


def _stopped_inside(process: subprocess.Popen[bytes], shards: list[int], lock: int) -> int | None:
    """A shard that has been stopped while it holds the server's lock."""
    while process.poll() is None:
        holder = _holder(lock)
        if holder not in shards or not _send(holder, signal.SIGSTOP):
            continue
        while _state(holder) not in "TZX":  # the signal was sent, but has not been received yet
            pass
        if _holder(lock) == holder:
            return holder
        _send(holder, signal.SIGCONT)
    return None


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _gone(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while _state(pid) not in "ZX":
        if time.monotonic() > deadline:
            raise SystemExit(f"error: a shard that hangs was not ended within {PATIENCE_S:.0f} s")
        time.sleep(0.001)


def _shards(coordinator: int) -> list[int]:
    """The processes that training started: children of the server that forks them."""
    servers = [pid for pid in _children(coordinator) if "forkserver" in _command(pid)]
    return [pid for server in servers for pid in _children(server)]


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def _server_lock(coordinator: int) -> int:
    """Inode of the server's lock file; 0 if it does not exist yet."""
    try:
        for descriptor in Path(f"/proc/{coordinator}/fd").iterdir():
            if str(descriptor.readlink()).startswith("/memfd:lock0"):
                return descriptor.stat().st_ino
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def _holder(inode: int) -> int:
    """The process that holds a lock on a file; 0 if none does."""
    for line in Path("/proc/locks").read_text().splitlines():
        # 1: FLOCK  ADVISORY  WRITE 1234 00:01:5678 0 EOF; lines of waiting processes follow, with an arrow
        words = line.split()
        if words[1] == "FLOCK" and int(words[5].rpartition(":")[2]) == inode:
            return int(words[4])
    return 0


# Counting.


def _account(out: Path, frames: Path, count: Count) -> None:
    """Add the counts from a run's records; see `lost`."""
    records = [record for record in read_metrics(out / "metrics.jsonl") if record["event"] == "epoch"]
    total = len(open_packed(frames / "train.frames"))
    before = 0
    for record in records:
        ended = record["minibatches"]
        count.used += ended["used"]
        count.dropped += ended["stale"] + ended["refused"]
        count.returned += ended["returned"]
        count.restarts += record["restarts"]
        count.lost += lost(record, total, record["frames"] - before)
        before = record["frames"]
    if (out / "model.safetensors").exists():
        count.heldout_accuracy = round(read_about(out / "model.safetensors")["heldout_accuracy"], 4)


def lost(record: dict[str, Any], total: int, frames: int) -> int:
    """Number of minibatches of an epoch that were neither used nor dropped, were used twice, or belong to no push.

    Each used minibatch has its frames and, except in the warm start, the staleness of its push; and a published push
    has at least one minibatch.
    """
    ended, minibatches = record["minibatches"], num_minibatches(total, MINIBATCH)
    dropped = ended["stale"] + ended["refused"]
    without_state = abs(minibatches - ended["used"] - dropped)
    pushed = sum(record["staleness"])
    no_push = max(0, record["versions"] - pushed, pushed - ended["used"])
    last = total - (minibatches - 1) * MINIBATCH
    expected = {total - dropped * MINIBATCH, total - (dropped - 1) * MINIBATCH - last if dropped else total}
    missing = min(abs(frames - each) for each in expected)
    return without_state + no_push + -(-missing // MINIBATCH)


if __name__ == "__main__":
    sys.exit(main())
