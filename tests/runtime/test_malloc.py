"""Memory that is freed and wanted again: no page faults."""

import platform
import subprocess
import sys

import pytest

_COUNT = """
import resource, sys
import numpy as np
from speech3.runtime.native import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def work():
    return [np.ones(3 << 20, np.uint8) for _ in range(10)]  # freed together, more than glibc keeps by itself
for _ in range(3):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator alone is meant")
def test_freed_memory_stays():
    def faults(how):
        return int(
            subprocess.run([sys.executable, "-c", _COUNT, how], capture_output=True, text=True, check=True).stdout
        )

    assert faults("keep") < 100 < faults("leave")
