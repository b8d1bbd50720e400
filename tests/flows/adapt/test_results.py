"""The folder of an adaptation's model."""

from __future__ import annotations

from pathlib import Path

from flows.adapt.decision import Decision
from flows.adapt.recipes import Start
from flows.adapt.results import suite, write_model
from flows.recipe.suite_schema import Collection
from storage.store.store import Store
from tasks.corpus.split_corpus import Splitting
from tasks.retrieval.stated_model import StatedModel
from tests.tiny import save_backbone


def test_a_start_that_was_trained_again_in_its_folder_is_copied_again(tmp_path: Path, store: Store) -> None:
    start, decision = tmp_path / "start", Decision("start", "nothing was gained", "", {})
    start.mkdir()
    for spread in (0.1, 0.2):
        save_backbone(start, spread=spread, pooling="mean")
        model = write_model(tmp_path / "out", decision, {}, str(start), store)
        assert (model / "model.safetensors").read_bytes() == (start / "model.safetensors").read_bytes()


def test_held_out_documents_are_split_by_the_rules_of_their_language() -> None:
    start = Start("a/start", StatedModel(pooling="mean", normalises=True), 128)
    collection = Collection(name="heldout", reader="beir", path="texts", eval_split="heldout")

    splits = [suite(start, [collection], "texts", language).split for language in ("en", "de")]

    assert [split.language for split in splits] == ["en", "de"]
    assert splits[0] == suite(start, [collection], "texts").split == Splitting(max_tokens=128, titles=True)
