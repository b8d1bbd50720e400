"""An analysis's part of a report, drawn as any page may include it: with Jinja's own filters, and nothing undefined."""

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

PAGE = Path(__file__).parents[3] / "tasks" / "report" / "page"
ENVIRONMENT = Environment(
    loader=FileSystemLoader(PAGE), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
)


class Checked(HTMLParser):
    """Holds that every tag is closed, that ids are there once, and collects what a reader sees."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.named: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in {"br", "hr", "img"}:
            self.open.append(tag)
        self._note(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._note(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def _note(self, attrs: list[tuple[str, str | None]]) -> None:
        of = {name: value or "" for name, value in attrs}
        self.ids += [of["id"]] if "id" in of else []
        self.named += of.get("aria-labelledby", "").split()
        assert not {"onclick", "onload", "src", "href"} & set(of)


def section(name: str, content: Mapping[str, Any], number: int = 3) -> Checked:
    """The section of this analysis, which asks for nothing and has no script."""
    html = ENVIRONMENT.get_template(f"analyses/{name}.html.j2").render(analysis=content, number=number)
    seen = Checked(html)
    assert not {"script", "link", "style", "iframe"} & set(seen.tags)
    assert "url(" not in html
    assert len(set(seen.ids)) == len(seen.ids)
    assert set(seen.named) <= set(seen.ids)
    assert all(str(number) in identifier for identifier in seen.ids)  # else two analyses of a page had the same
    seen.text = re.sub(r"\s+", " ", seen.text)
    return seen
