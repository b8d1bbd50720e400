"""The embedded server of a single run: what is said where it ends before it answers."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import pytest

from flows.prefect_server.embedded_server import NotStarted, _wait_until_it_answers
from tests.ports import free_port


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit(3)", "it ended with status 3 and no message"),
        ("print('first'); raise SystemExit('the port is taken')", "the port is taken"),
    ],
)
def test_a_server_that_ends_at_once_is_reported_by_its_last_line_or_its_status(code: str, said: str) -> None:
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=log, stderr=log)

        with pytest.raises(NotStarted, match=f"did not start: {said}$"):
            _wait_until_it_answers(process, free_port(), 60, log)
