"""README.md of an exported folder of tables, for Hugging Face's hub, the package `datasets`, and users."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from storage.tables import PseudoQueries

COLUMNS = {
    "passage_id": "the passage that the query was generated for; a row of `passages`",
    "doc_id": "the document that the passage is from",
    "passage_sha256": "sha256 of the passage's text (title, blank, text; only the text without a title)",
    "rank": "the query's number within its passage, over all generators, from 0",
    "query": "the query; empty where the generator returned nothing",
    "generator": "the generator's name in the recipe",
    "revision": "hash or commit of the generator's files; for imported queries the hash of the file",
    "ledger": "hash of the generator and of all settings that affect a text; empty for imported queries",
    "seed": "seed of the generator's random numbers",
    "draw": "how often the passage's queries had been resampled before",
    "round_trip": "rank of the passage in BM25's list for the query, from 1; 0: not in the list; null: not scored",
    "relevance": "a cross-encoder's score of query and passage; null: not scored",
    "kept": "whether the query is used",
    "reason": "why the query is not used: `empty`, `round trip` or `relevance`",
}


def card(provenance: Mapping[str, Any]) -> str:
    """Return Markdown whose front matter lists the files of each table."""
    columns = "\n".join(f"| {name} | {PseudoQueries.schema.field(name).type} | {COLUMNS[name]} |" for name in COLUMNS)
    counts = "\n".join(f"- {name}: {count:,}" for name, count in provenance["counts"].items())
    return f"""---
configs:
- config_name: queries
  default: true
  data_files: queries/*.parquet
- config_name: passages
  data_files: passages/*.parquet
tags:
- doc2query
---
# Pseudo-queries: {provenance["corpus"]}

Queries that a model generated for the passages of a collection, each with its origin.

{counts}

```python
datasets.load_dataset("FOLDER")["train"]  # load_dataset("FOLDER", "passages") has the texts
pandas.read_parquet("FOLDER/queries")
duckdb.sql("SELECT * FROM 'FOLDER/queries/*.parquet'")
```

| column | type | meaning |
|---|---|---|
{columns}

## Generators

```json
{json.dumps(provenance["written_by"], indent=1, ensure_ascii=False)}
```

`provenance.json` has the settings of every stage that built this.
"""
