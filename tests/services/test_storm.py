"""A short storm of interruptions; `make storm` is the long one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.warm import ROOT


def test_interrupted_chains_build_what_an_unbroken_one_builds(tmp_path: Path) -> None:
    out = tmp_path / "storm.json"
    modes = ["--only", "no server", "--only", "leases"]
    command = [sys.executable, "-m", "tests.storm", "--kills", "14", *modes, "--recipe", "texts.yaml"]

    done = subprocess.run(
        [*command, "--minutes", "10", "--out", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=1200
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert result["interruptions"] == 14
    assert sum(stage["equal"] for name, stage in result["stages"].items() if name != "between stages") >= 7
    assert result["problems"] == []
