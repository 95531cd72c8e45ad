"""A thousand hours: opened at once, drawn from everywhere, in memory that does not grow with the corpus."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sparse import write_sparse

from speech3.errors import Speech3Error
from speech3.frames.packed import open_packed

SCRIPT = """
import json, sys
from pathlib import Path
import torch
from speech3.frames.minibatches import Minibatches
from speech3.frames.packed import open_packed
from speech3.frames.chunks import Sequences

def megabytes(field):
    return int(Path("/proc/self/status").read_text().split(field + ":")[1].split()[0]) * 1024 / 1e6

cpu = torch.device("cpu")
Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
before = megabytes("VmRSS"), megabytes("RssAnon")
packed = open_packed(sys.argv[1])
drawn = 0
for chunk_frames, draws in ((0, 6), (100_000, 2)):  # of a chunk, all that is read is mapped at once, 64 kB a frame
    batches = Minibatches(packed, left=5, right=5, minibatch=256, seed=1, device=cpu, chunk_frames=chunk_frames)
    for number in range(0, len(batches), len(batches) // draws + 1):
        feats_BWF, senones_B = batches.draw(1, number)
        assert not feats_BWF.any() and not senones_B.any()
        drawn += len(senones_B)
sequences = Sequences(packed, left=5, right=5, chunk=20, streams=64, seed=1, device=cpu)
drawn += int((sequences.draw(1, len(sequences) // 2)[1] == 0).sum())
print(json.dumps([len(packed), drawn, megabytes("VmHWM") - before[0], megabytes("RssAnon") - before[1]]))
"""


def test_memory_is_constant(tmp_path):
    path = tmp_path / "train.frames"
    write_sparse(path)
    assert path.stat().st_size > 29e9
    assert path.stat().st_blocks * 512 < 30e6
    output = subprocess.check_output([sys.executable, "-c", SCRIPT, str(path)])
    frames, drawn, peak_mb, anonymous_mb = json.loads(output)
    assert frames == 360_000_000
    assert drawn > 8 * 256
    # With pages of the mapped file, which the system may take back, and modules imported on first use.
    assert peak_mb < 120
    assert anonymous_mb < 60


def test_sparse_files_are_what_they_say(tmp_path, monkeypatch):
    path = tmp_path / "x.frames"
    write_sparse(path, frames=300_000)
    packed = open_packed(path)
    monkeypatch.setattr("speech3.frames.packed._SHOWN_BLOCKS", 4)  # with progress
    packed.verify()
    assert (len(packed), packed.dim, len(packed.utterances)) == (300_000, 40, 500)
    with path.open("r+b") as stream:
        stream.seek(20 << 20)
        stream.write(b"\1")
    with pytest.raises(Speech3Error, match=r"x.frames: block 19 of 24 "):
        open_packed(path).verify()


def test_pages_are_given_back_while_a_file_is_verified(tmp_path):
    path = Path(tmp_path / "x.frames")
    write_sparse(path, frames=5_000_000)
    packed = open_packed(path)
    before = _mapped_mb()
    packed.verify()
    assert _mapped_mb() - before < 100 < path.stat().st_size / 1e6
    assert not np.asarray(packed.frames_NF[-1000:]).any()


def _mapped_mb() -> float:
    return int(Path("/proc/self/status").read_text().split("RssFile:")[1].split()[0]) * 1024 / 1e6
