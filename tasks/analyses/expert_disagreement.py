"""The queries on which a retriever's views (experts) disagree most, with the first passages of each view.

CAME (Cai et al. 2023, section 5.5 and figure 4) shows cases in which one expert ranks the relevant passage high and
another one low. The disagreement on a query is the difference between the best and the worst view's reciprocal rank of
the first relevant passage; at ties, lists with a lower overlap come first. Other sections of the report show how often
each view wins, and the mean overlap of the lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from storage import settings as base
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import first_rows, read_table
from storage.tables import Analysis, Passages, Qrels, Queries, Run, passage_text
from tasks.analyses import write
from tasks.evaluation.overlap import rank_biased_overlap
from tasks.finetuning.candidates import relevant_passages
from tasks.pseudo_queries.quality_counts import shortened
from tasks.retrieval.run_lists import ListUnion, Rows, RunLists, unions
from tasks.runtime.progress import bar
from tasks.stage import stage

BINS, MAX_CHARACTERS = 20, 700

Case = dict[str, Any]


class Settings(base.Settings):
    """The depth of the lists, and the number of examples."""

    analysis: Literal["expert_disagreement"]
    round: str
    """The fine-tuning round whose views are compared."""
    depth: int = Field(gt=0)
    """The number of passages of each list; a relevant passage below counts as not retrieved."""
    p: float = Field(gt=0, lt=1)
    """The persistence of rank-biased overlap; not printed; chosen so that most of its weight is within `depth`."""
    examples: int = Field(gt=0)
    counterparts: list[str] = Field(default_factory=list)
    """Other runs of the recipe that are compared too, such as retrievers that were trained independently (figure 4)."""

    @model_serializer(mode="wrap")
    def _empty_list_is_left_out(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out an empty list: artifacts' keys were computed without it in earlier versions."""
        values: dict[str, Any] = dump(self)
        return values if self.counterparts else {name: values[name] for name in values if name != "counterparts"}


class Reading(Settings):
    """The settings with the names of the runs and the lowest relevant grade."""

    names: list[str] = Field(min_length=2)
    """The views and counterparts, in the order of their runs."""
    relevant_from: int
    """The lowest grade of a relevant document."""


@stage(version=1, table=Analysis)
def expert_disagreement(
    out: Path,
    runs: Sequence[Artifact[Run]],
    queries: Artifact[Queries],
    qrels: Artifact[Qrels],
    passages: Artifact[Passages],
    *,
    settings: Reading,
) -> None:
    """Write `analysis.json`: the overlap of the lists by query, the clearest cases, and their texts.

    Ranks are those of passages; of a relevant document with several passages the best one counts. In memory are the
    judgements of one split, the ids of the relevant documents' passages, and a few numbers for each query.
    """
    judged = read_table(qrels, Qrels)
    judged = judged.filter(pc.greater_equal(judged["grade"], settings.relevant_from))
    relevant = {query: ids for query, ids in relevant_passages(judged, passages).items() if ids}
    if not relevant:
        raise UserError(
            f"expert_disagreement: {qrels.reference}: no query has a relevant document among the passages; leave the "
            "analysis out"
        )
    query_ids, lists, cases = pa.array(sorted(relevant)), [RunLists(run) for run in runs], list[Case]()
    with bar(what="comparing views", unit="queries", total=len(query_ids)) as counter:
        for union in unions(lists, query_ids, settings.depth):
            cases += cases_of(union, relevant, settings)
            counter.update(len(union.query_ids))
    cases.sort(key=lambda case: (-case["disagreement"], case["rbo"], case["query_id"]))
    disagreeing = [case for case in cases if case["disagreement"] > 0]
    histogram = np.bincount([min(int(case["rbo"] * BINS), BINS - 1) for case in cases], minlength=BINS)
    write(out, settings, {
        "queries": len(cases),
        "disagreeing": len(disagreeing),
        "overlaps": histogram.tolist(),
        "cases": with_texts(disagreeing[: settings.examples], relevant, queries, passages),
    })  # fmt: skip


