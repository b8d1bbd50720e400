"""The line about the execution of a run."""

from __future__ import annotations

import pytest

from tasks.runtime.environment import describe_execution
from tasks.session import Execution


@pytest.mark.parametrize(("stated", "is_told"), [(None, False), ("", False), ("3", False), ("1", True)])
def test_another_number_of_threads_in_the_environment_is_said_to_be_ignored(
    stated: str | None, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if stated is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", stated)

    line = describe_execution(Execution(threads=3, device="cpu"))

    ignored = f"; OMP_NUM_THREADS={stated} is ignored: --set execution.threads=N sets the threads"
    assert line.endswith(ignored) == is_told
    assert ("OMP_NUM_THREADS" in line) == is_told
