"""Give every passage its contexts: what its pre-training may decode from its [CLS].

Query-as-context (paper "Query-as-context Pre-training for Dense Passage Retrieval", section 3) takes
queries generated from the passage; one of them is drawn at each visit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import num_rows, read_rows, write_rows
from storage.settings import Settings
from storage.tables import Pairs, Passages, PseudoQueries, passage_text
from tasks.progress import progress
from tasks.stage import stage

log = logging.getLogger(__name__)

Row = dict[str, Any]


class Contexts(Settings):
    """What stands beside a passage in pre-training."""

    kind: Literal["pseudo_query"]
    queries_per_passage: Annotated[int, Field(gt=0)]
    """The first so many by rank; a passage that has fewer keeps those."""


@stage(version=1, table=Pairs)
def pair_contexts(
    out: Path, passages: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries], *, settings: Contexts
) -> None:
    """Write each passage that has pseudo-queries, with the first of them by rank, in the passages' order."""
    total = num_rows(passages.path)
    rows = progress(read_rows(passages, Passages), total=total, what="pairing contexts", unit="passages")
    num_pairs = write_rows(out, Pairs, _pairs(rows, read_rows(pseudo_queries, PseudoQueries), settings))
    if not num_pairs:
        raise UserError(f"{pseudo_queries.path}: no passage has a pseudo-query, so there is nothing to pre-train on")
    if num_pairs < total:
        log.warning("%d of %d passages have no pseudo-query and are left out", total - num_pairs, total)


def _pairs(passages: Iterator[Row], pseudo_queries: Iterator[Row], settings: Contexts) -> Iterator[Row]:
    """Walk both tables side by side: pseudo-queries come in the order of their passages."""
    groups = groupby(pseudo_queries, key=itemgetter("passage_id"))
    waiting = next(groups, None)
    for passage in passages:
        if waiting is None or waiting[0] != passage["passage_id"]:
            continue
        by_rank = sorted(waiting[1], key=itemgetter("rank"))
        yield {
            "passage_id": passage["passage_id"],
            "text": passage_text(passage["title"], passage["text"]),
            "contexts": [row["text"] for row in islice(by_rank, settings.queries_per_passage)],
        }
        waiting = next(groups, None)
    if waiting is not None:
        raise ValueError(f"the pseudo-queries of {waiting[0]} are out of the passages' order, or of other passages")
