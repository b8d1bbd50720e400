"""The page of a corpus of pseudo-queries, in HTML and in Markdown: no script, no request, every text escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Template

from storage.errors import printable
from tasks.report.page.histograms import columns_of_lengths, columns_of_ranks, columns_of_relevance, columns_of_tenths
from tasks.report.page.templates import css, template

LANGUAGES_SHOWN, SAMPLES_OPEN = 12, 6
BAR = 24  # characters of the longest bar in Markdown
REASONS = {"": "kept", "round trip": "dropped: round trip", "relevance": "dropped: relevance", "empty": "empty"}
# What quality.json calls its shares, in words.
SHARES = {
    "kept_share": "of what was written is kept",
    "distinct_share": "are distinct",
    "distinct_share_in_passage": "are distinct within their passage",
    "copied_share": "of their words are in the passage",
    "verbatim_share": "are pieces of the passage, word for word",
    "question_share": "are questions",
    "long_share": "are too long",
    "looped_share": "go round in a loop",
}
PASSAGE_FATES = {
    "same": "same id and text", "moved": "same text under another id", "changed": "changed text", "new": "new",
    "removed": "removed",
}  # fmt: skip
QUERY_FATES = {
    "kept": "as they were", "made": "made", "rewritten": "rewritten", "dropped": "dropped",
    "filtered_out": "the filter drops now", "let_in": "the filter drops no longer",
}  # fmt: skip
COMPARED = {
    "passages": "passages", "written": "queries written", "queries": "queries kept", "kept_share": "kept",
    "mean_words": "words on average", "distinct_share": "distinct", "question_share": "questions",
    "long_share": "too long", "looped_share": "in a loop", "success@1": "lead back at rank 1",
    "success@10": "lead back in the top 10", "mrr@10": "MRR@10 of the round trip",
}  # fmt: skip
MARKS = re.compile(r"([\\`*_\[\]|~#])")


def html_page(content: Mapping[str, Any]) -> str:
    """The HTML of a corpus: `name`, `quality` and `comparison` (or None). Equal content makes equal bytes."""
    return _template("queries.html.j2").render(_parts(content), css=css("report", "queries"))


def markdown_page(content: Mapping[str, Any]) -> str:
    """The same in Markdown."""
    return _template("queries.md.j2").render(_parts(content))


@cache
def _template(name: str) -> Template:
    return template(
        name,
        share=share,
        value=value,
        printable=printable,
        marked=marked,
        bar=lambda part: "█" * round(BAR * part) or ("▏" if part else ""),
        fate=fate,
    )


def marked(text: str) -> str:
    """A text that Markdown shows as it is, on one line."""
    return MARKS.sub(r"\\\1", html.escape(" ".join(printable(text).split()), quote=False))


def share(part: float | None) -> str:
    """A share in percent, or a dash of nothing."""
    return "–" if part is None else f"{_digits(100 * part)} %"


def value(number: float | None) -> str:
    """A count, or a mean with two digits and more where it is small; a dash of nothing."""
    if number is None or isinstance(number, int):
        return "–" if number is None else f"{number:,}"
    return f"{number:,.2f}" if abs(number) >= 1 else f"{number:.3f}"


def _digits(percent: float) -> str:
    """With one digit after the point, or so many that it is not 0."""
    return f"{percent:.1f}" if percent >= 0.1 or not percent else f"{percent:.1g}"


def fate(query: Mapping[str, Any]) -> str:
    """What is said of a sample's query: its rank, its relevance, and why it is dropped."""
    trip, relevance = query["round_trip"], query["relevance"]
    said = [
        "" if trip is None else f"rank {trip}" if trip else "not found",
        "" if relevance is None else f"relevance {relevance:.2f}",
        "" if query["kept"] else REASONS.get(query["reason"], f"dropped: {query['reason']}"),
    ]
    return ", ".join(filter(None, said))


def _parts(content: Mapping[str, Any]) -> dict[str, Any]:
    quality, comparison = content["quality"], content["comparison"]
    return {
        "name": content["name"],
        "quality": quality,
        "comparison": comparison,
        "tiles": [(share(quality[name]), words) for name, words in SHARES.items()],
        "fates": bars([("kept", quality["queries"]), *((REASONS.get(each, each), count) for each, count in
                                                      quality["dropped"].items())], quality["written"]),
        "lengths": columns_of_lengths(quality["words"]),
        "copies": columns_of_tenths(quality["copied_tenths"]),
        "ranks": columns_of_ranks(quality["round_trip"]) if quality["round_trip"] else [],
        "relevance": columns_of_relevance(quality["relevance"]) if quality["relevance"] else [],
        "first_words": bars(quality["first_words"], quality["queries"]),
        "languages": bars(list(quality["languages"]["of"].items())[:LANGUAGES_SHOWN],
                          quality["languages"]["queries"]),
        "compared": beside(comparison) if comparison else [],
        "passage_fates": bars([(words, comparison["passages"][name]) for name, words in PASSAGE_FATES.items()])
        if comparison else [],
        "query_fates": bars([(words, comparison["queries"][name]) for name, words in QUERY_FATES.items()])
        if comparison else [],
        "open": SAMPLES_OPEN,
    }  # fmt: skip


def bars(counts: Sequence[tuple[str, int]], total: int = 0) -> list[dict[str, Any]]:
    """Names with their counts, each as a part of the largest and, where all are so many, of all."""
    most = max((count for _, count in counts), default=0) or 1
    return [
        {"name": name, "count": count, "width": count / most, "share": count / total if total else None}
        for name, count in counts
    ]


def beside(comparison: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Figure, before, after and change, for each figure that both versions have."""
    found = []
    flat = [{**comparison[side], **(comparison[side]["round_trip"] or {})} for side in ("before", "after")]
    flat = [
        {**each, "queries": comparison[side]["queries"]} for each, side in zip(flat, ("before", "after"), strict=True)
    ]
    for name, words in COMPARED.items():
        before, after = (each.get(name) for each in flat)
        if before is not None and after is not None:
            found.append((words, *(_figure(name, each) for each in (before, after)), _change(name, after - before)))
    return found


def _figure(name: str, number: float) -> str:
    return share(number) if _is_share(name) else value(number)


def _change(name: str, difference: float) -> str:
    if not difference:
        return "="
    size = abs(difference)
    shown = f"{_digits(100 * size)} points" if _is_share(name) else value(size)
    return f"{'+' if difference > 0 else '−'}{shown}"


def _is_share(name: str) -> bool:
    return name.endswith("_share") or name.startswith("success")
