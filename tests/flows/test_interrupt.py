"""How a command ends after a signal that its main thread does not answer."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import signal
import time
import sys
from flows import interrupt
from storage.store import begun_runs
from tasks.runtime.signals import DeferredSigterm

if "begin" in sys.argv:
    begun_runs.begin()
interrupt.SECONDS_TO_UNWIND = 0.5
signal.signal(signal.SIGINT, lambda *_: None)  # as where KeyboardInterrupt is raised in a finaliser, which drops it
with interrupt.ending_promptly():
    with DeferredSigterm() as training:
        print("training", flush=True)
        end = time.monotonic() + 60
        while time.monotonic() < end and not training.noted:
            time.sleep(0.1)
        if training.noted:
            time.sleep(1.5)
            print("saved", flush=True)
"""


@pytest.mark.parametrize(("argument", "ending"), [("begin", "; the same command resumes this run"), ("", "")])
@pytest.mark.parametrize(
    ("number", "code", "output"), [(signal.SIGINT, 130, ""), (signal.SIGTERM, -signal.SIGTERM, "saved\n")]
)
def test_a_training_that_does_not_answer_is_ended(
    number: signal.Signals, code: int, output: str, argument: str, ending: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, argument], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "training\n"
        process.send_signal(number)
        rest, errors = process.communicate(timeout=50)

    assert process.returncode == code, errors
    assert rest == output
    assert errors.endswith(f"{'interrupted' if number == signal.SIGINT else 'ended by SIGTERM'}{ending}\n")
