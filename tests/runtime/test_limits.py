"""Limits of containers are told with what to set, and avoided where that is possible."""

import errno
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from speech3.errors import Speech3Error
from speech3.runtime import parallel, parallel as limits
from speech3.runtime.parallel import container_limit, explained_limit, explained_limits, memory_left


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (RuntimeError("unable to open shared memory object </torch_1> (24): Too many open files"), "ulimit -n"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "--pids-limit"),
        (RuntimeError("can't start new thread"), "--pids-limit"),
        (MemoryError(), "--memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "--memory"),
        (RuntimeError("unable to write to file </torch_5_1>: No space left on device (28)"), "--shm-size"),
        (RuntimeError("cannot cache function 'f': no locator available for file 'a.py'"), "NUMBA_CACHE_DIR"),
    ],
)
def test_each_limit_names_what_to_set(error: Exception, said: str) -> None:
    assert said in str(explained_limit(error))
    with pytest.raises(Speech3Error, match=said), explained_limits():
        raise error


@pytest.mark.parametrize("error", [OSError(errno.EIO, "bad disk"), RuntimeError("a defect")])
def test_other_errors_pass(error: Exception) -> None:
    assert explained_limit(error) is None
    with pytest.raises(type(error)), explained_limits():
        raise error


def test_the_limits_of_a_container_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_CGROUP", tmp_path)
    assert container_limit("memory") is None and memory_left() is None
    (tmp_path / "memory.max").write_text("max\n")
    assert container_limit("memory") is None
    (tmp_path / "memory.max").write_text(f"{4 << 30}\n")
    (tmp_path / "memory.current").write_text(f"{3 << 30}\n")
    assert memory_left() == 4 << 30  # how much of it is cached files is not known
    (tmp_path / "memory.stat").write_text(f"anon 5\nfile {2 << 30}\nshmem {1 << 30}\n")
    assert memory_left() == 2 << 30
    (tmp_path / "pids.max").write_text("100\n")
    assert "100 are allowed in this container" in str(explained_limit(RuntimeError("can't start new thread")))
    assert "4.0 GiB" in limits.out_of_memory()


def test_the_limit_of_open_files_is_raised() -> None:
    program = (
        "import resource\nfrom speech3.runtime.parallel import allow_open_files\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\nallow_open_files()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert int(done.stdout) == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536))


def test_without_semaphores_all_is_done_in_this_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        def Lock(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(parallel.multiprocessing, "get_context", lambda _: Broken())
    assert list(parallel.parallel_map(str, [1, 2, 3], 2, "toy", start_at_once=True)) == ["1", "2", "3"]
    assert "/dev/shm" in capsys.readouterr().err


def test_too_few_open_files_for_so_many_processes_is_an_error() -> None:
    program = (
        "import resource\nfrom speech3.runtime.parallel import parallel_map\n"
        "if __name__ == '__main__':\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))\n"
        "    print(list(parallel_map(str, list(range(64)), 20, 'toy', start_at_once=True)))"
    )
    script = Path(__file__).parent  # any directory: the program is read from standard input otherwise
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=script, timeout=60)
    assert done.returncode == 1 and "MachineError: too many open files: 24 are allowed; allow more" in done.stderr
