"""Whether a generated query is nearer to its passage than another passage of the same document is.

Query-as-context (Wu et al. 2022, appendix A) drew 200 documents, a passage of each, and as its context another passage
of the document or a generated query; three annotators voted whether a context is strongly related. Here a model scores
the pairs, which is another thing: it was trained to rank, not to judge, and to a cross-encoder a passage in a query's
place is strange. So each kind of context has its own yardstick: the same contexts, each beside the passage of another
document. A pair is called related where it scores higher than nearly all such strangers of its kind do.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from models.layers.bert import BertConfig
from models.representation import Role
from models.retrievers.cross_encoder import encode_pair
from storage import settings as base
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.formats.ids import share
from storage.pseudo_queries import Alongside
from storage.rows import num_rows, read_rows
from storage.tables import Analysis, Checkpoint, Passages, PseudoQueries, passage_text
from tasks.analyses import write
from tasks.analyses.measures.embedding_space import unit
from tasks.cross_encoder.pairs import Scorer, Scoring
from tasks.evaluation.significance import paired_t_test, randomisation_test
from tasks.pseudo_queries.quality_counts import shortened
from tasks.retrieval.encode import TextEncoder
from tasks.runtime.progress import progress
from tasks.stage import stage

Values = NDArray[np.float64]
Drawn = Mapping[str, str]
"""A document's `passage_id`, the passage's `text`, and its two contexts by their kind."""

Score = Callable[[Role, Sequence[str], Sequence[str]], Values]
"""Of each context of a kind, beside the text of its place."""

KINDS: tuple[Role, ...] = ("passage", "query")
COLUMNS, EXAMPLES, LETTERS = 24, 5, 500
RESAMPLES = 100_000


class Settings(base.Settings):
    """Which pairs are drawn, and who scores them."""

    analysis: Literal["pair_relatedness"]
    scorer: Literal["cross_encoder", "bi_encoder"]
    """A bi-encoder's score is the cosine of its dense vectors."""
    weights: str = Field(exclude=True)
    """The scorer, by folder, package:NAME/FOLDER or hub name; a key knows it by its files, or its commit."""
    documents: int = Field(ge=3)
    seed: base.Seed
    strangers: float = Field(gt=0, lt=1)
    """The share of strangers that a related pair's score is above."""
    thresholds: list[float]
    """Scores above which shares are told too, whatever strangers score."""


class Reading(Settings):
    """The same, and how much is read of a text, as far as the scorer reads so much."""

    query_max_tokens: int
    passage_max_tokens: int


@stage(version=1, table=Analysis, gpu=True)
def pair_relatedness(
    out: Path,
    passages: Artifact[Passages],
    pseudo_queries: Artifact[PseudoQueries],
    scorer: Artifact[Checkpoint] | Source,
    *,
    settings: Reading,
) -> None:
    """Write `analysis.json`: the scores of both kinds of pair, their difference, and examples."""
    drawn = draw(passages, pseudo_queries, settings)
    if len(drawn) < 3:
        raise UserError(
            f"pair_relatedness: expected three documents or more with two passages and a pseudo-query, found "
            f"{len(drawn)}; split into shorter passages, write more queries, or leave the analysis out"
        )
    score = _cross_encoder(scorer, settings) if settings.scorer == "cross_encoder" else _bi_encoder(scorer, settings)
    texts, contexts = [each["text"] for each in drawn], {kind: [each[kind] for each in drawn] for kind in KINDS}
    scores = {kind: score(kind, contexts[kind], texts) for kind in KINDS}
    strangers = {kind: score(kind, contexts[kind], [*texts[1:], texts[0]]) for kind in KINDS}
    if not all(np.isfinite(each).all() for each in (*scores.values(), *strangers.values())):
        raise UserError(f"pair_relatedness: {scorer.reference}: a score is not a number; name another model")
    cuts = {kind: float(np.quantile(strangers[kind], settings.strangers)) for kind in KINDS}
    write(out, settings, {
        "drawn": len(drawn),
        "kinds": {kind: figures(scores[kind], strangers[kind], cuts[kind], settings.thresholds) for kind in KINDS},
        "comparisons": compared(scores, cuts, settings.seed),
        "histogram": histogram(scores, strangers),
        "examples": examples(drawn, scores, cuts),
    })  # fmt: skip


def draw(passages: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries], settings: Settings) -> list[Drawn]:
    """Documents with two passages or more, one of which has a kept query, by the hash of their id.

    Which of its passages, which other one and which query is drawn from the seed and the document's id.
    """
    found = _documents(passages, pseudo_queries, settings.seed)
    return [each for _, _, each in heapq.nsmallest(settings.documents, found, key=itemgetter(0, 1))]


