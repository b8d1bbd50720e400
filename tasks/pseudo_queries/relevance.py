"""Score the relevance of a pseudo-query to its passage with a cross-encoder.

doc2query-- (Gospodinov, MacAvaney and Macdonald, ECIR 2023): a generator also generates queries that the passage does
not answer, and a cross-encoder detects them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from models.retrievers.cross_encoder import Pair, encode_pair
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.tables import Checkpoint, Passages, PseudoQueries
from tasks.cross_encoder.pairs import Scorer, Scoring
from tasks.pseudo_queries.column_rewrite import Texts, file_shards, is_empty, rewrite
from tasks.runtime.shard import ShardJob, ShardTask, load_once
from tasks.runtime.shards import run_shards
from tasks.stage import stage


@stage(version=2, table=PseudoQueries, gpu=True)
def relevance(
    out: Path, pseudo_queries: Artifact[PseudoQueries], passages: Artifact[Passages],
    cross_encoder: Artifact[Checkpoint] | Source, *, settings: Scoring,
) -> None:  # fmt: skip
    """Write the pseudo-queries with `relevance`: the score of (query, own passage), null where the query is empty.

    Only the table determines the batches, so that equal tables get equal scores.
    """
    inputs = pseudo_queries, passages, cross_encoder
    job = ShardJob(score_part, out, inputs, settings, what="scoring queries", unit="queries", on_gpus=True)
    run_shards(job, file_shards(pseudo_queries, passages))


def score_part(
    task: ShardTask,
    pseudo_queries: Artifact[PseudoQueries],
    passages: Artifact[Passages],
    cross_encoder: Artifact[Checkpoint] | Source,
    *,
    settings: Scoring,
) -> None:
    """Write a shard's queries with their scores."""
    scorer, texts = load_once(_scorer, cross_encoder, settings), Texts(task.shard, pseudo_queries, passages)

    def change(block: pa.Table) -> dict[str, pa.Array]:
        empty, scores = is_empty(block), np.zeros(len(block), np.float32)
        generated = block.select(["passage_id", "rank", "query"]).filter(pa.array(~empty))
        scores[~empty] = scorer(_pairs(generated, texts, scorer, settings), task.done)
        _check(scores[~empty], generated, cross_encoder.reference)
        task.done(int(empty.sum()))
        return {"relevance": pa.array(scores, mask=empty)}

    rewrite(task.out, task.shard, pseudo_queries, change)


def _scorer(cross_encoder: Artifact[Checkpoint] | Source, settings: Scoring) -> Scorer:
    return Scorer(cross_encoder, settings, "filter.relevance")


def _pairs(rows: pa.Table, texts: Texts, scorer: Scorer, settings: Scoring) -> list[Pair]:
    """Return each query with its passage, as token ids."""
    ids = rows["passage_id"].to_pylist()
    own = {passage_id: texts.of(passage_id) for passage_id in ids}
    passages = dict(zip(own, scorer.tokenizer.token_ids(list(own.values())), strict=True))
    queries = scorer.tokenizer.token_ids(rows["query"].to_pylist())
    return [
        encode_pair(scorer.tokenizer, query, passages[passage_id], **settings.limits)
        for query, passage_id in zip(queries, ids, strict=True)
    ]


def _check(scores: np.ndarray[tuple[int], np.dtype[np.float32]], rows: pa.Table, cross_encoder: str) -> None:
    """Raise UserError if a score is not a number."""
    if (wrong := np.flatnonzero(~np.isfinite(scores))).size:
        row = rows.slice(int(wrong[0]), 1).to_pylist()[0]
        raise UserError(
            f"{cross_encoder}: its score of query {row['rank']} of passage {row['passage_id']!r} is not a number; "
            "use another cross-encoder, or train it again with a lower learning rate"
        )
