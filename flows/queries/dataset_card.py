"""README.md of an exported folder of tables, for Hugging Face's hub, the package `datasets`, and users."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from storage.pseudo_query_contract import markdown_table


def card(provenance: Mapping[str, Any]) -> str:
    """Return Markdown whose front matter lists the files of each table."""
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

{markdown_table().replace("[filter's reason](#filters)", "filter's reason")}

`contract.json` is the JSON Schema of a row; every export is checked by it.

## Generators

```json
{json.dumps(provenance["written_by"], indent=1, ensure_ascii=False)}
```

`provenance.json` has the settings of every stage that built this.
"""
