"""The documentation's parts about the quickstart are what the kept results and the kept output say."""

import json
from typing import Any

import pytest

from flows import seed_results
from flows.documentation import quickstart
from storage.errors import UserError
from tests.flows.test_seed_results import report

OUTPUT = """Small
        MRR
system  @10
bm25  0.500
dense 0.625
1,200 queries of split test
"""


def kept(*reports: dict[str, Any]) -> dict[str, Any]:
    return seed_results.kept(reports)


def test_the_page_has_the_output_each_value_the_claims_and_the_cost() -> None:
    text = quickstart.complete(kept(report(42, 0.625, 0.2), report(43, 0.75, 0.01)), OUTPUT)
    lines = text.splitlines()

    assert text.startswith(f"```text\n{OUTPUT}```\n\n## With 2 seeds\n")
    assert "Leads; 1,200 queries of split test. MRR@10:" in lines
    assert lines[lines.index("| system | seed 42 | seed 43 | mean |") + 2 :][:2] == [
        "| `bm25` | 0.500 | 0.500 | 0.500 |", "| `dense` | 0.625 | 0.750 | 0.688 |"
    ]  # fmt: skip
    assert "- dense is better than bm25: supported with 1 of 2 seeds (+0.125, +0.250; largest p_holm = 0.20)" in lines
    assert "Not claimed: more than this." in lines
    assert lines[-1] == (
        "CPU time of a complete run on 2 cores (a processor): 132 to 133 s. The stages that take most, with the first "
        "seed: `train` 102 s, `encode` 30 s."
    )


def test_the_readme_has_the_printed_table_and_the_claims_by_seed() -> None:
    content = kept(report(42, 0.625, 0.2), report(43, 0.75, 0.01))

    lines = quickstart.brief(content, OUTPUT).splitlines()
    claims = quickstart.claims_by_seed(content).splitlines()

    assert lines[:6] == ["```text", *OUTPUT.splitlines()[1:5], "```"]
    assert "Leads; 1,200 queries of split test." in lines
    assert claims[0] == "| MRR@10 | seed 42 | seed 43 | supported | p_holm |"
    assert claims[2] == "| dense is better than bm25 | +0.125 | +0.250 | 1 of 2 seeds | largest = 0.20 |"
    assert claims[-1] == "Not claimed: more than this."


@pytest.mark.parametrize("output", ["", "system\nbm25 0.5\n", "system\nbm25 0.5\nsparse 0.6\n"])
def test_an_output_with_other_systems_is_refused(output: str) -> None:
    with pytest.raises(UserError, match="expected a table of bm25, dense; `make screenshots` writes it"):
        quickstart.printed_table(kept(report(42, 0.625, 0.2)), output)


def test_what_refutes_that_a_system_is_not_worse_is_the_smallest_p() -> None:
    reports = [report(42, 0.375, 0.2), report(43, 0.625, 0.08)]
    for made in (made for content in reports for made in content["claims"]["made"]):
        made["expected"] = "not worse"

    lines = quickstart.complete(kept(*reports), OUTPUT).splitlines()

    [line] = [line for line in lines if line.startswith("- dense is not significantly worse than bm25")]
    assert line.endswith("(−0.125, +0.125; smallest p_holm = 0.08; no proof that both are equal)")


def test_the_documents_are_what_the_kept_results_say() -> None:
    written = quickstart.documents()

    assert {path.name for path, text in written.items() if path.read_text(encoding="utf-8") != text} == set()
    assert [path.name for path in written] == ["README.md", "quickstart.md"]


def test_the_output_is_of_a_run_with_the_first_seed() -> None:
    content = json.loads(quickstart.RESULTS.read_text())
    header, names, *rows = quickstart.printed_table(content, quickstart.OUTPUT.read_text()).splitlines()
    column = [metric + cutoff for metric, cutoff in zip(header.split(), names.split()[1:], strict=True)].index("MRR@10")

    printed = {row.split()[0]: float(row.split()[1 + column].strip("▲▼")) for row in rows}
    assert printed == pytest.approx(content["runs"][0]["values"], abs=0.01)
