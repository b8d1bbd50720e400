"""What a query's words tell of it: how many, which are copied, whether they go round in a loop.

Words are runs of letters and digits, whatever their case; in Chinese and Japanese, which set no spaces, each character.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b

IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[{IDEOGRAPHS}]|[^\W{IDEOGRAPHS}]+")
LONGEST_LOOP, TURNS = 4, 3  # words of a loop at most, and how often they come at least
QUESTION_WORDS = frozenset({
    "what", "who", "whom", "whose", "which", "when", "where", "why", "how", "is", "are", "was", "were", "do", "does",
    "did", "can", "could", "will", "would", "should", "has", "have", "had",
})  # fmt: skip
QUESTION_MARKS = ("?", "？", "؟")


def words_of(text: str) -> list[str]:
    """Its words, in lower case."""
    return WORD.findall(text.lower())


def loop_of(words: list[str]) -> str | None:
    """The first one to four words that come three times or more in a row; None where none do."""
    if len(set(words)) == len(words):
        return None
    for size in range(1, LONGEST_LOOP + 1):
        repeated = 0  # words in a row that are those `size` places before
        for place in range(size, len(words)):
            repeated = repeated + 1 if words[place] == words[place - size] else 0
            if repeated == size * (TURNS - 1):
                return " ".join(words[place - size + 1 : place + 1])
    return None


def is_question(query: str, words: list[str]) -> bool:
    """Whether it ends with a question mark or begins with an English question word."""
    return query.rstrip().endswith(QUESTION_MARKS) or (bool(words) and words[0] in QUESTION_WORDS)


def hash_of_text(text: str) -> int:
    """Return 64 bits of the text's BLAKE2b."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class Passage:
    """A passage's words, to compare its queries with."""

    def __init__(self, text: str) -> None:
        words = words_of(text)
        self._words, self._joined = set(words), f" {' '.join(words)} "

    def holds(self, word: str) -> bool:
        """Whether the word stands in it."""
        return word in self._words

    def quotes(self, words: list[str]) -> bool:
        """Whether the words stand in it in this order, one after the other."""
        return f" {' '.join(words)} " in self._joined


@dataclass(frozen=True)
class Look:
    """What one query looks like, by itself and beside its passage."""

    words: list[str]
    hashed: int
    copied: int
    """Words that stand in the passage."""
    verbatim: bool
    """Whether it is a piece of the passage, word for word."""
    loop: str | None
    question: bool

    @staticmethod
    def at(query: str, passage: Passage | None) -> Look:
        """At a query; without its passage nothing is copied."""
        words = words_of(query)
        return Look(
            words, hash_of_text(" ".join(words)),
            sum(map(passage.holds, words)) if passage else 0,
            bool(words) and passage is not None and passage.quotes(words),
            loop_of(words), is_question(query, words),
        )  # fmt: skip
