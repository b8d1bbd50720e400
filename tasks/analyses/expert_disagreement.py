"""The queries on which a retriever's views disagree most, with what each of them found.

CAME (Cai et al. 2023, section 5.5 and figure 4) shows cases in which one expert ranks the relevant passage high and
another far down. Disagreement on a query is the difference between the best and the worst view's reciprocal rank of its
first relevant passage; among equals, lists that overlap less come first. How often views win, and how much their lists
overlap on average, the report tells elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from storage import settings as base
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import blocks_with_keys, first_rows, read_table
from storage.tables import Analysis, Passages, Qrels, Queries, Run, passage_text
from tasks.analyses import write
from tasks.evaluation.overlap import rank_biased_overlap
from tasks.pseudo_queries.quality_counts import shortened
from tasks.retrieval.run_lists import Lists, Rows, Union, Values, unions
from tasks.runtime.progress import bar
from tasks.stage import stage

STEPS, LETTERS = 20, 700

Case = dict[str, Any]


class Settings(base.Settings):
    """How closely lists are looked at."""

    analysis: Literal["expert_disagreement"]
    round: str
    """Whose views are compared."""
    depth: int = Field(gt=0)
    """How many passages of each list are looked at; a relevant passage below counts as not found."""
    p: float = Field(gt=0, lt=1)
    """Persistence of rank-biased overlap."""
    examples: int = Field(gt=0)


class Reading(Settings):
    """The same, and what the runs are."""

    names: list[str] = Field(min_length=2)
    """The views, in the order of their runs."""
    relevant_from: int
    """The least grade of a relevant document."""


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
    """Write `analysis.json`: how much lists overlap by query, the clearest cases, and their texts.

    A rank is a passage's: of a document in several passages the best one counts. In memory are the judgements of one
    split, the names of the relevant documents' passages, and a few numbers of each query.
    """
    relevant = relevant_passages(qrels, passages, settings.relevant_from)
    if not relevant:
        raise UserError(
            f"expert_disagreement: {qrels.reference}: no query has a relevant document among the passages; leave the "
            "analysis out"
        )
    query_ids, lists, cases = pa.array(sorted(relevant)), [Lists(run) for run in runs], list[Case]()
    with bar(what="comparing views", unit="queries", total=len(query_ids)) as counter:
        for union in unions(lists, query_ids, settings.depth):
            cases += cases_of(union, relevant, settings)
            counter.update(len(union.query_ids))
    cases.sort(key=lambda case: (-case["disagreement"], case["rbo"], case["query_id"]))
    apart = [case for case in cases if case["disagreement"] > 0]
    steps = np.bincount([min(int(case["rbo"] * STEPS), STEPS - 1) for case in cases], minlength=STEPS)
    write(out, settings, {
        "queries": len(cases),
        "disagreeing": len(apart),
        "overlaps": steps.tolist(),
        "cases": with_texts(apart[: settings.examples], relevant, queries, passages),
    })  # fmt: skip


def relevant_passages(qrels: Artifact[Qrels], passages: Artifact[Passages], least: int) -> dict[str, set[str]]:
    """By query every passage of its relevant documents; queries whose documents have none are left out."""
    judged = read_table(qrels, Qrels)
    judged = judged.filter(pc.greater_equal(judged["grade"], least))
    owned: dict[str, list[str]] = {}
    for block in blocks_with_keys(passages, Passages, "doc_id", judged["doc_id"].to_pylist(), ["passage_id"]):
        for row in block.to_pylist():
            owned.setdefault(row["doc_id"], []).append(row["passage_id"])
    found: dict[str, set[str]] = {}
    for query, document in zip(judged["query_id"].to_pylist(), judged["doc_id"].to_pylist(), strict=True):
        if document in owned:
            found.setdefault(query, set()).update(owned[document])
    return found


def cases_of(union: Union, relevant: Mapping[str, set[str]], settings: Reading) -> Iterator[Case]:
    """Each query of a block: at which rank every view has a relevant passage first, and how much their lists overlap.

    `ranks` are by view, None where the view has none; `best` is the passage that some view ranks highest.
    """
    ranked, overlaps_Q = _ranked(union, relevant, settings.names), mean_overlap(union, settings.p)
    firsts = [_firsts(rows) for rows in union.lists]
    for number, query_id in enumerate(union.query_ids.to_pylist()):
        found = ranked[number]
        ranks = {name: min((each[name] for each in found.values() if name in each), default=None)
                 for name in settings.names}  # fmt: skip
        reciprocal = [1 / rank if rank else 0.0 for rank in ranks.values()]
        yield {
            "query_id": query_id,
            "disagreement": max(reciprocal) - min(reciprocal),
            "rbo": float(overlaps_Q[number]),
            "ranks": ranks,
            "best": min(found, key=lambda passage: (min(found[passage].values()), passage), default=None),
            "firsts": {name: first[number] for name, first in zip(settings.names, firsts, strict=True)
                       if number in first},
        }  # fmt: skip


def _ranked(union: Union, relevant: Mapping[str, set[str]], names: Sequence[str]) -> list[dict[str, dict[str, int]]]:
    """For each query of a block the relevant passages that some view has, with their ranks by view."""
    pairs = [(query, passage) for query in union.query_ids.to_pylist() for passage in sorted(relevant[query])]
    places = union.find(*(pa.array(column, pa.string()) for column in zip(*pairs, strict=True)))
    ranks_RU = [union.spread(run, rows.ranks)[places] for run, rows in enumerate(union.lists)]
    passages = union.passage_ids.take(union.passages[places]).to_pylist()
    found: list[dict[str, dict[str, int]]] = [{} for _ in union.query_ids]
    for at, (query, passage) in enumerate(zip(union.queries[places].tolist(), passages, strict=True)):
        found[query][passage] = {name: int(ranks[at]) for name, ranks in zip(names, ranks_RU, strict=True) if ranks[at]}
    return found


def mean_overlap(union: Union, p: float) -> Values:
    """Rank-biased overlap of each query's lists, the mean over all pairs of views; 0 with a list that is empty."""
    ranks_RU = [union.spread(run, rows.ranks) for run, rows in enumerate(union.lists)]
    lengths_RQ = [np.bincount(rows.queries, minlength=len(union.query_ids)) for rows in union.lists]
    found = []
    for a, b in combinations(range(len(union.lists)), 2):
        both = np.minimum(ranks_RU[a], ranks_RU[b]) > 0
        depths = np.maximum(ranks_RU[a], ranks_RU[b])[both]
        short_Q, long_Q = np.minimum(lengths_RQ[a], lengths_RQ[b]), np.maximum(lengths_RQ[a], lengths_RQ[b])
        overlap_Q = rank_biased_overlap(union.queries[both], depths, short_Q, long_Q, p)
        found.append(np.where(short_Q > 0, overlap_Q, 0.0))
    return np.asarray(np.mean(found, axis=0))


