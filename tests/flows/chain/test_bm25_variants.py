"""BM25 over passages without titles, next to BM25 over the passages as retrievers read them."""

import json
from pathlib import Path

import pytest

from flows.chain.evaluation import bm25_variants
from flows.chain.pretraining import retrieved_passages, retrieved_passages_without_titles
from flows.chain.report_inputs import descriptions
from flows.recipe.load import load_recipe
from flows.recipe.schema import as_yaml
from storage.errors import UserError
from storage.rows import read_rows, write_rows
from storage.store.store import Store
from storage.tables import Passages, Queries, Run
from tasks.session import Session, session
from tasks.stage import stage

TEXT = "Oxen pull a plough. They eat grass and hay. An ox is strong."
CHANGES = ["evaluate.bm25_without_titles=true", "bm25.engine=bm25s"]


@stage(version=1, table=Queries)
def title_as_query(out: Path) -> None:
    """A query of words that only the title has."""
    write_rows(out, Queries, [{"query_id": "q", "text": "farm work"}])


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    folder = tmp_path / "collection"
    folder.mkdir()
    rows = [{"_id": "d", "title": "Farm work", "text": TEXT}, {"_id": "e", "title": "", "text": "A farm, and hay."},
            {"_id": "f", "title": "Only a title", "text": ""}]  # fmt: skip
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_passages_without_titles_have_the_same_ids_and_texts(collection: Path, store: Store) -> None:
    recipe, _ = load_recipe("small/beir", [f"dataset.path={collection}", "split.max_tokens=8", *CHANGES])
    with session(Session(store, recipe.execution)):
        both = retrieved_passages(recipe), retrieved_passages_without_titles(recipe)
        titled, untitled = (list(read_rows(passages, Passages)) for passages in both)

    assert len(titled) > 3
    assert [row["passage_id"] for row in untitled] == [row["passage_id"] for row in titled]
    assert [row["text"] for row in untitled] == [row["text"] for row in titled]
    assert [row["title"] for row in untitled if row["text"]] == [""] * (len(titled) - 1)


def test_a_word_of_a_title_is_no_word_of_its_passage(collection: Path, store: Store) -> None:
    recipe, _ = load_recipe("small/beir", [f"dataset.path={collection}", "split.max_tokens=null", *CHANGES])
    with session(Session(store, recipe.execution)):
        [(name, ranker)] = bm25_variants(recipe, None).items()
        run = ranker.rank(title_as_query(), 10)

    assert name == "bm25_without_titles"
    assert [row["passage_id"] for row in read_rows(run, Run)] == ["e"]


def test_the_recipe_without_the_setting_has_the_same_text_and_runs(store: Store) -> None:
    plain, _ = load_recipe("small/beir")
    changed, _ = load_recipe("small/beir", CHANGES[:1])

    assert "bm25_without_titles" not in as_yaml(plain)
    assert "bm25_without_titles: true" in as_yaml(changed)
    assert bm25_variants(plain, None) == {}
    assert descriptions(changed, ["bm25_without_titles"])["bm25_without_titles"].endswith("without their titles")


def test_passages_that_have_no_titles_cannot_lose_them() -> None:
    with pytest.raises(UserError, match=r"also set evaluate\.bm25_without_titles=false"):
        load_recipe("small/beir", [*CHANGES, "split.titles=false"])


def test_a_variant_can_be_compared_and_mines_nothing() -> None:
    comparison = "evaluate.comparisons=[{run: retriever_1, baseline: bm25_without_titles}]"
    load_recipe("small/beir", [*CHANGES, comparison])
    with pytest.raises(UserError, match="mines with 'bm25_without_titles'"):
        load_recipe("small/beir", [*CHANGES, "rounds.0.mine_with=bm25_without_titles"])
