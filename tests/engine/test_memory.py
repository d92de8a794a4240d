"""What is freed stays with the process, so the next step does not ask the system for it page by page."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pmsfl.engine.memory import keep_freed_memory

FAULTS = """
import resource, torch
from pmsfl.engine.memory import keep_freed_memory
keep_freed_memory()
step = lambda: [torch.ones(3 << 19) for _ in range(12)]  # 6 MiB each, all alive at the end of a forward pass
step(), step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_a_tensor_freed_is_memory_kept() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 4096  # twenty steps touch 368640 pages, and without it fault most of them in again


def test_it_may_be_asked_twice() -> None:
    keep_freed_memory()
    keep_freed_memory()
