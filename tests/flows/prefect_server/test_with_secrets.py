"""Secrets of a container are in the environment of its process, from files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.prefect_server.with_secrets import with_secrets

ADDRESS = {"ADDRESS": "redis://:{redis_password}@redis:6379/1", "OTHER": "{A} {} $x"}


def test_a_command_has_the_secrets_in_its_environment_and_not_among_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "redis_password").write_text("xyzzy\n")
    shown = "import os, sys; print(os.environ['ADDRESS'], os.environ['OTHER'], sys.argv[1:])"
    command = [sys.executable, "-m", "flows.prefect_server.with_secrets", str(tmp_path), sys.executable, "-c", shown]

    done = subprocess.run([*command, "{redis_password}"], env=os.environ | ADDRESS, capture_output=True, text=True)

    assert done.stdout == "redis://:xyzzy@redis:6379/1 {A} {} $x ['{redis_password}']\n", done.stderr


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_nothing_starts_without_a_secret(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "redis_password").write_text(content)

    with pytest.raises(SystemExit, match=r"redis_password: missing or empty; expected a secret"):
        with_secrets(ADDRESS, tmp_path)
