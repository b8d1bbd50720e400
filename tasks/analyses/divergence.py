"""How much a retriever keeps queries and passages apart: CoT-MoTE's picture and divergences, with controls.

The paper (Ma et al. 2023, sections 2.2 and 5.3, appendix A.1) draws 400 query-passage pairs of MS MARCO's dev set by
t-SNE and prints the KL and JS divergence of the two clouds' kernel densities. At which places these were compared, and
with which bandwidth, it does not say; its KL is four times its JS, as of any two densities that hardly differ. Both
ways to read it are measured, over several seeds of t-SNE, and what does not hang on t-SNE beside them. Values are for
comparing retrievers of one data set, not with the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from storage import settings as base
from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import writing
from storage.formats.ids import share
from storage.rows import first_rows, read_table
from storage.tables import Analysis, Checkpoint, Passages, Qrels, Queries, passage_text
from tasks.analyses import write
from tasks.analyses.measures import embedding_space as space
from tasks.retrieval.encode import TextEncoder
from tasks.runtime.progress import progress
from tasks.stage import stage

Points = dict[int, tuple[space.Values, space.Values]]
"""By seed where queries and passages lie in the plane."""


class Settings(base.Settings):
    """Which pairs are drawn, and how often."""

    analysis: Literal["divergence"]
    round: str
    """Whose retriever is looked at."""
    pairs: int = Field(ge=2)
    """At most: fewer where fewer documents are relevant to a query."""
    seed: base.Seed
    """Of the draw of pairs."""
    seeds: list[base.Seed] = Field(min_length=1)
    """Of t-SNE; the first one's plane is the picture."""
    perplexity: float = Field(gt=1)
    """Of t-SNE, which the paper does not print; 30 is scikit-learn's."""


class Reading(Settings):
    """The same, and what is read of a text and counts as relevant."""

    query_max_tokens: int
    passage_max_tokens: int
    relevant_from: int
    """The least grade of a relevant document."""


