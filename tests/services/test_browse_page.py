"""The page of `pretrieve browse` in a real browser: with the keyboard only, on a phone, in light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from storage.store.store import Store
from tasks.session import Execution, Session, session
from tests.browsed_run import finished, served
from tests.services.browser import patient_page
from tests.services.test_report_page import CONTRAST, chromium, wide

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FloatRect, Locator, Page

__all__ = ["chromium"]
PAGES = (
    "", "search?q=river painter", "search?query=q5&a=hybrid&b=bm25", "queries", "training", "negatives?query=q0",
    "passage?id=d5%230", "passage?id=none",
)  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = Store(tmp_path_factory.mktemp("browse") / "store")
    store.mark()
    with session(Session(store, Execution(workers=1, threads=1, device="cpu"))):
        finished(store)
    with served(store) as address:
        yield address


def box(locator: Locator) -> FloatRect:
    """Return where an element is on the page."""
    found = locator.bounding_box()
    assert found
    return found


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def test_a_question_is_asked_and_a_passage_opened_by_the_keyboard(chromium: Browser, site: str) -> None:
    page = patient_page(chromium, viewport={"width": 1280, "height": 900})
    page.goto(site)
    press(page, "Tab")
    assert page.locator(":focus").inner_text() == "Skip to the content"
    press(page, "Enter", "Tab")
    assert page.locator(":focus").get_attribute("name") == "q"
    page.keyboard.type("river painter")
    press(page, "Enter")
    page.locator(".answer").wait_for()

    assert page.locator("h1").inner_text() == "river painter"
    assert not page.locator(".progress").first.is_visible()
    left, right = page.locator(".side-by-side > section").all()
    assert box(left)["y"] == box(right)["y"]
    assert left.locator("li.hit").count() > 3
    for _ in range(20):
        press(page, "Tab")
        if "and its queries" in page.evaluate("document.activeElement.innerText"):
            break
    press(page, "Enter")
    page.get_by_role("heading", name="Pseudo-queries").wait_for()
    page.close()


@pytest.mark.parametrize("width", [320, 390, 1440])
def test_no_page_scrolls_sideways(chromium: Browser, site: str, width: int) -> None:
    page = patient_page(chromium, viewport={"width": width, "height": 800})
    for path in PAGES:
        page.goto(site + path)
        assert wide(page) == width, path
    page.close()


def test_on_a_phone_results_are_below_each_other_and_linked(chromium: Browser, site: str) -> None:
    page = patient_page(chromium, viewport={"width": 390, "height": 800}, has_touch=True)
    page.goto(f"{site}search?q=river painter")
    left, right = page.locator(".side-by-side > section").all()
    assert box(left)["y"] < box(right)["y"]
    page.get_by_role("navigation", name="Results").get_by_role("link").nth(1).click()
    assert right.locator("h2").is_visible()
    assert 0 <= box(right)["y"] < 400
    for control in page.locator(".ask input:visible, .ask select, .ask button").all():
        assert box(control)["height"] >= 40
    page.close()


def test_pages_ask_only_their_server_run_nothing_and_can_be_read(chromium: Browser, site: str) -> None:
    requested, said = list[str](), list[str]()
    for scheme in ("light", "dark"):
        page = patient_page(chromium, color_scheme="dark" if scheme == "dark" else "light")
        page.on("request", lambda request: requested.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        for path in PAGES:
            page.goto(site + path)
            assert page.title() != "run"  # what the script in a text would set
            faint = {words: ratio for words, ratio in page.evaluate(CONTRAST).items() if ratio < 4.5}
            assert not faint, (scheme, path, faint)
        page.close()
    assert all(address.startswith(site) for address in requested)
    assert [line for line in said if "404" not in line] == []
