"""Compare how related a generated query and another passage of the document are to a passage.

Query-as-context (Wu et al. 2022, appendix A) sampled 200 documents, a passage of each, and as its context another
passage of the document or a generated query; three annotators voted whether a context is strongly related. Here a model
scores the pairs, which is not the same: it was trained to rank, not to judge, and a cross-encoder has never seen a
passage in place of a query. So each kind of context has its own reference: the same contexts, paired with the passage
of another document ("strangers"). A pair counts as related if it scores higher than nearly all strangers of its kind.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from models import backbones
from models.representation import Role
from models.retrievers.cross_encoder import encode_pair
from models.settings import omitted_at
from storage import settings as base
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.formats.ids import share
from storage.pseudo_queries import Alongside, kept_queries
from storage.rows import num_rows, read_rows
from storage.tables import Analysis, Checkpoint, Passages, PseudoQueries, passage_text
from tasks.analyses import write
from tasks.analyses.measures.embedding_space import unit
from tasks.cross_encoder.pairs import Scorer, Scoring
from tasks.evaluation.significance import paired_t_test, randomisation_test
from tasks.pseudo_queries.quality_counts import shortened
from tasks.retrieval.encode import TextEncoder
from tasks.runtime.device import Precision
from tasks.runtime.progress import progress
from tasks.stage import stage
from tasks.training.seeds import random_generator

SampledDocument = Mapping[str, str]
"""A document's `passage_id`, the passage's `text`, and its two contexts by kind."""

Score = Callable[[Role, Sequence[str], Sequence[str]], NDArray[np.float64]]
"""(kind of context, contexts, texts) -> the score of each context with the text at the same index."""

KINDS: tuple[Role, ...] = ("passage", "query")
BINS, EXAMPLES, MAX_CHARACTERS = 24, 5, 500
RESAMPLES = 100_000


class Settings(base.Settings):
    """The sample of documents, and the model that scores pairs."""

    analysis: Literal["pair_relatedness"]
    scorer: Literal["cross_encoder", "bi_encoder"]
    """The score of a bi-encoder is the cosine of its dense vectors."""
    weights: str = Field(exclude=True)
    """The scorer: a folder, package:NAME/FOLDER or a hub name; its files, or its commit, are part of the key."""
    documents: int = Field(ge=3)
    seed: base.Seed
    strangers: float = Field(gt=0, lt=1)
    """The share of strangers that score lower than a related pair."""
    thresholds: list[float]
    """Additional fixed thresholds, for which the share of pairs above is reported."""


class Reading(Settings):
    """The settings with the maximum numbers of tokens, which the scorer may reduce."""

    query_max_tokens: int
    passage_max_tokens: int
    precision: Annotated[Precision | None, omitted_at(None)] = None


@stage(version=1, table=Analysis, gpu=True)
def pair_relatedness(
    out: Path,
    passages: Artifact[Passages],
    pseudo_queries: Artifact[PseudoQueries],
    scorer: Artifact[Checkpoint] | Source,
    *,
    settings: Reading,
) -> None:
    """Write `analysis.json`: the scores of both kinds of pairs, their difference, and examples."""
    documents = sample_documents(passages, pseudo_queries, settings)
    if len(documents) < 3:
        raise UserError(
            f"pair_relatedness: expected three documents or more with two passages and a pseudo-query, found "
            f"{len(documents)}; split into shorter passages, generate more queries, or leave the analysis out"
        )
    score = _cross_encoder(scorer, settings) if settings.scorer == "cross_encoder" else _bi_encoder(scorer, settings)
    texts = [document["text"] for document in documents]
    contexts = {kind: [document[kind] for document in documents] for kind in KINDS}
    scores = {kind: score(kind, contexts[kind], texts) for kind in KINDS}
    strangers = {kind: score(kind, contexts[kind], [*texts[1:], texts[0]]) for kind in KINDS}
    if not all(np.isfinite(values).all() for values in (*scores.values(), *strangers.values())):
        raise UserError(f"pair_relatedness: {scorer.reference}: a score is not finite; choose another model")
    cuts = {kind: float(np.quantile(strangers[kind], settings.strangers)) for kind in KINDS}
    write(out, settings, {
        "drawn": len(documents),
        "kinds": {kind: statistics(scores[kind], strangers[kind], cuts[kind], settings.thresholds) for kind in KINDS},
        "comparisons": compare_kinds(scores, cuts, settings.seed),
        "histogram": histogram(scores, strangers),
        "examples": examples(documents, scores, cuts),
    })  # fmt: skip


def sample_documents(
    passages: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries], settings: Settings
) -> list[SampledDocument]:
    """Return documents sampled by the hash of their id, with two passages or more and a kept pseudo-query.

    The passage, the other passage and the query are chosen at random by the seed and the document's id.
    """
    candidates = _documents(passages, pseudo_queries, settings.seed)
    return [document for _, _, document in heapq.nsmallest(settings.documents, candidates, key=itemgetter(0, 1))]


def _documents(
    passages: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries], seed: int
) -> Iterator[tuple[float, str, SampledDocument]]:
    rows = progress(read_rows(passages, Passages), total=num_rows(passages.path), what="sampling", unit="passages")
    queries = Alongside(kept_queries(pseudo_queries))
    for doc_id, group in groupby(rows, key=itemgetter("doc_id")):
        document = [(row, queries.texts(row["passage_id"])) for row in group]
        with_queries = [index for index, (_, own_queries) in enumerate(document) if own_queries]
        if len(document) > 1 and with_queries:
            random = random_generator(seed, doc_id)
            index = with_queries[random.integers(len(with_queries))]
            other = (index + random.integers(1, len(document))) % len(document)
            row, own_queries = document[index]
            yield share(doc_id, str(seed)), doc_id, {
                "passage_id": row["passage_id"], "text": _text(row), "passage": _text(document[other][0]),
                "query": own_queries[random.integers(len(own_queries))],
            }  # fmt: skip
    queries.end()


def _text(row: Mapping[str, Any]) -> str:
    return passage_text(row["title"], row["text"])


def _cross_encoder(model: Artifact[Checkpoint] | Source, settings: Reading) -> Score:
    """Score with the context in place of the query; a passage as context may have as many tokens as a passage."""
    limits = _limits(model, settings, texts=2)
    longest = limits["passage"]
    scoring = Scoring(query_max_tokens=longest, max_tokens=2 * longest, precision=settings.precision)
    scorer = Scorer(model, scoring, "pair_relatedness")

    def score(kind: Role, contexts: Sequence[str], texts: Sequence[str]) -> NDArray[np.float64]:
        limit, token_ids = limits[kind], scorer.tokenizer.token_ids
        pairs = [
            encode_pair(scorer.tokenizer, context, text, query_max_tokens=limit, max_tokens=limit + longest)
            for context, text in zip(token_ids(list(contexts)), token_ids(list(texts)), strict=True)
        ]
        return scorer(pairs, lambda number: None).astype(np.float64)

    return score


def _bi_encoder(model: Artifact[Checkpoint] | Source, settings: Reading) -> Score:
    encoder, limits = TextEncoder(model.path, settings.precision), _limits(model, settings, texts=1)

    def vectors(texts: Sequence[str], role: Role) -> NDArray[np.float64]:
        dense = encoder(texts, role, limits[role]).dense
        if dense is None:
            raise UserError(f"pair_relatedness: {model.reference}: expected a retriever with a dense view")
        return unit(dense)

    return lambda kind, contexts, texts: np.asarray((vectors(contexts, kind) * vectors(texts, "passage")).sum(1))


def _limits(model: Artifact[Checkpoint] | Source, settings: Reading, *, texts: int) -> dict[Role, int]:
    """Return the maximum numbers of tokens of a text where `texts` texts share the model's positions."""
    positions = backbones.sizes(model.path).max_position_embeddings // texts
    return {"query": min(settings.query_max_tokens, positions), "passage": min(settings.passage_max_tokens, positions)}


