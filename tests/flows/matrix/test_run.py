"""A matrix of runs: what is built and in which order, failures, resuming, and the page. Rankings are synthetic."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml

from flows.matrix.attempts import Attempts, State
from flows.matrix.planned_grid import PlannedGrid
from flows.matrix.planned_run import PlannedRun
from flows.matrix.results import contents
from flows.matrix.run import run_missing
from flows.recipe.grid import Cell, grid_of
from flows.store.needs import report_needs
from storage.store.run_notes import NotedRun, noted
from storage.store.store import Store
from tasks.report.page.matrix_page import described, terminal_tables
from tasks.report.publish import publish
from tasks.session import Done, Session, session
from tests import finished_runs, warm
from tests.flows.study.test_run import collection, recipe
from tests.flows.test_json_output import has_documented_fields
from tests.services.servers import Service
from tests.tiny import save_backbone

NOISE = {"rounds.0.noise=0.3": 0.3, "rounds.0.noise=3.0": 3.0}
GRID = grid_of(["quickstart"], [1, 2], [], ["rounds.0.noise=0.3,3.0"], "grid")
RECIPE: Any = SimpleNamespace(
    headline=SimpleNamespace(run="retriever_2", metric="MRR@10"),
    evaluate=SimpleNamespace(comparisons=[SimpleNamespace(run="retriever_2", baseline="bm25")]),
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open_or_new(tmp_path / "store")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The keys of the reports, which are those of the same runs in another store."""
    twin = Store.open_or_new(tmp_path_factory.mktemp("twin"))
    return [build(twin, cell).key for cell in GRID.cells]


@pytest.fixture
def plan(store: Store, keys: list[str]) -> PlannedGrid:
    """Two variants and two seeds."""
    cells = []
    for cell, key in zip(GRID.cells, keys, strict=True):
        steps = [Done("report", "", key, True, 1.0, 1, [], {})]
        report = SimpleNamespace(name="report")
        job: Any = SimpleNamespace(stage=report, key=key, reference=f"report/{key}", needs=list)
        cells.append(PlannedRun(cell, RECIPE, "quickstart", {f"report/{key}": job}, steps))
    return PlannedGrid(GRID, store, cells)


def build(store: Store, cell: Any) -> Any:
    """Build a run of the matrix; all have the same text of the recipe."""
    with session(Session(store)):
        return finished_runs.run(store, "one", noise=NOISE[cell.variant.varied[0]], seed=cell.seed)


def builder(plan: PlannedGrid, begun: list[str], failing: str = "") -> Callable[[PlannedRun[Cell], NotedRun], None]:
    """A builder that notes which runs it has begun, and fails for one of them."""

    def of_cell(run: PlannedRun[Cell], note: NotedRun) -> None:
        begun.append(run.definition.words)
        if run.definition.words == failing:
            raise RuntimeError("out of\nmemory")
        assert plan.attempts.state(run) is State.RUNNING
        report = build(plan.store, run.definition)
        publish(plan.store.root / "reports" / plan.report_name(run.definition), report, [])

    return of_cell


def states(plan: PlannedGrid) -> list[str]:
    return [str(plan.attempts.state(run)) for run in plan.runs]


def test_a_failure_stops_no_other_run_and_is_tried_again(plan: PlannedGrid) -> None:
    begun, lines = list[str](), list[str]()
    failing = "quickstart rounds.0.noise=3.0 seed=1"
    assert states(plan) == ["missing"] * 4

    assert run_missing(plan, builder(plan, begun, failing), lines.append) == 1

    assert len(begun) == 4
    assert states(plan) == ["complete", "failed", "complete", "complete"]
    assert any(f"{failing} failed: RuntimeError: out of memory" in line for line in lines)
    page = (plan.folder / "index.html").read_text()
    assert "RuntimeError: out of memory" in page
    content = json.loads((plan.folder / "matrix.json").read_text())
    assert [cell["state"] for cell in content["cells"]] == states(plan)
    assert all((plan.folder / cell["page"]).is_file() == (cell["state"] == "complete") or not cell["page"]
               for cell in content["cells"])  # fmt: skip

    begun.clear()
    assert run_missing(plan, builder(plan, begun), lines.append) == 0
    assert begun == [failing]
    assert states(plan) == ["complete"] * 4
    assert "out of memory" not in (plan.folder / "index.html").read_text()


