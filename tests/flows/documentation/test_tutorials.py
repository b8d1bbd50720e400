"""Every command of the tutorials' pages runs, in their order, on a slice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flows.recipe.shipped import PROJECT
from tests.flows.documentation import tutorials
from tests.flows.documentation.tutorials import SLICE, changes, fenced, lines_of, run
from tests.services.servers import Service
from tests.warm import WHEEL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not WHEEL.exists(), reason="`make data` fetches the Wikipedia leads"),
]
PAGES = PROJECT / "docs" / "tutorials"


def test_two_pretrainings_are_compared(tmp_path: Path) -> None:
    page, key, printed = PAGES / "compare_on_the_command_line.md", "", {}
    for line in lines_of(page):
        sliced = changes(SLICE) if line.split()[1] in ("plan", "reproduce", "matrix") else []
        line = line.replace("--seeds 1,2,3", "--seeds 42").replace("KEY", key)  # the recipes' own seed: runs are there
        printed[line] = run(tmp_path, line, sliced)
        if line.endswith("--json"):
            key = next(row["key"] for row in json.loads(printed[line])["stages"] if row["stage"] == "train")

    assert "pretrain.objective.decoder_mask_rate" in printed["pretrieve compare small/masked_lm small/retro_mae"]
    assert "MRR@10" in printed["pretrieve compare small/masked_lm small/retro_mae"]
    assert (tmp_path / "comparison.html").stat().st_size > 10_000
    grid = printed["pretrieve matrix small/masked_lm small/retro_mae --seeds 42 --show"]
    assert grid.count("✓ complete") == 2


def test_expanded_passages_are_indexed_by_pyserini(tmp_path: Path, prefect_server: Service) -> None:
    """The build is the only one of pseudo-queries by the command line that runs as a Prefect flow."""
    page = PAGES / "doc2query_for_lucene.md"
    tutorials.write_collection(tmp_path)
    small = changes({"queries.generate.queries_per_passage": "1", "contexts.pseudo_queries": "1"})
    for line in lines_of(page):
        if " build " in line:
            run(tmp_path, line, small, module="flows.cli", PREFECT_API_URL=prefect_server.url)
        else:
            run(tmp_path, line)
    (code,) = fenced(page, "python")

    ended = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint(searcher.num_docs, hits[0].docid)"],
        cwd=tmp_path, env=tutorials.warm.environment(tmp_path), capture_output=True, text=True, check=False,
    )  # fmt: skip

    rows = [json.loads(line) for line in (tmp_path / "expanded/collection/docs00.json").open()]
    assert ended.returncode == 0, ended.stderr
    number, best = ended.stdout.split()[-2:]
    assert int(number) == len(rows) == 48
    assert "melts ice on roads" in next(row["contents"] for row in rows if row["id"] == best)


def test_a_recipe_is_written_and_extended(tmp_path: Path) -> None:
    page = PAGES / "write_a_recipe.md"
    recipe, pretraining = fenced(page, "yaml")
    small = changes({"dataset.fraction": "0.02", "execution.threads": "1"})
    file = tmp_path / "mine.yaml"
    plan, reproduce, changed, without = lines_of(page)
    file.write_text(recipe)
    run(tmp_path, plan, small)
    run(tmp_path, reproduce, small)

    assert recipe.count("pretrain: null\n") == recipe.count("start: backbone\n") == 1
    file.write_text(recipe.replace("pretrain: null\n", pretraining).replace("start: backbone\n", "start: pretrained\n"))
    states = {row["stage"]: row["state"] for row in json.loads(run(tmp_path, f"{plan} --json", small))["stages"]}
    short = changes({"pretrain.steps": "2", "pretrain.batch": "4"})
    run(tmp_path, changed, [*small, *short])
    again = json.loads(run(tmp_path, f"{without} --json", small))["stages"]

    assert states["split_corpus"] == "cached"
    assert states["pretrain"] == "to build"
    assert {row["state"] for row in again} == {"cached"}
