"""A run names everything that it lacks from outside the store in one error, and a plan needs none of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from flows.plan.plan import planned
from flows.queries.build import built
from flows.queries.dry_run import show_dry_run
from flows.recipe.changes import given_collection
from flows.recipe.load import load_recipe
from storage.errors import UserError
from storage.store import sources
from storage.store.store import Store

BROKEN_MODEL = "is not a valid JSON file"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that is no model, whose configuration cannot be read."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{")
    return tmp_path / "model"


def without_queries(collection: Path, model: Path | str) -> list[str]:
    return ["dataset.reader=texts", f"dataset.path={collection}", "queries.train=null", f"queries.model={model}"]


def test_a_run_names_every_missing_input_with_its_fix(tmp_path: Path) -> None:
    changes = [f"dataset.path={tmp_path / 'nowhere'}", f"backbone.weights={tmp_path / 'no-weights'}"]
    recipe, _ = load_recipe("small/beir", changes)
    store = Store(tmp_path / "store")

    with pytest.raises(UserError) as raised:
        planned(recipe, "small/beir", store)

    message = str(raised.value)
    assert message.startswith("2 problems: (1) ")
    assert "; (2) " in message
    assert message.count(f"no data set at {tmp_path / 'nowhere'}") == 1  # not once for each of its parts
    assert f"{tmp_path / 'no-weights'}: no " in message
    with sources.assuming_present() as absent:
        planned(recipe, "small/beir", store)
    assert len(absent) == 2


def test_a_single_problem_has_no_number(tmp_path: Path) -> None:
    recipe, _ = load_recipe("small/beir", [f"dataset.path={tmp_path / 'nowhere'}"])

    with pytest.raises(UserError, match=r"^dataset\.path: no data set at "):
        planned(recipe, "small/beir", Store(tmp_path / "store"))


def test_a_later_problem_of_the_block_is_named_too() -> None:
    def block() -> None:
        with sources.reported_together():
            sources.weights("nothing/here")
            raise UserError("another problem")

    with pytest.raises(UserError, match=r"^2 problems: \(1\) nothing/here: .*; \(2\) another problem$"):
        block()


@pytest.mark.parametrize("build", [partial(built, print_line=print), show_dry_run])
def test_a_broken_collection_is_named_before_a_broken_model(
    build: Callable[[str, Path, list[str]], object], model: Path, tmp_path: Path
) -> None:
    (tmp_path / "texts.csv").write_text("a,b\n1,2\n")

    with pytest.raises(UserError, match=r"^\S+texts\.csv line 2: expected a column of texts"):
        build("small/beir", tmp_path / "store", without_queries(tmp_path / "texts.csv", model))

    assert not (tmp_path / "store").exists()


def test_a_missing_model_and_a_broken_collection_are_both_named(tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("a,b\n1,2\n")

    with pytest.raises(UserError, match=r"no-model: no .*texts\.csv line 2"):
        built(
            "small/beir", tmp_path / "store", without_queries(tmp_path / "texts.csv", tmp_path / "no-model"),
            print_line=print,
        )  # fmt: skip


def test_a_broken_model_is_reported_where_the_collection_is_right(model: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("id,text\n1,One text.\n")

    with pytest.raises(UserError, match=BROKEN_MODEL):
        built("small/beir", tmp_path / "store", without_queries(tmp_path / "texts.csv", model), print_line=print)


def test_a_hub_is_asked_once_for_a_model_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[str] = []

    def lacks(name: str) -> None:
        requests.append(name)
        raise UserError(f"{name}: the hub lacks it")

    monkeypatch.setattr(sources, "_from_hub", lacks)

    def block() -> None:
        with sources.reported_together() as problems:
            for _ in range(3):
                sources.weights("nothing/here")
            problems += problems  # a problem that is found twice is named once

    with pytest.raises(UserError, match=r"^nothing/here: the hub lacks it$"):
        block()
    assert requests == ["nothing/here"]


@pytest.mark.parametrize(("path", "shown"), [
    ("my/texts.csv", "texts.csv"), ("s3://bucket/coll?token=hunter2", "coll"), ("https://user:pw@host/a/b", "b"),
    ("https://user:pw@host", "host"),
])  # fmt: skip
def test_the_name_of_a_given_collection_has_no_secrets(path: str, shown: str) -> None:
    changes = [f"dataset.path={path}"]
    recipe, _ = load_recipe("small/beir", changes)

    assert given_collection(recipe, changes) == shown
    assert given_collection(recipe, []) is None
