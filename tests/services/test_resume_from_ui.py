"""A reproduction that fails in the middle is resumed in the browser: nothing that was finished is made again.

PRETRIEVE_SCREENSHOTS names a folder for pictures of it: `make screenshots` writes those of the documentation.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from flows.recipe.shipped import SHIPPED
from tests.services.browser import Browser, browser
from tests.services.lab import TRAINING, Lab, process_of
from tests.services.servers import PRETRIEVE, Service, environment, post, run_of, start, stopping, wait_for

SHARDS_LEFT = 3  # as many as are finished at least when the stage is killed
SMALL = [
    *TRAINING, "queries.train.steps=24", "dataset.fraction=0.02", "backbone.layers=[0, 1]",
    "queries.generate.shard_passages=4", "queries.quality.passages=20", "pretrain.steps=8", "pretrain.probe=null",
    "execution.threads=1", "execution.workers=1",
]  # fmt: skip


def changes() -> list[str]:
    """The quickstart on a fiftieth of its leads, with one retriever, many shards of queries and a paper's numbers."""
    quickstart = yaml.safe_load((SHIPPED / "quickstart.yaml").read_text())
    paper = yaml.safe_load((SHIPPED / "cot_mae_query_as_context.yaml").read_text())["reported"]
    retriever = quickstart["rounds"][0]
    pairs = [row for row in quickstart["evaluate"]["comparisons"] if row["run"] in ("bm25_doc2query", "retriever_1")]
    whole = {
        "rounds": [retriever],
        "evaluate.comparisons": pairs,
        "headline": quickstart["headline"] | {"run": retriever["name"], "baseline": "bm25"},
        "fusions": [],
        "reported": {name: paper[name] for name in ("paper", "source", retriever["name"])},
    }
    return [*SMALL, "claims=null", *(f"{name}={in_a_line(value)}" for name, value in whole.items())]


def in_a_line(value: Any) -> str:
    """A part of a recipe as a change gives it."""
    return yaml.safe_dump(value, default_flow_style=True, width=1_000_000).strip()


def killed_after_shards(lab: Lab, run: str) -> dict[str, Any]:
    """Kill the process that writes queries once it has finished some shards, as a kernel short of memory does."""

    def writing() -> dict[str, Any] | None:
        children = [row for row in lab.children(run) if row["name"].startswith("generate_queries")]
        return children[0] if children and children[0]["infrastructure_pid"] else None

    child = wait_for(writing, 10, "queries are being written")
    assert child
    process = process_of(child)
    wait_for(lambda: len(shards(lab.store)) >= SHARDS_LEFT, 3, "the first shards", every=0.01)
    process.kill()
    return child


def shards(store: Path) -> dict[str, tuple[int, int]]:
    """The files of the ledger, one a finished shard, with what shows that a file was written anew."""
    results = store.glob("ledger/*/*.parquet")
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in results}


def measured(folder: Path) -> list[dict[str, Any]]:
    """The rows of a store's report."""
    rows: list[dict[str, Any]] = json.loads((folder / "reports" / "quickstart" / "report.json").read_text())["rows"]
    return rows


def hashes(store: Path) -> dict[str, str]:
    """The hash of every artifact by stage/key."""
    results = [json.loads(path.read_text()) for path in store.glob("[!.]*/*/manifest.json")]
    return {f"{manifest['stage']}/{manifest['key']}": manifest["hash"] for manifest in results}


def begin_unbroken(lab: Lab, folder: Path) -> Service:
    """The same recipe in a store of its own, in one go, on the command line."""
    words = [word for change in changes() for word in ("--set", change)]
    command = [*PRETRIEVE, "reproduce", "quickstart", *words, "--store", str(folder)]
    return start("unbroken", command, environment(lab.home, PREFECT_API_URL=lab.url), lab.home / "unbroken.log")


def states(lab: Lab, run: str) -> dict[str, set[str]]:
    """By name, the states in which the tasks of a run have ended, over all its attempts."""
    results: dict[str, set[str]] = {}
    for row in post(lab.url, "task_runs", flow_runs={"id": {"any_": [run]}}):
        results.setdefault(row["name"], set()).add(row["state_name"])
    return results


def test_a_failed_reproduction_is_resumed_in_the_browser(lab: Lab, tmp_path: Path) -> None:
    with browser(lab.url) as window:
        lab.work("gpu", "gpu-0")
        unbroken = begin_unbroken(lab, tmp_path / "unbroken")
        lab.stack.enter_context(stopping(unbroken))
        run = started(window)
        window.rest()
        child = killed_after_shards(lab, run)

        assert lab.end(run)["state_name"] == "Failed"
        remaining, whole = shards(lab.store), lab.manifests()
        assert len(remaining) >= SHARDS_LEFT
        assert not any(reference.startswith("generate_queries/") for reference in whole)
        window.open_run(run)
        window.shot("failed")
        window.retry(run, "retry")
        window.rest()
        lab.completed(run, 8)

        assert run_of(lab.url, run)["run_count"] == 2
        again = [row for row in lab.children(run) if row["name"] == child["name"]]
        assert [(row["id"], row["state_name"], row["run_count"]) for row in again] == [(child["id"], "Completed", 2)]
        assert remaining.items() <= shards(lab.store).items()
        assert len(shards(lab.store)) > len(remaining)
        cached = {name for name, ended in states(lab, run).items() if "Cached" in ended}
        assert {name.split()[-1] for name in cached} == {reference.split("/")[1][:8] for reference in whole}
        shown(window, run)

        wait_for(lambda: not unbroken.alive(), 10, "the unbroken run ends")
        assert unbroken.process.returncode == 0, unbroken.said()
        assert measured(lab.store) == measured(tmp_path / "unbroken")
        assert hashes(lab.store) == hashes(tmp_path / "unbroken")


def started(window: Browser) -> str:
    """A run of the recipe that the form offers first, with our changes; its id."""
    window.open_form("reproduce/reproduce")
    window.shot("form")
    window.add_items(changes())
    return window.submit()


def shown(window: Browser, run: str) -> None:
    """What a person sees of a run that has completed."""
    window.open_run(run)
    window.page.get_by_placeholder("Search by run name").fill("split_corpus")
    window.page.get_by_text("Cached", exact=True).first.wait_for()
    window.shot("completed")
    window.open_run(run, "Artifacts")
    window.page.get_by_text("quickstart-lineage").first.wait_for()
    window.open_artifact("quickstart-metrics")
    window.page.get_by_role("cell", name="retriever_1").first.wait_for()
    window.shot("metrics")
    window.open_artifact("quickstart-lineage")
    drawing = window.page.get_by_role("main").get_by_role("img").first
    drawing.wait_for()
    assert drawing.evaluate("image => image.naturalWidth") > 300  # it is drawn, not a broken picture
    window.shot("lineage")
