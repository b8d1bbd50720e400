"""The page of a corpus of pseudo-queries: in the store's reports, and in the Prefect UI."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from storage.artifact import Artifact
from storage.files import write_atomically
from storage.store.store import Store
from storage.tables import Comparison, Quality
from tasks.report.page.corpus_page import html_page, markdown_page
from tasks.runtime.prefect_progress import best_effort
from tasks.runtime.prefect_task import artifact_key


def publish_page(
    folder: Path, name: str, quality: Artifact[Quality], comparison: Artifact[Comparison] | None,
    shown: str | None = None,
) -> Path:  # fmt: skip
    """Write `report.html` and `report.md` below `folder`, the store, to reports/NAME-queries; return the former's path.

    `comparison` is the one with the previous version, if any. `shown` is used in headings in place of the name.
    """
    content = {
        "name": shown or name,
        "quality": _read(quality, "quality.json"),
        "comparison": _read(comparison, "comparison.json") if comparison else None,
    }
    page = folder / "reports" / f"{name}-queries" / "report.html"
    write_atomically(page.with_suffix(".md"), markdown_page(content))
    write_atomically(page, html_page(content))
    return page


def show_queries(name: str, page: Path) -> None:
    """Show the page in the UI of the current flow run: as Markdown, and as a link.

    The link needs PRETRIEVE_REPORTS_URL, the address of the reports folder.
    """
    from prefect.artifacts import create_link_artifact, create_markdown_artifact

    key, words = artifact_key(f"{name}-queries"), f"The pseudo-queries of {name}"
    with best_effort():
        create_markdown_artifact(
            key=key, markdown=page.with_suffix(".md").read_text(encoding="utf-8"), description=words
        )
    with best_effort():
        if served := os.environ.get("PRETRIEVE_REPORTS_URL"):
            link = f"{served.rstrip('/')}/{quote(f'{name}-queries')}/{page.name}"
            create_link_artifact(key=f"{key}-page", link=link, link_text=words, description=words)


def _read(artifact: Artifact[Any], file: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(
        (Store(artifact.path.parent.parent).check(artifact) / file).read_text(encoding="utf-8")
    )
    return content