def _firsts(rows: Rows) -> dict[int, str]:
    """By the number of a query the passage at rank 1."""
    first = np.flatnonzero(rows.ranks == 1)
    return dict(zip(rows.queries[first].tolist(), rows.passage_ids.take(first).to_pylist(), strict=True))


def with_texts(
    cases: Sequence[Case], relevant: Mapping[str, set[str]], queries: Artifact[Queries], passages: Artifact[Passages]
) -> list[Case]:
    """The cases with the texts of what they name."""
    asked = first_rows(queries, Queries, "query_id", [case["query_id"] for case in cases], ["text"])
    wanted = [passage for case in cases for passage in (case["best"], *case["firsts"].values())]
    rows = first_rows(passages, Passages, "passage_id", wanted, ["title", "text"])
    texts = {name: shortened(passage_text(row["title"], row["text"]), LETTERS) for name, row in rows.items()}
    return [
        {
            **{name: case[name] for name in ("query_id", "disagreement", "rbo", "ranks")},
            "query": shortened(asked[case["query_id"]]["text"], LETTERS),
            "relevant": {"passage_id": case["best"], "text": texts[case["best"]]},
            "first": {
                name: {"passage_id": passage, "text": texts[passage], "relevant": passage in relevant[case["query_id"]]}
                for name, passage in case["firsts"].items()
            },
        }
        for case in cases
    ]
