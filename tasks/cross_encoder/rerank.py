"""Re-rank a run: order the first passages of each ranked list by a cross-encoder's scores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.rows import table_blocks, write_table
from storage.tables import Checkpoint, Passages, Queries, Run
from tasks.cross_encoder.pairs import Scoring
from tasks.cross_encoder.shared_pairs import pair_scorer, share_pairs
from tasks.retrieval.ranking import in_order, run_rows
from tasks.runtime.shard import ShardJob, ShardTask
from tasks.runtime.shards import run_shards
from tasks.stage import stage


class Reranking(Scoring):
    """The depth to which a ranked list is re-ranked."""

    depth: int = Field(gt=0)
    """Passages of each list that are scored; passages below are dropped."""


@stage(version=2, table=Run, gpu=True)
def rerank(
    out: Path,
    teacher: Artifact[Checkpoint] | Source,
    run: Artifact[Run],
    queries: Artifact[Queries],
    passages: Artifact[Passages],
    *,
    settings: Reranking,
) -> None:
    """Write the first passages of each query's list in the order of the teacher's scores."""
    shards = share_pairs(out, queries, passages, {run.reference: _first_passages(run, settings.depth)})
    if not shards:
        raise UserError(f"{run.reference}: it has no list of a query of {queries.reference}")
    run_shards(ShardJob(rerank_part, out, (teacher, queries), settings, "scoring", "pairs", on_gpus=True), shards)


def rerank_part(
    task: ShardTask, teacher: Artifact[Checkpoint] | Source, queries: Artifact[Queries], *, settings: Reranking
) -> None:
    """Write the re-ranked lists of a shard's queries."""
    scorer = pair_scorer(task, teacher, queries, settings)
    for query_ids, passage_rows, scores, name in scorer.parts(task):
        first = [number for number, query in enumerate(query_ids) if not number or query != query_ids[number - 1]]
        lists = zip(np.split(passage_rows, first[1:]), np.split(scores, first[1:]), strict=True)
        ranked = [in_order(scorer.ids, *pair) for pair in lists]
        write_table(task.out, Run, run_rows([query_ids[n] for n in first], ranked, scorer.ids, "reranked"), name)


def _first_passages(run: Artifact[Run], depth: int) -> Iterator[pa.Table]:
    """Yield the pairs of a run down to a depth. Raises UserError for lists of several views."""
    views = set[str]()
    for rows in table_blocks(run.path, Run, ["query_id", "passage_id", "view", "rank"]):
        views.update(pc.unique(rows["view"]).to_pylist())
        if len(views) > 1:
            raise UserError(f"{run.reference}: expected the lists of one view, found {', '.join(sorted(views))}")
        yield rows.filter(pc.less_equal(rows["rank"], depth)).select(["query_id", "passage_id"])
