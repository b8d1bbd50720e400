"""Re-rank a run: order the first passages of each ranked list by a cross-encoder's scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from pydantic import Field

from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.row_index import PassageIndex
from storage.rows import read_table, write_table
from storage.tables import Checkpoint, Passages, Queries, Run
from tasks.cross_encoder.pairs import Pairs, Scoring, score_shards
from tasks.retrieval.ranking import in_order, run_rows
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
    rows = read_table(run, Run, ["query_id", "passage_id", "view", "rank"])
    if len(views := pc.unique(rows["view"]).to_pylist()) > 1:
        raise UserError(f"{run.reference}: expected the lists of one view, found {', '.join(views)}")
    rows = rows.filter(pc.less_equal(rows["rank"], settings.depth))
    pairs = Pairs.of(queries, passages, {run.reference: rows})
    if not len(pairs.query_rows):
        raise UserError(f"{run.reference}: it has no list of a query of {queries.reference}")
    ids = PassageIndex.of(pairs.passages)
    for span, scores, part in score_shards(out, pairs, teacher, settings):
        query_rows, first = np.unique(pairs.query_rows[span], return_index=True)
        lists = zip(np.split(pairs.passage_rows[span], first[1:]), np.split(scores, first[1:]), strict=True)
        ranked = [in_order(ids, passage_rows, scores_of_query) for passage_rows, scores_of_query in lists]
        query_ids = pairs.queries["query_id"].take(query_rows).to_pylist()
        write_table(out, Run, run_rows(query_ids, ranked, ids, "reranked"), part)
