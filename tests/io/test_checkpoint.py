"""Tensors with their description, whole or not at all."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from speech3.errors import Speech3Error
from speech3.io.checkpoint import load_tensors, save_tensors

ABOUT = {"kind": "nn", "model": {"width": 4}, "größe": [1, 2.5, None]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out" / "model.safetensors"


def test_round_trip_keeps_types_shapes_and_order_of_axes(path: Path) -> None:
    tensors = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "transposed": np.arange(6.0).reshape(2, 3).T,
        "every-second": np.arange(10)[::2],
        "scalar": np.array(3.5),
        "empty": np.zeros((0, 4), np.float32),
        "truth": np.array([True, False]),
        "small": np.array([-1, 5], np.int8),
    }
    save_tensors(path, tensors, ABOUT)
    found, about = load_tensors(path, "nn")
    assert about == ABOUT
    assert found.keys() == tensors.keys()
    for name, array in tensors.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)
    assert load_file(path).keys() == tensors.keys()  # safetensors itself reads it


def test_others_may_read_what_the_umask_lets_them(path: Path) -> None:
    before = os.umask(0o022)
    try:
        save_tensors(path, {"a": np.zeros(2)}, ABOUT)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_faults_name_the_file(path: Path) -> None:
    with pytest.raises(Speech3Error, match=r"model\.safetensors: no such file"):
        load_tensors(path)
    save_tensors(path, {"a": np.arange(100.0)}, ABOUT)
    with pytest.raises(Speech3Error, match=r"model\.safetensors: holds 'nn', expected 'gmm'"):
        load_tensors(path, "gmm")
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:20], b"", b"not one of ours" * 10):
        path.write_bytes(content)
        with pytest.raises(Speech3Error, match=r"model\.safetensors: not a safetensors file, or truncated"):
            load_tensors(path)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(Speech3Error, match=r"model\.safetensors: .*git lfs pull"):
        load_tensors(path)


def test_a_safetensors_file_of_somebody_else(path: Path) -> None:
    path.parent.mkdir()
    save_file({"a": np.arange(3.0)}, path)
    assert load_tensors(path)[1] == {}
    with pytest.raises(Speech3Error, match="holds 'something unknown', expected 'nn'"):
        load_tensors(path, "nn")


def test_a_full_disk_keeps_the_old_model(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tensors(path, {"a": np.zeros(2)}, ABOUT)
    write = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        write(self, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(Speech3Error, match=r"model\.safetensors: no space left on the disk"):
        save_tensors(path, {"a": np.ones(2)}, ABOUT)
    assert not load_tensors(path)[0]["a"].any()
    assert [one.name for one in path.parent.iterdir()] == ["model.safetensors"]
