"""`speech3 doctor` on machines that lack different things."""

import importlib.util
import resource
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import soundfile
import torch

from speech3.errors import Speech3Error
from speech3.evaluate import doctor

Usage = namedtuple("Usage", "total used free")


def remedies(path: Path) -> dict[str, str]:
    return {finding.name: finding.remedy for finding in doctor.examine_machine(path) if finding.remedy}


@pytest.fixture(autouse=True)
def _nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 0, 2**40))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(soundfile, "available_formats", lambda: {"WAV": "", "MP3": ""})
    monkeypatch.setattr(doctor, "voices", lambda: [None] * 141)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 65_536))
    monkeypatch.setattr(doctor, "container_limit", lambda _: None)


def test_a_machine_that_lacks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {finding.name: finding for finding in doctor.examine_machine(tmp_path)}
    assert not [finding for finding in found.values() if finding.remedy]
    assert {"cores", "memory", "products on CPU", "GPU", "disk", "espeak-ng", "ray"} <= found.keys()
    assert found["espeak-ng"].value.startswith("141 voices")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    device = namedtuple("Device", "name total_memory")("H200", 139 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: device)
    found = {finding.name: finding for finding in doctor.examine_machine(tmp_path)}
    assert found["cuda:1"].value == "H200, 139 GiB" and "GPU" not in found


def test_bf16_is_recommended_only_where_it_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for ratio, said in (
        (1.8, "0.56 times as long as in float32; used with training.precision=auto"),
        (0.5, "2.00 times as long"),
    ):
        monkeypatch.setattr(doctor, "bf16_over_float32", lambda ratio=ratio: ratio)
        (found,) = (each for each in doctor.examine_machine(tmp_path) if each.name == "bf16 on CPU")
        assert said in found.value and not found.remedy
        assert ("training.precision" in found.value) == (ratio > 1)


def test_what_is_missing_comes_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_voices() -> None:
        raise Speech3Error("no espeak-ng")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else object())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 2**40, 2**20))
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(soundfile, "available_formats", lambda: {"WAV": ""})
    monkeypatch.setattr(doctor, "voices", no_voices)
    said = remedies(tmp_path)
    assert said["ray"] == 'pip install "speech3[cluster]"' and said["espeak-ng"] == 'pip install "speech3[espeak]"'
    assert "CUDA build of torch" in said["GPU"] and "--out" in said["disk"] and "soundfile" in said["mp3"]
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "nvidia-smi" in remedies(tmp_path)["GPU"]


def test_limits_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    monkeypatch.setattr(doctor, "container_limit", {"memory": 3 << 30, "processes": 100}.get)
    said = remedies(tmp_path)
    assert "--ulimit nofile" in said["open files"] and "--pids-limit" in said["processes"]
    values = {finding.name: finding.value for finding in doctor.examine_machine(tmp_path)}
    assert values["memory of this container"] == "3.0 GiB"


def test_the_verb(speech3, tmp_path: Path) -> None:
    process = speech3("doctor", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert any(line.startswith("cores ") for line in process.stdout.splitlines())
