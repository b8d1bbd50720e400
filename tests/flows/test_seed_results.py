"""What is kept of several seeds is what their reports say."""

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


@pytest.mark.parametrize("other", [report(42, 0.6, 0.1), report(43, 0.6, 0.1, bm25={"k1": 2.0})])
def test_only_runs_of_one_recipe_with_different_seeds_are_kept_together(other: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="one recipe with different seeds"):
        seed_results.kept([report(42, 0.6, 0.1), other])
