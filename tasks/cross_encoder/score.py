"""Score pairs with a teacher: soft labels for the training of a retriever."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.rows import read_table, write_table
from storage.tables import Checkpoint, Negatives, Passages, Positives, Queries, TeacherScores
from tasks.cross_encoder.pairs import Pairs, Scoring, score_shards
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
    sources = {
        positives.reference: read_table(positives, Positives, ["query_id", "passage_id"]),
        negatives.reference: read_table(negatives, Negatives, ["query_id", "passage_id"]),
    }
    pairs = Pairs.of(queries, passages, sources)
    if not len(pairs.query_rows):
        raise UserError(f"{queries.reference}: none of its queries has a positive or a negative to score")
    for span, scores, part in score_shards(out, pairs, teacher, settings):
        columns = {
            "query_id": pairs.queries["query_id"].take(pairs.query_rows[span]),
            "passage_id": pairs.passages["passage_id"].take(pairs.passage_rows[span]),
            "score": scores,
        }
        write_table(out, TeacherScores, pa.table(columns), part)
