"""The flows that the Prefect UI offers: their forms, what a goal needs, what is refused. Workers are in `services`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema

from flows import deployed
from flows.deployed import run_stage
from flows.plan.plan import named_jobs, needed_for, planned, with_inputs
from flows.prefect_server.child_runs import runs_elsewhere
from flows.recipe.load import load_recipe
from flows.recipe.shipped import shipped_recipes
from storage.errors import UserError
from storage.store import sources
from storage.store.store import Store
from tasks.job import needed_references
from tasks.session import Session

FLOWS = [
    deployed.reproduce, deployed.generate_queries, deployed.pretrain, deployed.finetune, deployed.evaluate,
    deployed.run_stage,
]  # fmt: skip


def plan_of(recipe: str, store: Path) -> Session:
    """A recipe's plan, whether its data and weights are here or not."""
    with sources.assuming_present():
        return planned(load_recipe(recipe)[0], recipe, Store(store))


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_a_form_offers_the_shipped_recipes_and_a_file_and_says_what_each_field_is(flow: Any) -> None:
    schema = parameter_schema(flow).model_dump()

    fields = schema["properties"]
    *groups, own = fields["recipe"]["anyOf"]
    assert sorted(name for group in groups for name in group["enum"]) == sorted(shipped_recipes())
    assert len({group["title"] for group in groups}) == len(groups) > 3
    for group in groups:
        described = dict(line.removeprefix("- ").split(": ", 1) for line in group["description"].splitlines())
        assert list(described) == group["enum"]
        assert all(described.values())
    assert own["pattern"] == r"\.ya?ml$"
    assert '"null"' not in json.dumps(schema)  # the UI shows such a field as: Property is type "None"
    assert all(field.get("description") for field in fields.values()), fields
    assert fields["changes"]["items"]["pattern"]
    assert fields["changes"]["maxItems"] == 100
    assert flow.description
    assert "Args" not in flow.description


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_a_flow_is_called_as_its_function(flow: Any) -> None:
    assert flow.name == flow.fn.__name__
    assert flow.persist_result is False


def test_the_form_of_a_matrix_offers_recipes_in_a_list() -> None:
    schema = parameter_schema(deployed.matrix).model_dump()

    *groups, own = schema["properties"]["recipes"]["items"]["anyOf"]
    assert sorted(name for group in groups for name in group["enum"]) == sorted(shipped_recipes())
    assert own["pattern"] == r"\.ya?ml$"
    assert '"null"' not in json.dumps(schema)
    assert all(field.get("description") for field in schema["properties"].values())
    assert schema["properties"]["seeds"]["default"] == [1, 2, 3]


def test_what_cannot_be_a_change_is_refused_before_a_run_starts() -> None:
    with pytest.raises(Exception, match="pattern"):
        deployed.reproduce.validate_parameters({"recipe": "quickstart", "changes": ["no equals sign"]})


def test_a_goal_needs_its_ancestors_alone_in_the_order_of_the_plan(tmp_path: Path) -> None:
    plan = plan_of("quickstart", tmp_path)

    jobs = needed_for(plan, "pretrain")

    assert list(jobs) == [reference for reference in plan.jobs if reference in jobs]
    assert [job.stage.name for job in jobs.values()][-1] == "pretrain"
    stages = {job.stage.name for job in jobs.values()}
    assert {"ingest_corpus", "split_corpus", "train_generator", "generate_queries", "pair_contexts"} <= stages
    assert not {"train", "encode", "evaluate", "report", "mine"} & stages
    for job in jobs.values():
        assert set(job.needs()) <= jobs.keys()


def test_a_goal_may_be_a_round(tmp_path: Path) -> None:
    jobs = needed_for(plan_of("quickstart", tmp_path), "retriever_1")

    assert {job.round for job in jobs.values()} == {"", "retriever_1"}


def test_an_input_that_no_job_of_the_plan_builds_is_an_older_artifact(tmp_path: Path) -> None:
    plan = plan_of("quickstart", tmp_path)
    [start] = [reference for reference, job in plan.jobs.items() if job.stage.name == "pretrain"]
    later = {reference: job for reference, job in plan.jobs.items() if reference != start}

    jobs = with_inputs(later, named_jobs(later, "retriever_1"))

    assert [job.stage.name for job in jobs.values() if start in job.needs()] == ["train"]
    assert start not in jobs
    assert needed_references(jobs.values()) == {*jobs, start}  # so a run's note protects it from garbage collection


def test_an_unknown_goal_is_refused_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'pretrian': .*; did you mean pretrain\?"):
        needed_for(plan_of("quickstart", tmp_path), "pretrian")


GPU = {
    "train_generator", "fill_ledger", "generate_queries", "relevance", "pretrain", "train", "train_teacher", "encode",
    "score", "rerank",
}  # fmt: skip


@pytest.mark.parametrize("recipe", ["quickstart", "small/came", "small/retrievers"])
def test_what_needs_a_gpu_is_what_passes_texts_through_a_model(recipe: str, tmp_path: Path) -> None:
    plan = plan_of(recipe, tmp_path)

    for job in plan.jobs.values():
        dense = job.stage.name == "search" and job.values["view"] != "bm25"
        assert runs_elsewhere(job, plan.store) == (job.stage.name in GPU or dense), job.label


def test_without_a_store_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRETRIEVE_STORE", raising=False)

    with pytest.raises(UserError, match="PRETRIEVE_STORE"):
        run_stage.fn("quickstart", "0123")


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """The plan of a recipe whose data and weights count as present, in an empty store."""
    plan = plan_of("quickstart", tmp_path)
    monkeypatch.setenv("PRETRIEVE_STORE", str(tmp_path))
    monkeypatch.setattr(deployed, "_plan", lambda recipe, changes: plan)
    return plan


def test_a_stage_that_the_recipe_has_not_is_named(listed: Session) -> None:
    with pytest.raises(UserError, match=r"stage zzzz: 0 stages of quickstart .* start the run of the complete recipe"):
        run_stage.fn("quickstart", "zzzz")


def test_a_stage_names_its_incomplete_inputs(listed: Session) -> None:
    [job] = [job for job in listed.jobs.values() if job.stage.name == "pretrain"]

    with pytest.raises(UserError, match="needs pair_contexts/"):
        run_stage.fn("quickstart", job.key)
