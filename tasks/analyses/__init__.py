"""What the papers looked at beside their tables of results: one file an analysis, named after it.

`analysis: divergence` in a recipe means `tasks/analyses/divergence.py`, which has:

- `Settings`, what a recipe's entry says: `analysis: Literal["divergence"]`, the `round` that it looks at where it looks
  at a trained one, numbers and seeds. Where the stage must know what other sections of the recipe say (how much of a
  text is read), `Reading(Settings)` adds that, and the chain fills it in.
- a stage named after the file, of `table=Analysis`, which writes `analysis.json` by `write` below: everything that its
  picture shows. Larger tables lie beside it as Parquet.
- `tasks/report/page/analyses/divergence.html.j2`, one `<section>` of the report, drawn from `analysis`, the content of
  `analysis.json`, with `number`, which makes its ids unique among the analyses of a page. A template takes only
  Jinja's own filters and the classes and colours of `report.css`, so any page may include it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage.files import write_atomically
from storage.settings import Settings


def write(out: Path, settings: Settings, found: Mapping[str, Any]) -> None:
    """Write `analysis.json`: the settings, among them the analysis's name, and what was found.

    A number that is none is a ValueError: the page could not show it.
    """
    content = {**settings.model_dump(mode="json"), **found}
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(out / "analysis.json", text + "\n")
