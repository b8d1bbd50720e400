"""The report's page in a real browser: it asks for nothing, fits a phone, follows the dark, and needs no mouse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.services.browser import CHROMIUM, patient_page
from tests.tasks.reports import published

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    return published(tmp_path_factory.mktemp("report")).as_uri()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def wide(page: Page) -> int:
    results: int = page.evaluate("document.documentElement.scrollWidth")
    return results


@pytest.mark.parametrize("width", [320, 390, 768, 1440])
def test_no_width_makes_the_page_scroll_sideways(chromium: Browser, report: str, width: int) -> None:
    page = patient_page(chromium, viewport={"width": width, "height": 800})
    page.goto(report)

    assert wide(page) == width
    for summary in page.locator("details > summary").all():
        if summary.is_visible():
            summary.click()
    assert wide(page) == width
    page.close()


def test_the_page_asks_for_itself_alone_and_reports_no_error(chromium: Browser, report: str) -> None:
    page, requested, said = patient_page(chromium), list[str](), list[str]()
    page.on("request", lambda request: requested.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.goto(report)

    assert (requested, said) == ([report], [])
    page.close()


def test_the_keyboard_reaches_the_results_and_opens_what_is_folded(chromium: Browser, report: str) -> None:
    page = patient_page(chromium, viewport={"width": 1440, "height": 900})
    page.goto(report)
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to the results"
    page.keyboard.press("Enter")
    assert page.url.endswith("#runs")

    folded = page.locator("details").first
    assert not folded.evaluate("each => each.open")
    folded.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert folded.evaluate("each => each.open")
    page.close()


def test_every_text_can_be_read_in_light_and_dark(chromium: Browser, report: str) -> None:
    for scheme in ("light", "dark"):
        page = patient_page(chromium, color_scheme=scheme)
        page.goto(report)
        results = page.evaluate(CONTRAST)
        assert results, scheme
        faint = {words: ratio for words, ratio in results.items() if ratio < 4.5}  # WCAG 2.2, 1.4.3
        assert not faint, (scheme, faint)
        page.close()


def test_on_paper_there_are_no_links_and_no_dark_ground(chromium: Browser, report: str) -> None:
    page = patient_page(chromium, color_scheme="dark")
    page.goto(report)
    page.emulate_media(media="print", color_scheme="light")

    assert not page.locator("nav.contents").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(page.pdf(format="A4")) > 20_000
    page.close()


# The contrast of each element's own text with the nearest ground that is painted behind it, by WCAG's formula.
CONTRAST = """() => {
  const channels = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = each => {
    for (let at = each; at; at = at.parentElement) {
      const found = channels(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const found = {};
  for (const each of document.querySelectorAll("body *:not(svg *)")) {
    const words = [...each.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join(" ").trim();
    if (!words || !each.checkVisibility()) continue;
    const [ink, paper] = [channels(getComputedStyle(each).color), ground(each)].map(light);
    found[words.slice(0, 60)] = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  }
  return found;
}"""
