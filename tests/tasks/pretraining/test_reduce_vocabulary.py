"""Checkpoints with a part of their vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, BertForMaskedLM

from models.retrievers.retriever import HEADS_FILE
from models.retrievers.towers import QUERY, Towers, load, sharing
from models.tokens import Tokenizer
from storage.artifact import Artifact, source_of
from storage.errors import UserError
from storage.store.store import Store
from tasks.corpus.select_vocabulary import VocabularySize, select_vocabulary
from tasks.pretraining.initialise import BackboneSettings, initialise
from tasks.pretraining.reduce_vocabulary import check, reduce_vocabulary
from tests.tasks.corpus.test_select_vocabulary import REQUIRED, documents
from tests.tiny import save_backbone

TEXT = "king rivers"
TOKENS = REQUIRED + 2


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    (folder := tmp_path / "weights").mkdir()
    configuration = json.loads((save_backbone(folder, spread=0.2) / "tokenizer_config.json").read_text())
    added = {"0": {"content": "[PAD]"}, "4": {"content": "[MASK]"}}
    (folder / "tokenizer_config.json").write_text(json.dumps({**configuration, "added_tokens_decoder": added}))
    return folder


def reduced(weights: Path, tmp_path: Path, towers: Towers) -> tuple[Path, Path]:
    """Return the folders of a checkpoint with all tokens and of one with those of a text."""
    folders = [tmp_path / name for name in ("vocabulary", "complete", "reduced")]
    for folder in folders:
        folder.mkdir()
    vocabulary, complete, smaller = folders
    settings = BackboneSettings(
        weights="tiny", start="weights", towers=towers, layers=None, dropout=0.0, pooling="mean", seed=1
    )
    select_vocabulary.body(
        vocabulary, documents(tmp_path / "texts", [TEXT]), None, source_of(weights, [weights / "tokenizer.json"]),
        settings=VocabularySize(tokens=TOKENS),
    )  # fmt: skip
    initialise.body(complete, source_of(weights, sorted(weights.glob("*.*"))), settings=settings)
    reduce_vocabulary.body(
        smaller, Artifact("initialise", "0", complete), Artifact("select_vocabulary", "0", vocabulary)
    )
    return complete, smaller


@pytest.mark.parametrize("towers", ["siamese", "mixture", "separate"])
def test_a_text_of_kept_words_has_the_same_vectors(store: Store, weights: Path, tmp_path: Path, towers: Towers) -> None:
    complete, smaller = reduced(weights, tmp_path, towers)

    vectors = {}
    for folder in (complete, smaller):
        encoder, ids = load(folder), torch.tensor(Tokenizer.load(folder).encode([TEXT], 16))
        vectors[folder] = [tower.bert(ids, ids > 0) for tower in (encoder.passage, encoder.query)]
        assert sharing(encoder) == towers
    assert all(map(torch.equal, vectors[complete], vectors[smaller]))
    assert load(smaller).passage.config.vocab_size == Tokenizer.load(smaller).vocab_size == TOKENS
    assert (smaller / QUERY / "tokenizer.json").exists() == (towers != "siamese")
    assert (complete / "1_Pooling/config.json").read_bytes() == (smaller / "1_Pooling/config.json").read_bytes()


def test_the_folder_opens_in_transformers(store: Store, weights: Path, tmp_path: Path) -> None:
    _, smaller = reduced(weights, tmp_path, "siamese")

    tokenizer, model = AutoTokenizer.from_pretrained(smaller), BertForMaskedLM.from_pretrained(smaller)

    assert tokenizer("castles")["input_ids"] == Tokenizer.load(smaller).encode(["castles"], 16)[0]
    assert tokenizer.mask_token_id == Tokenizer.load(smaller).mask
    assert len(tokenizer) == model.config.vocab_size == model.get_input_embeddings().num_embeddings == TOKENS
    assert (smaller / "vocab.txt").read_text().split("\n")[tokenizer.mask_token_id] == "[MASK]"


def test_heads_of_an_earlier_training_are_refused(tmp_path: Path) -> None:
    (tmp_path / HEADS_FILE).touch()

    with pytest.raises(
        UserError, match=rf"backbone.vocabulary: {tmp_path} has {HEADS_FILE}, .* set backbone.vocabulary=nu"
    ):
        check(tmp_path)
