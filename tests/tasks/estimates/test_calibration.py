"""The rates of a machine are kept with its load, and measured again once a busy machine is less busy."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.store.store import Store
from tasks.estimates import calibration, kept_rates
from tasks.estimates.calibration import EncoderRates
from tasks.session import Session, session

Rates = Callable[[float], EncoderRates]


@pytest.fixture
def rates_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rates:
    """Returns the rates that a command gets at a load; all of a test share a file."""
    monkeypatch.setenv("PRETRIEVE_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration, "SECONDS", 0.01)
    monkeypatch.setattr(kept_rates, "num_cores", lambda: 2)

    def rates(load: float) -> EncoderRates:
        monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
        with session(Session(Store(tmp_path / "store"))):
            return calibration.encoder_rates()

    return rates


def test_rates_of_a_busy_machine_are_kept_until_it_is_less_busy(rates_at: Rates) -> None:
    busy = rates_at(8.0)
    assert (busy.load, busy.cores, busy.on_busy_machine) == (8.0, 2, True)
    assert rates_at(8.0) == rates_at(9.5) == busy

    less_busy = rates_at(1.5)
    assert (less_busy.load, less_busy.on_busy_machine) == (1.5, True)
    idle = rates_at(0.96)
    assert (idle.load, idle.on_busy_machine) == (1.0, False)
    assert rates_at(8.0) == rates_at(0.0) == idle


def test_only_a_high_load_is_named() -> None:
    known: dict[str, Any] = {"machine": "a machine", "at": "2026-11-27", "cores": 2}
    rates = [EncoderRates(encoding=1e9, training=1e9, load=load, **known) for load in (8.0, 1.0)]

    busy = "on 2026-11-27 while other processes used the cores (load 8 on 2 cores)"
    assert [measured.when() for measured in rates] == [busy, "on 2026-11-27"]


@pytest.mark.parametrize("text", ["", "[]", '{"a machine": {"encoding": 1}}'])
def test_a_broken_file_of_rates_is_measured_anew(text: str, tmp_path: Path, rates_at: Rates) -> None:
    (tmp_path / "rates.json").write_text(text)

    measured = rates_at(0.0)

    assert rates_at(0.0) == measured
    assert measured.encoding > 1e7


def test_rates_of_a_version_without_loads_are_measured_again(tmp_path: Path, rates_at: Rates) -> None:
    rates_at(0.0)
    [(machine, kept)] = json.loads((tmp_path / "rates.json").read_text()).items()
    old = {name: value for name, value in kept.items() if name not in ("load", "cores")}
    (tmp_path / "rates.json").write_text(json.dumps({machine: old | {"training": 1.0}}))

    assert rates_at(0.0).training > 1e7
