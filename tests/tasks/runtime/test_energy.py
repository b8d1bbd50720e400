"""What a meter adds up from counters laid out as Linux does, and that a machine that tells nothing costs nothing."""

import threading
from pathlib import Path

import pytest

from storage.files import write_atomically
from tasks.runtime import energy
from tasks.runtime.energy import Meter


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    zones = {"0": ("package-0", 1_000_000), "0:0": ("dram", 5_000_000), "0:1": ("core", 7_000_000),
             "1": ("package-1", 900_000_000)}  # fmt: skip
    for number, (name, microjoules) in zones.items():
        zone = tmp_path / f"intel-rapl:{number}"
        zone.mkdir()
        (zone / "name").write_text(f"{name}\n")
        (zone / "energy_uj").write_text(f"{microjoules}\n")
        (zone / "max_energy_range_uj").write_text("1000000000\n")
    return tmp_path


def test_packages_and_memory_count_and_their_parts_do_not(powercap: Path) -> None:
    with Meter(powercap) as meter:
        for zone, microjoules in (("0", 3_500_000), ("0:0", 5_250_000), ("0:1", 9_000_000)):
            (powercap / f"intel-rapl:{zone}" / "energy_uj").write_text(str(microjoules))

    assert meter.joules == pytest.approx({"processors": 2.5, "memory": 0.25})


def test_a_counter_that_begins_again_is_read_on(powercap: Path) -> None:
    with Meter(powercap) as meter:
        (powercap / "intel-rapl:1" / "energy_uj").write_text("20000000")  # 900 J to 1,000 J, then 20 J

    assert meter.joules["processors"] == pytest.approx(120.0)


def test_counters_are_read_again_while_the_block_runs(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "SECONDS_BETWEEN_READINGS", 0.001)
    read = threading.Event()

    class Watched(Meter):
        def look(self) -> None:
            super().look()
            read.set()

    file = powercap / "intel-rapl:1" / "energy_uj"
    with Watched(powercap) as meter:
        for joules in (990, 80, 990, 80):  # twice around, which a reading at either end alone would not see
            write_atomically(file, str(joules * 1_000_000))  # half a number is not read
            read.clear()
            assert read.wait(30)
            read.clear()
            assert read.wait(30)

    assert meter.joules["processors"] == pytest.approx(90 + 90 + 910 + 90)


def test_a_counter_that_cannot_be_read_for_a_while_is_read_again(powercap: Path) -> None:
    file = powercap / "intel-rapl:1" / "energy_uj"
    with Meter(powercap) as meter:
        file.write_text("")
        meter.look()
        file.unlink()
        meter.look()
        file.write_text("907000000")

    assert meter.joules["processors"] == pytest.approx(7.0)


def test_a_machine_that_tells_nothing_is_left_alone(tmp_path: Path) -> None:
    before = threading.active_count()

    with Meter(tmp_path) as meter:
        assert threading.active_count() == before

    assert {part: joules for part, joules in meter.joules.items() if part != "GPUs"} == {}
