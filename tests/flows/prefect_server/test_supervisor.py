"""How often a service that dies is started again; tests/services/test_up.py has the supervisor at work."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.prefect_server import supervisor
from flows.prefect_server.services import ServicePaths
from flows.prefect_server.supervisor import MOST_STARTS, WITHIN_SECONDS, Starts
from flows.prefect_server.up import only_one


def test_it_waits_until_it_is_recorded(tmp_path: Path) -> None:
    paths = ServicePaths(tmp_path)
    supervising = threading.Thread(target=supervisor.supervise, args=(paths,), daemon=True)

    with only_one(paths):
        supervising.start()
        supervising.join(0.5)
        assert supervising.is_alive()

    supervising.join(600)
    assert not supervising.is_alive()  # it was not recorded


def test_a_service_that_dies_too_often_waits_for_the_hour_to_end_and_is_named_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: clock.now))
    starts, log = Starts(), Path("logs/gpu-0.log")

    def allowed(seconds: float) -> bool:
        clock.now = 1000 + seconds
        return starts.allowed("gpu-0", log)

    assert all(allowed(second) for second in range(MOST_STARTS))
    assert not any(allowed(second) for second in (20, 25, WITHIN_SECONDS - 1))
    assert starts.allowed("cpu-0", log)
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(f"gpu-0 died {MOST_STARTS} times within an hour: not started again before ")
    assert line.endswith(" UTC; see logs/gpu-0.log")
    assert allowed(WITHIN_SECONDS)  # the first start was an hour ago
    assert not allowed(WITHIN_SECONDS + 0.5)
    assert len(capsys.readouterr().out.splitlines()) == 1
