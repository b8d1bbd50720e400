"""A tokenizer with the most frequent words of another one, for tiny models that train on invented texts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from models.tokens import FILES
from models.vocabulary_subset import required_tokens, subset_tokenizer


def write_frequent_words(source: Path, folder: Path, number: int) -> list[str]:
    """Write a tokenizer of a BERT tokenizer's `number` most frequent words and all single characters; return the words.

    The vocabulary of a BERT is in the order of frequency, roughly.
    """
    content = json.loads((source / FILES[0]).read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = content["model"]["vocab"]
    words = [word for word in vocabulary if word.isalpha() and word.isascii() and len(word) > 1][:number]
    kept = sorted(vocabulary[token] for token in {*words, *required_tokens(content)})
    folder.mkdir(parents=True)
    (folder / FILES[0]).write_text(json.dumps(subset_tokenizer(content, kept)), encoding="utf-8")
    shutil.copyfile(source / FILES[1], folder / FILES[1])
    return words
