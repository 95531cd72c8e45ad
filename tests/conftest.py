"""Fixtures: a whole recipe on a tiny corpus, which is run once, and the program as a user runs it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from filelock import FileLock

from speech3 import cli
from speech3.runtime import ONE_THREAD

pytest_plugins = ("small_data", "small_language")  # fixtures that tests of several packages use

# If the tests run as a background job, SIGINT is ignored, and would also be ignored by every program that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

PROGRAM = Path(sys.executable).with_name("speech3")
Run = Callable[..., subprocess.CompletedProcess[str]]
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "COLUMNS": "120"}
_HANDLED = (signal.SIGINT, signal.SIGTERM)
# One utterance per speaker, and just enough passes to show that something is learnt. In one process: to start others
# takes longer than all that they would do.
TINY = (
    "jobs=1", "corpus_options.train=66", "corpus_options.dev=12", "corpus_options.test=22",
    "hmm.mono.phone_iterations=3", "hmm.mono.iterations=4", "hmm.mono.gaussians=60",
    "hmm.aligner.phone_iterations=3", "hmm.aligner.iterations=3", "hmm.aligner.gaussians=60",
    "hmm.tri.iterations=4", "hmm.tri.leaves=80", "hmm.tri.gaussians=100", "training.max_epochs=2", "model.width=64",
    "hmm.lda=null", "hmm.sat=null", "decode_mono=true",
)  # fmt: skip


_ONE_RAY = (
    "test_train_cluster.py",
    "test_cluster.py",
    "test_cluster_actors.py",
    "test_cluster_connection.py",
    "test_lfmmi_training.py",
)


def pytest_configure() -> None:
    """Let each of several processes use one thread, as those of speech3 do: threads that wait keep cores busy."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)
        for name in ONE_THREAD:
            os.environ.setdefault(name, "1")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As in processes that augment and in streams: the number of threads may change the last bits of products."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run one file that needs the finished recipe first and the others last, so that no other process waits for it.

    Slow tests come before the others, so that both processes end at about the same time.
    """
    needing = {item.path for item in items if "finished" in getattr(item, "fixturenames", ())}
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    first = min(needing, default=None)
    items.sort(key=lambda item: (item.path != first, item.path in needing, item.path not in slow))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """If several processes share the tests, run those of a file in one process, so that its fixtures are made once.

    All tests that start Ray also run in one process, since each would connect to the Ray of the others. (`--dist
    loadgroup` has no effect with pytest 9.2.)
    """
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.split("::")[0]
            return "ray" if Path(path).name in _ONE_RAY else path

    config.option.loadscopereorder = False  # the order is that of the collection
    return ByFile(config, log)


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    """Start `speech3` with one thread, in a session of its own, so that a signal can be sent to all its processes."""
    return subprocess.Popen(
        [str(PROGRAM), *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **_ENVIRONMENT},
        **options,
    )


def run(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `speech3` as if in a process of its own, but in this one, which has already imported the modules."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, _as_a_program(arguments, cwd):
        with _written_to(1, out), _written_to(2, err):
            code = _exit_status()
        texts = [(stream.seek(0), stream.read())[1] for stream in (out, err)]
    return subprocess.CompletedProcess(list(arguments), code, *texts)


def _exit_status() -> int:
    try:
        cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


@contextmanager
def _as_a_program(arguments: Sequence[str | Path], cwd: Path | None) -> Iterator[None]:
    """Set arguments, working directory, threads and signals as for a program; restore them afterwards."""
    threads, handlers = torch.get_num_threads(), [(number, signal.getsignal(number)) for number in _HANDLED]
    with pytest.MonkeyPatch.context() as patch, Path(os.devnull).open() as nothing:
        patch.setattr(sys, "argv", [str(PROGRAM), *map(str, arguments)])
        patch.setattr(sys, "stdin", nothing)
        for name, value in _ENVIRONMENT.items():
            patch.setenv(name, value)
        if cwd:
            patch.chdir(cwd)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            for number, handler in handlers:
                signal.signal(number, handler)


@contextmanager
def _written_to(number: int, stream: IO[str]) -> Iterator[None]:
    """Redirect to `stream` everything that this process and its children write to a file descriptor."""
    name = {1: "stdout", 2: "stderr"}[number]
    before, kept = getattr(sys, name), os.dup(number)
    os.dup2(stream.fileno(), number)
    setattr(sys, name, open(number, "w", closefd=False, buffering=1))  # noqa: SIM115  # closed below
    try:
        yield
    finally:
        getattr(sys, name).close()
        setattr(sys, name, before)
        os.dup2(kept, number)
        os.close(kept)


@pytest.fixture(scope="session")
def speech3() -> Run:
    """The program, run within the process of the tests."""
    return run


@pytest.fixture(scope="session")
def started() -> Callable[..., subprocess.Popen[str]]:
    """The program, started in the background."""
    return start


@pytest.fixture(scope="session")
def tiny() -> Sequence[str]:
    """Overrides that make `digits` tiny."""
    return TINY


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The directory of a finished recipe, which must not be changed, and its output."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # the first of the processes that share the tests runs it for all
        base = base.parent
    out, printed = base / "digits", base / "digits.printed"
    with FileLock(base / "digits.lock"):
        if not printed.exists():
            process = run("recipe", "digits", "--out", out, *TINY)
            assert process.returncode == 0, process.stderr
            printed.write_text(json.dumps([process.stdout, process.stderr]))
    return out, subprocess.CompletedProcess(["recipe", "digits"], 0, *json.loads(printed.read_text()))


@pytest.fixture(scope="session")
def experiment(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> Path:
    """The directory of a finished recipe, which must not be changed."""
    return finished[0]


@pytest.fixture
def mine(experiment: Path, tmp_path: Path) -> Path:
    """A copy of the finished recipe's directory, which a test may change."""
    out = tmp_path / "digits"
    shutil.copytree(experiment, out, symlinks=True)
    return out


@pytest.fixture
def gpu() -> str:
    """The device for tests of CUDA code: the first GPU; without one the test is skipped.

    With ``SPEECH3_TEST_DEVICE=cpu`` in the environment, the test itself can be tried without a GPU (tests/gpu.py).
    """
    device = os.environ.get("SPEECH3_TEST_DEVICE", "cuda:0")
    if device != "cpu" and not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    return device


@pytest.fixture
def interpreted() -> Callable[[str], None]:
    """Run a test file as a program in which Triton's kernels are interpreted; it needs neither a GPU nor to compile."""
    pytest.importorskip("triton", reason="no Triton: it comes with PyTorch for CUDA")

    def check(file: str) -> None:
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        process = subprocess.run([sys.executable, file], env=environment, capture_output=True, text=True, timeout=300)
        assert process.returncode == 0, process.stderr

    return check
