"""A synthetic study: claims about recipes that no test runs, and the kept results of their runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flows.study.claims import Study
from storage.results.study_runs import Facts, write_study_run

QUERIES, SEEDS = 40, (1, 2)
ARTICLES = [f"article-{number}" for number in range(4)]
BETTER = 0.2  # what `good` has more than `plain`


def study(**changed: Any) -> Study:
    """Three claims: one that holds, one whose second arm is not reached, and one about a cost."""
    measured = {"collection": "toy/dev", "queries": QUERIES, "seeds": list(SEEDS), "paper": "CAME", "source": "Table 2"}
    quality = measured | {"metric": "MRR@10", "smallest": 0.1, "printed_metric": "MRR@10"}
    arms = {name: {"recipe": f"made/{name}", "row": "one"} for name in ("good", "plain", "absent")}
    claims = [
        quality | {"name": "helps", "statement": "It helps.", "note": "In <another> way.",
                   "arms": {name: arms[name] for name in ("good", "plain")},
                   "contrasts": [{"arm": "good", "than": "plain", "printed": [0.4, 0.3]}]},
        quality | {"name": "unknown", "statement": "Nobody knows.", "printed_metric": None,
                   "arms": {name: arms[name] for name in ("absent", "plain")},
                   "contrasts": [{"arm": "absent", "than": "plain"}]},
        measured | {"name": "cheap", "statement": "It is cheap.", "metric": None, "smallest": None,
                    "printed_metric": None, "measures": "cost of a step",
                    "arms": {name: arms[name] | {"row": None} for name in ("good", "plain")},
                    "contrasts": [{"arm": "good", "than": "plain"}]},
    ]  # fmt: skip
    return Study.model_validate({"title": "A study", "description": "Made up.", "claims": claims} | changed)


def write(
    results: Path, name: str, seed: int, *, report: str = "", query_prefix: str = "q", row: str = "one",
    articles: Sequence[str] = ARTICLES, **changed: Any,
) -> Path:  # fmt: skip
    """What is kept of a run: values near .5, better ones for `good`. Equally many queries are about each article."""
    random = np.random.default_rng([seed, len(name)])
    values = 0.4 + np.random.default_rng(0).normal(0, 0.1, QUERIES) + random.normal(0, 0.02, QUERIES)
    values += BETTER * (name == "good")
    scores = pa.table({
        "row": [row] * QUERIES, "metric": ["MRR@10"] * QUERIES,
        "query_id": [f"{query_prefix}{n:02}" for n in range(QUERIES)],
        "cluster": [articles[n * len(articles) // QUERIES] for n in range(QUERIES)],
        "value": values,
    })  # fmt: skip
    curves = [
        {"training": training, "name": line, "step": float(step), "value": level / (step + 1) + seed}
        for training, line, level in (("pre-training", "mlm", 9.0), ("one", "contrastive", 2.0))
        for step in range(5)
    ]
    keys = [
        {"stage": stage, "round": round_, "key": key, "version": 1, "rows": None, "cached": cached,
         "seconds": seconds, "cpu_seconds": 90.0, "at": "2026-01-02T03:04:05", "device": "a processor", "cores": 2}
        for stage, round_, key, cached, seconds in (
            ("index", "", "of-all", True, 9.0), ("train", "one", f"train-{name}-{seed}", False, 60.0 * seed)
        )
    ]  # fmt: skip
    cost = {"steps": 10.0, "tokens": 640.0, "flops": 1e9, "cpu_seconds": (0.5 if name == "good" else 2.0) + seed / 100}
    facts = Facts(f"made/{name}", seed, "Title", report or f"report-{name}-{seed}", "toy/dev", {"torch": "2"}, cost)
    facts = Facts(**vars(facts) | changed)
    folder = facts.trial.folder(results)
    write_study_run(folder, facts, scores=scores, curves=curves, keys=keys)
    return folder


def results(folder: Path) -> Path:
    """What is kept of all runs but those of the arm `absent`."""
    for name in ("good", "plain"):
        for seed in SEEDS:
            write(folder, name, seed)
    return folder
