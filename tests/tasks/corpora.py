"""Passages and pseudo-queries that a test writes down, as their tables have them."""

from typing import Any

from storage.tables import passage_sha256


def passage(passage_id: str, text: str, **changes: Any) -> dict[str, Any]:
    """A row of Passages; what stands before # is its document."""
    row = {
        "passage_id": passage_id, "doc_id": passage_id.split("#")[0], "title": "", "text": text, "start": 0,
        "end": len(text), "num_tokens": len(text.split()),
    }  # fmt: skip
    return row | changes


def pseudo_query(passage_id: str, rank: int, query: str, **changes: Any) -> dict[str, Any]:
    """A row of PseudoQueries, kept unless it is empty."""
    row = {
        "passage_id": passage_id, "doc_id": passage_id.split("#")[0],
        "passage_sha256": passage_sha256(f"the text of {passage_id}"), "rank": rank, "query": query,
        "generator": "t5", "revision": "r1", "ledger": "l1", "seed": 42, "draw": 0, "round_trip": None,
        "relevance": None, "kept": bool(query), "reason": "" if query else "empty",
    }  # fmt: skip
    return row | changes
