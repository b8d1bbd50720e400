"""Analyses of the papers beyond their tables of results: one module per analysis.

`analysis: divergence` in a recipe names `tasks/analyses/divergence.py`, which has:

- `Settings`, the recipe's entry: `analysis: Literal["divergence"]`, the fine-tuning `round` to analyse if there is one,
  numbers and seeds. `Reading(Settings)` adds settings from other sections of the recipe, such as the maximum number of
  tokens; the chain fills them in.
- a stage with the name of the module and `table=Analysis`, which writes `analysis.json` with `write` below: everything
  that its section of the report shows. Larger tables are written as Parquet.
- `tasks/report/page/analyses/divergence.html.j2`, one `<section>` of the report. It is rendered with `analysis`, the
  content of `analysis.json`, and `number`, which makes ids unique on a page. A template uses only Jinja's own filters
  and the classes and colours of `report.css`, so any page may include it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage.files import write_atomically
from storage.settings import Settings


def write(out: Path, settings: Settings, results: Mapping[str, Any]) -> None:
    """Write `analysis.json`: the settings, with the analysis's name, and its results.

    Raises ValueError for a number that is not finite, which the page could not show.
    """
    content = {**settings.model_dump(mode="json"), **results}
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(out / "analysis.json", text + "\n")
