"""Whether passages hold an answer: what DPR counts as a hit (Karpukhin et al. 2020, section 5).

As its `qa_validation.py` does with its `SimpleTokenizer`: texts are normalised (NFD), cut into runs of letters,
digits and marks and into other single symbols, and lower-cased; a passage has an answer where the answer's tokens
stand in its text one after another. Its title does not count. An answer without any token is never found, where DPR's
code finds it in every passage.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import regex
from numpy.typing import NDArray

from storage.artifact import Artifact
from storage.rows import rows_at
from storage.tables import Passages
from tasks.evaluation.max_passage import Numbers, fold, numbered
from tasks.evaluation.significance import Values

TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
TEXTS_AT_A_TIME = 10_000


def spaced(text: str) -> str:
    """The tokens, each between blanks: what one text holds of another's tokens in a row, its string holds too."""
    return f" {' '.join(TOKEN.findall(unicodedata.normalize('NFD', text))).lower()} "


def has_answer(text: str, answers: Sequence[str]) -> bool:
    """Whether one of the answers, which are `spaced`, stands in a text."""
    found = spaced(text)
    return any(answer in found for answer in answers)


def first_hits(
    answers: pa.Table, passages: Artifact[Passages], passage_ids: pa.ChunkedArray, runs: Iterable[pa.Table],
    cutoff: int,
) -> tuple[pa.Array, list[Values]]:  # fmt: skip
    """The queries' ids, and for each run the rank of each query's first passage with an answer, from 1.

    Infinite where none of the first `cutoff` passages has one. In memory are the runs' first `cutoff` ranks and the
    texts of ten thousand passages; each text is read once, however many runs have it.
    """
    table = pa.table({"passage_id": passage_ids, "doc_id": passage_ids})
    known = numbered(answers["query_id"], table)
    lists = [fold(run, known, cutoff)[:, :, 0].astype(np.int64) for run in runs]
    wanted = {
        query: [each for each in map(spaced, texts) if each.strip()]
        for query, texts in zip(answers["query_id"].to_pylist(), answers["answers"].to_pylist(), strict=True)
    }
    asked = _pairs(lists)
    hits = _hits(asked, known, wanted, passages)
    return known.query_ids, [_first(each, asked, hits) for each in lists]


def _pairs(lists: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Every pair of a passage and a query that some run has: passage · queries + query, each once, in order."""
    found = [_coded(each)[each >= 0] for each in lists]
    return np.unique(np.concatenate(found))


def _coded(passages_QK: NDArray[np.int64]) -> NDArray[np.int64]:
    return passages_QK * len(passages_QK) + np.arange(len(passages_QK))[:, None]


def _hits(
    asked: NDArray[np.int64], known: Numbers, wanted: Mapping[str, Sequence[str]], passages: Artifact[Passages]
) -> NDArray[np.bool_]:
    """For each pair whether the passage has an answer to the query."""
    places = np.empty(len(known.documents), np.int64)
    places[known.documents] = np.arange(len(known.documents))  # where the passage with a number stands in its table
    query_ids, hits = known.query_ids.to_pylist(), np.zeros(len(asked), bool)
    numbers, queries = np.divmod(asked, len(query_ids))
    order = np.argsort(places[numbers], kind="stable")
    for start in range(0, len(order), TEXTS_AT_A_TIME):
        pairs = order[start : start + TEXTS_AT_A_TIME]
        texts = rows_at(passages, Passages, places[numbers[pairs]].tolist(), ["text"])["text"]
        for pair, text in zip(pairs, texts.to_pylist(), strict=True):
            hits[pair] = has_answer(text, wanted[query_ids[queries[pair]]])
    return hits


def _first(passages_QK: NDArray[np.int64], asked: NDArray[np.int64], hits: NDArray[np.bool_]) -> Values:
    """The rank of each list's first hit."""
    there = passages_QK >= 0
    hit_QK = np.zeros(passages_QK.shape, bool)
    hit_QK[there] = hits[np.searchsorted(asked, _coded(passages_QK)[there])]
    return np.where(hit_QK.any(1), hit_QK.argmax(1) + 1.0, np.inf)
