"""The site's pages, opened from a folder: the search works, and no page requests anything from a server."""

from __future__ import annotations

from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from flows.recipe.shipped import PROJECT
from tests.services.browser import CHROMIUM, patient_page

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not there: apt-get install chromium")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    config = load_config(str(PROJECT / "mkdocs.yml"), site_dir=str(folder))
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    return folder


@pytest.mark.parametrize("start", ["index.html", "tutorials/write_a_recipe.html"])
def test_the_search_finds_pages_without_a_server(site: Path, start: str) -> None:
    from playwright.sync_api import sync_playwright

    requested, errors = list[str](), list[str]()
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = patient_page(chromium)
        page.on("request", lambda request: requested.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((site / start).as_uri())
        page.locator(".md-search__input").click()
        page.locator(".md-search__input").press_sequentially("competitively learning")
        page.locator(".md-search-result__link[href*='reproduce/came.html']").first.click()
        page.wait_for_url("**/reproduce/came.html*")
        chromium.close()

    assert [url for url in requested if not url.startswith(("file://", "data:"))] == []
    assert errors == []
