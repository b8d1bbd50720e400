"""What the documents say of results is what `make results` writes from the reports in `results/`."""

import json
import re
from pathlib import Path

from flows.documentation.results import IMAGES, documents
from flows.recipe.shipped import PROJECT
from tasks.report.page.markdown import results_page

EARLIER = PROJECT / "results" / "earlier"
"""Reports of earlier code, which no page shows."""


def test_a_document_is_what_the_results_say() -> None:
    built = documents()

    for path, text in built.items():
        assert path.is_file(), f"{path.relative_to(PROJECT)} is missing: run make results"
        assert path.read_text() == text, f"{path.relative_to(PROJECT)} is old: run make results"
    assert {path for path in IMAGES.glob("study_*.svg") if path not in built} == set()


def test_every_value_of_a_report_is_in_the_page_with_its_mark() -> None:
    for path in EARLIER.glob("*.json"):
        report, page = json.loads(path.read_text()), results_page([path])
        lines = {line.split("`")[1]: line.split(" | ")[1:] for line in page.splitlines() if line.startswith("| `")}
        metrics = list(dict.fromkeys(row["metric"] for row in report["rows"]))
        for row in report["rows"]:
            results = [test for test in report["comparisons"] if (test["run"], test["baseline"], test["metric"])
                     == (row["run"], report["headline"]["baseline"], row["metric"])]  # fmt: skip
            sign = "" if not results or results[0]["p_holm"] >= 0.05 else "▲" if results[0]["difference"] > 0 else "▼"
            shown = lines[row["run"]][metrics.index(row["metric"])]
            assert shown.strip(" |") == f"{row['value']:.3f}{sign}"


def test_the_page_has_a_reports_paper_and_other_splits(tmp_path: Path) -> None:
    content = json.loads((EARLIER / "vital_wikipedia.json").read_text())
    content["beside"] = [{"run": "retriever_2", "metric": "MRR@10", "theirs": 0.402, "ours": 0.7561}]
    row = {**content["rows"][0], "split": "dl19", "queries": 43, "value": 0.25}
    content["splits"] = [{"rows": [row], "comparisons": []}]
    content["environments"] = [{"cores": 2, "device": "a processor"}]
    content["costs"] = {"peak_memory_mib": 2048}
    (tmp_path / "one.json").write_text(json.dumps(content))
    (tmp_path / "one.md").write_text("Don't <trust> it.\n")

    page = results_page([tmp_path / "one.json"])

    assert "| `retriever_2` | MRR@10 | 0.402 | 0.756 |" in page
    assert re.search(r"Split dl19, 43 queries:\n\n\| system \| MRR@10 \|\n\|---\|---\|\n\| `bm25` \| 0\.250 \|", page)
    assert "on 2 cores (a processor), peak memory 2.0 GiB" in page
    assert "Don't <trust> it." in page
