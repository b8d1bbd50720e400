"""Count the queries that a filter keeps and drops, by reason."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import table_blocks
from storage.tables import PseudoQueries
from tasks.session import print_line

OUTCOMES = {
    "": "kept",
    "round trip": "dropped by the round trip",
    "relevance": "dropped by relevance",
    "length": "dropped by length",
    "language": "dropped by language",
    "copied": "dropped by copied words",
    "number": "dropped by numbers",
    "forbidden word": "dropped by forbidden words",
    "exact duplicate": "dropped as exact duplicates",
    "near duplicate": "dropped as near duplicates",
    "empty": "empty",
}
"""The words for each reason in messages."""


def report_dropped(stage: str, out: Path, queries: Artifact[PseudoQueries], setting: str, advice: str) -> None:
    """Print how many queries a filter's table keeps and drops. Raises UserError where it keeps none."""
    counts: Counter[str] = Counter()
    for block in table_blocks(out, PseudoQueries, ["reason"]):
        counts.update(block["reason"].to_pylist())
    summary = ", ".join(f"{counts[reason]:,} {words}" for reason, words in OUTCOMES.items() if counts[reason])
    if not counts[""]:
        raise UserError(f"{setting}: it keeps no query of {queries.reference} ({summary or 'no query'}); {advice}")
    print_line(f"{stage}: {summary}")