@stage(version=1, table=Analysis, gpu=True)
def divergence(
    out: Path,
    queries: Artifact[Queries],
    qrels: Artifact[Qrels],
    passages: Artifact[Passages],
    checkpoint: Artifact[Checkpoint],
    *,
    settings: Reading,
) -> None:
    """Write `analysis.json` and, with every seed's plane, `points.parquet`. Vectors are those of the dense view."""
    drawn = pairs(queries, qrels, passages, settings)
    if (least := max(space.FOLDS, int(settings.perplexity) // 2 + 1)) > len(drawn):
        raise UserError(
            f"divergence: expected at least {least} queries with a relevant document each, for a perplexity of "
            f"{settings.perplexity:g}, found {len(drawn)}; lower perplexity, or leave the analysis out"
        )
    vectors = encoded(checkpoint, drawn, settings)
    distances = space.cosine_distances(np.concatenate(vectors))
    points: Points = {}
    for seed in progress(settings.seeds, total=len(settings.seeds), what="t-SNE", unit="planes"):
        plane = space.plane(distances, perplexity=settings.perplexity, seed=seed)
        points[seed] = (plane[: len(drawn)], plane[len(drawn) :])
    with writing(out / "points.parquet") as temporary:
        pq.write_table(_rows(points, drawn), temporary)
    write(out, settings, {
        "drawn": len(drawn),
        "bandwidth": len(drawn) ** (-1 / 6),
        "common_support": _over_seeds([space.on_common_support(*each) for each in points.values()]),
        "own_points": _over_seeds([space.on_own_points(*each) for each in points.values()]),
        "cosines": space.mean_cosines(*vectors),
        "probe_accuracy": space.probe_accuracy(*vectors),
        "squared_mmd": space.squared_mmd(*vectors),
        "picture": _picture(*points[settings.seeds[0]]),
    })  # fmt: skip


def pairs(
    queries: Artifact[Queries], qrels: Artifact[Qrels], passages: Artifact[Passages], settings: Reading
) -> list[dict[str, str]]:
    """Queries drawn by the hash of their id, each with the first passage of a relevant document, no document twice.

    The judgements of one split are in memory, and of the passages the first of each relevant document.
    """
    judged = read_table(qrels, Qrels)
    judged = judged.filter(pc.greater_equal(judged["grade"], settings.relevant_from))
    asked = first_rows(queries, Queries, "query_id", judged["query_id"].to_pylist(), ["text"])
    firsts = first_rows(passages, Passages, "doc_id", judged["doc_id"].to_pylist(), ["passage_id"])
    salt = str(settings.seed)
    order = sorted(
        (
            share(row["query_id"], salt),
            share(f"{row['query_id']}\0{row['doc_id']}", salt),
            row["query_id"],
            row["doc_id"],
        )
        for row in judged.to_pylist()
        if row["query_id"] in asked and row["doc_id"] in firsts
    )
    chosen: dict[str, str] = {}
    for _, _, query, document in order:
        if query not in chosen and document not in chosen.values() and len(chosen) < settings.pairs:
            chosen[query] = document
    wanted = [firsts[document]["passage_id"] for document in chosen.values()]
    texts = first_rows(passages, Passages, "passage_id", wanted, ["title", "text"])
    return [
        {"query_id": query, "query": asked[query]["text"], "passage_id": passage,
         "passage": passage_text(texts[passage]["title"], texts[passage]["text"])}
        for query, passage in zip(chosen, wanted, strict=True)
    ]  # fmt: skip


def encoded(
    checkpoint: Artifact[Checkpoint], drawn: Sequence[Mapping[str, str]], settings: Reading
) -> tuple[space.Values, space.Values]:
    """The queries' and the passages' dense vectors, at length 1."""
    encoder = TextEncoder(checkpoint.path)
    asked = encoder([pair["query"] for pair in drawn], "query", settings.query_max_tokens).dense
    found = encoder([pair["passage"] for pair in drawn], "passage", settings.passage_max_tokens).dense
    if asked is None or found is None:
        raise UserError(f"divergence: {settings.round}: its retriever has no dense view, which the analysis compares")
    if not (np.isfinite(asked).all() and np.isfinite(found).all()):
        raise UserError(f"divergence: {settings.round}: a vector is not a number; train it with a lower learning rate")
    return space.unit(asked), space.unit(found)


def _over_seeds(found: Sequence[Mapping[str, float] | None]) -> dict[str, dict[str, float | None]] | None:
    """Mean and standard deviation of each divergence; None where one seed has none."""
    values = [each for each in found if each is not None]
    if len(values) < len(found):
        return None
    return {
        name: {
            "mean": float(np.mean([each[name] for each in values])),
            "spread": float(np.std([each[name] for each in values], ddof=1)) if len(values) > 1 else None,
        }
        for name in ("kl", "js")
    }


def _rows(points: Points, drawn: Sequence[Mapping[str, str]]) -> pa.Table:
    rows = [
        {"seed": seed, "kind": kind, "query_id": pair["query_id"], "passage_id": pair["passage_id"], "x": x, "y": y}
        for seed, sides in points.items()
        for kind, side in zip(("query", "passage"), sides, strict=True)
        for pair, (x, y) in zip(drawn, side.tolist(), strict=True)
    ]
    return pa.Table.from_pylist(rows)


def _picture(queries: space.Values, passages: space.Values) -> dict[str, Any]:
    """Both clouds within a square of 1,000 by 1,000, in whole numbers."""
    both = np.concatenate([queries, passages])
    low, reach = both.min(0), float(np.ptp(both, axis=0).max()) or 1.0
    queries, passages = (np.rint(1000 * (each - low) / reach).astype(int) for each in (queries, passages))
    return {"queries": queries.tolist(), "passages": passages.tolist()}
