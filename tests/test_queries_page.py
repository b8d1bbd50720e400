"""The page of a corpus says what was measured and shows hostile text as text; stats and diff print the same figures."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from flows.queries.diff import show_difference
from flows.queries.page import publish_page, show_queries
from flows.queries.stats import show_stats
from flows.queries.versions import Version, note_version
from storage.artifact import Artifact
from storage.rows import write_rows
from storage.settings import Settings
from storage.store import Store
from storage.tables import Passages, PseudoQueries, passage_sha256
from tasks.compare_queries import compare_queries
from tasks.page.histograms import columns_of_lengths, columns_of_ranks, columns_of_relevance
from tasks.page.queries import marked, seen, share
from tasks.query_quality import Sampling, query_quality
from tasks.stage import stage
from tests.tasks.corpora import passage, pseudo_query

HOSTILE = "<script>alert('q')</script> & \x00\x1b \u202etxet | `code` [here](javascript:x) *bold*"
TEXT = "The red fox runs <b>home</b>."
SAMPLING = Sampling(passages=9, samples=9, seed=1)


class Rows(Settings):
    """The rows of a table, as a test writes them."""

    rows: list[dict[str, Any]]


@stage(version=1, table=PseudoQueries)
def some_queries(out: Path, *, settings: Rows) -> None:
    """Write them."""
    write_rows(out, PseudoQueries, settings.rows)


@stage(version=1, table=Passages)
def some_passages(out: Path, *, settings: Rows) -> None:
    """Write them."""
    write_rows(out, Passages, settings.rows)


def row(rank: int, query: str, **changes: Any) -> dict[str, Any]:
    return pseudo_query("a<i>", rank, query, passage_sha256=passage_sha256(TEXT), **changes)


FIRST = [row(0, "red fox", round_trip=1, relevance=1.5), row(1, "who runs home", round_trip=3, relevance=0.5)]
SECOND = [
    row(0, "red fox", round_trip=1, relevance=1.5),
    row(1, HOSTILE, round_trip=0, relevance=-2.0, kept=False, reason="round trip"),
    row(2, "where is it", round_trip=2, relevance=0.25, generator="<llm>"), row(3, "", generator="<llm>"),
]  # fmt: skip
Make = Callable[[list[dict[str, Any]]], Artifact[PseudoQueries]]


@pytest.fixture
def passages(store: Store) -> Artifact[Passages]:
    return some_passages(settings=Rows(rows=[passage("a<i>", TEXT)]))


def page_of(store: Store, passages: Artifact[Passages], before: list[dict[str, Any]] | None, after: Any) -> Path:
    queries = some_queries(settings=Rows(rows=after))
    quality = query_quality(passages, queries, None, settings=SAMPLING)
    earlier = some_queries(settings=Rows(rows=before)) if before else None
    return publish_page(store.root, "small/<x>", quality, compare_queries(earlier, queries) if earlier else None)


class Elements(HTMLParser):
    """The tags and attributes of a page, and its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.words += data


def test_hostile_text_is_shown_as_text(store: Store, passages: Artifact[Passages]) -> None:
    page = page_of(store, passages, FIRST, SECOND)
    html = page.read_text()
    found = Elements(html)

    assert page == store.root / "reports" / "small" / "<x>-queries" / "report.html"
    assert "<script>alert('q')</script> & ␀␛ ⟨U+202E⟩txet | `code` [here](javascript:x) *bold*" in found.words
    assert found.tags.isdisjoint({"script", "b", "i", "llm", "x", "a", "img", "link", "iframe"})
    assert not {name for name in found.attributes if name.startswith("on")} | found.attributes & {"href", "src"}
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", html)
    assert "url(" not in html


def test_markdown_shows_hostile_text_as_text(store: Store, passages: Artifact[Passages]) -> None:
    text = page_of(store, passages, FIRST, SECOND).with_suffix(".md").read_text()
    lines = [line for line in text.splitlines() if "txet" in line]

    assert len(lines) == 2  # made in place of another, and among the samples
    for line in lines:
        assert (
            r"&lt;script&gt;alert('q')&lt;/script&gt; &amp; ␀␛ ⟨U+202E⟩txet \| \`code\` \[here\](javascript:x) " in line
        )
        assert r"\*bold\*" in line
    assert "<" not in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", text)


def test_the_page_says_what_was_measured(store: Store, passages: Artifact[Passages]) -> None:
    page = page_of(store, passages, FIRST, SECOND)
    words, text = Elements(page.read_text()).words, page.with_suffix(".md").read_text()

    assert "1 passages, 4 queries written, 2 kept; by &lt;llm&gt;, t5." in text
    for line in ("as they were | 1", "made | 1", "rewritten | 1", "dropped | 0", "queries written | 2 | 4 | +2"):
        assert f"| {line} |" in text
    assert "| kept | 100.0 % | 50.0 % | −50.0 points |" in text
    assert "Up to rank 2 is kept." in text
    assert "The cut: up to rank 2 is kept." in words
    assert "The cut: 0.25" not in words  # nothing was dropped by its relevance
    for said in ("What has changed since the version before", "of 3 queries (every query)", "dropped: round trip"):
        assert said in words


def test_a_first_version_is_compared_with_none(store: Store, passages: Artifact[Passages]) -> None:
    page = page_of(store, passages, None, FIRST)

    for file in (page, page.with_suffix(".md")):
        assert "since the version before" not in file.read_text()


