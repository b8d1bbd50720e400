"""What is kept of a matrix is what its files say, and the page of results has it without numbers typed by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.matrix.kept_results import kept
from storage.errors import UserError
from tasks.report.page.matrix_markdown import matrix_part

VARIANTS = ["small steps=0", "small steps=5"]
SEEDS = [1, 2]
MEAN = {"low": 0.25, "high": 0.75, "seeds": 2, "queries": 30}


def row(variant: str, metric: str, difference: float, p_holm: float, than: str = VARIANTS[0]) -> dict[str, Any]:
    names = {"variant": variant, "run": "after", "than": than, "baseline": "after" if than != variant else "before"}
    return names | {"metric": metric, "difference": difference, "low": -0.125, "high": 0.375, "p_holm": p_holm}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A matrix of two variants and two seeds, as `pretrieve matrix` writes it."""
    cells = []
    for number, variant in enumerate(VARIANTS):
        for seed in SEEDS:
            page = tmp_path / f"{number}-{seed}" / "report.html"
            page.parent.mkdir()
            cells.append({"variant": variant, "seed": seed, "state": "complete", "report": f"r{number}{seed}",
                          "page": f"{number}-{seed}/report.html"})  # fmt: skip
            page.with_suffix(".json").write_text(json.dumps({
                "recipe": {"title": "Heads", "dataset": "Leads"},
                "rows": [{"split": "test", "queries": 30}, {"split": "test", "queries": 28}],
                "inputs": {"metrics": f"m{number}{seed}"},
                "costs": {"kinds": [{"stage": "pretrain", "cpu_seconds": 100.0 * seed}]},
                "environments": [{"cores": 1, "device": "a processor"}],
                "curves": {"pretrain": {"mlm": [[1.0, 9.0]]},
                           "pretrain, retrieval probe": {"MRR@10": [[0.0, 0.5], [5.0, 0.25 * (number + seed)]]}},
            }))  # fmt: skip
    results = [
        {"variant": variant, "run": "after", "metric": metric, "mean": 0.5, "by_seed": {"1": 0.375, "2": 0.625}} | MEAN
        for variant in VARIANTS for metric in ("MRR@10", "nDCG@10")
    ]  # fmt: skip
    (tmp_path / "matrix.json").write_text(json.dumps({
        "name": "heads", "command": "pretrieve matrix small", "resume": "pretrieve matrix small --store artifacts",
        "seeds": SEEDS, "variants": VARIANTS, "metric": "MRR@10",
        "mains": dict.fromkeys(VARIANTS, "after"), "cells": cells, "results": results,
        "comparisons": [row(VARIANTS[1], metric, 0.125, 0.01) for metric in ("MRR@10", "nDCG@10")],
        "within": [row(variant, "MRR@10", -0.0625, 0.5, variant) for variant in VARIANTS],
    }))  # fmt: skip
    return tmp_path


def test_the_headlines_metric_the_probes_and_the_keys_are_kept(folder: Path) -> None:
    content = kept(folder)

    assert (content["split"], content["queries"], content["seeds"]) == ("test", 30, SEEDS)
    assert {row["metric"] for part in ("results", "comparisons", "within") for row in content[part]} == {"MRR@10"}
    assert [run["report"] for run in content["runs"]] == ["r01", "r02", "r11", "r12"]
    assert [run["metrics"] for run in content["runs"]] == ["m01", "m02", "m11", "m12"]
    assert content["runs"][3]["probe"] == {"MRR@10": [[0.0, 0.5], [5.0, 0.75]]}
    assert json.loads(json.dumps(content)) == content


def test_the_page_has_every_difference_with_its_interval(folder: Path) -> None:
    lines = matrix_part(kept(folder), "What was measured.").splitlines()

    assert lines[0] == "## Heads: `heads`"
    assert "What was measured." in lines
    assert (
        "Leads; 30 queries of split test; seeds 1, 2. CPU time of a run: 100 to 200 s on 1 cores (a processor)."
        in lines
    )
    assert "| `steps=5 − steps=0: after` | +0.125 | [−0.125, +0.375] | ▲ 0.01 |" in lines
    assert "| `steps=0: after − before` | −0.062 | [−0.125, +0.375] | 0.50 |" in lines
    assert "| `steps=5: after` | 0.500 | [0.250, 0.750] | 0.375 | 0.625 |" in lines
    assert [line for line in lines if line.startswith("| variant")] == ["| variant | metric | step 0 | step 5 |"]
    assert "| `steps=5` | MRR@10 | 0.500 | 0.625 |" in lines
    assert any(line.startswith("Of 3 comparisons 1 are significantly better (▲), 0 worse (▼) and 2") for line in lines)


def test_a_matrix_with_missing_runs_is_refused(folder: Path) -> None:
    content = json.loads((folder / "matrix.json").read_text())
    content["cells"][2]["state"] = "failed"
    (folder / "matrix.json").write_text(json.dumps(content))

    with pytest.raises(UserError, match="1 runs are not complete; run again: pretrieve matrix small --store"):
        kept(folder)
