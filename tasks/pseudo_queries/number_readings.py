"""The numbers of a text: 1,234 and 1234 are one number, and a passage's "three" and "third" are 3."""

from __future__ import annotations

import re
import unicodedata

NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
WORDS = (
    ("zero",), ("one", "first", "once"), ("two", "second", "twice"), ("three", "third"), ("four", "fourth"),
    ("five", "fifth"), ("six", "sixth"), ("seven", "seventh"), ("eight", "eighth"), ("nine", "ninth"),
    ("ten", "tenth"), ("eleven", "eleventh"), ("twelve", "twelfth"), ("thirteen",), ("fourteen",), ("fifteen",),
    ("sixteen",), ("seventeen",), ("eighteen",), ("nineteen",),
)  # fmt: skip
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
VALUES = {word: str(value) for value, words in enumerate(WORDS) for word in words}
VALUES |= {word: str(10 * value) for value, word in enumerate(TENS, 2)} | {"hundred": "100", "thousand": "1000"}
WORD = re.compile(rf"\b(?:{'|'.join(VALUES)})\b")


def numbers_in(text: str) -> frozenset[str]:
    """Return every number of a passage in every reading, and its English number words as digits."""
    text = unicodedata.normalize("NFKC", text)
    digits = {part for number in NUMBER.findall(text) for reading in _readings(number) for part in reading}
    return frozenset(digits | {VALUES[word] for word in WORD.findall(text.lower())})


def has_other_numbers(query: str, known: frozenset[str]) -> bool:
    """Return whether a query has a number in digits that is not among those of its passage, in any reading."""
    numbers = NUMBER.findall(unicodedata.normalize("NFKC", query))
    return not all(any(known.issuperset(reading) for reading in _readings(number)) for number in numbers)


def _readings(number: str) -> list[list[str]]:
    """Return the number as one, and as several where separators may be those of a list or a decimal point."""
    if THOUSANDS.fullmatch(number):
        return [[_plain(number.replace(",", ""))]]
    return [[_plain(number.replace(",", "."))], [_plain(part) for part in re.split("[.,]", number)]]


def _plain(number: str) -> str:
    """Return a number without zeros before it."""
    return number.lstrip("0") or "0"
