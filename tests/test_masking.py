"""Credentials in addresses are in no output: not of commands that fail, and not in manifests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage.store.store import Store
from storage.tables import Checkpoint
from tasks.session import Execution, Session, session
from tasks.stage import stage
from tests import warm

SECRET = "hunter2"
UNREACHABLE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("words", "variable", "address", "code"),
    [
        (["doctor"], "PREFECT_API_URL", f"http://me:{SECRET}@{UNREACHABLE}/api", 2),
        (["doctor"], "PREFECT_API_URL", f"http://me:{SECRET}/x@{UNREACHABLE}/api", 2),
        (["register"], "PREFECT_API_URL", f"http://me:{SECRET}@{UNREACHABLE}/api", 2),
        (["register"], "PREFECT_API_URL", f"http://me:{SECRET}/x@{UNREACHABLE}/api", 2),
        (["plan", f"http://me:{SECRET}@{UNREACHABLE}/recipe.yaml"], "PREFECT_API_URL", "", 2),
        (["gc"], "PRETRIEVE_LOCKS", f"redis://:{SECRET}@{UNREACHABLE}/0", 2),
        (["gc"], "PRETRIEVE_LOCKS", f"redis://:{SECRET}/x@{UNREACHABLE}/0", 2),
    ],
)
def test_no_command_prints_a_password(words: list[str], variable: str, address: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "artifacts" / ".work" / f"train-{24 * '0'}").mkdir(parents=True)

    done = warm.run(tmp_path, *words, COLUMNS="200", **{variable: address} if address else {})

    assert done.returncode == code, done.stderr
    assert SECRET not in done.stdout + done.stderr
    if address:
        assert UNREACHABLE in done.stdout + done.stderr or "expected redis://" in done.stderr


@stage(version=1, table=Checkpoint)
def make_nothing(out: Path) -> None:
    """Write a small file."""
    (out / "file.json").write_text("{}")


def test_a_manifest_has_no_password(tmp_path: Path) -> None:
    execution = Execution(device="cpu", dask=f"tls://me:{SECRET}@scheduler:8786")
    with session(Session(Store(tmp_path), execution)) as current:
        artifact = make_nothing()
        manifest = current.store.manifest(artifact.stage, artifact.key)

    assert manifest
    assert manifest.built["execution"] == execution.model_dump(mode="json") | {"dask": "tls://***@scheduler:8786"}
    assert SECRET not in json.dumps(manifest.built)
