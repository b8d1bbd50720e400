"""Candidates for negatives: no positive is one, samples are reproducible, and runs are read in a common order."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.artifact import Artifact
from storage.errors import UserError
from storage.tables import Run
from tasks.finetuning.candidates import query_shards, ranked_lists, remove_positives, sample
from tasks.finetuning.miners import Row
from tasks.retrieval.run_lists import RunLists
from tests.tasks.finetuning.mining_tables import ranked, run_of

pytestmark = pytest.mark.usefixtures("on_one_thread")


@given(
    names=st.lists(st.integers(0, 30).map(str), unique=True, max_size=25),
    positives=st.sets(st.integers(0, 30).map(str)),
    depth=st.integers(1, 30),
    keep=st.none() | st.integers(1, 30),
)
def test_no_positive_and_as_many_as_possible(
    names: list[str], positives: set[str], depth: int, keep: int | None
) -> None:
    remaining = [name for name in names if name not in positives]
    results = [row["passage_id"] for row in sample(remove_positives(ranked(names), positives, depth), keep, "1 q")]
    assert set(results) <= set(remaining[:depth])
    assert len(results) == min(len(remaining), depth, keep or depth)
    assert results == sorted(results, key=names.index)  # in the order of rank, so no passage twice


def test_samples_differ_by_query_and_not_by_run() -> None:
    names = [str(n) for n in range(100)]
    one, again, other = (sample(ranked(names), 10, seed) for seed in ("1 a", "1 a", "1 b"))
    assert one == again
    assert one != other


def test_samples_of_published_recipes_do_not_change() -> None:
    """Published recipes depend on what is drawn for a seed and a query."""
    rows = ranked([str(n) for n in range(100)])
    assert [row["passage_id"] for row in sample(rows, 5, "1 a")] == ["31", "42", "44", "79", "98"]


def all_lists(runs: list[Artifact[Run]]) -> list[tuple[str, Sequence[list[Row]]]]:
    """The lists of all shards."""
    opened = [RunLists(run) for run in runs]
    return [lists for shard in query_shards(opened) for lists in ranked_lists(opened, shard.of)]


def test_queries_that_only_some_runs_have(written: Any) -> None:
    """An order that agrees with all runs; where they leave it open, the first to be named comes first."""
    runs = [run_of(written, queries) for queries in ("z", "az", "bz", "cdz", "ez", "dfz")]

    results = {query: [len(rows) for rows in ranked] for query, ranked in all_lists(runs)}

    assert list(results) == ["a", "b", "c", "e", "d", "f", "z"]
    assert results["d"] == [0, 0, 0, 1, 0, 1]
    assert results["z"] == [1] * 6


@pytest.mark.parametrize("queries", [["aba"], ["ab", "aca"], ["ab", "bc", "ca"]])
def test_lists_that_cannot_be_read_in_step(written: Any, queries: list[str]) -> None:
    with pytest.raises(UserError, match="not in one common order"):
        all_lists([run_of(written, query) for query in queries])
