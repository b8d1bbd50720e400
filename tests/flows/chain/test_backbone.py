"""A backbone with a reduced vocabulary in the chain: what reads it, and which keys it changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.plan.plan import planned
from flows.recipe.load import load_recipe
from storage.errors import UserError
from storage.store.store import Store
from tasks.session import Done
from tests import tokenizers

TEXT = "Oxen pull a plough. They eat grass and hay. An ox is strong."


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    (folder := tmp_path / "collection" / "qrels").mkdir(parents=True)
    rows = [{"_id": "d", "title": "Oxen at work", "text": TEXT}, {"_id": "e", "title": "", "text": TEXT}]
    queries = [{"_id": "q", "text": "what pulls a plough?"}]
    (folder.parent / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder.parent / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    for split in ("train", "dev", "test"):
        (folder / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    return folder.parent


def steps(store: Store, collection: Path, *changes: str) -> list[Done]:
    recipe, _ = load_recipe("small/beir", [f"dataset.path={collection}", *changes])
    return list(planned(recipe, "beir", store).done.values())


def of(done: list[Done], stage: str) -> list[Done]:
    return [step for step in done if step.stage == stage]


def test_all_that_reads_the_backbone_reads_the_reduced_one(store: Store, collection: Path) -> None:
    done = steps(store, collection, "backbone.vocabulary=5000")

    [vocabulary] = of(done, "select_vocabulary")
    reduced = {f"reduce_vocabulary/{step.key}" for step in of(done, "reduce_vocabulary")}
    tokenizer, checkpoints = f"select_vocabulary/{vocabulary.key}", of(done, "initialise")
    readers = {step.stage for step in done if tokenizer in step.inputs}
    assert {"split_corpus", "pair_contexts", "reduce_vocabulary"} <= readers
    assert len(reduced) == len(checkpoints) == 2  # with the weights, and with random ones
    assert not any(str(inputs).startswith("initialise/") for step in done if step.stage != "reduce_vocabulary"
                   for inputs in step.inputs)  # fmt: skip
    assert any(reduced & set(map(str, step.inputs)) for step in of(done, "pretrain"))


def test_without_the_setting_keys_are_as_before_and_the_initial_checkpoint_is_shared(
    store: Store, collection: Path
) -> None:
    plain, null, reduced, other = (
        steps(store, collection, *changes)
        for changes in ([], ["backbone.vocabulary=null"], ["backbone.vocabulary=5000"], ["backbone.vocabulary=5001"])
    )

    assert [step.key for step in plain] == [step.key for step in null]
    assert not of(plain, "select_vocabulary")
    keys = [{step.key for step in of(done, "initialise")} for done in (plain, reduced)]
    assert keys[0] == keys[1]
    assert of(reduced, "split_corpus")[0].key != of(plain, "split_corpus")[0].key != of(other, "split_corpus")[0].key


def test_recipes_of_the_same_documents_share_the_vocabulary(store: Store, collection: Path) -> None:
    changes = ("backbone.vocabulary=5000", "seed=7", "backbone.dropout=0.2", "backbone.layers=[0]")

    vocabularies = [of(steps(store, collection, *more), "select_vocabulary") for more in (changes, changes[:1])]

    assert vocabularies[0][0].key == vocabularies[1][0].key


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ("0", "backbone.vocabulary: .*greater than 0, found 0"),
        ("100", "backbone.vocabulary: expected [0-9,]+, the special tokens and single char.* to 30,522, .* found 100"),
        ("30523", "backbone.vocabulary: .* to 30,522, the tokenizer's tokens, found 30,523"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_anything_is_built(
    tokens: str, message: str, store: Store, collection: Path
) -> None:
    with pytest.raises(UserError, match=message):
        steps(store, collection, f"backbone.vocabulary={tokens}")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "backbone.vocabulary=200",
            "backbone.vocabulary: .*: expected WordPiece tokens, .* found BPE; leave",
        ),
        (
            "seed=7",
            "queries.train: .*: expected WordPiece tokens, .* found BPE; name a generator",
        ),
    ],
)
def test_settings_that_need_wordpiece_tokens_are_refused(
    setting: str, message: str, store: Store, collection: Path, tmp_path: Path
) -> None:
    folder = tokenizers.save(tmp_path / "model", "byte_level")

    with pytest.raises(UserError, match=message):
        steps(store, collection, f"backbone.weights={folder}", "backbone.layers=null", setting)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused_in_a_plan(
    store: Store, collection: Path, tmp_path: Path
) -> None:
    folder = tokenizers.save(tmp_path / "model", "wordpiece")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 70}))

    with pytest.raises(UserError, match=r"backbone: .*: expected a tokenizer of at most 70 tokens, .* found 80; use"):
        steps(store, collection, f"backbone.weights={folder}", "backbone.layers=null")
