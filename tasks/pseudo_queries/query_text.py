"""Measures of a query's words: their number, the words copied from the passage, and loops.

Words are runs of letters and digits in lower case; in Chinese and Japanese, which have no spaces, each character.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b

IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[{IDEOGRAPHS}]|[^\W{IDEOGRAPHS}]+")
LONGEST_LOOP, TURNS = 4, 3  # the largest number of words of a loop, and the least number of repetitions
QUESTION_WORDS = frozenset({
    "what", "who", "whom", "whose", "which", "when", "where", "why", "how", "is", "are", "was", "were", "do", "does",
    "did", "can", "could", "will", "would", "should", "has", "have", "had",
})  # fmt: skip
QUESTION_MARKS = ("?", "？", "؟")


def words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case."""
    return WORD.findall(text.lower())


def loop_of(words: list[str]) -> str | None:
    """Return the first one to four words that occur at least three times in a row, or None."""
    if len(set(words)) == len(words):
        return None
    for size in range(1, LONGEST_LOOP + 1):
        repeated = 0  # consecutive words that equal the word `size` positions before
        for position in range(size, len(words)):
            repeated = repeated + 1 if words[position] == words[position - size] else 0
            if repeated == size * (TURNS - 1):
                return " ".join(words[position - size + 1 : position + 1])
    return None


def is_question(query: str, words: list[str]) -> bool:
    """Return whether a query ends with a question mark or begins with an English question word."""
    return query.rstrip().endswith(QUESTION_MARKS) or (bool(words) and words[0] in QUESTION_WORDS)


def hash_of_text(text: str) -> int:
    """Return 64 bits of the text's BLAKE2b."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class Passage:
    """The words of a passage, with which its queries are compared."""

    def __init__(self, text: str) -> None:
        words = words_of(text)
        self._words, self._joined = set(words), f" {' '.join(words)} "

    def holds(self, word: str) -> bool:
        """Return whether the passage contains the word."""
        return word in self._words

    def quotes(self, words: list[str]) -> bool:
        """Return whether the passage contains the words consecutively in this order."""
        return f" {' '.join(words)} " in self._joined


@dataclass(frozen=True)
class Look:
    """The measures of one query and its passage."""

    words: list[str]
    hashed: int
    copied: int
    """The number of words that occur in the passage."""
    verbatim: bool
    """Whether the query is a verbatim piece of the passage."""
    loop: str | None
    question: bool

    @staticmethod
    def at(query: str, passage: Passage | None) -> Look:
        """Measure a query; without its passage, no word counts as copied."""
        words = words_of(query)
        return Look(
            words, hash_of_text(" ".join(words)),
            sum(map(passage.holds, words)) if passage else 0,
            bool(words) and passage is not None and passage.quotes(words),
            loop_of(words), is_question(query, words),
        )  # fmt: skip
