"""`pretrieve queries stats`: which statistics of a version are shown."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from flows.queries.stats import SAMPLING, quality_of
from flows.queries.versions import Version
from storage.artifact import Artifact
from storage.rows import write_rows
from storage.store.store import Store
from storage.tables import Passages, PseudoQueries
from tasks.pseudo_queries.query_quality import query_quality
from tasks.stage import stage
from tests.tasks.corpora import passage, pseudo_query


@stage(version=1, table=Passages)
def given_passages(out: Path) -> None:
    write_rows(out, Passages, [passage("d1#0", "the castle by the river")])


@stage(version=1, table=PseudoQueries)
def given_queries(out: Path, passages: Artifact[Passages]) -> None:
    write_rows(out, PseudoQueries, [pseudo_query("d1#0", 0, "where is the castle")])


def test_the_statistics_are_those_of_the_build_else_the_newest_else_computed(store: Store) -> None:
    passages = given_passages()
    queries = given_queries(passages)
    built, later = (
        query_quality(passages=passages, pseudo_queries=queries, settings=SAMPLING.model_copy(update={"seed": seed}))
        for seed in (1, 2)
    )
    version = Version("corpus", 1, "2026-01-01T00:00:00+00:00", queries, passages, built)

    assert quality_of(version, store) == built
    assert quality_of(replace(version, quality=later), store) == later

    shutil.rmtree(built.path)
    assert quality_of(version, store) == later
    shutil.rmtree(later.path)
    computed = quality_of(version, store)
    assert computed.key not in (built.key, later.key)
    assert computed.path.exists()
