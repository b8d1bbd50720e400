"""Reduce an initial checkpoint to the tokens that `tasks.corpus.select_vocabulary` has selected."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.layers.bert import BertForMaskedLM
from models.model_files import read_json, refuse_unusable
from models.retrievers.bi_encoder import load_pooling, save_pooling
from models.retrievers.retriever import HEADS_FILE, RETRIEVER_SETTINGS, read_settings
from models.retrievers.towers import QUERY, SHARING
from models.tokens import FILES
from models.vocabulary_subset import subset_model
from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import writing_files
from storage.rows import read_rows
from storage.tables import Checkpoint, Vocabulary
from tasks.stage import stage


@stage(version=1, table=Checkpoint)
def reduce_vocabulary(out: Path, start: Artifact[Checkpoint], vocabulary: Artifact[Vocabulary]) -> None:
    """Write the checkpoint with the embeddings, the vocabulary head and the tokenizer of the kept tokens only."""
    rows = list(read_rows(vocabulary, Vocabulary))
    numbers = {row["token"]: number for number, row in enumerate(rows)}
    check(start.path)
    for name in ("", QUERY):
        if (start.path / name).is_dir():
            with writing_files(out / name) as folder:
                _reduce(start.path / name, folder, [row["original_id"] for row in rows])
                _write_tokenizer(start.path / name, vocabulary.path / FILES[0], numbers, folder)
                for file in (SHARING, RETRIEVER_SETTINGS):
                    if not name and (start.path / file).is_file():
                        (folder / file).write_bytes((start.path / file).read_bytes())


def check(folder: Path) -> None:
    """Raise UserError for a checkpoint with further weights over the vocabulary, which cannot be reduced."""
    for name in (HEADS_FILE, RETRIEVER_SETTINGS):
        is_plain = name == RETRIEVER_SETTINGS and read_settings(folder).of_encoder() == read_settings(folder)
        if (folder / name).is_file() and not is_plain:
            raise UserError(
                f"backbone.vocabulary: {folder} has {name}, the heads of an earlier training with the complete "
                "vocabulary; reduce the backbone that this training started from, or set backbone.vocabulary=null"
            )


def _reduce(folder: Path, out: Path, kept: list[int]) -> None:
    with refuse_unusable(folder):
        model = subset_model(BertForMaskedLM.load(folder), kept)
        model.save(out)
        save_pooling(out, load_pooling(folder), model.config.hidden_size)


def _write_tokenizer(folder: Path, tokenizer: Path, numbers: Mapping[str, int], out: Path) -> None:
    """Write the reduced tokenizer with the configuration of the original one."""
    definition, configuration, listed, special = FILES
    (out / definition).write_bytes(tokenizer.read_bytes())
    (out / listed).write_text("".join(f"{token}\n" for token in numbers), encoding="utf-8")
    if (folder / configuration).is_file():
        value = _renumbered(read_json(folder / configuration, "a tokenizer's configuration"), numbers)
        (out / configuration).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if (folder / special).is_file():
        (out / special).write_bytes((folder / special).read_bytes())


def _renumbered(configuration: dict[str, Any], numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return the configuration with the new ids of the added tokens, which it lists by id."""
    added = configuration.get("added_tokens_decoder")
    if not isinstance(added, dict):
        return configuration
    return {
        **configuration,
        "added_tokens_decoder": {str(numbers[token["content"]]): token for token in added.values()},
    }
