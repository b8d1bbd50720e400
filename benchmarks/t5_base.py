"""What is assumed of a T5-base that writes queries for the passages of MS MARCO's documents, and its FLOPs."""

from __future__ import annotations

from tasks.estimates.generation import T5_BASE

PASSAGES = 36_000_000  # of MAX_TOKENS at most
MAX_TOKENS, QUERIES, QUERY_TOKENS = 144, 5, 10


def flops(passage_tokens: float, queries: int) -> float:
    """Return the FLOPs of one passage: encoded once, with `queries` decoded queries."""
    return reading_flops(passage_tokens) + queries * QUERY_TOKENS * writing_flops(passage_tokens)


def reading_flops(passage_tokens: float) -> float:
    """Return the FLOPs of encoding a passage."""
    return T5_BASE.reading_flops(passage_tokens)


def writing_flops(passage_tokens: float) -> float:
    """Return the FLOPs of one token of a query."""
    return T5_BASE.writing_flops(passage_tokens)
