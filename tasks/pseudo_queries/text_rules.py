"""Rules for the text of a pseudo-query: length, language, copied words, numbers, and a list of words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from storage.settings import Settings
from tasks.pseudo_queries.detokenise import detokenised
from tasks.pseudo_queries.language_id import UNCERTAIN, language_of
from tasks.pseudo_queries.number_readings import has_other_numbers, numbers_in
from tasks.pseudo_queries.query_text import Passage, words_of

CODE = re.compile("[a-z]{2,3}")


def _optional(**constraints: Any) -> Any:
    """Return a field that is null by default and then in no key."""
    return Field(default=None, exclude_if=lambda value: value is None, **constraints)


class TextRules(Settings):
    """The rules that a query's text must keep; a rule that is not given drops no query."""

    min_words: Annotated[int | None, _optional(ge=1, examples=[3])]
    max_words: Annotated[int | None, _optional(ge=1, examples=[32])]
    languages: Annotated[Literal["passage"] | list[str] | None, _optional(min_length=1, examples=["passage"])]
    """`passage`: that of the own passage; or a list of ISO 639 codes. A language that is not certain is allowed."""
    max_copied_share: Annotated[float | None, _optional(ge=0, le=1, examples=[0.9])]
    """The largest share of a query's words that may occur in its passage."""
    numbers: Annotated[Literal["in_passage"] | None, _optional(examples=["in_passage"])]
    """`in_passage`: every number and year of a query must occur in its passage."""
    forbidden: Annotated[str | list[str] | None, _optional(min_length=1, examples=[["click here"]])]
    """Words and phrases that no query may contain: a list, or the path of a file with one on each line."""

    @model_validator(mode="after")
    def _rules(self) -> TextRules:
        if all(value is None for _, value in self):
            raise ValueError(f"expected some of {', '.join(type(self).model_fields)}; or set texts to null")
        if self.min_words and self.max_words and self.min_words > self.max_words:
            raise ValueError(f"max_words: expected at least min_words, {self.min_words}, found {self.max_words}")
        codes = self.languages if isinstance(self.languages, list) else []
        if wrong := [code for code in codes if not CODE.fullmatch(code)]:
            raise ValueError(f"languages: expected `passage`, or ISO 639 codes such as en, de, zh; found {wrong[0]!r}")
        return self


class OwnPassage:
    """The facts about a passage that rules need; each is computed when the first query needs it."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def words(self) -> Passage:
        """Its words."""
        return Passage(self.text)

    @cached_property
    def language(self) -> str:
        """Its language, or that it is not certain."""
        return language_of(self.text)

    @cached_property
    def numbers(self) -> frozenset[str]:
        """Its numbers, in digits and in English words."""
        return numbers_in(self.text)


Rule = Callable[[str, list[str], OwnPassage], bool]
"""Returns whether to drop a query, given its text, its words and its passage."""


def rules_of(settings: TextRules, phrases: Sequence[str]) -> dict[str, Rule]:
    """Return the rules by the reason that they give; `phrases` are the forbidden ones."""
    rules: dict[str, Rule] = {}
    if settings.min_words or settings.max_words:
        rules["length"] = _length(settings.min_words or 0, settings.max_words)
    if settings.languages is not None:
        rules["language"] = _language(settings.languages)
    if settings.max_copied_share is not None:
        rules["copied"] = _copied(settings.max_copied_share)
    if settings.numbers is not None:
        rules["number"] = _number
    if phrases:
        rules["forbidden word"] = _forbidden(phrases)
    return rules


def reason_to_drop(rules: dict[str, Rule], query: str, passage: OwnPassage) -> str:
    """Return the reason of the first rule that drops a query, or ""."""
    words = words_of(query)
    return next((reason for reason, drops in rules.items() if drops(query, words, passage)), "")


def _length(least: int, most: int | None) -> Rule:
    return lambda query, words, passage: len(words) < least or (most is not None and len(words) > most)


def _language(allowed: str | Sequence[str]) -> Rule:
    def drops(query: str, words: list[str], passage: OwnPassage) -> bool:
        if (language := language_of(query)) in UNCERTAIN:
            return False
        if allowed == "passage":
            return passage.language not in UNCERTAIN and language != passage.language
        return language not in allowed

    return drops


def _copied(most: float) -> Rule:
    return lambda query, words, passage: sum(map(passage.words.holds, words)) > most * len(words)


def _number(query: str, words: list[str], passage: OwnPassage) -> bool:
    return has_other_numbers(detokenised(query), passage.numbers)


def _forbidden(phrases: Sequence[str]) -> Rule:
    listed = [inner for phrase in phrases if (inner := words_of(phrase))]
    return lambda query, words, passage: any(map(Passage(query).quotes, listed))
