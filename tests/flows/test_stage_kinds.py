"""The stages of a new kind: what tells two stages apart, and what comes with them."""

from pathlib import Path

import pytest
from pydantic import Field

from storage.artifact import Artifact
from storage.rows import write_rows
from storage.settings import Settings
from storage.store.store import Store
from storage.tables import Queries
from tasks.job import Job
from tasks.session import Session, session
from tasks.stage import stage
from tests.flows.stage_kinds import new_kinds


class Values(Settings):
    """A number, a choice, a list and a label."""

    steps: int = 2
    choice: str = "one"
    several: list[str] = Field(default_factory=list)
    weights: str = "a"


@stage(version=1, table=Queries)
def source_stage(out: Path, *, settings: Values) -> None:
    """Write no row."""
    write_rows(out, Queries, [])


@stage(version=1, table=Queries)
def other_source(out: Path, *, settings: Values) -> None:
    """Write no row."""
    write_rows(out, Queries, [])


@stage(version=1, table=Queries)
def last_stage(out: Path, before: Artifact[Queries], *, settings: Values) -> None:
    """Write no row."""
    write_rows(out, Queries, [])


def plan(folder: Path, first: Values, last: Values | None = None, begin: object = source_stage) -> dict[str, Job]:
    """Return the jobs of a chain of two stages, or of the first only."""
    with session(Session(Store(folder), planning=True)) as planning:
        result = begin(settings=first)  # type: ignore[operator]
        if last is not None:
            last_stage(result, settings=last)
    return dict(planning.jobs)


def names(jobs: dict[str, Job]) -> list[str]:
    return [job.stage.name for job in jobs.values()]


@pytest.mark.parametrize(
    ("changed", "new"),
    [
        ({"steps": 7}, False),
        ({"weights": "b"}, False),
        ({"steps": 0}, True),
        ({"choice": "two"}, True),
        ({"several": ["x"]}, True),
    ],
)
def test_stages_of_one_kind_differ_in_numbers_and_labels_only(
    changed: dict[str, object], new: bool, tmp_path: Path
) -> None:
    known: set[str] = set()
    assert names(new_kinds(plan(tmp_path, Values()), known)) == ["source_stage"]

    assert bool(new_kinds(plan(tmp_path, Values.model_validate(changed)), known)) == new


def test_a_stage_of_a_new_kind_comes_with_what_it_depends_on(tmp_path: Path) -> None:
    known: set[str] = set()
    new_kinds(plan(tmp_path, Values(), Values()), known)

    assert not new_kinds(plan(tmp_path, Values(steps=5), Values(steps=6)), known)
    assert names(new_kinds(plan(tmp_path, Values(), Values(choice="two")), known)) == ["source_stage", "last_stage"]
    assert names(new_kinds(plan(tmp_path, Values(), Values(), other_source), known)) == ["other_source", "last_stage"]
