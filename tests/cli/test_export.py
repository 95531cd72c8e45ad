"""`speech3 export` and the verbs that accept its file, as a user runs them."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def wav(experiment: Path) -> Path:
    return min((experiment / "data" / "test" / "wav").glob("*.wav"))


def refused(process: subprocess.CompletedProcess[str], *culprits: str) -> None:
    assert process.returncode == 1 and "Traceback" not in process.stderr, process.stdout + process.stderr
    assert all(subject in process.stderr for subject in ("error: ", *culprits)), process.stderr


def test_a_network_decodes_from_its_file(experiment: Path, wav: Path, tmp_path: Path, speech3: Run) -> None:
    out = tmp_path / "digits.onnx"
    process = speech3("export", experiment / "dnn", out, "--int8")
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["PyTorch", "float", "int8"]
    assert "frames/s" in lines[0] and "differs by at most" in lines[2]
    assert lines[3:] == ["4 of 4 matrix products are in int8", f"{out}, {tmp_path}/digits.decode"]
    assert process.stderr == ""  # no warnings from the packages

    assert speech3("export", experiment / "dnn", out).returncode == 0
    there, here = speech3("transcribe", experiment / "dnn", wav), speech3("transcribe", out, wav)
    assert here.returncode == 0 and here.stdout == there.stdout != "\n"
    process = speech3("decode", out, experiment / "data" / "test", tmp_path / "decoded", "--jobs", "2")
    assert process.returncode == 0, process.stderr
    words = {line.split()[0]: line for line in (tmp_path / "decoded" / "hyp.txt").read_text().splitlines()}
    assert words[wav.stem].split()[1:] == there.stdout.split() and len(words) == 22


def test_what_is_refused(experiment: Path, wav: Path, tmp_path: Path, speech3: Run) -> None:
    refused(speech3("export", experiment / "mono", tmp_path / "x.onnx"), "mono: this model consists of GMMs")
    (tmp_path / "photo.onnx").write_bytes(b"\x89PNG")
    refused(speech3("transcribe", tmp_path / "photo.onnx", wav), "photo.onnx: not an ONNX file, or damaged")
    assert [path.name for path in tmp_path.iterdir()] == ["photo.onnx"]
