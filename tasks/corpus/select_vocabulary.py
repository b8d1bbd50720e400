"""Select the tokens of a vocabulary that a collection uses most, for a backbone with a smaller vocabulary.

The vocabulary's head is most of what a step of a small model costs, and most collections use a part of BERT's 30,522
tokens. A rarer word falls back to shorter tokens; the artifact states how many more tokens texts have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from models.model_files import read_json
from models.tokens import FILES
from models.vocabulary_subset import characters_of, check_wordpiece, required_tokens, subset_tokenizer
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.files import writing
from storage.rows import num_rows, read_rows, write_rows
from storage.settings import Settings
from storage.tables import Documents, Vocabulary, passage_text
from tasks.corpus.split_corpus import load_tokenizer
from tasks.corpus.token_counts import batches, count_in_shards, count_shard
from tasks.runtime.shard import ShardTask
from tasks.stage import stage

UNKNOWN = "[UNK]"
COVERAGE_TEXTS = 10_000
"""The number of documents, the first of those that are retrieved, that are tokenised before and after."""


class VocabularySize(Settings):
    """The number of tokens to keep."""

    tokens: int
    """All tokens, with special tokens and single characters."""


@stage(version=1, table=Vocabulary)
def select_vocabulary(
    out: Path, documents: Artifact[Documents], pretraining: Artifact[Documents] | None, tokenizer: Source, *,
    settings: VocabularySize,
) -> None:  # fmt: skip
    """Write the `tokens` most frequent tokens of the documents that are retrieved and of those pre-trained on.

    Special tokens and all characters of the documents, also as continuations of a word, are always kept, so that no
    text of these characters has an [UNK] that it did not have before. Ties are broken by token id.
    """
    content = read_json(tokenizer.path / FILES[0], "a tokenizer")
    counts = _occurrences(out, documents, tokenizer, "documents")
    if pretraining is not None:
        counts += _occurrences(out, pretraining, tokenizer, "pre-training")
    names = {number: token for token, number in content["model"]["vocab"].items()}
    kept = select(content, counts, settings.tokens)
    write_rows(out, Vocabulary, (
        {"token": names[number], "original_id": number, "occurrences": int(counts[number])} for number in kept
    ))  # fmt: skip
    with writing(out / FILES[0]) as temporary:
        temporary.write_text(json.dumps(subset_tokenizer(content, kept), ensure_ascii=False), encoding="utf-8")
    coverage = {
        "tokens": len(kept), "vocabulary": len(names),
        "before": _coverage(documents, tokenizer.path), "after": _coverage(documents, out),
    }  # fmt: skip
    with writing(out / "coverage.json") as temporary:
        temporary.write_text(json.dumps(coverage, indent=1) + "\n", encoding="utf-8")


def select(tokenizer: dict[str, Any], counts: NDArray[np.int64], size: int) -> list[int]:
    """Return the ids to keep, in ascending order; `counts` has the occurrences of each id. Raises UserError."""
    vocabulary = tokenizer["model"]["vocab"]
    used = [token for token, number in vocabulary.items() if counts[number]]
    required = {vocabulary[token] for token in required_tokens(tokenizer, characters_of(used))}
    check_size(size, len(required), len(vocabulary))
    others = sorted(set(vocabulary.values()) - required, key=lambda number: (-counts[number], number))
    return sorted([*required, *others[: size - len(required)]])


def check_size(size: int, required: int, available: int) -> None:
    """Raise UserError for a number of tokens that a vocabulary cannot be reduced to."""
    if not required <= size <= available:
        raise UserError(
            f"backbone.vocabulary: expected {required:,}, the special tokens and single characters that are always "
            f"kept, to {available:,}, the tokenizer's tokens, found {size:,}"
        )


def check(size: int | None, folder: Path) -> None:
    """Raise UserError for a size that does not fit the tokenizer of a folder, before anything is counted.

    If the tokenizer is missing, as in a plan, nothing is checked.
    """
    if size is not None and (folder / FILES[0]).is_file():
        check_kind("backbone.vocabulary", folder, "leave the setting out")
        content = read_json(folder / FILES[0], "a tokenizer")
        known = content["model"]["vocab"]
        if added := [token["content"] for token in content.get("added_tokens", ()) if token["content"] not in known]:
            raise UserError(
                f"backbone.vocabulary: {folder / FILES[0]} has tokens outside its model's vocabulary: {added[0]}, …; "
                "leave the setting out"
            )
        check_size(size, len(required_tokens(content)), len(known))


def check_kind(setting: str, folder: Path, remedy: str) -> None:
    """Raise UserError if the tokenizer of a folder has no WordPiece tokens, which a setting needs.

    If the tokenizer is missing, as in a plan, nothing is checked.
    """
    if (folder / FILES[0]).is_file():
        try:
            check_wordpiece(read_json(folder / FILES[0], "a tokenizer"))
        except ValueError as error:
            raise UserError(f"{setting}: {folder / FILES[0]}: {error}; {remedy}") from None


def count_part(task: ShardTask, documents: Artifact[Documents], tokenizer: Source) -> None:
    """Count the tokens in the documents of a shard."""
    count_shard(task, _texts(documents, *task.shard.of), tokenizer)


def _occurrences(out: Path, documents: Artifact[Documents], tokenizer: Source, name: str) -> NDArray[np.int64]:
    """Return the number of occurrences of each token id in all documents."""
    counts = count_in_shards(out, documents, tokenizer, count_part, name=f"tokens-{name}", what="counting tokens")
    occurrences: NDArray[np.int64] = counts[1]
    return occurrences


def _texts(documents: Artifact[Documents], first: int, last: int) -> Iterator[str]:
    """Yield titles and texts of the documents [first, last)."""
    return (passage_text(row["title"], row["text"]) for row in read_rows(documents, Documents, first, last))


def _coverage(documents: Artifact[Documents], folder: Path) -> dict[str, float]:
    """Return the mean number of tokens of a document and the share of [UNK] among them."""
    wordpiece: Tokenizer = load_tokenizer(str(folder / FILES[0]))
    texts, tokens, missing = 0, 0, 0
    for batch in batches(_texts(documents, 0, min(num_rows(documents.path), COVERAGE_TEXTS))):
        for encoding in wordpiece.encode_batch_fast(batch, add_special_tokens=False):
            texts, tokens, missing = texts + 1, tokens + len(encoding.ids), missing + encoding.tokens.count(UNKNOWN)
    return {"tokens_per_text": tokens / max(texts, 1), "unknown_share": missing / max(tokens, 1)}
