"""Time and memory until the first minibatch of a thousand hours of packed frames.

    OMP_NUM_THREADS=1 python tests/benchmarks/pool.py

The file (360 million frames of 40 bins in float16, 600,000 utterances; 30 GB) is sparse: its frames are holes, which
read as zeros, so neither creating nor reading it needs a disk. The benchmark measures, in new processes that have
imported speech3, opening the file and drawing one minibatch of 256 x 11 x 40. Verification, which reads the whole file
once per run, is not included. Memory is the growth of the resident set to its peak, including pages of the mapped file,
which the system reclaims when it needs them. Medians of `RUNS`.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 5


def resident_mb(field: str = "VmRSS") -> float:
    """Memory of this process: VmRSS, VmHWM (its peak), RssAnon (without mapped files)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split(f"{field}:")[1].split()[0]) * 1024 / 1e6


def first_minibatch(path: str) -> None:
    """Open the file, draw a minibatch, print [seconds, MB]."""
    import torch

    from speech3.frames.minibatches import Minibatches
    from speech3.frames.packed import open_packed

    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on, not that of the imports
    before_mb, start = resident_mb(), time.perf_counter()
    minibatches = Minibatches(open_packed(path), left=5, right=5, minibatch=256, seed=1, device=torch.device("cpu"))
    feats_BWF, _ = minibatches.draw(1, len(minibatches) // 2)
    seconds = time.perf_counter() - start
    assert feats_BWF.shape == (256, 11, 40)
    print(json.dumps([seconds, resident_mb("VmHWM") - before_mb]))


def main() -> None:
    """Print two JSON lines."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "frames"))
    from sparse import write_sparse

    runs = []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as directory:  # a new file each, so that none is in the system's cache
            path = Path(directory) / "train.frames"
            write_sparse(path)
            runs.append(json.loads(subprocess.check_output([sys.executable, __file__, str(path)])))
    seconds, megabytes = (statistics.median(values) for values in zip(*runs, strict=True))
    print(json.dumps({"name": "pool_open_s", "value": round(seconds, 4), "unit": "s", "rival": "limit 1 s"}))
    print(json.dumps({"name": "pool_open_mb", "value": round(megabytes, 1), "unit": "MB", "rival": "limit 100 MB"}))


if __name__ == "__main__":
    first_minibatch(sys.argv[1]) if len(sys.argv) > 1 else main()
