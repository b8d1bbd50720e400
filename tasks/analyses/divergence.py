"""Measure how far a retriever separates queries from passages: CoT-MoTE's t-SNE figure and divergences, with controls.

The paper (Ma et al. 2023, sections 2.2 and 5.3, appendix A.1) plots 400 query-passage pairs of MS MARCO's dev set by
t-SNE and reports the KL and JS divergence of the two clouds' kernel densities. It does not state at which points the
densities are compared, nor the bandwidth; its KL is four times its JS, as for any two densities that hardly differ.
Both readings are computed, over several seeds of t-SNE, and so are measures that do not depend on t-SNE. The values
serve to compare retrievers on one data set, not to compare with the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from models.settings import omitted_at
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
from tasks.runtime.device import Precision
from tasks.runtime.progress import progress
from tasks.stage import stage

Points = dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]]
"""By seed, the coordinates of queries and passages in the plane."""


class Settings(base.Settings):
    """The sample of pairs, and the settings of t-SNE."""

    analysis: Literal["divergence"]
    round: str
    """The fine-tuning round whose retriever is analysed."""
    pairs: int = Field(ge=2)
    """The maximum number of pairs; fewer if there are fewer relevant documents."""
    seed: base.Seed
    """The seed of the sample of pairs."""
    seeds: list[base.Seed] = Field(min_length=1)
    """Seeds of t-SNE; the figure shows the plane of the first one."""
    perplexity: float = Field(gt=1)
    """The perplexity of t-SNE. The paper does not report it; scikit-learn's default is 30."""


class Reading(Settings):
    """The settings with the maximum numbers of tokens and the lowest relevant grade."""

    query_max_tokens: int
    passage_max_tokens: int
    relevant_from: int
    """The lowest grade of a relevant document."""
    precision: Annotated[Precision | None, omitted_at(None)] = None


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
    """Write `analysis.json`, and `points.parquet` with every seed's plane. Vectors are those of the dense view."""
    sample = sample_pairs(queries, qrels, passages, settings)
    if (least := max(space.FOLDS, int(settings.perplexity) // 2 + 1)) > len(sample):
        raise UserError(
            f"divergence: expected at least {least} queries with a relevant document each, for a perplexity of "
            f"{settings.perplexity:g}, found {len(sample)}; lower perplexity, or leave the analysis out"
        )
    vectors = encode_pairs(checkpoint, sample, settings)
    distances = space.cosine_distances(np.concatenate(vectors))
    points: Points = {}
    for seed in progress(settings.seeds, total=len(settings.seeds), what="t-SNE", unit="planes"):
        plane = space.plane(distances, perplexity=settings.perplexity, seed=seed)
        points[seed] = (plane[: len(sample)], plane[len(sample) :])
    with writing(out / "points.parquet") as temporary:
        pq.write_table(_rows(points, sample), temporary)
    write(out, settings, {
        "drawn": len(sample),
        "bandwidth": len(sample) ** (-1 / 6),
        "common_support": _over_seeds([space.on_common_support(*sides) for sides in points.values()]),
        "own_points": _over_seeds([space.on_own_points(*sides) for sides in points.values()]),
        "cosines": space.mean_cosines(*vectors),
        "probe_accuracy": space.probe_accuracy(*vectors),
        "squared_mmd": space.squared_mmd(*vectors),
        "picture": _figure(*points[settings.seeds[0]]),
    })  # fmt: skip


def sample_pairs(
    queries: Artifact[Queries], qrels: Artifact[Qrels], passages: Artifact[Passages], settings: Reading
) -> list[dict[str, str]]:
    """Return queries sampled by the hash of their id, each with the first passage of a relevant document.

    No document occurs twice. In memory are the judgements of one split and the first passage of each relevant document.
    """
    judged = read_table(qrels, Qrels)
    judged = judged.filter(pc.greater_equal(judged["grade"], settings.relevant_from))
    query_rows = first_rows(queries, Queries, "query_id", judged["query_id"].to_pylist(), ["text"])
    first_passages = first_rows(passages, Passages, "doc_id", judged["doc_id"].to_pylist(), ["passage_id"])
    salt = str(settings.seed)
    sampled = sorted(
        (
            share(row["query_id"], salt),
            share(f"{row['query_id']}\0{row['doc_id']}", salt),
            row["query_id"],
            row["doc_id"],
        )
        for row in judged.to_pylist()
        if row["query_id"] in query_rows and row["doc_id"] in first_passages
    )
    document_of: dict[str, str] = {}
    for _, _, query, document in sampled:
        if query not in document_of and document not in document_of.values() and len(document_of) < settings.pairs:
            document_of[query] = document
    passage_ids = [first_passages[document]["passage_id"] for document in document_of.values()]
    texts = first_rows(passages, Passages, "passage_id", passage_ids, ["title", "text"])
    return [
        {"query_id": query, "query": query_rows[query]["text"], "passage_id": passage,
         "passage": passage_text(texts[passage]["title"], texts[passage]["text"])}
        for query, passage in zip(document_of, passage_ids, strict=True)
    ]  # fmt: skip


def encode_pairs(
    checkpoint: Artifact[Checkpoint], sample: Sequence[Mapping[str, str]], settings: Reading
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the dense vectors of the queries and of the passages, normalised to length 1."""
    encoder = TextEncoder(checkpoint.path, settings.precision)
    query_vectors = encoder([pair["query"] for pair in sample], "query", settings.query_max_tokens).dense
    passage_vectors = encoder([pair["passage"] for pair in sample], "passage", settings.passage_max_tokens).dense
    if query_vectors is None or passage_vectors is None:
        raise UserError(f"divergence: {settings.round}: its retriever has no dense view, which the analysis compares")
    if not (np.isfinite(query_vectors).all() and np.isfinite(passage_vectors).all()):
        raise UserError(f"divergence: {settings.round}: a vector is not finite; train it with a lower learning rate")
    return space.unit(query_vectors), space.unit(passage_vectors)


def _over_seeds(seeds: Sequence[Mapping[str, float] | None]) -> dict[str, dict[str, float | None]] | None:
    """Return mean and standard deviation of each divergence over seeds; None where it is undefined for a seed."""
    values = [divergences for divergences in seeds if divergences is not None]
    if len(values) < len(seeds):
        return None
    return {
        name: {
            "mean": float(np.mean([seed[name] for seed in values])),
            "spread": float(np.std([seed[name] for seed in values], ddof=1)) if len(values) > 1 else None,
        }
        for name in ("kl", "js")
    }


def _rows(points: Points, sample: Sequence[Mapping[str, str]]) -> pa.Table:
    rows = [
        {"seed": seed, "kind": kind, "query_id": pair["query_id"], "passage_id": pair["passage_id"], "x": x, "y": y}
        for seed, sides in points.items()
        for kind, side in zip(("query", "passage"), sides, strict=True)
        for pair, (x, y) in zip(sample, side.tolist(), strict=True)
    ]
    return pa.Table.from_pylist(rows)


def _figure(queries: NDArray[np.float64], passages: NDArray[np.float64]) -> dict[str, Any]:
    """Return both clouds scaled to a square of 1,000 by 1,000, in integers."""
    both = np.concatenate([queries, passages])
    low, extent = both.min(0), float(np.ptp(both, axis=0).max()) or 1.0
    queries, passages = (np.rint(1000 * (points - low) / extent).astype(int) for points in (queries, passages))
    return {"queries": queries.tolist(), "passages": passages.tolist()}
