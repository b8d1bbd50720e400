"""Pseudo-queries without a generator: the salient sentences of a document and its title.

A sentence is a query, and what remains of its document is what the query should retrieve: the inverse cloze task (Lee,
Chang and Toutanova 2019, *Latent Retrieval for Weakly Supervised Open Domain Question Answering*). As there, one
document in ten keeps its sentences, so that equal words also count. Their method takes any sentence; here it is the one
most similar to the document's centroid of tf-idf weights (Radev et al. 2004, *Centroid-based summarization of multiple
documents*), since a random sentence often says nothing of its document. A title is a query for its text in the same
way (MacAvaney et al. 2019, *Content-Based Weak Supervision for Ad-Hoc Re-Ranking*).

A sentence is longer than most questions. `parts` cuts it into queries that are about as long as these.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import regex

from tasks.corpus.sentences import sentences

KEPT = 0.1
"""The share of documents that keep their sentences and titles."""
SENTENCES_PER_QUERY = 4
SHORTEST, LONGEST = 4, 40  # words of a sentence that is a query
REST = 8  # words that must remain of a document
UNIT = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}]\p{M}*|[^\s\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}]+")
"""What `parts` does not cut: text between blanks, and a character with its marks in scripts without blanks."""
PART = 8  # words; the real queries of SQuAD, COVID-QA, SciFact and MedQuAD have 10, 9, 12 and 7 in the median
WORD = regex.compile(r"\p{Han}|\p{Hiragana}|\p{Katakana}|\p{Thai}|[\p{L}\p{N}]+")
"""Scripts without blanks between words count by characters."""


@dataclass(frozen=True)
class Cloze:
    """A document without its queries, and the queries."""

    title: str
    text: str
    queries: list[str]


class DocumentFrequencies:
    """The number of documents in which each word occurs."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.counts: Counter[str] = Counter()
        self.documents = 0
        for text in texts:
            self.counts.update(set(words(text)))
            self.documents += 1

    def idf(self, word: str) -> float:
        """Return log((N + 1) / (df + 1)) + 1, which is positive for every word."""
        return math.log((self.documents + 1) / (self.counts[word] + 1)) + 1


def words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    matches: list[str] = WORD.findall(text.lower())
    return matches


def cloze(doc_id: str, title: str, text: str, frequencies: DocumentFrequencies, language: str = "en") -> Cloze:
    """Return a document without its title and its most salient sentences, which are its queries.

    A document that is too short for this loses only its title. One that keeps them has the same queries.
    """
    spans = sentences(text, language)
    chosen = set(_salient(spans, frequencies))
    rest = "".join(span for number, span in enumerate(spans) if number not in chosen)
    if len(words(rest)) < REST:
        chosen, rest = set(), text
    queries = [" ".join(title.split())] if title.strip() and words(rest) else []
    queries += [" ".join(spans[number].split()) for number in sorted(chosen)]
    if _share(doc_id) < KEPT:
        return Cloze(title, text, queries)
    return Cloze("" if queries and title.strip() else title, rest.strip(), queries)


def parts(query: str) -> list[str]:
    """Return a query in consecutive parts of about eight words; one of fewer than twelve is one part."""
    found = [unit for unit in UNIT.finditer(query) if WORD.search(unit.group())]
    number = max(1, round(len(found) / PART))
    if number == 1:
        return [query]
    bounds = [round(place * len(found) / number) for place in range(number + 1)]
    return [query[found[first].start() : found[end - 1].end()] for first, end in pairwise(bounds)]


def one_part(query: str) -> str:
    """Return one of the parts of a query, chosen by its hash."""
    choices = parts(query)
    return choices[int(hashlib.sha256(f"part {query}".encode()).hexdigest(), 16) % len(choices)]


def _salient(spans: list[str], frequencies: DocumentFrequencies) -> list[int]:
    """Return the numbers of the sentences nearest to the centroid: one in four, and at least one."""
    counts = [Counter(words(span)) for span in spans]
    centroid = _weights(sum(counts, Counter()), frequencies)
    candidates = [number for number, count in enumerate(counts) if SHORTEST <= count.total() <= LONGEST]
    similarities = {number: _cosine(_weights(counts[number], frequencies), centroid) for number in candidates}
    ranked = sorted(candidates, key=lambda number: (-similarities[number], number))
    return ranked[: max(1, len(spans) // SENTENCES_PER_QUERY)]


def _weights(counts: Counter[str], frequencies: DocumentFrequencies) -> dict[str, float]:
    return {word: count * frequencies.idf(word) for word, count in counts.items()}


def _cosine(first: dict[str, float], second: dict[str, float]) -> float:
    product = sum(weight * second.get(word, 0.0) for word, weight in first.items())
    norms = math.sqrt(sum(x * x for x in first.values()) * sum(x * x for x in second.values()))
    return product / norms if norms else 0.0


def _share(doc_id: str) -> float:
    """Return a number from 0 to 1 for a document, by the hash of its id."""
    return int(hashlib.sha256(f"kept {doc_id}".encode()).hexdigest()[:12], 16) / 16**12
