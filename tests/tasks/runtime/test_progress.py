"""Bars on terminals, also on one that reports a width of 0 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from tasks.runtime.progress import bar

SCRIPT = """
from tasks.runtime.progress import bar
with bar(what="reading", unit="documents", total=4) as counter:
    counter.update(2)
    counter.refresh()
"""


@pytest.mark.parametrize("columns", [0, 60])
def test_a_bar_is_drawn_whatever_width_the_terminal_states(columns: int) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 0 if not columns else 20, columns, 0, 0))

    subprocess.run([sys.executable, "-c", SCRIPT], stderr=theirs, check=True, timeout=100)

    os.close(theirs)
    drawn = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "reading:  50%|" in drawn
    assert "2/4" in drawn
    assert "█" in drawn


def test_work_goes_on_where_nobody_reads_its_progress() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    script = "from tasks.runtime.progress import Lines; Lines().write('reading: 50%'); print('read')"

    result = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=writing, timeout=100)

    os.close(writing)
    assert result.stdout == b"read\n"


@pytest.mark.parametrize(
    ("unit", "singular"), [("steps", "step"), ("queries", "query"), ("passes", "pass"), ("batches", "batch")]
)
def test_a_slow_rate_is_seconds_for_one(unit: str, singular: str) -> None:
    with bar(what="training", unit=unit, total=4) as counter:
        slow, quick = ({**counter.format_dict, "n": 2, "elapsed": seconds, "rate": None} for seconds in (20, 0.5))

        assert f", 10.00 s/{singular}]" in counter.format_meter(**slow)
        assert f", {4:5.2f} {unit}/s]" in counter.format_meter(**quick)
