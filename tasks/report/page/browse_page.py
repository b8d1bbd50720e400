"""The pages of `pretrieve browse`, from the parts of the report: self-contained HTML without scripts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlencode

from jinja2 import Template

from tasks.report.page.templates import css, template

WORD = re.compile(r"(\w+)")
STOP_WORDS = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
})  # fmt: skip
"""Lucene's stop words of English, which are not marked."""
SCORES = {"sum": "sum of all", "dense": "dense", "lexical": "lexical", "late": "late interaction", "bm25": "BM25"}


def page(name: str, **content: Any) -> str:
    """Return a complete page."""
    here = "" if name == "home" else name
    return _template(name).render(css=css("report", "browse"), here=here, **content)


def fragment(name: str, **content: Any) -> str:
    """Return a part of a page that is sent later than its head."""
    return _template(name).render(**content)


@cache
def _template(name: str) -> Template:
    return template(f"browse/{name}.html.j2", link=link, in_words=in_words, score_name=score_name, figure=figure)


def link(base: str, path: str, *parameters: Mapping[str, str], **more: Any) -> str:
    """Return the address of a page below `base`, with parameters; those that are None or empty are left out."""
    merged: dict[str, Any] = {}
    for given in (*parameters, more):
        merged |= given
    query = urlencode({name: value for name, value in merged.items() if value not in (None, "")})
    return f"{base}{path}?{query}" if query else f"{base}{path}"


def in_words(text: str, question: str) -> list[tuple[str, bool]]:
    """Return a text in parts, each with whether it is a word of the question, except for stop words."""
    words = {word.lower() for word in WORD.findall(question)} - STOP_WORDS
    parts: list[tuple[str, bool]] = []
    for part in WORD.split(text):
        marked = part.lower() in words
        if parts and parts[-1][1] == marked:
            parts[-1] = (parts[-1][0] + part, marked)
        else:
            parts.append((part, marked))
    return parts


def score_name(view: str) -> str:
    """Return the name of a view or of a ranking that is fused."""
    return SCORES.get(view, view)


def figure(value: float | None) -> str:
    """Format a score with four significant digits: `87.50`, `0.01639`."""
    return "–" if value is None else f"{value:#.4g}".replace("-", "−")
