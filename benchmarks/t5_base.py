"""FLOPs of a T5-base that writes queries for the passages of MS MARCO's documents."""

from __future__ import annotations

PASSAGES = 36_000_000  # of MAX_TOKENS at most
MAX_TOKENS, QUERIES, QUERY_TOKENS = 144, 5, 10
# as its config.json has it
LAYERS, WIDTH, INNER, VOCABULARY = 12, 768, 3072, 32_128


def flops(passage_tokens: float, queries: int) -> float:
    """Return the FLOPs of one passage: encoded once, with `queries` decoded queries."""
    return reading_flops(passage_tokens) + queries * QUERY_TOKENS * writing_flops(passage_tokens)


def reading_flops(passage_tokens: float) -> float:
    """Return the FLOPs of encoding a passage."""
    per_token = 2 * LAYERS * (4 * WIDTH**2 + 2 * WIDTH * INNER + 2 * WIDTH**2) + 4 * LAYERS * passage_tokens * WIDTH
    return passage_tokens * per_token


def writing_flops(passage_tokens: float) -> float:
    """Return the FLOPs of one token of a query."""
    layers = 2 * LAYERS * (4 * WIDTH**2 + 2 * WIDTH**2 + 2 * WIDTH * INNER)
    return layers + 2 * WIDTH * VOCABULARY + 4 * LAYERS * passage_tokens * WIDTH