def test_of_nothing_kept_there_are_dashes(store: Store, passages: Artifact[Passages]) -> None:
    page = page_of(store, passages, FIRST, [row(0, "")])

    assert re.search(r"<dt>are distinct</dt><dd>–</dd>", page.read_text())
    assert "| are distinct | – |" in page.with_suffix(".md").read_text()


def test_equal_inputs_make_equal_bytes(store: Store, passages: Artifact[Passages]) -> None:
    pages = [[page_of(store, passages, FIRST, SECOND).with_suffix(end).read_bytes() for end in (".html", ".md")]
             for _ in range(2)]  # fmt: skip

    assert pages[0] == pages[1]


def versions(store: Store, passages: Artifact[Passages]) -> list[Version]:
    made = (some_queries(settings=Rows(rows=rows)) for rows in (FIRST, SECOND))
    return [note_version("small/x", queries, passages, store)[0] for queries in made]


def test_diff_prints_what_has_changed(
    store: Store, passages: Artifact[Passages], capsys: pytest.CaptureFixture[str]
) -> None:
    versions(store, passages)
    said = []
    for _ in range(2):
        show_difference("small/x@1", "small/x", store.root)
        said.append(capsys.readouterr())

    assert re.search(r"as they were +1 +0 +1", said[0].out)  # in all, of <llm>, of t5
    assert re.search(r"kept +100.0 % +50.0 % +−50.0 points", said[0].out)
    assert "rewritten: who runs home → <script>alert('q')</script> & ␀␛ ⟨U+202E⟩txet" in " ".join(said[0].out.split())
    assert "built in" in said[0].err
    assert "cached" in said[1].err
    assert said[0].out == said[1].out


def test_stats_are_those_that_were_measured_before(
    store: Store, passages: Artifact[Passages], capsys: pytest.CaptureFixture[str]
) -> None:
    _, newest = versions(store, passages)
    query_quality(passages, newest.queries, None, settings=SAMPLING)
    show_stats("small/x", store.root)
    said = capsys.readouterr()

    assert re.search(r"queries written +4 +<llm> 2, t5 2", said.out)
    assert re.search(r"dropped: round trip +1", said.out)
    assert re.search(r"success@10 +66.7 % +3 queries: every query", said.out)
    assert said.err == ""


def test_stats_of_what_nobody_has_measured(
    store: Store, passages: Artifact[Passages], capsys: pytest.CaptureFixture[str]
) -> None:
    queries = some_queries(settings=Rows(rows=[row(0, "red fox")]))
    note_version("x", queries, passages, store)
    show_stats(queries.key[:8], store.root)

    assert re.search(r"round trip +– +not measured", capsys.readouterr().out)


def test_a_server_that_is_away_does_not_fail_the_run(
    store: Store, passages: Artifact[Passages], monkeypatch: pytest.MonkeyPatch
) -> None:
    import prefect.artifacts

    def away(**given: Any) -> None:
        told.append(given)
        raise ConnectionError("nobody listens")

    told: list[dict[str, Any]] = []
    monkeypatch.setattr(prefect.artifacts, "create_markdown_artifact", away)
    monkeypatch.setattr(prefect.artifacts, "create_link_artifact", away)
    monkeypatch.setenv("PRETRIEVE_REPORTS_URL", "http://127.0.0.1:4201/")
    page = page_of(store, passages, None, FIRST)
    show_queries("small/x", page)

    assert [each["key"] for each in told] == ["small-x-queries", "small-x-queries-page"]
    assert told[0]["markdown"] == page.with_suffix(".md").read_text()
    assert told[1]["link"] == "http://127.0.0.1:4201/small/x-queries/report.html"


def test_a_cut_within_a_range_of_ranks_parts_it() -> None:
    found = columns_of_ranks({"cut": 7, "ranks": [[0, 0, 9], [1, 5, 0], [6, 2, 1], [7, 1, 0], [8, 0, 3], [12, 0, 4]]})

    assert [(each["label"], each["kept"], each["dropped"]) for each in found] == [
        ("1", 5, 0), ("2", 0, 0), ("3", 0, 0), ("4 to 5", 0, 0), ("6 to 7", 3, 1), ("8 to 10", 0, 3),
        ("11 to 20", 0, 4), ("not found", 0, 9),
    ]  # fmt: skip
    assert [each["label"] for each in found if each["cut"]] == ["8 to 10"]


@pytest.mark.parametrize("cut", [None, -1.37, 0.0, 4.02])
def test_scores_lose_none_and_a_column_begins_at_the_cut(cut: float | None) -> None:
    counts = [[hundredths / 100, 1, 2] for hundredths in range(-620, 740, 7)]
    found = columns_of_relevance({"cut": cut, "counts": counts})

    assert sum(each["kept"] for each in found) == len(counts)
    assert len(found) <= 30
    below = sum(each["kept"] for each in found[: next((n for n, each in enumerate(found) if each["cut"]), 0)])
    assert below == (0 if cut is None else sum(score < cut for score, _, _ in counts))


def test_long_queries_stand_together() -> None:
    found = columns_of_lengths({"30": 4, "33": 2, "900": 1})

    assert [(each["label"], each["kept"]) for each in found] == [("30", 4), ("31", 0), ("32+", 3)]
    assert columns_of_lengths({}) == []


def test_texts_and_shares_as_they_are_shown() -> None:
    assert seen("a\tb\x7f\x85") == "a\tb␡⟨U+0085⟩"
    assert marked("line\nbreak # 1") == r"line break \# 1"
    assert [share(each) for each in (None, 0.0, 0.5, 0.0004)] == ["–", "0.0 %", "50.0 %", "0.04 %"]
