"""Headless Chromium on Prefect's pages, to do what a person does there.

Prefect 3.8 ships two generations of pages; these are the ones that it shows by default, below /v2.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Chromium
    from playwright.sync_api import Locator, Page, Response

CHROMIUM = Path("/usr/bin/chromium")
PATIENCE = 300_000.0  # milliseconds until a page must show what it should
ATTEMPTS = 5  # a server on SQLite refuses now and then, since another process writes; a person presses again
SETTLED = 5_000.0  # milliseconds that drawings take to stand still


def patient_page(chromium: Chromium, **options: Any) -> Page:
    """Return a new page, whose actions may take long on a busy machine."""
    page = chromium.new_page(**options)
    page.set_default_timeout(PATIENCE)
    return page


class Browser:
    """A page of a server's UI. What the server has is asked of its API, what a person does is done here."""

    def __init__(self, page: Page, api: str) -> None:
        self.page, self.ui = page, api.removesuffix("/api") + "/v2"
        self.api = api
        page.set_default_timeout(PATIENCE)

    def open(self, path: str) -> None:
        """Go to a page and wait until it is quiet."""
        self.page.goto(f"{self.ui}/{path}")
        self.page.get_by_role("main").wait_for()

    def rest(self) -> None:
        """Leave the page while a run works: drawing its progress takes a seventh of a core, and asks the server."""
        self.page.goto("about:blank")

    def open_run(self, run: str, tab: str = "Task Runs") -> None:
        """The page of a flow run, with one of its tabs."""
        self.open(f"runs/flow-run/{run}")
        self.tab(tab)

    def tab(self, name: str) -> None:
        """Open a tab of the page."""
        self.page.get_by_role("tab", name=name, exact=True).click()

    def retry(self, run: str, picture: str = "retry") -> None:
        """Choose Retry in a run's menu and confirm; a picture of the dialog is saved. The server has taken it then."""
        for _ in range(ATTEMPTS):
            self.open_run(run)
            self.page.get_by_role("main").get_by_role("button", name="Open menu").first.click()
            self.page.get_by_role("menuitem", name="Retry", exact=True).click()
            dialog = self.page.get_by_role("alertdialog", name="Retry Flow Run")
            dialog.wait_for()
            self.shot(picture)
            if self._press(dialog.get_by_role("button", name="Retry", exact=True), "/set_state").ok:
                return
        raise AssertionError(f"the server does not retry {run}")

    def open_form(self, deployment: str) -> None:
        """The form that starts a run of `flow/deployment`."""
        results = httpx.get(f"{self.api}/deployments/name/{deployment}", timeout=120).raise_for_status().json()
        self.open(f"deployments/deployment/{results['id']}")
        self.page.get_by_role("button", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Custom run").click()
        self.page.get_by_role("heading", name="Parameters").wait_for()

    def add_items(self, items: Sequence[str]) -> None:
        """Fill the form's list, an item a line."""
        add = self.page.get_by_role("button", name="Add item")
        for item in items:
            add.click()
            self.page.get_by_role("group").filter(has=add).last.get_by_role("textbox").last.fill(item)

    def submit(self) -> str:
        """Press Submit on the form; the id of the run that it starts."""
        for _ in range(ATTEMPTS):
            created = self._press(self.page.get_by_role("button", name="Submit"), "/create_flow_run")
            if created.ok:
                return str(created.json()["id"])
        raise AssertionError(f"the server starts no run: {created.text()}")

    def _press(self, button: Locator, asks: str) -> Response:
        """Press a button; what the server answers to the request below `asks` that this makes."""
        with self.page.expect_response(lambda answer: answer.url.endswith(asks)) as answered:
            button.click()
        return answered.value

    def open_artifact(self, key: str) -> None:
        """The page of the newest artifact of a key."""
        filters = {"artifacts": {"key": {"any_": [key]}}}
        answer = httpx.post(f"{self.api}/artifacts/latest/filter", json=filters, timeout=120).raise_for_status()
        self.open(f"artifacts/artifact/{answer.json()[0]['latest_id']}")
        self.page.get_by_role("tab", name="Artifact", exact=True).wait_for()

    def shot(self, name: str) -> None:
        """Save a picture of the page in the folder that PRETRIEVE_SCREENSHOTS names, if it names one."""
        if folder := os.environ.get("PRETRIEVE_SCREENSHOTS"):
            self.page.wait_for_timeout(SETTLED)
            self.page.screenshot(path=Path(folder) / f"{name}.png")


@contextmanager
def browser(api: str) -> Iterator[Browser]:
    """A window on the UI of the server at `api`."""
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not there: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # root has no sandbox
        page, ours = chromium.new_page(viewport={"width": 1280, "height": 800}), api.removesuffix("/api")
        page.route(lambda address: not address.startswith(ours), lambda route: route.abort())  # they ask others too
        try:
            yield Browser(page, api)
        finally:
            chromium.close()