def statistics(
    scores: NDArray[np.float64], strangers: NDArray[np.float64], cut: float, thresholds: Sequence[float]
) -> dict[str, Any]:
    """Return the mean score and the shares of pairs above the cut and above each threshold, with 95 % intervals."""
    from scipy.stats import t

    half = float(t.ppf(0.975, len(scores) - 1) * scores.std(ddof=1) / math.sqrt(len(scores)))
    return {
        "mean": float(scores.mean()),
        "mean_interval": [float(scores.mean()) - half, float(scores.mean()) + half],
        "strangers_mean": float(strangers.mean()),
        "cut": cut,
        "related": above(scores, cut),
        "above": [{"threshold": threshold, **above(scores, threshold)} for threshold in thresholds],
    }


def above(scores: NDArray[np.float64], cut: float) -> dict[str, Any]:
    """Return the share of scores above the cut, with Wilson's (1927) 95 % interval."""
    from scipy.stats import binomtest

    test = binomtest(int((scores > cut).sum()), len(scores))
    interval = test.proportion_ci(0.95, method="wilson")
    return {"share": float(test.statistic), "interval": [float(interval.low), float(interval.high)]}


def compare_kinds(
    scores: Mapping[Role, NDArray[np.float64]], cuts: Mapping[Role, float], seed: int
) -> dict[str, dict[str, float]]:
    """Return the advantage of queries over passages in score and in the share of related pairs, with tests."""
    related = {kind: (values > cuts[kind]).astype(np.float64) for kind, values in scores.items()}
    return {
        name: {
            "difference": float((values["query"] - values["passage"]).mean()),
            "p": paired_t_test(values["query"], values["passage"]),
            "p_randomisation": randomisation_test(values["query"], values["passage"], resamples=RESAMPLES, seed=seed),
        }
        for name, values in (("score", scores), ("related", related))
    }


def histogram(
    scores: Mapping[Role, NDArray[np.float64]], strangers: Mapping[Role, NDArray[np.float64]]
) -> dict[str, Any]:
    """Return the histogram of the scores of each kind and of their strangers, with common bins."""
    everything = np.concatenate([*scores.values(), *strangers.values()])
    edges = np.histogram_bin_edges(everything, BINS)
    return {
        "edges": edges.tolist(),
        "pairs": {kind: np.histogram(values, edges)[0].tolist() for kind, values in scores.items()},
        "strangers": {kind: np.histogram(values, edges)[0].tolist() for kind, values in strangers.items()},
    }


def examples(
    documents: Sequence[SampledDocument], scores: Mapping[Role, NDArray[np.float64]], cuts: Mapping[Role, float]
) -> list[dict[str, Any]]:
    """Return the documents with the lowest scores of their two passages, as in the paper's figure 1."""
    return [
        {
            "passage_id": documents[index]["passage_id"],
            **{name: shortened(documents[index][name], MAX_CHARACTERS) for name in ("text", *KINDS)},
            "scores": {kind: float(scores[kind][index]) for kind in KINDS},
            "related": {kind: bool(scores[kind][index] > cuts[kind]) for kind in KINDS},
        }
        for index in np.argsort(scores["passage"], kind="stable")[:EXAMPLES].tolist()
    ]
