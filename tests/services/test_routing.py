"""Stages for a GPU run on the gpu pool, one at a time a worker, independent ones side by side; the others in the run.

There is no GPU here: what is seen is which process of which pool built what, and when. CUDA was not run.
"""

from __future__ import annotations

from datetime import datetime
from itertools import combinations
from typing import Any

from flows.plan.plan import planned
from flows.recipe.load import load_recipe
from storage.store.store import Store
from tests.services.lab import CHANGES, Lab, long_training
from tests.services.servers import post

SIDE_BY_SIDE = long_training(300)  # train_generator and train (retriever_1): neither needs the other


def at(run: dict[str, Any]) -> tuple[datetime, datetime]:
    """When a run began and ended."""
    begin, end = (datetime.fromisoformat(str(run[name]).replace("Z", "+00:00")) for name in ("start_time", "end_time"))
    return begin, end


def overlaps(runs: list[dict[str, Any]]) -> list[set[str]]:
    """The pairs of runs, by name, that ran at the same time."""
    return [
        {str(one["name"]), str(other["name"])}
        for one, other in combinations(runs, 2)
        if max(at(one)[0], at(other)[0]) < min(at(one)[1], at(other)[1])
    ]


def test_each_stage_runs_where_it_belongs_and_independent_ones_side_by_side(lab: Lab) -> None:
    lab.work("gpu", "gpu-0")
    lab.work("gpu", "gpu-1")

    run = lab.ask("evaluate", *SIDE_BY_SIDE)
    ended = lab.completed(run, minutes=8)

    assert ended["work_pool_name"] == "cpu"
    recipe, _ = load_recipe("quickstart", [*CHANGES, *SIDE_BY_SIDE])
    jobs = planned(recipe, "quickstart", Store(lab.store)).jobs
    built = lab.manifests()
    children = lab.children(run)
    assert {child["name"] for child in children} == {
        job.label for reference, job in jobs.items() if reference in built and job.needs_gpu
    }
    assert {child["work_pool_name"] for child in children} == {"gpu"}
    assert {child["state_name"] for child in children} == {"Completed"}
    processes = [child["infrastructure_pid"] for child in children]
    assert len({*processes, ended["infrastructure_pid"]}) == len(children) + 1  # a process of its own each
    together = overlaps(children)
    [generator] = [child["name"] for child in children if child["name"].startswith("train_generator")]
    [retriever] = [child["name"] for child in children if child["name"].startswith("train (retriever_1)")]
    assert {generator, retriever} in together
    busy = [{str(child["name"]) for child in children if at(child)[0] <= at(one)[0] < at(child)[1]} for one in children]
    assert max(len(runs) for runs in busy) == 2  # there are two workers
    own = {row["name"] for row in post(lab.url, "task_runs", flow_runs={"id": {"any_": [run]}})}
    assert {job.label for reference, job in jobs.items() if reference in built} <= own
    theirs = [post(lab.url, "task_runs", flow_runs={"id": {"any_": [child["id"]]}}) for child in children]
    assert [len(runs) for runs in theirs] == [1] * len(children)
    assert len(own) <= len(built) + 2 * len(children)  # a stage's task, and the link to its child
    results = [path for path in (lab.store / ".prefect" / "results").rglob("*") if path.is_file()]

    assert len(results) >= len(built)
    assert max(path.stat().st_size for path in results) < 16 * 1024  # manifests, not data
