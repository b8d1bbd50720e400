"""The tables of a run as `pretrieve browse` reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows.browse.contents import Collection, Contents
from flows.browse.queries import pseudo_queries
from storage.artifact import Artifact
from storage.rows import write_rows
from storage.settings import Settings
from storage.store.store import Store
from storage.tables import Passages, PseudoQueries
from tasks.pseudo_queries.filter_queries import Cut, filter_queries
from tasks.pseudo_queries.join_queries import Joining, join_queries
from tasks.stage import stage
from tests.tasks.corpora import passage, pseudo_query


class Named(Settings):
    name: str


@stage(version=1, table=Passages)
def given_passages(out: Path, *, settings: Named) -> None:
    write_rows(out, Passages, [passage("3", f"a passage of {settings.name}")])


@stage(version=1, table=PseudoQueries)
def given_queries(out: Path, passages: Artifact[Passages], *, settings: Named) -> None:
    write_rows(out, PseudoQueries, [pseudo_query("3", 0, f"by {settings.name}", round_trip=1)])


def test_filtered_and_joined_pseudo_queries_are_those_of_their_own_collection(store: Store) -> None:
    """Both collections have a passage 3."""
    own, other = (given_passages(settings=Named(name=name)) for name in ("own", "other"))
    written: list[Artifact[Any]] = [given_queries(passages=own, settings=Named(name=name)) for name in ("t5", "llm")]
    joined = join_queries(corpora=written, settings=Joining(queries_per_passage=[1, 1]))
    filtered = filter_queries(joined, settings=Cut(round_trip=1))
    collections = [Collection(name, passages, {}) for name, passages in (("own", own), ("other", other))]
    contents = Contents("run", "Run", "", "MRR@10", (), store, collections, {}, [filtered])

    shown = [[row["query"] for row in pseudo_queries(contents, of, "3")] for of in collections]

    assert shown == [["by t5", "by llm"], []]
