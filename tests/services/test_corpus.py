"""A corpus of pseudo-queries, from the form in the UI: GPU workers write a share each, and its page is shown."""

from __future__ import annotations

import json

from tests.services.lab import CHANGES, Lab, long_training
from tests.services.servers import post, start_run


def test_workers_write_shares_of_a_corpus_and_its_page_is_shown(lab: Lab) -> None:
    lab.work("gpu", "gpu-0")
    lab.work("gpu", "gpu-1")

    run = start_run(
        lab.url,
        "generate_queries/generate-queries",
        recipe="quickstart",
        changes=[*CHANGES, *long_training(20), "queries.shares=2"],
    )
    lab.completed(run, 8)

    children = [child["name"].split()[0] for child in lab.children(run)]
    assert sorted(children) == ["fill_ledger", "fill_ledger", "generate_queries", "train_generator"]
    written = [json.loads(path.read_text()) for path in lab.store.glob("fill_ledger/*/logs/written.json")]
    [joined] = [json.loads(path.read_text()) for path in lab.store.glob("generate_queries/*/logs/written.json")]
    assert min(row["made"] for row in written) > 0
    assert sum(row["made"] for row in written) == joined["kept"]
    assert joined["made"] == 0
    page = lab.store / "reports" / "quickstart-queries"
    assert (page / "report.html").exists()
    assert len((page / "versions.jsonl").read_text().splitlines()) == 1
    shown = {row["key"] for row in post(lab.url, "artifacts", artifacts={"flow_run_id": {"any_": [run]}})}
    assert {key for key in shown if key and "queries" in key}
