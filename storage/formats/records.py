"""The rows that dataset loaders yield."""

from __future__ import annotations

from typing import TypedDict


class TextRow(TypedDict):
    """A text of a collection; `title` is empty where it has none."""

    doc_id: str
    title: str
    text: str


class QueryRow(TypedDict):
    """A query."""

    query_id: str
    text: str


class QrelRow(TypedDict):
    """A relevance judgement."""

    query_id: str
    doc_id: str
    grade: int


class AnswerRow(TypedDict):
    """The accepted answers to a query."""

    query_id: str
    answers: list[str]
