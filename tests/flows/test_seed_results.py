"""The README's part about several seeds is what the kept file says, and that file is what reports say."""

import json
from typing import Any

import pytest
import yaml

from flows import seed_results
from storage.errors import UserError

RUNS = ("bm25", "dense")


def report(seed: int, dense: float, p_holm: float, **recipe: Any) -> dict[str, Any]:
    """A published report, as far as its results are kept."""
    text = yaml.safe_dump({"seed": seed, "pretrain": {"steps": 8, "seed": seed}, **recipe})
    test = {"run": "dense", "baseline": "bm25", "difference": dense - 0.5, "p": p_holm / 2, "p_holm": p_holm}
    claim = {"run": "dense", "baseline": "bm25", "expected": "better", "supported": p_holm < 0.05 and dense > 0.5}
    return {
        "recipe": {"recipe": "small", "title": "Small", "dataset": "Leads", "text": text},
        "headline": {"main": "dense", "baseline": "bm25", "metric": "MRR@10"},
        "rows": [
            {"run": run, "split": "test", "metric": metric, "value": value, "queries": 1200}
            for run, value in zip(RUNS, (0.5, dense), strict=True)
            for metric in ("MRR@10", "nDCG@10")
        ],
        "comparisons": [{**test, "metric": metric} for metric in ("MRR@10", "nDCG@10")],
        "claims": {"made": [{**claim, "difference": dense - 0.5, "p_holm": p_holm}], "not_made": ["more than this"]},
        "inputs": {"report": f"r{seed}", "metrics": f"m{seed}"},
        "costs": {"kinds": [{"stage": "train", "cpu_seconds": 60.0 + seed}, {"stage": "encode", "cpu_seconds": 30.0}]},
        "environments": [{"cores": 2, "device": "a processor"}],
    }


def test_seeds_are_kept_in_their_order_with_the_headlines_metric() -> None:
    content = seed_results.kept([report(43, 0.75, 0.01), report(42, 0.625, 0.2)])

    assert [run["seed"] for run in content["runs"]] == [42, 43]
    assert [run["values"] for run in content["runs"]] == [{"bm25": 0.5, "dense": 0.625}, {"bm25": 0.5, "dense": 0.75}]
    assert {row["metric"] for run in content["runs"] for row in run["comparisons"]} == {"MRR@10"}
    assert json.loads(json.dumps(content)) == content


def test_the_part_has_each_value_the_claims_and_the_cost() -> None:
    lines = seed_results.part(seed_results.kept([report(42, 0.625, 0.2), report(43, 0.75, 0.01)])).splitlines()

    assert lines[0] == "Leads; 1,200 queries of split test. MRR@10 by seed:"
    assert lines[2:6] == ["| system | 42 | 43 | mean |", "|---|---|---|---|", "| `bm25` | 0.500 | 0.500 | 0.500 |",
                          "| `dense` | 0.625 | 0.750 | 0.688 |"]  # fmt: skip
    assert "- dense is better than bm25: supported with 1 of 2 seeds (+0.125, +0.250; largest p_holm = 0.20)" in lines
    assert "Not claimed: more than this." in lines
    assert lines[-1] == (
        "CPU time of a complete run on 2 cores (a processor): 132 to 133 s. The stages that take most, with the first "
        "seed: `train` 102 s, `encode` 30 s."
    )


def test_what_refutes_that_a_system_is_not_worse_is_the_smallest_p() -> None:
    reports = [report(42, 0.375, 0.2), report(43, 0.625, 0.08)]
    for made in (made for content in reports for made in content["claims"]["made"]):
        made["expected"] = "not worse"

    lines = seed_results.part(seed_results.kept(reports)).splitlines()

    [line] = [line for line in lines if line.startswith("- dense is not significantly worse than bm25")]
    assert line.endswith("(−0.125, +0.125; smallest p_holm = 0.08; no proof that both are equal)")


@pytest.mark.parametrize("other", [report(42, 0.6, 0.1), report(43, 0.6, 0.1, bm25={"k1": 2.0})])
def test_only_runs_of_one_recipe_with_different_seeds_are_kept_together(other: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="one recipe with different seeds"):
        seed_results.kept([report(42, 0.6, 0.1), other])


def test_the_readme_is_what_the_kept_results_say() -> None:
    text = seed_results.README.read_text()

    assert seed_results.readme(text, json.loads(seed_results.SHOWN.read_text())) == text
