"""`speech3 compare` as a user runs it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., subprocess.CompletedProcess[str]]


def a_run(path: Path, workers: int, times: tuple[float, float]) -> Path:
    path.mkdir()
    record = {"event": "epoch", "workers": workers, "world": "sgd" if workers == 1 else "shared"}
    points = [(1, times[0], 0.4), (2, times[1], 0.5)]
    records = [record | {"epoch": n, "seconds": t, "frames": 1000 * n, "heldout_accuracy": a} for n, t, a in points]
    (path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    (path / "model.safetensors").touch()
    return path


def test_table_and_pictures(speech3: Run, tmp_path: Path) -> None:
    one, two = a_run(tmp_path / "one", 1, (40.0, 80.0)), a_run(tmp_path / "two", 2, (24.0, 48.0))
    done = speech3("compare", two, one, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "two 2 0:36.0 (83.3) 0:42.0 (83.3) 0:45.6 (83.3) 50.00 50.00 shared" in " ".join(done.stdout.split())
    assert f"wrote {tmp_path}/out/accuracy_time.png, {tmp_path}/out/accuracy_frames.png" in done.stdout
    assert (tmp_path / "out" / "accuracy_time.png").read_bytes().startswith(b"\x89PNG")


def test_json_and_nothing_else(speech3: Run, tmp_path: Path) -> None:
    one = a_run(tmp_path / "one", 1, (40.0, 80.0))
    done = speech3("compare", one, "--json", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["baseline"] == "one"


def test_no_run(speech3: Run, tmp_path: Path) -> None:
    done = speech3("compare", tmp_path, tmp_path / "nowhere")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: no run to compare; pass directories that speech3 train wrote")
    assert "Traceback" not in done.stderr
