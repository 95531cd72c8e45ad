"""Work in several processes gives what one process gives, in order; what goes wrong in a worker is told."""

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from speech3.errors import Speech3Error
from speech3.runtime import parallel
from speech3.runtime.parallel import available_jobs, parallel_map


def _late_when_early(number: int) -> tuple[int, int]:
    time.sleep(0.02 if number % 2 else 0.0)
    return number * number, os.getpid()


def _threads(_: int) -> tuple[str | None, ...]:
    return tuple(os.environ.get(name) for name in parallel.ONE_THREAD)


def _mistaken(number: int) -> int:
    if number == 2:
        raise Speech3Error("u2: unreadable")
    if number == 3:
        raise ZeroDivisionError("a bug of ours")
    return number


def _killed(number: int, parent: int) -> int:
    if number == 2 and os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def _interrupted(number: int, parent: int) -> int:
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGINT)
    return number


def _touch(number: int, directory: Path) -> int:
    (directory / str(number)).write_text("")
    time.sleep(0.005)
    return number


def test_results_are_in_the_order_of_the_items(pooled: None) -> None:
    results = list(parallel_map(_late_when_early, range(12), 2, "test"))
    assert [square for square, _ in results] == [number * number for number in range(12)]
    assert results[0][1] == os.getpid()
    others = {process for _, process in results[1:]}
    assert os.getpid() not in others and 1 <= len(others) <= 2


@pytest.mark.parametrize("jobs", [1, 2])
def test_little_work_starts_no_process(jobs: int) -> None:
    assert {process for _, process in parallel_map(_late_when_early, range(4), jobs, "test")} == {os.getpid()}
    assert list(parallel_map(_late_when_early, [], jobs, "test")) == []


def test_workers_have_one_thread_and_the_environment_is_as_before(
    pooled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = dict(os.environ)
    here, *others = parallel_map(_threads, range(3), 2, "test")
    assert here[0] == "7" and set(others) == {("1",) * len(parallel.ONE_THREAD)}
    assert dict(os.environ) == before


@pytest.mark.parametrize("jobs", [1, 2])
def test_errors_of_the_work_pass_through(jobs: int, pooled: None) -> None:
    with pytest.raises(Speech3Error, match=r"^u2: unreadable$"):
        list(parallel_map(_mistaken, range(4), jobs, "test"))
    with pytest.raises(ZeroDivisionError, match="a bug of ours"):
        list(parallel_map(_mistaken, [0, 3, 0, 0], jobs, "test"))


def test_a_killed_worker_is_an_error(pooled: None) -> None:
    found = []
    with pytest.raises(Speech3Error, match=r"features: a worker process died.*memory.*fewer jobs"):
        for number in parallel_map(partial(_killed, parent=os.getpid()), range(6), 2, "features"):
            found.append(number)
    assert found == list(range(len(found))) and len(found) <= 2


def test_ctrl_c_is_left_to_the_parent(pooled: None) -> None:
    """A terminal sends it to every process of the group; workers that died of it would print tracebacks."""
    assert list(parallel_map(partial(_interrupted, parent=os.getpid()), range(4), 2, "test")) == list(range(4))


def test_a_consumer_that_stops_ends_the_processes(pooled: None, tmp_path: Path) -> None:
    results = parallel_map(partial(_touch, directory=tmp_path), range(500), 2, "test")
    assert [next(results), next(results)] == [0, 1]
    results.close()  # type: ignore[attr-defined]
    done = len(list(tmp_path.iterdir()))
    assert 2 <= done < 500
    assert not [thread for thread in threading.enumerate() if "QueueManager" in type(thread).__name__]


def test_available_jobs_are_those_of_this_process() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert available_jobs() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert available_jobs() == len(allowed)


def test_without_affinity_every_core_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert available_jobs() == os.cpu_count()
