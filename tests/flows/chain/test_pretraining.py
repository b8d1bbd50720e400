"""Which spans a recipe pre-trains on: where their documents' titles are."""

import json
from pathlib import Path

import pytest

from flows.chain.pretraining import pretraining_spans, retrieved_passages
from flows.recipe.load import load_recipe
from flows.recipe.schema import as_yaml
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import read_rows
from storage.store.store import Store
from storage.tables import Passages, passage_text
from tasks.session import Session, session

NOT_PRETRAINED = ["pretrain=null", "contexts=null", *(f"rounds.{number}.start=backbone" for number in range(2))]
TEXT = "Oxen pull a plough. They eat grass and hay. An ox is strong."


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    folder = tmp_path / "collection"
    folder.mkdir()
    rows = [{"_id": "d", "title": "Oxen at work", "text": TEXT}, {"_id": "e", "title": "", "text": TEXT}]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def spans_and_passages(
    folder: Path, store: Store, *changes: str, planning: bool = True
) -> tuple[Artifact[Passages], Artifact[Passages]]:
    recipe, _ = load_recipe("small/beir", [f"dataset.path={folder}", *changes])
    with session(Session(store, recipe.execution, planning=planning)):
        return pretraining_spans(recipe), retrieved_passages(recipe)


def test_spans_that_need_no_splitting_of_their_own_are_the_passages(collection: Path, store: Store) -> None:
    as_passages = "split.pretrain_titles=null"
    for changes in (
        [as_passages], ["split.titles=false", "split.pretrain_titles=never"], ["split.max_tokens=null", as_passages],
    ):  # fmt: skip
        spans, passages = spans_and_passages(collection, store, *changes)
        assert spans == passages
    once, whole = spans_and_passages(collection, store, "split.max_tokens=null", "split.pretrain_titles=once")
    assert once == whole  # a complete document begins with its title either way


def test_spans_without_titles_are_those_of_passages_without(collection: Path, store: Store) -> None:
    never, passages = spans_and_passages(collection, store, "split.pretrain_titles=never")
    untitled, _ = spans_and_passages(collection, store, "split.titles=false", "split.pretrain_titles=null")

    assert never == untitled != passages


@pytest.mark.parametrize(
    ("titles", "expected"),
    [
        ("never", ["Oxen pull a plough. They eat grass and hay. ", "An ox is strong."]),
        ("once", ["Oxen at work Oxen pull a plough. ", "They eat grass and hay. An ox is strong."]),
        ("every", ["Oxen at work " + text for text in ("Oxen pull a plough. ", "They eat grass and hay. ",
                                                       "An ox is strong.")]),
    ],
)  # fmt: skip
def test_passages_keep_their_titles_whatever_spans_have(
    titles: str, expected: list[str], collection: Path, store: Store
) -> None:
    changes = ["split.max_tokens=13", f"split.pretrain_titles={titles}"]
    spans, passages = spans_and_passages(collection, store, *changes, planning=False)

    texts = {
        name: [passage_text(row["title"], row["text"]) for row in read_rows(inputs, Passages) if row["doc_id"] == "d"]
        for name, inputs in (("spans", spans), ("passages", passages))
    }
    assert texts["spans"] == expected
    assert texts["passages"] == [f"Oxen at work {text}" for text in ("Oxen pull a plough. They eat grass and hay. ",
                                                                     "An ox is strong.")]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "key", "change"),
    [
        (["split.pretrain_titles=once"], "pretrain_titles", "pretrain_titles=never"),
        (["split.pretrain_titles=every"], "pretrain_titles", "pretrain_titles=never"),
        (["split.pretrain_titles=null"], "titles", "titles=false"),
    ],
)
def test_a_corpus_without_titles_is_refused_where_spans_need_them(
    changes: list[str], key: str, change: str, tmp_path: Path, store: Store
) -> None:
    (tmp_path / "books_large_p1.txt").write_text("One. Two.\n")
    books = f"{{reader: bookcorpus, path: {tmp_path}, description: books}}"
    recipe, _ = load_recipe("small/beir", [f"corpora.pretrain_from={books}", *changes])

    message = rf"split\.{key}: the corpus in .* has no titles; .* set split\.{change}$"
    with pytest.raises(UserError, match=message), session(Session(store, recipe.execution, planning=True)):
        pretraining_spans(recipe)


def test_a_recipe_without_the_setting_reads_as_before() -> None:
    recipe, _ = load_recipe("small/beir", ["split.pretrain_titles=null"])
    chosen, _ = load_recipe("small/beir", ["split.pretrain_titles=once"])

    assert "pretrain_titles" not in as_yaml(recipe)
    assert "  pretrain_titles: once\n" in as_yaml(chosen)


REFUSED: dict[str, tuple[list[str], str]] = {
    "spans of complete documents": (
        ["split.max_tokens=null", "split.pretrain_titles=every"],
        r"split\.pretrain_titles: without max_tokens a document is one span; expected never or once",
    ),
    "nothing reads spans": (
        [*NOT_PRETRAINED, "queries.for=[retrieve]", "split.pretrain_titles=never"],
        r"split\.pretrain_titles: without pretrain nothing reads spans; expected null",
    ),
    "another word": (["split.pretrain_titles=always"], r"split\.pretrain_titles: .*'never', 'once' or 'every'"),
    "passages": (["split.titles=once"], r"split\.titles: .*boolean, found 'once'"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_combinations_without_meaning_are_refused_when_the_recipe_is_loaded(what: str) -> None:
    changes, message = REFUSED[what]

    with pytest.raises(UserError, match=message):
        load_recipe("small/beir", changes)


def test_a_recipe_that_only_generates_queries_for_spans_may_choose_their_titles() -> None:
    changes = [*NOT_PRETRAINED, "queries.for=[pretrain]"]
    recipe, _ = load_recipe("small/beir", [*changes, "split.pretrain_titles=once"])

    assert recipe.split.of_spans.titles == "once"