def test_results_compare_variants_over_the_seeds(plan: PlannedGrid) -> None:
    run_missing(plan, builder(plan, []), lambda line: None)

    content = contents(plan)
    has_documented_fields("matrix", content)

    rows = {(row["variant"], row["run"], row["metric"]): row for row in content["results"]}
    better, worse = content["variants"]
    assert rows[better, "retriever_2", "MRR@10"]["seeds"] == 2
    assert rows[better, "retriever_2", "MRR@10"]["mean"] > rows[worse, "retriever_2", "MRR@10"]["mean"]
    between = {(row["run"], row["metric"]): row for row in content["comparisons"]}
    assert {run for run, _ in between} == {"retriever_1", "retriever_2", "both"}  # bm25 is the same ranking
    assert between["retriever_1", "MRR@10"]["difference"] < 0
    assert between["retriever_1", "MRR@10"]["p_holm"] < 0.05
    assert {(row["variant"], row["run"], row["baseline"]) for row in content["within"]} == {
        (variant, "retriever_2", "bm25") for variant in (better, worse)
    }
    assert len(list(terminal_tables(content))) == 6
    page = (plan.folder / "index.html").read_text()
    assert f"{rows[better, 'retriever_2', 'nDCG@10']['mean']:.3f}" in page
    assert "<script" not in page


def test_reports_of_all_seeds_are_kept_from_garbage_collection(plan: PlannedGrid) -> None:
    run_missing(plan, builder(plan, []), lambda line: None)

    assert {f"report/{run.report}" for run in plan.runs} <= report_needs(plan.store).references


def test_runs_are_chosen_by_one_process_at_a_time(plan: PlannedGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    held, begin = list[bool](), Attempts.begin

    def checked(attempts: Attempts[Any], *arguments: Any) -> NotedRun:
        held.append(plan.store.is_being_built(plan.store.work("runs", "next")))
        return begin(attempts, *arguments)

    monkeypatch.setattr(Attempts, "begin", checked)
    run_missing(plan, builder(plan, []), lambda line: None)

    assert held == [True] * 4


def test_what_another_process_runs_comes_last_and_an_ended_one_counts_as_interrupted(plan: PlannedGrid) -> None:
    begun, first = list[str](), plan.runs[0]
    with noted(plan.store, "matrix", "elsewhere", [f"report/{first.report}"]):
        assert states(plan)[0] == "running"

        def of_cell(run: PlannedRun[Cell], note: NotedRun) -> None:
            builder(plan, begun)(run, note)

        run_missing(plan, of_cell, lambda line: None)

    assert begun == [run.definition.words for run in [*plan.runs[1:], first]]


@pytest.mark.parametrize("ending", [KeyboardInterrupt, httpx.ConnectError("the server is lost")])
def test_the_page_of_a_matrix_that_ends_early_says_so(ending: Any, plan: PlannedGrid) -> None:
    shown = list[str]()

    def of_cell(run: PlannedRun[Cell], note: NotedRun) -> None:
        shown.append((plan.folder / "index.html").read_text())
        raise ending

    with pytest.raises((KeyboardInterrupt, httpx.ConnectError)):
        run_missing(plan, of_cell, lambda line: None)

    assert "1 running, 3 missing" in shown[0]
    assert "Runs were running when this page was written" in shown[0]
    page = (plan.folder / "index.html").read_text()
    assert "1 interrupted, 3 missing" in page
    assert "Runs were running" not in page


def test_a_run_that_was_killed_is_interrupted(plan: PlannedGrid) -> None:
    with noted(plan.store, "matrix", "killed", [f"report/{plan.runs[0].report}"]):
        pass

    assert states(plan) == ["interrupted", "missing", "missing", "missing"]
    assert described(contents(plan)["cells"][0]) == "‖ interrupted 0/1"


@pytest.mark.slow
def test_the_command_runs_shows_and_resumes_a_matrix(tmp_path: Path, prefect_server: Service) -> None:
    collection(tmp_path / "toy")
    (tmp_path / "bert").mkdir()
    save_backbone(tmp_path / "bert")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe(tmp_path, "masked_lm", 4), sort_keys=False))
    command = ["matrix", "tiny.yaml", "--seeds", "1,2", "--vary", "pretrain.fit.learning_rate=1.0e-4,1.0e+30"]

    done = warm.run(tmp_path, *command, module="tests.plain_command")

    assert done.returncode == 1, done.stderr
    assert "lower the learning rate; the next run starts" in done.stderr
    assert "4 runs: 2 complete, 2 failed" in done.stdout
    shown = warm.run(tmp_path, *command, "--show", "--json", module="tests.plain_command")
    assert shown.returncode == 0, shown.stderr
    content = json.loads(shown.stdout)
    assert [cell["state"] for cell in content["cells"]] == ["complete", "failed", "complete", "failed"]
    assert content["stages"]["different"] < content["stages"]["of_all_runs"]
    assert {row["seeds"] for row in content["results"]} == {2}

    again = warm.run(tmp_path, *command[:3], "1", PREFECT_API_URL=prefect_server.url)

    assert again.returncode == 0, again.stderr
    assert "0 to build" not in again.stderr  # the recipe's own learning rate is another run
    assert "1 runs: 1 complete" in again.stdout
