"""The page of an adaptation: what was found of the collection, and what the plan took."""

from __future__ import annotations

import re
from typing import Any

from tasks.report.page.adaptation_page import page


def content() -> dict[str, Any]:
    """The report.json of an adaptation, without measurements."""
    return {
        "request": {"collection": "texts <1>", "start": "a/start", "teacher": None},
        "verdict": "Nothing was gained", "winner": "start", "advice": "", "judged_queries": 0,
        "survey": {"form": "a folder of texts", "documents": 1_234, "titles": 1_200, "duplicates": 7, "empty": 3,
                   "median_words": 1_046, "percentile_95_words": 2_345},
        "languages": "de 96 %, en 4 %", "method": "no generator", "counts": {"train": 2_000, "heldout": 300},
        "size": "medium", "estimated_seconds": 4_020.0, "stage_seconds": 61.0, "metric": "nDCG@10", "rows": [],
        "tests": [], "rejected": {}, "recipe": "adapt.yaml",
    }  # fmt: skip


def test_a_model_that_was_not_returned_can_be_exported() -> None:
    rejected = {
        "rejected": {"adapted_bm25": "not significantly better"}, "index": {"store": "/my store"},
        "checkpoints": {"adapted_bm25": "0123456789abcdef"},
    }  # fmt: skip
    command = "pretrieve export 01234567 adapted_bm25 --store &#39;/my store&#39;"

    assert command in page(content() | rejected)
    assert "pretrieve export" not in page(content())


def test_the_number_of_judged_queries_is_said() -> None:
    assert "judged queries decided" not in page(content())
    assert "<p>3 judged queries decided, too. These are few" in page(content() | {"judged_queries": 3})
    assert "<p>1,200 judged queries decided, too.</p>" in page(content() | {"judged_queries": 1200})


def test_every_system_but_the_start_has_its_difference_and_p_value() -> None:
    """Those of its own set of queries."""

    def measured(dataset: str, run: str) -> dict[str, Any]:
        return {"dataset": dataset, "run": run, "value": 0.5, "low": 0.45, "high": 0.55}

    systems = [("heldout", "start"), ("heldout", "adapted_bm25"), ("judged", "start"), ("judged", "adapted_bm25")]
    tests = [
        {"dataset": "judged", "run": "adapted_bm25", "difference": -0.012, "p": 0.01, "p_holm": 0.02},
        {"dataset": "heldout", "run": "adapted_bm25", "difference": 0.254, "p": 1e-65, "p_holm": 1e-64},
    ]
    table = page(content() | {"rows": [measured(*of) for of in systems], "tests": tests})
    head, *rows = re.findall("<tr>(.*?)</tr>", table)

    assert re.findall(">([^<]+)</th>", head)[-2:] == ["difference from the start", "p (Holm)"]
    assert [re.findall("<td>(.*?)</td>", row)[-2:] for row in rows] == [
        ["–", "–"], ["+0.254", "&lt; 0.0001"], ["–", "–"], ["−0.012", "0.02"]
    ]  # fmt: skip


def test_the_page_has_languages_lengths_titles_and_times() -> None:
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page(content())))

    assert facts["collection"] == "texts &lt;1&gt;: a folder of texts"
    assert facts["documents"] == "1,234, 1,200 with a title, 7 duplicates, 3 empty"
    assert facts["languages"] == "de 96 %, en 4 %"
    assert facts["words of a document"] == "median 1,046, 95 % have at most 2,345"
    assert facts["plan"] == "medium: estimated 1 h 7 min, its stages took 1 min 1 s"
