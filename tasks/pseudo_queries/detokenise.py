"""Detokenise pseudo-queries: join what a generator over WordPiece tokens has separated, such as " ?" and "' s".

Hyphens stay separated: " - " is a dash in other generators' queries, and Lucene ignores both.
"""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa

from storage.artifact import Artifact
from storage.tables import PseudoQueries
from tasks.pseudo_queries.column_rewrite import file_shards, rewrite
from tasks.runtime.shard import ShardJob, ShardTask
from tasks.runtime.shards import run_shards
from tasks.stage import stage

END = r"(?=$|[\s?!.,;:…)\]}%\"'’])"  # " .net" is a word, " . " is the end of a sentence
JOINED = [
    (re.compile(r"(?<![\d.,])(\d{1,3}) , (?=\d{3}(?!\d))"), r"\1,"),  # 1 , 234
    (re.compile(r"(?<=,)(\d{3}) , (?=\d{3}(?!\d))"), r"\1,"),  # 1,234 , 567
    (re.compile(r"(?<=\d) \. (?=\d)"), "."),  # 3 . 5
    (re.compile(r"(?<=[^\W\d_]) (['’]) (?=(?:s|t|re|ve|ll|d|m)\b)", re.IGNORECASE), r"\1"),  # king ' s
    (re.compile(r"(?<=[^\W\d_])(['’]) (?=(?:s|t|re|ve|ll|d|m)\b)", re.IGNORECASE), r"\1"),  # king' s
    (re.compile(r"\b([odl]) (['’]) (?=[^\W\d_])", re.IGNORECASE), r"\1\2"),  # o ' neill
    (re.compile(rf"\s+([?!.,;:…)\]}}%]){END}"), r"\1"),
    (re.compile(r"([(\[{])\s+"), r"\1"),
    (re.compile(r"(?<=[$£€])\s+(?=\d)"), ""),
]


def detokenised(text: str) -> str:
    """Return a query with punctuation, apostrophes and numbers joined; a query that has them joined stays as it is."""
    for pattern, replacement in JOINED:
        text = pattern.sub(replacement, text)
    return text


@stage(version=2, table=PseudoQueries)
def detokenise_queries(out: Path, pseudo_queries: Artifact[PseudoQueries]) -> None:
    """Write the pseudo-queries with detokenised texts."""
    job = ShardJob(detokenise_part, out, (pseudo_queries,), None, what="detokenising", unit="queries")
    run_shards(job, file_shards(pseudo_queries))


def detokenise_part(task: ShardTask, pseudo_queries: Artifact[PseudoQueries]) -> None:
    """Write a shard's queries with detokenised texts."""

    def change(block: pa.Table) -> dict[str, pa.Array]:
        task.done(len(block))
        return {"query": pa.array(map(detokenised, block["query"].to_pylist()), pa.string())}

    rewrite(task.out, task.shard, pseudo_queries, change)
