"""Runs the cases on the simulated device in a process of their own.

PyTorch counts its devices at a process's first backward pass, so the device must be registered before any other test
computes a gradient, and no other test should see it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
def test_the_cases_on_the_simulated_device_pass() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *sorted(HERE.glob("cases_*.py"))]

    ended = subprocess.run(command, cwd=HERE.parent.parent, env=environment, capture_output=True, text=True)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout
