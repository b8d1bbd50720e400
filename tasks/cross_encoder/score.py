"""Score pairs with a teacher: soft labels for the training of a retriever."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.rows import table_blocks, write_table
from storage.tables import Checkpoint, Negatives, Passages, Positives, Queries, TeacherScores
from tasks.cross_encoder.pairs import Scoring
from tasks.cross_encoder.shared_pairs import pair_scorer, share_pairs
from tasks.runtime.shard import ShardJob, ShardTask
from tasks.runtime.shards import run_shards
from tasks.stage import stage


@stage(version=2, table=TeacherScores, gpu=True)
def score(
    out: Path,
    teacher: Artifact[Checkpoint] | Source,
    queries: Artifact[Queries],
    passages: Artifact[Passages],
    positives: Artifact[Positives],
    negatives: Artifact[Negatives],
    *,
    settings: Scoring,
) -> None:
    """Write the score of every query with each of its positives and mined negatives, in the order of the queries."""
    pair = ("query_id", "passage_id")
    sources = {
        positives.reference: table_blocks(positives.path, Positives, pair),
        negatives.reference: table_blocks(negatives.path, Negatives, pair),
    }
    shards = share_pairs(out, queries, passages, sources)
    if not shards:
        raise UserError(f"{queries.reference}: none of its queries has a positive or a negative to score")
    run_shards(ShardJob(score_part, out, (teacher, queries), settings, "scoring", "pairs", on_gpus=True), shards)


def score_part(
    task: ShardTask, teacher: Artifact[Checkpoint] | Source, queries: Artifact[Queries], *, settings: Scoring
) -> None:
    """Write the scores of a shard's pairs."""
    scorer = pair_scorer(task, teacher, queries, settings)
    for query_ids, passage_rows, scores, name in scorer.parts(task):
        passage_ids = scorer.ids.ids.take(pa.array(passage_rows))
        columns = {"query_id": query_ids, "passage_id": passage_ids, "score": scores}
        write_table(task.out, TeacherScores, pa.table(columns), name)