def cases_of(union: ListUnion, relevant: Mapping[str, set[str]], settings: Reading) -> Iterator[Case]:
    """Yield for each query of a block every view's first rank of a relevant passage, and the overlap of the lists.

    `ranks` are by view, None for a view without a relevant passage; `best` is the relevant passage with the best rank.
    """
    ranks_of_queries, overlaps_Q = _relevant_ranks(union, relevant, settings.names), mean_overlap(union, settings.p)
    firsts = [_firsts(rows) for rows in union.lists]
    for number, query_id in enumerate(union.query_ids.to_pylist()):
        by_passage = ranks_of_queries[number]
        ranks = {name: min((ranks[name] for ranks in by_passage.values() if name in ranks), default=None)
                 for name in settings.names}  # fmt: skip
        reciprocal = [1 / rank if rank else 0.0 for rank in ranks.values()]
        yield {
            "query_id": query_id,
            "disagreement": max(reciprocal) - min(reciprocal),
            "rbo": float(overlaps_Q[number]),
            "ranks": ranks,
            "best": min(by_passage, key=lambda passage: (min(by_passage[passage].values()), passage), default=None),
            "firsts": {name: first[number] for name, first in zip(settings.names, firsts, strict=True)
                       if number in first},
        }  # fmt: skip


def _relevant_ranks(
    union: ListUnion, relevant: Mapping[str, set[str]], names: Sequence[str]
) -> list[dict[str, dict[str, int]]]:
    """Return for each query of a block the ranks by view of the relevant passages that some view retrieved."""
    query_passages = [(query, passage) for query in union.query_ids.to_pylist() for passage in sorted(relevant[query])]
    pairs = union.find(*(pa.array(column, pa.string()) for column in zip(*query_passages, strict=True)))
    ranks_RU = [union.spread(run, rows.ranks)[pairs] for run, rows in enumerate(union.lists)]
    passages = union.passage_ids.take(union.passages[pairs]).to_pylist()
    by_query: list[dict[str, dict[str, int]]] = [{} for _ in union.query_ids]
    for index, (query, passage) in enumerate(zip(union.queries[pairs].tolist(), passages, strict=True)):
        ranks = {name: int(ranks_U[index]) for name, ranks_U in zip(names, ranks_RU, strict=True) if ranks_U[index]}
        by_query[query][passage] = ranks
    return by_query


def mean_overlap(union: ListUnion, p: float) -> NDArray[np.float64]:
    """Return the rank-biased overlap of each query's lists, the mean over all pairs of views; 0 for an empty list."""
    ranks_RU = [union.spread(run, rows.ranks) for run, rows in enumerate(union.lists)]
    lengths_RQ = [np.bincount(rows.queries, minlength=len(union.query_ids)) for rows in union.lists]
    overlaps = []
    for a, b in combinations(range(len(union.lists)), 2):
        both = np.minimum(ranks_RU[a], ranks_RU[b]) > 0
        depths = np.maximum(ranks_RU[a], ranks_RU[b])[both]
        short_Q, long_Q = np.minimum(lengths_RQ[a], lengths_RQ[b]), np.maximum(lengths_RQ[a], lengths_RQ[b])
        overlap_Q = rank_biased_overlap(union.queries[both], depths, short_Q, long_Q, p)
        overlaps.append(np.where(short_Q > 0, overlap_Q, 0.0))
    return np.asarray(np.mean(overlaps, axis=0))


def _firsts(rows: Rows) -> dict[int, str]:
    """Return the passage at rank 1 by the index of the query."""
    first = np.flatnonzero(rows.ranks == 1)
    return dict(zip(rows.queries[first].tolist(), rows.passage_ids.take(first).to_pylist(), strict=True))


def with_texts(
    cases: Sequence[Case], relevant: Mapping[str, set[str]], queries: Artifact[Queries], passages: Artifact[Passages]
) -> list[Case]:
    """Return the cases with the texts of their queries and passages."""
    query_rows = first_rows(queries, Queries, "query_id", [case["query_id"] for case in cases], ["text"])
    passage_ids = [passage for case in cases for passage in (case["best"], *case["firsts"].values())]
    rows = first_rows(passages, Passages, "passage_id", passage_ids, ["title", "text"])
    texts = {name: shortened(passage_text(row["title"], row["text"]), MAX_CHARACTERS) for name, row in rows.items()}
    return [
        {
            **{name: case[name] for name in ("query_id", "disagreement", "rbo", "ranks")},
            "query": shortened(query_rows[case["query_id"]]["text"], MAX_CHARACTERS),
            "relevant": {"passage_id": case["best"], "text": texts[case["best"]]},
            "first": {
                name: {"passage_id": passage, "text": texts[passage], "relevant": passage in relevant[case["query_id"]]}
                for name, passage in case["firsts"].items()
            },
        }
        for case in cases
    ]
