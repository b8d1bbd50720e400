"""Runs at once: of the same recipe each artifact is built once; of different recipes what is common is shared."""

from __future__ import annotations

from collections import Counter

from tests.services.lab import Lab, long_training


def test_what_several_runs_want_is_built_once(lab: Lab) -> None:
    lab.work("gpu", "gpu-0")
    lab.work("gpu", "gpu-1")
    same, other = long_training(300), [*long_training(300), "queries.generate.top_k=3"]

    runs = [lab.ask("generate_queries", *changes) for changes in (same, same, other)]

    for run in runs:
        lab.completed(run, 8)
    stages = Counter(reference.split("/")[0] for reference in lab.manifests())
    assert stages["train_generator"] == stages["ingest_corpus"] == stages["split_corpus"] == 1
    assert stages["generate_queries"] == 2  # one for each way of drawing
    assert not (lab.store / ".damaged").exists()  # where a second build would have put the first
    assert not list((lab.store / ".work").iterdir())