def _documents(
    passages: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries], seed: int
) -> Iterator[tuple[float, str, Drawn]]:
    rows = progress(read_rows(passages, Passages), total=num_rows(passages.path), what="drawing", unit="passages")
    asked = Alongside(pseudo_queries)
    for doc_id, group in groupby(rows, key=itemgetter("doc_id")):
        document = [(row, asked.of(row["passage_id"])) for row in group]
        with_queries = [place for place, (_, queries) in enumerate(document) if queries]
        if len(document) > 1 and with_queries:
            random = np.random.default_rng((seed, *doc_id.encode()))
            place = with_queries[random.integers(len(with_queries))]
            other = (place + random.integers(1, len(document))) % len(document)
            queries = document[place][1]
            yield share(doc_id, str(seed)), doc_id, {
                "passage_id": document[place][0]["passage_id"], "text": _text(document[place][0]),
                "passage": _text(document[other][0]), "query": queries[random.integers(len(queries))],
            }  # fmt: skip
    asked.end()


def _text(row: Mapping[str, Any]) -> str:
    return passage_text(row["title"], row["text"])


def _cross_encoder(model: Artifact[Checkpoint] | Source, settings: Reading) -> Score:
    """The context stands where the query does; one that is a passage is read as far as a passage is."""
    limits = _limits(model, settings, texts=2)
    longest = limits["passage"]
    scorer = Scorer(model, Scoring(query_max_tokens=longest, max_tokens=2 * longest), "pair_relatedness")

    def score(kind: Role, contexts: Sequence[str], texts: Sequence[str]) -> Values:
        limit, pieces = limits[kind], scorer.tokenizer.token_ids
        pairs = [
            encode_pair(scorer.tokenizer, context, text, query_max_tokens=limit, max_tokens=limit + longest)
            for context, text in zip(pieces(list(contexts)), pieces(list(texts)), strict=True)
        ]
        return scorer(pairs, lambda number: None).astype(np.float64)

    return score


def _bi_encoder(model: Artifact[Checkpoint] | Source, settings: Reading) -> Score:
    encoder, limits = TextEncoder(model.path), _limits(model, settings, texts=1)

    def vectors(texts: Sequence[str], role: Role) -> Values:
        made = encoder(texts, role, limits[role]).dense
        if made is None:
            raise UserError(f"pair_relatedness: {model.reference}: expected a retriever with a dense view")
        return unit(made)

    return lambda kind, contexts, texts: np.asarray((vectors(contexts, kind) * vectors(texts, "passage")).sum(1))


def _limits(model: Artifact[Checkpoint] | Source, settings: Reading, *, texts: int) -> dict[Role, int]:
    """How much is read of a text, where so many of them share the model's positions."""
    positions = BertConfig.load(model.path).max_position_embeddings // texts
    return {"query": min(settings.query_max_tokens, positions), "passage": min(settings.passage_max_tokens, positions)}


def figures(scores: Values, strangers: Values, cut: float, thresholds: Sequence[float]) -> dict[str, Any]:
    """Mean scores, the share of pairs above the cut and above each threshold; intervals of 95 %."""
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


def above(scores: Values, cut: float) -> dict[str, Any]:
    """The share of scores that are higher, with Wilson's (1927) interval of 95 %."""
    from scipy.stats import binomtest

    found = binomtest(int((scores > cut).sum()), len(scores))
    interval = found.proportion_ci(0.95, method="wilson")
    return {"share": float(found.statistic), "interval": [float(interval.low), float(interval.high)]}


def compared(scores: Mapping[Role, Values], cuts: Mapping[Role, float], seed: int) -> dict[str, dict[str, float]]:
    """By how much queries are ahead of passages in score and in share related, and tests over documents."""
    related = {kind: (each > cuts[kind]).astype(np.float64) for kind, each in scores.items()}
    return {
        name: {
            "difference": float((of["query"] - of["passage"]).mean()),
            "p": paired_t_test(of["query"], of["passage"]),
            "p_randomisation": randomisation_test(of["query"], of["passage"], resamples=RESAMPLES, seed=seed),
        }
        for name, of in (("score", scores), ("related", related))
    }


def histogram(scores: Mapping[Role, Values], strangers: Mapping[Role, Values]) -> dict[str, Any]:
    """How many pairs of each kind, and of their strangers, lie in each of equal steps from the least score on."""
    everything = np.concatenate([*scores.values(), *strangers.values()])
    edges = np.histogram_bin_edges(everything, COLUMNS)
    return {
        "edges": edges.tolist(),
        "pairs": {kind: np.histogram(each, edges)[0].tolist() for kind, each in scores.items()},
        "strangers": {kind: np.histogram(each, edges)[0].tolist() for kind, each in strangers.items()},
    }


def examples(drawn: Sequence[Drawn], scores: Mapping[Role, Values], cuts: Mapping[Role, float]) -> list[dict[str, Any]]:
    """The documents whose two passages have least to do with each other, as in the paper's figure 1."""
    return [
        {
            "passage_id": drawn[place]["passage_id"],
            **{name: shortened(drawn[place][name], LETTERS) for name in ("text", *KINDS)},
            "scores": {kind: float(scores[kind][place]) for kind in KINDS},
            "related": {kind: bool(scores[kind][place] > cuts[kind]) for kind in KINDS},
        }
        for place in np.argsort(scores["passage"], kind="stable")[:EXAMPLES].tolist()
    ]
