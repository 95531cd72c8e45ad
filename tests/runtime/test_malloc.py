"""Memory that is freed and wanted again: no page faults."""

import platform
import subprocess
import sys

import pytest

_COUNT = """
import resource
import numpy as np
from speech3.runtime.native import keep_freed_memory
def work():
    return [np.ones(3 << 20, np.uint8) for _ in range(10)]  # freed together, more than glibc keeps by itself
def faults():
    for _ in range(3):
        work()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults())
keep_freed_memory()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator alone is meant")
def test_freed_memory_stays():
    done = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, check=True)
    left, kept = map(int, done.stdout.split())
    assert kept < 100 < left
