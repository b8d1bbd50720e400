"""Take the documentation's screenshots of a quickstart that was run: its report and its search page.

`python -m tests.services.screenshots STORE FOLDER` writes report.png and browse.png. The Prefect UI's screenshots are
taken by `test_resume_from_ui.py`; `make screenshots` takes all.
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from storage.store.store import Store
from tests.browsed_run import served
from tests.services.browser import CHROMIUM

RUN, QUESTION = "quickstart", "rock that melts inside the earth"


def take(store: Path, folder: Path, chromium: Browser) -> None:
    """Write the screenshots of both pages, each of its first 900 rows."""
    page = chromium.new_page(viewport={"width": 1200, "height": 900})
    page.goto((store / "reports" / RUN / "report.html").resolve().as_uri())
    page.screenshot(path=folder / "report.png")
    with served(Store(store), RUN) as address:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{address}search?q={QUESTION}&a=retriever_2&b=bm25", timeout=120_000)
        page.locator("li.hit").first.wait_for()
        page.screenshot(path=folder / "browse.png")


if __name__ == "__main__":
    with sync_playwright() as playwright:
        take(Path(sys.argv[1]), Path(sys.argv[2]), playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        ))  # fmt: skip
