"""README.md of an exported folder of tables: what Hugging Face's hub and `datasets` read, and people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from storage.tables import PseudoQueries

COLUMNS = {
    "passage_id": "the passage that the query was written for; a row of `passages`",
    "doc_id": "the document that the passage is from",
    "passage_sha256": "sha256 of the passage's text (title, blank, text; the text alone without a title)",
    "rank": "numbers the queries of a passage, over all generators, from 0",
    "query": "the query; empty where the generator wrote nothing",
    "generator": "what the recipe calls the generator",
    "revision": "the generator's files, by a hash of them or their commit; of imported queries the file's",
    "ledger": "hash of the generator and of all settings that decide a text; empty where imported",
    "seed": "what the generator's random numbers were drawn from",
    "draw": "how often the passage's queries had been replaced before",
    "round_trip": "rank of the passage in BM25's list for the query, from 1; 0: not in the list; null: not scored",
    "relevance": "a cross-encoder's score of query and passage; null: not scored",
    "kept": "whether the query is used",
    "reason": "why not: `empty`, `round trip` or `relevance`",
}


def card(provenance: Mapping[str, Any]) -> str:
    """Markdown with the front matter that says which files are which table."""
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

Queries that a model wrote for the passages of a collection, each with its origin.

{counts}

```python
datasets.load_dataset("FOLDER")["train"]  # load_dataset("FOLDER", "passages") has the texts
pandas.read_parquet("FOLDER/queries")
duckdb.sql("SELECT * FROM 'FOLDER/queries/*.parquet'")
```

| column | type | meaning |
|---|---|---|
{columns}

## Written by

```json
{json.dumps(provenance["written_by"], indent=1, ensure_ascii=False)}
```

`provenance.json` has the settings of every stage that this was made by.
"""
