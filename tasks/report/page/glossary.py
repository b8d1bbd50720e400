"""The glossary of reports: metrics, tests and kinds of retriever, each in a sentence.

Reports and the documentation (docs/start/report.md, docs/start/glossary.md) show these definitions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

METRICS = {
    "MRR": "1 / rank of the first relevant document, or 0 where none is among the first {k}, as a mean over the "
    "queries: 1 is perfect, 0.5 means second on a typical query",
    "nDCG": "the graded gain of the first {k} documents, discounted by rank, compared with the best possible order: "
    "1 is perfect",
    "recall": "the share of a query's relevant documents that are among the first {k}",
    "success": "the share of queries with a relevant document among the first {k} (some papers print it as R@{k})",
    "answer": "the share of queries for which one of the first {k} passages contains an answer",
}
"""The definition of each metric, with {k} for its cutoff."""
TESTS = {
    "95 % interval": "Student's t over the queries: how the mean would vary with other queries of the same kind; "
    "seeds vary more",
    "p": "how probable a difference at least as large is if both systems are equally good (paired t-test); the "
    "randomisation test next to it makes fewer assumptions",
    "p_holm": "p after Holm's correction for all comparisons of the metric, since one of many is small by chance; read "
    "this one",
}
KINDS = {
    "BM25": "the classic ranking by words, without training",
    "pseudo-queries appended": "doc2query: BM25 over passages to which generated queries are added",
    "bi-encoder": "encodes query and passage separately, so that passages are encoded once",
    "dense": "one vector for a text; the score is the inner product",
    "lexical": "a weight for each token of the vocabulary, as in SPLADE",
    "late": "late interaction, multi-vector: a vector for each token, each query token matched with its best, as in "
    "ColBERT",
    "cross-encoder": "reads query and passage together; more exact and much slower, so it re-ranks and teaches",
    "fused": "a hybrid: several rankings combined into one",
    "approximate index": "a faster search that may miss documents, compared with the exact search",
    "without the pre-training": "the ablation: the same fine-tuning from weights that were not pre-trained by the "
    "recipe",
}
"""Kinds of retriever, by the words that the descriptions of systems contain."""

Terms = list[tuple[str, str]]
"""Terms with their definitions."""


def metrics(names: Iterable[str]) -> Terms:
    """Return the definitions of metrics such as MRR@10, each once, in their order; others are left out."""
    terms: Terms = []
    for metric in dict.fromkeys(names):
        name, _, cutoff = metric.partition("@")
        if name in METRICS:
            terms.append((metric, METRICS[name].format(k=cutoff)))
    return terms


def tests(names: Sequence[str]) -> Terms:
    """Return the definitions of words about tests: interval and probabilities."""
    return [(name, TESTS[name]) for name in names]


def kinds(descriptions: Iterable[str]) -> Terms:
    """Return the definitions of the kinds of retriever that occur in descriptions of systems."""
    text = "\n".join(descriptions)
    return [(word, meaning) for word, meaning in KINDS.items() if re.search(rf"\b{re.escape(word)}\b", text)]
