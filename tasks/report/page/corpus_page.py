"""The page of a corpus of pseudo-queries, in HTML and Markdown: no script, no request to a server, texts escaped."""

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
REASONS = {"": "kept", "empty": "empty"}  # of another reason: "dropped: REASON"
# The labels of the shares in quality.json.
SHARES = {
    "kept_share": "of generated queries are kept",
    "distinct_share": "are distinct",
    "distinct_share_in_passage": "are distinct within their passage",
    "copied_share": "of their words occur in the passage",
    "verbatim_share": "are verbatim pieces of the passage",
    "question_share": "are questions",
    "long_share": "are too long",
    "looped_share": "contain a loop",
}
PASSAGE_FATES = {
    "same": "same id and text", "moved": "same text under another id", "changed": "changed text", "new": "new",
    "removed": "removed",
}  # fmt: skip
QUERY_FATES = {
    "kept": "unchanged", "made": "new", "rewritten": "resampled", "dropped": "removed",
    "filtered_out": "newly dropped by the filter", "let_in": "no longer dropped by the filter",
}  # fmt: skip
COMPARED = {
    "passages": "passages", "written": "queries generated", "queries": "queries kept", "kept_share": "kept",
    "mean_words": "words on average", "distinct_share": "distinct", "question_share": "questions",
    "long_share": "too long", "looped_share": "with a loop", "success@1": "round trip: rank 1",
    "success@10": "round trip: top 10", "mrr@10": "round trip: MRR@10",
}  # fmt: skip
MARKS = re.compile(r"([\\`*_\[\]|~#])")


def html_page(content: Mapping[str, Any]) -> str:
    """Return the HTML of a corpus: `name`, `quality` and `comparison` (or None); equal content gives equal bytes."""
    return _template("queries.html.j2").render(_parts(content), css=css("report", "queries"))


def markdown_page(content: Mapping[str, Any]) -> str:
    """Return the page in Markdown."""
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
    """Return a text on one line, with Markdown's special characters escaped."""
    return MARKS.sub(r"\\\1", html.escape(" ".join(printable(text).split()), quote=False))


def share(part: float | None) -> str:
    """Format a share in percent, or None as a dash."""
    return "–" if part is None else f"{_digits(100 * part)} %"


def value(number: float | None) -> str:
    """Format a count, or a mean with two or three digits, or None as a dash."""
    if number is None or isinstance(number, int):
        return "–" if number is None else f"{number:,}"
    return f"{number:,.2f}" if abs(number) >= 1 else f"{number:.3f}"


def _digits(percent: float) -> str:
    """Format with one decimal digit, or with enough digits not to show 0."""
    return f"{percent:.1f}" if percent >= 0.1 or not percent else f"{percent:.1g}"


def fate(query: Mapping[str, Any]) -> str:
    """Return the note on a sample query: its rank, its relevance, and why it is dropped."""
    trip, relevance = query["round_trip"], query["relevance"]
    remarks = [
        "" if trip is None else f"rank {trip}" if trip else "not found",
        "" if relevance is None else f"relevance {relevance:.2f}",
        "" if query["kept"] else reason_in_words(query["reason"]),
    ]
    return ", ".join(filter(None, remarks))


def reason_in_words(reason: str) -> str:
    """Return what the reason of a row says about it."""
    return REASONS.get(reason, f"dropped: {reason}")


def _parts(content: Mapping[str, Any]) -> dict[str, Any]:
    quality, comparison = content["quality"], content["comparison"]
    return {
        "name": content["name"],
        "quality": quality,
        "comparison": comparison,
        "tiles": [(share(quality[name]), words) for name, words in SHARES.items()],
        "fates": bars([("kept", quality["queries"]), *((reason_in_words(reason), count) for reason, count in
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
    """Return bars of counts; a width is relative to the largest count, a share to `total` if that is given."""
    most = max((count for _, count in counts), default=0) or 1
    return [
        {"name": name, "count": count, "width": count / most, "share": count / total if total else None}
        for name, count in counts
    ]


def beside(comparison: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return label, value before, value after and change of each measure that both versions have."""
    rows = []
    flat = [{**comparison[side], **(comparison[side]["round_trip"] or {})} for side in ("before", "after")]
    flat = [
        {**figures, "queries": comparison[side]["queries"]}
        for figures, side in zip(flat, ("before", "after"), strict=True)
    ]
    for name, words in COMPARED.items():
        before, after = (figures.get(name) for figures in flat)
        if before is not None and after is not None:
            rows.append((words, *(_figure(name, value) for value in (before, after)), _change(name, after - before)))
    return rows


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
