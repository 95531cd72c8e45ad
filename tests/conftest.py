"""A whole recipe on a tiny corpus, run once; and the program as a user runs it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

# Where the suite is a background job, SIGINT is ignored, and so it would be in every program that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

PROGRAM = Path(sys.executable).with_name("speech3")
Run = Callable[..., subprocess.CompletedProcess[str]]
# As few utterances as there are speakers, and as few passes as show that something is learnt.
TINY = (
    "corpus_options.train=66", "corpus_options.dev=12", "corpus_options.test=22",
    "hmm.mono.phone_iterations=3", "hmm.mono.iterations=4", "hmm.mono.gaussians=60",
    "hmm.aligner.phone_iterations=3", "hmm.aligner.iterations=3", "hmm.aligner.gaussians=60",
    "hmm.tri.iterations=4", "hmm.tri.leaves=80", "hmm.tri.gaussians=100", "training.max_epochs=2", "model.width=64",
    "decode_mono=true",
)  # fmt: skip


_ONE_RAY = (
    "test_train_cluster.py",
    "test_cluster.py",
    "test_cluster_actors.py",
    "test_nodes.py",
    "test_lfmmi_training.py",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the tests, those of a file stay together: its fixtures are made once.

    So do all that start a Ray, for each would find the other's.
    """
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            item.add_marker(pytest.mark.xdist_group("ray" if item.path.name in _ONE_RAY else str(item.path)))


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    """Start `speech3` with one thread, in a session of its own, so that a signal to it reaches all its processes."""
    return subprocess.Popen(
        [str(PROGRAM), *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}, **options,
    )  # fmt: skip


def run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `speech3` to its end."""
    process = start(*arguments, **options)
    stdout, stderr = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


@pytest.fixture(scope="session")
def speech3() -> Run:
    """The program."""
    return run


@pytest.fixture(scope="session")
def started() -> Callable[..., subprocess.Popen[str]]:
    """The program, not waited for."""
    return start


@pytest.fixture(scope="session")
def tiny() -> Sequence[str]:
    """Overrides that make `digits` tiny."""
    return TINY


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The directory of a finished recipe, not to be changed, and what it printed."""
    out = tmp_path_factory.mktemp("recipe") / "digits"
    process = run("recipe", "digits", "--out", out, *TINY)
    assert process.returncode == 0, process.stderr
    return out, process


@pytest.fixture(scope="session")
def experiment(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> Path:
    """The directory of a finished recipe, not to be changed."""
    return finished[0]


@pytest.fixture
def mine(experiment: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed: finished as it is."""
    out = tmp_path / "digits"
    shutil.copytree(experiment, out, symlinks=True)
    return out


@pytest.fixture
def gpu() -> str:
    """The device of a test of a CUDA path: the first GPU; without one the test is skipped.

    The environment may say ``SPEECH3_TEST_DEVICE=cpu``, to try the test itself where there is no GPU (tests/gpu.py).
    """
    device = os.environ.get("SPEECH3_TEST_DEVICE", "cuda:0")
    if device != "cpu" and not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    return device
