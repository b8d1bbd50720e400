"""`pretrieve verify --deep`: a sample is built again in a scratch store and compared, and the store stays as it is."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from flows.store.verify_deep import Rebuildable, Sampling, as_built, drawn, rebuild_sample, rebuilt, verify_deep
from storage.artifact import Artifact, File, Manifest, hash_of
from storage.errors import UserError
from storage.rows import write_rows
from storage.settings import Settings
from storage.store.manifest_checks import find_damage
from storage.store.store import Store
from storage.tables import Queries
from tasks.session import Execution, Session, execution, session
from tasks.stage import stage
from tests.console import command, tree


class Count(Settings):
    number: int


@stage(version=1, table=Queries)
def count(out: Path, *, settings: Count) -> None:
    """Write so many queries."""
    write_rows(out, Queries, ({"query_id": str(n), "text": "text"} for n in range(settings.number)))


@stage(version=1, table=Queries)
def again(out: Path, queries: Artifact[Queries], *, settings: Count) -> None:
    """Write so many queries more than there are."""
    number = len((queries.path / "part-00000.parquet").read_bytes()) + settings.number
    write_rows(out, Queries, [{"query_id": str(number), "text": "text"}])


@stage(version=1, table=Queries)
def threads(out: Path) -> None:
    """Write how many threads there are: as with floating-point numbers, they change the bytes."""
    write_rows(out, Queries, [{"query_id": "0", "text": str(execution().threads)}])


def artifacts(store: Store, numbers: range) -> dict[str, Rebuildable]:
    """What a recipe's plan says of a chain of two stages for each number, all in the store."""
    execution = Execution(workers=1, threads=1, device="cpu")
    for planning in (False, True):
        with session(Session(store, execution, planning=planning)) as current:
            for number in numbers:
                again(count(settings=Count(number=number)), settings=Count(number=number))
    manifests = {reference: store.manifest(job.stage.name, job.key) for reference, job in current.jobs.items()}
    return {
        reference: Rebuildable(current.jobs[reference], built, execution)
        for reference, built in manifests.items()
        if built
    }


def rebuild(one: Rebuildable, tmp_path: Path) -> tuple[str, str]:
    return rebuilt(one, Session(Store(tmp_path / "scratch"), one.execution))


def other_content(folder: Path, **built: Any) -> Manifest:
    """Change an artifact as a wrong build would have: another file, and a manifest that fits it."""
    (folder / "part-00000.parquet").unlink()
    write_rows(folder, Queries, [{"query_id": "0", "text": "another"}])
    content = (folder / "part-00000.parquet").read_bytes()
    manifest = Manifest.from_json((folder / "manifest.json").read_bytes())
    files = {"part-00000.parquet": File(len(content), hashlib.sha256(content).hexdigest())}
    value = json.loads(manifest.as_json()) | {"hash": hash_of(files), "rows": 1}
    value |= {"files": {"part-00000.parquet": vars(files["part-00000.parquet"])}, "built": {**manifest.built, **built}}
    del value["sha256"]
    (folder / "manifest.json").write_text(json.dumps(value))
    return Manifest.from_json((folder / "manifest.json").read_bytes())


def test_what_is_built_again_is_equal_and_nothing_is_written_into_the_store(store: Store, tmp_path: Path) -> None:
    known = artifacts(store, range(2, 4))
    before = tree(store.root)

    outcomes = [rebuild(candidate, tmp_path)[0] for candidate in known.values()]

    assert outcomes == ["equal"] * 4
    assert tree(store.root) == before


def test_it_is_built_with_the_threads_and_processes_that_it_was_built_with(store: Store, tmp_path: Path) -> None:
    with session(Session(store, Execution(threads=3, device="cpu"))) as current:
        built = threads()
    manifest = store.manifest("threads", built.key)
    assert manifest
    job, here = current.jobs[built.reference], Execution(threads=1, device="cpu")

    assert rebuild(Rebuildable(job, manifest, as_built(manifest, here)), tmp_path)[0] == "equal"
    assert rebuild(Rebuildable(job, manifest, here), tmp_path / "other")[0] == "differs"


@pytest.mark.parametrize(
    ("built", "outcome", "words"),
    [
        ({}, "differs", "a machine like this, with the same versions"),
        ({"device": "another CPU"}, "differs, from another machine", "device another CPU, here "),
    ],
)
def test_another_result_is_named_with_the_machine_that_built_it(
    built: dict[str, Any], outcome: str, words: str, store: Store, tmp_path: Path
) -> None:
    one = next(iter(artifacts(store, range(2, 3)).values()))
    manifest = other_content(store.folder(one.manifest.stage, one.manifest.key), **built)
    assert find_damage(store.folder(manifest.stage, manifest.key)) == []  # only a rebuild shows it

    results, output = rebuild(Rebuildable(one.job, manifest, one.execution), tmp_path)

    assert results == outcome
    assert f"expected {manifest.hash}; 1 files differ: part-00000.parquet" in output
    assert words in output


def test_a_damaged_input_is_named_and_stays(store: Store, tmp_path: Path) -> None:
    first, second = artifacts(store, range(2, 3)).values()
    file = store.folder(first.manifest.stage, first.manifest.key) / "part-00000.parquet"
    file.write_bytes(file.read_bytes()[::-1])

    outcome, output = rebuild(second, tmp_path)

    assert outcome == "cannot be built again"
    assert f"{file}: expected sha256" in output
    assert file.exists()


def test_the_exit_code_is_1_unless_every_artifact_of_the_sample_could_be_compared(store: Store) -> None:
    known = artifacts(store, range(2, 3))
    first, second = known
    rebuild_sample(known, Sampling(2, 60, 0))
    file = store.folder(known[first].manifest.stage, known[first].manifest.key) / "part-00000.parquet"
    file.write_bytes(file.read_bytes()[::-1])

    with pytest.raises(typer.Exit) as cannot_be_built:
        rebuild_sample({second: known[second]}, Sampling(1, 60, 0))
    other = other_content(store.folder(known[first].manifest.stage, known[first].manifest.key))
    with pytest.raises(typer.Exit) as differs:
        rebuild_sample({first: replace(known[first], manifest=other)}, Sampling(1, 60, 0))
    assert (cannot_be_built.value.exit_code, differs.value.exit_code) == (1, 1)


def test_the_sample_follows_from_seed_and_keys(store: Store) -> None:
    known = artifacts(store, range(1, 6))

    samples = {seed: [candidate.job.key for candidate in drawn(known, Sampling(3, 60, seed))] for seed in range(4)}

    assert all(len(sample) == 3 for sample in samples.values())
    assert len({tuple(sample) for sample in samples.values()}) > 1
    assert (
        samples[0]
        == [candidate.job.key for candidate in drawn(dict(reversed(known.items())), Sampling(3, 60, 0))][::-1]
    )
    assert drawn(known, Sampling(3, 0.0, 0)) == []


def test_what_cannot_be_sampled_is_an_error_of_the_user(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    artifacts(store, range(2, 3))

    with pytest.raises(UserError, match="reports: expected the report of a recipe"):
        verify_deep([], [], store.root, Sampling(1, 60, 0))
    ended = command(capsys, "verify", "--recipe", "quickstart", "--store", store.root)
    assert (ended.code, ended.lines) == (2, ["pretrieve: --recipe, --set: expected --deep with them"])
