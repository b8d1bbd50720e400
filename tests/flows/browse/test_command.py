"""`pretrieve browse` as a process: it prints its address, serves it on loopback, and ends by Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import httpx
import pytest

from storage.store.store import Store
from tests.browsed_run import finished
from tests.in_process import refused
from tests.warm import Command, environment, start

pytestmark = pytest.mark.slow  # Java and a server


def address(command: Command, printed: Path) -> str:
    """Return the address that the command prints."""
    while not (found := re.search(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", printed.read_text())):
        assert command.poll() is None
        time.sleep(0.05)
    return found[0]


def test_the_address_that_is_printed_is_served_until_ctrl_c(store: Store, tmp_path: Path) -> None:
    store.mark()
    finished(store)
    out, err = tmp_path / "stdout", tmp_path / "stderr"
    out.touch()
    command = start("browse", cwd=tmp_path, env=environment(tmp_path, PRETRIEVE_STORE=str(store.root)),
                    stdout=out, stderr=err)  # fmt: skip
    try:
        page = address(command, out)
        assert "retriever_1 against bm25" in httpx.get(page, timeout=60).text
        found = httpx.get(f"{page}search", params={"q": "castle"}, timeout=120).text
        assert "<mark>castle</mark>" in found
        os.kill(command.pid, signal.SIGINT)
        assert command.wait(60) == 0
        assert err.read_text() == ""
    finally:
        command.end()


def test_impossible_requests_are_one_line(store: Store, tmp_path: Path) -> None:
    folder = str(store.root)
    assert "no finished run to browse" in refused("browse", "--store", folder)
    assert "expected a recipe's name" in refused("browse", "nothing", "--store", folder)
    (tmp_path / "index.json").write_text("{}")
    (tmp_path / "report.json").write_text("{}")
    assert "adapted by an earlier version" in refused("browse", str(tmp_path))
