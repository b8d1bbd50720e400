"""The memory of a command is that of all its processes."""

import subprocess
import sys

import pytest

from benchmarks.quickstart_size import peak_memory

MB = 10**6
HOLDS = "import time; held = b'x' * 200_000_000; time.sleep(2)"
WITH_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLDS!r}])"


def test_the_peak_counts_descendants() -> None:
    assert 200 * MB < peak_memory([sys.executable, "-c", WITH_A_CHILD]) < 300 * MB


def test_a_command_that_fails_has_no_peak() -> None:
    with pytest.raises(subprocess.CalledProcessError, match="status 3"):
        peak_memory([sys.executable, "-c", "raise SystemExit(3)"])
