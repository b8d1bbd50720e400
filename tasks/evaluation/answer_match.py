"""Decide whether passages contain an answer: the criterion of DPR (Karpukhin et al. 2020, section 5).

This is its `qa_validation.py` with `SimpleTokenizer`. Texts are normalised (NFD), split into runs of letters, digits
and marks and into other single symbols, and lower-cased. A passage contains an answer if the answer's tokens occur
consecutively in its text, without the title. An answer without tokens never matches; in DPR's code it always does.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import regex
from numpy.typing import NDArray

from storage.artifact import Artifact
from storage.row_index import PassageIndex, RowIndex
from storage.rows import rows_at
from storage.tables import Passages
from tasks.evaluation.max_passage import fold_blocks
from tasks.evaluation.metrics import Blocks
from tasks.evaluation.significance import Values

TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
TEXTS_PER_BLOCK = 10_000


def spaced(text: str) -> str:
    """Return the tokens separated by blanks, so that consecutive tokens are a substring."""
    return f" {' '.join(TOKEN.findall(unicodedata.normalize('NFD', text))).lower()} "


def has_answer(text: str, answers: Sequence[str]) -> bool:
    """Return whether the text contains one of the answers, which are `spaced`."""
    spaced_text = spaced(text)
    return any(answer in spaced_text for answer in answers)


def first_hits(
    answers: pa.Table, passages: Artifact[Passages], index: PassageIndex, runs: Iterable[Blocks], cutoff: int
) -> tuple[pa.Array, list[Values]]:  # fmt: skip
    """Return the queries' ids and, for each run, the rank of each query's first passage with an answer, from 1.

    The rank is infinite where none of the first `cutoff` passages contains one. In memory are the first `cutoff` ranks
    of all runs and the texts of ten thousand passages; each text is read once, however many runs have it.
    """
    queries, units = RowIndex(answers["query_id"].unique()), index.as_documents()
    lists = [_first_passages(run, queries, units, cutoff) for run in runs]
    answers_of = {
        query: [answer for answer in map(spaced, texts) if answer.strip()]
        for query, texts in zip(answers["query_id"].to_pylist(), answers["answers"].to_pylist(), strict=True)
    }
    pairs = _pairs(lists)
    hits = _hits(pairs, [answers_of[query] for query in queries.ids.to_pylist()], passages)
    return queries.ids, [_first_hit(passages_QK, pairs, hits) for passages_QK in lists]


def _first_passages(run: Blocks, queries: RowIndex, units: PassageIndex, cutoff: int) -> NDArray[np.int64]:
    """Return the rows of each query's first passages, [queries, cutoff]; -1 where a list is shorter."""
    passages_QK = np.full((len(queries), cutoff), -1, np.int64)
    for rows, documents in fold_blocks(run, queries, units, cutoff):
        passages_QK[rows, : documents.shape[1]] = documents[:, :, 0]
    return passages_QK


def _pairs(lists: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the distinct pairs of a passage row and a query of all runs, as row * queries + query, ascending."""
    return np.unique(np.concatenate([_pair_keys(passages_QK)[passages_QK >= 0] for passages_QK in lists]))


def _pair_keys(passages_QK: NDArray[np.int64]) -> NDArray[np.int64]:
    return passages_QK * len(passages_QK) + np.arange(len(passages_QK))[:, None]


def _hits(
    pairs: NDArray[np.int64], answers: Sequence[Sequence[str]], passages: Artifact[Passages]
) -> NDArray[np.bool_]:
    """Return for each pair whether the passage contains an answer to the query."""
    hits = np.zeros(len(pairs), bool)
    for start in range(0, len(pairs), TEXTS_PER_BLOCK):
        rows, queries = np.divmod(pairs[start : start + TEXTS_PER_BLOCK], len(answers))
        texts = rows_at(passages, Passages, rows.tolist(), ["text"])["text"].to_pylist()
        for number, (text, query) in enumerate(zip(texts, queries, strict=True), start):
            hits[number] = has_answer(text, answers[query])
    return hits


def _first_hit(passages_QK: NDArray[np.int64], pairs: NDArray[np.int64], hits: NDArray[np.bool_]) -> Values:
    """Return the rank of each list's first hit, or infinity."""
    is_passage = passages_QK >= 0
    hit_QK = np.zeros(passages_QK.shape, bool)
    hit_QK[is_passage] = hits[np.searchsorted(pairs, _pair_keys(passages_QK)[is_passage])]
    return np.where(hit_QK.any(1), hit_QK.argmax(1) + 1.0, np.inf)
