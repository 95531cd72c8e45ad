"""The environment of a measurement: versions, processor, cores, the commit of the code."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path

from speech3.io.parallel import available_jobs

_PACKAGES = ("speech3", "torch", "torchaudio", "numpy", "numba", "kaldifst", "kaldi-io", "jiwer")


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
        run = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, encoding="utf-8", errors="replace",
            timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip()


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


def environment() -> dict[str, str]:
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
