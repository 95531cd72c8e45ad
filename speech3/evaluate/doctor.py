"""The hardware and libraries of this machine: for `speech3 doctor`, and recorded beside measured figures."""

import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import soundfile
import torch

from speech3.errors import Speech3Error
from speech3.language import voices
from speech3.models import BF16_WORTH_IT, bf16_over_float32, gemm_library
from speech3.runtime import available_jobs, container_limit

_PACKAGES = ("speech3", "torch", "torchaudio", "numpy", "numba", "kaldifst", "kaldi-io", "jiwer")
_LITTLE_DISK, _LITTLE_SHARED = 5 * 2**30, 2**30
_FEW_FILES, _FEW_PROCESSES = 4096, 256
# module, extra that installs it, what it is for
_EXTRAS = (
    ("onnxruntime", "onnx", "decoding with files of speech3 export"),
    ("onnx", "onnx", "speech3 export"),
    ("tensorboard", "tensorboard", "curves in TensorBoard"),
    ("ray", "cluster", "training on more than one host"),
)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (ValueError, OSError):
        return "unknown"


def _git(*arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, timeout=10).decode(errors="replace").strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _commit() -> str:
    # If speech3 is installed from a wheel into another project's checkout, git would name that project's commit.
    if not _git("ls-files", Path(__file__).name) or not (commit := _git("rev-parse", "--short=12", "HEAD")):
        return "not in a git checkout"
    return commit + (", with uncommitted changes" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def environment_facts() -> dict[str, str]:
    """Name and value of everything that a measured figure may depend on, as text."""
    return {
        "git commit": _commit(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": f"{available_jobs()} of {os.cpu_count()}",
        "memory": _memory(),
        "Python": sys.version.split()[0],
        **{package: _version(package) for package in _PACKAGES},
    }


_SHARED = Path("/dev/shm")


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    value: str
    remedy: str = ""  # what to do about it; empty if nothing needs to be done


def examine_machine(directory: Path) -> list[Finding]:
    """Check processor, memory, GPUs, disk space in `directory`, audio formats, espeak-ng and optional packages."""
    known = environment_facts()
    found = [
        Finding(name, known[name]) for name in ("processor", "cores", "memory", "Python", "torch", "numpy", "numba")
    ]
    libraries = {"onednn": "oneDNN, which is faster here than torch.mm", "stock": "torch.mm, which is fastest here"}
    found.append(Finding("products on CPU", libraries[gemm_library()]))
    found.append(_bf16())
    found += _gpus()
    found.append(_space("disk", directory, _LITTLE_DISK, "choose another --out: an experiment takes some gigabytes"))
    if _SHARED.is_dir():
        remedy = "make it larger (docker run --shm-size=8g) for world cluster, and for tensors passed to engine.fit"
        found.append(_space("shared memory", _SHARED, _LITTLE_SHARED, remedy))
    found += _limits()
    if "MP3" not in soundfile.available_formats():
        found.append(
            Finding("mp3", "not read by this libsndfile", "pip install -U soundfile, or convert to wav or flac")
        )
    found.append(_espeak())
    for module, extra, purpose in _EXTRAS:
        there = importlib.util.find_spec(module) is not None
        found.append(
            Finding(module, f"for {purpose}")
            if there
            else Finding(module, f"not installed: no {purpose}", f'pip install "speech3[{extra}]"')
        )
    return found


def _bf16() -> Finding:
    """How fast the CPU multiplies in bf16, which few have instructions for; others are slower in it."""
    faster = bf16_over_float32()
    used = "; used with training.precision=auto or bf16" if faster > BF16_WORTH_IT else ""
    return Finding("bf16 on CPU", f"a product takes {1 / faster:.2f} times as long as in float32{used}")


def _gpus() -> list[Finding]:
    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        return [
            Finding(f"cuda:{number}", f"{device.name}, {device.total_memory / 2**30:.0f} GiB")
            for number, device in enumerate(devices)
        ]
    if shutil.which("nvidia-smi") is None:
        return [Finding("GPU", "none; training runs on the CPU")]
    if torch.version.cuda is None:
        remedy = "install a CUDA build of torch: https://pytorch.org/get-started"
        return [Finding("GPU", "there is one, but this torch was built for CPUs", remedy)]
    return [Finding("GPU", f"torch, built for CUDA {torch.version.cuda}, sees none", "run nvidia-smi: driver too old?")]


def _space(name: str, directory: Path, little: int, remedy: str) -> Finding:
    free = shutil.disk_usage(directory).free
    return Finding(name, f"{free / 2**30:.1f} GiB free in {directory}", remedy if free < little else "")


def _limits() -> list[Finding]:
    """The limits of open files and, in a container, of processes and memory."""
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    remedy = "" if unlimited or hard >= _FEW_FILES else f"allow more (docker run --ulimit nofile={_FEW_FILES})"
    found = [Finding("open files", f"{files:,}, at most {'any number' if unlimited else f'{hard:,}'}", remedy)]
    if (processes := container_limit("processes")) is not None:
        remedy = "allow more (docker run --pids-limit)" if processes < _FEW_PROCESSES else ""
        found.append(Finding("processes", f"{processes:,} in this container", remedy))
    if (memory := container_limit("memory")) is not None:
        found.append(Finding("memory of this container", f"{memory / 2**30:.1f} GiB"))
    return found


def _espeak() -> Finding:
    try:
        return Finding("espeak-ng", f"{len(voices())} voices: pronunciations and synthetic corpora")
    except Speech3Error:
        missing = "not installed: no guessed pronunciations (lang=), no synthetic corpora"
        return Finding("espeak-ng", missing, 'pip install "speech3[espeak]"')
