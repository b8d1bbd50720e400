"""The contributions of a question's words to the score of a retrieved passage, by view.

| view | contribution |
|---|---|
| `bm25` | the term's part of the sum, by the terms of the index (stems) |
| `lexical` | the product of both weights of a vocabulary's token |
| `late` | MaxSim of a token of the question, with the token of the passage that matches it best |
| `dense` | by how much the score falls without the word: one vector is no sum of words |

The first three add up to the score of their view. That of the dense view does not: it is a comparison of two questions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.representation import Role
from models.tokens import Tokenizer
from storage.tables import passage_text
from storage.vectors import Encoded
from tasks.retrieval.exact_search.double_scores import StoredVectors
from tasks.retrieval.interactive import OpenSearch
from tasks.retrieval.lucene.index_reader import analysed
from tasks.retrieval.ranking import Indices

SHOWN = 6  # terms of a passage and view
MOST_WORDS = 24  # of a question whose words are left out in turn


@dataclass(frozen=True)
class Term:
    """A term of the question and its contribution to a passage's score."""

    text: str
    score: float
    matched: str | None = None
    """The passage's token that matches it, in late interaction."""


Terms = dict[str, list[Term]]
"""The terms that contribute most, by view, the greatest first."""


def contributions(search: OpenSearch, question: str, rows: Indices) -> list[Terms]:
    """Return the terms that contribute most to the scores of passages, given by row."""
    by_view: dict[str, list[list[Term]]] = {}
    if search.encode is None:
        by_view[search.view] = _of_bm25(search, question, rows)
    for view, stored in search.stored.items():
        if view == "dense":
            by_view[view] = _of_dense(search, stored, question, rows)
        else:
            by_view[view] = _of_tokens(search, view, question, stored, rows)
    return [{view: _greatest(terms[number]) for view, terms in by_view.items()} for number in range(len(rows))]


def _greatest(terms: list[Term]) -> list[Term]:
    contributing = [term for term in terms if term.score]
    return sorted(contributing, key=lambda term: -term.score)[:SHOWN]


def _of_bm25(search: OpenSearch, question: str, rows: Indices) -> list[list[Term]]:
    """Return the terms of each passage; a term that occurs twice in the question counts twice."""
    counts = Counter(analysed([question])[0].split())
    passage_ids = search.ids.ids.take(rows).to_pylist()
    scores = search.module.term_contributions(search.folder, list(counts), passage_ids, search.ids)
    return [
        [Term(term, count * scores[index][number]) for index, (term, count) in enumerate(counts.items())]
        for number in range(len(rows))
    ]


def _of_dense(search: OpenSearch, stored: StoredVectors, question: str, rows: Indices) -> list[list[Term]]:
    """Return for each passage by how much its score falls without each word of the question."""
    words = question.split()
    if search.encode is None or not 1 < len(words) <= MOST_WORDS:
        return [[] for _ in rows]
    without = [" ".join(words[:index] + words[index + 1 :]) for index in range(len(words))]
    encoded = search.encode([question, *without])
    numbers = np.arange(len(encoded))
    pairs = np.repeat(numbers, len(rows)), np.tile(rows, len(encoded))
    scores = stored.scores(encoded, *pairs).reshape(len(encoded), len(rows)).astype(np.float64)
    return [
        [Term(word, float(scores[0, passage] - scores[1 + number, passage])) for number, word in enumerate(words)]
        for passage in range(len(rows))
    ]


def _of_tokens(search: OpenSearch, view: str, question: str, stored: StoredVectors, rows: Indices) -> list[list[Term]]:
    """Return for each passage the products of both texts' weights, or the matches of the question's tokens in it."""
    if (encode := search.encode) is None:
        return [[] for _ in rows]
    tokenizer = Tokenizer.load(encode.folder)  # the same for queries and passages
    query, passages = encode([question]), [stored.passage(row) for row in rows.tolist()]
    if view == "lexical":
        return [_of_lexical(query, passage, tokenizer) for passage in passages]

    def names(text: str, role: Role) -> list[str]:
        return [tokenizer.token_name(number) for number in encode.late_tokens(text, role)]

    of_question = names(question, "query")
    texts = [passage_text(answer.title, answer.text) for answer in search.with_texts(rows, {})]
    return [
        _of_late(query, passage, of_question, names(text, "passage"), stored)
        for passage, text in zip(passages, texts, strict=True)
    ]


def _of_lexical(query: Encoded, passage: Encoded, tokenizer: Tokenizer) -> list[Term]:
    if query.lexical is None or passage.lexical is None:
        raise TypeError("the lexical view has weights of tokens")
    weights = dict(zip(passage.lexical.ids.tolist(), passage.lexical.values.tolist(), strict=True))
    pairs = zip(query.lexical.ids.tolist(), query.lexical.values.tolist(), strict=True)
    return [Term(tokenizer.token_name(number), weight * weights.get(number, 0.0)) for number, weight in pairs]


def _of_late(
    query: Encoded, passage: Encoded, query_names: list[str], passage_names: list[str], stored: StoredVectors
) -> list[Term]:
    if query.late is None or passage.late is None:
        raise TypeError("the late view has vectors of tokens")
    products: Any = query.late.vectors.astype(np.float64) @ passage.late.vectors.astype(np.float64).T
    if stored.similarity.exact_match:
        same = query.late.ids[:, None] == passage.late.ids
        products = np.where(same, np.maximum(products, 0), 0.0)
    if not products.shape[1]:
        return []
    best = products.argmax(1)
    return [
        Term(name, float(products[index, best[index]]), passage_names[best[index]])
        for index, name in enumerate(query_names)
    ]
