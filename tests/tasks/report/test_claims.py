"""A report says which of its recipe's claims the run's tests support, and what is not claimed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flows.recipe.load import load_recipe
from storage.artifact import Artifact
from storage.errors import UserError
from tasks.report.claims import Claim, Claims, judged
from tasks.report.page.statistics import claimed
from tasks.report.publish import publish, terminal_table
from tasks.report.report import report
from tests.tasks.report.measurements import SETTINGS, STAGES, comparison

NOT_MADE = "that <anything> holds for other collections"
EXPECTED = ("better", "not worse")


@pytest.mark.parametrize(
    ("difference", "p_holm", "supported"),
    [(0.1, 0.049, [True, True]), (0.1, 0.051, [False, True]), (-0.1, 0.051, [False, True]),
     (-0.1, 0.049, [False, False]), (0.0, 1.0, [False, True])],
)  # fmt: skip
def test_a_claim_is_supported_if_the_corrected_test_agrees(
    difference: float, p_holm: float, supported: list[bool]
) -> None:
    made = [Claim(run="dense", baseline="bm25", expected=expected) for expected in EXPECTED]
    tests = [comparison(difference=difference, p_holm=p_holm), comparison(metric="nDCG@10", difference=-1.0, p_holm=0)]

    decided = judged(Claims(made=made, not_made=[]), tests, "MRR@10")["made"]

    assert [claim["supported"] for claim in decided] == supported
    assert {(claim["difference"], claim["p_holm"]) for claim in decided} == {(difference, p_holm)}


def test_a_decision_has_its_difference_and_probability() -> None:
    claim = {"run": "a", "baseline": "b", "expected": "not worse", "supported": False, "difference": -0.0126,
             "p_holm": 0.012}  # fmt: skip

    assert claimed(claim, "MRR@10") == (
        "a is not significantly worse than b: not supported, −0.013 MRR@10 (p_holm = 0.012)"
    )


def test_page_and_terminal_say_what_is_claimed_and_what_is_not(
    metrics: Artifact[Any], quality: Artifact[Any], checkpoint: Artifact[Any],
    beside: tuple[Artifact[Any], Artifact[Any], list[Artifact[Any]]], tmp_path: Path,
) -> None:  # fmt: skip
    topics, agreement, stored = beside
    claims = Claims(made=[Claim(run="dense", baseline="bm25", expected="better")], not_made=[NOT_MADE])
    report.body(
        tmp_path / "made", [metrics], topics, quality, [agreement], [checkpoint], stored, None, [], [],
        settings=SETTINGS.model_copy(update={"claims": claims}),
    )  # fmt: skip
    page = publish(tmp_path / "out", Artifact("report", "r" * 24, tmp_path / "made"), STAGES)
    console = Console(width=200)
    with console.capture() as printed:
        console.print(terminal_table(page.with_name("report.json")))

    decision = "dense is better than bm25: supported, +0.312 MRR@10 (p_holm = 0.03)"
    assert f'<li class="good">{decision}</li>' in page.read_text()
    assert "<li>that &lt;anything&gt; holds for other collections</li>" in page.read_text()
    assert f"claimed: {decision}" in printed.get()
    assert f"not claimed: {NOT_MADE}" in printed.get()


def test_a_report_without_claims_has_none(make: Callable[[Path], Artifact[Any]], tmp_path: Path) -> None:
    page = publish(tmp_path / "out", make(tmp_path / "made"), STAGES)

    assert 'id="claims"' not in page.read_text()
    assert '"claims"' not in page.with_name("report.json").read_text()
    assert "claims" not in SETTINGS.model_dump()  # so that keys of reports without claims stay


def test_only_what_is_tested_can_be_claimed() -> None:
    change = "claims={made: [{run: retriever_1, baseline: retriever_2, expected: better}], not_made: []}"

    with pytest.raises(
        UserError, match=r"claims\.made: expected a pair of evaluate\.comparisons, found retriever_1 with"
    ):
        load_recipe("small/co_condenser", [change])
