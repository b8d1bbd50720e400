"""What shrinks a recipe of full size to two steps of each training, and the models that it then reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import yaml
from tokenizers import Tokenizer, models

from flows.recipe.load import load_recipe
from flows.recipe.suite_schema import shipped_suites
from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import BertConfig
from models.retrievers import cross_encoder
from models.retrievers.bi_encoder import save_pooling
from tests.tiny import PIECES, fast_tokenizer, save_t5

SHAPE = {"hidden_size": 16, "num_hidden_layers": 12, "num_attention_heads": 2, "intermediate_size": 32,
         "max_position_embeddings": 64}  # fmt: skip
BACKBONES = ("bert-base-uncased", "Luyu/condenser", "Luyu/co-condenser-marco", "Luyu/co-condenser-wiki")
GENERATOR, CROSS_ENCODER = "doc2query/all-with_prefix-t5-base-v1", "cross-encoder/ms-marco-MiniLM-L-6-v2"
LENGTH, DIM = 32, 8
EXPORTS = "checkpoints/"
LARGEST = {
    "batch": 4, "batch_queries": 2, "passages_per_query": 3, "dim": DIM, "shard_passages": 100, "batch_tokens": 2048,
    "chunk": 2, "depth": 8, "negatives": 4, "train_documents": 10, "top_passages": 16, "pairs": 8, "words": 5,
    "max_new_tokens": 4, "input_max_tokens": LENGTH, "texts": 10, "queries": 4, "passages": 8, "documents": 12,
    "perplexity": 2, "query_max_tokens": 16,
}  # fmt: skip
"""The largest value of a setting of this name, wherever it is in a recipe."""


def save_models(folder: Path, texts: list[str]) -> None:
    """Write the models that recipes name into folders of these names, with the words of some texts as vocabulary."""
    tokenizer = tokenizer_of(texts)
    for number, name in enumerate((*BACKBONES, CROSS_ENCODER)):
        (folder / name).mkdir(parents=True)
        torch.manual_seed(number)
        config = BertConfig(vocab_size=tokenizer.get_vocab_size(), **SHAPE)
        if name == CROSS_ENCODER:
            cross_encoder.save(cross_encoder.CrossEncoder(config), folder / name)
        else:
            BertForMaskedLM(config).save(folder / name)
            save_pooling(folder / name, "cls", SHAPE["hidden_size"])
        tokenizer.save(str(folder / name / "tokenizer.json"))
        (folder / name / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}\n')
    (folder / GENERATOR).mkdir(parents=True)
    save_t5(folder / GENERATOR, PIECES)


def save_suite(file: Path) -> None:
    """Write BEIR's suite with only SciFact, of any number of documents."""
    suite = yaml.safe_load(shipped_suites()["beir"].read_text())
    [scifact] = [of for of in suite["collections"] if of["path"] == "beir/scifact"]
    suite["collections"] = [{**scifact, "documents": None}]
    suite["bm25"]["engine"] = "bm25s"
    suite["encode"] = {"query_max_tokens": LENGTH, "passage_max_tokens": LENGTH}
    file.write_text(yaml.safe_dump(suite))


def exported(name: str) -> dict[str, tuple[str, str]]:
    """Return the folders of checkpoints that a recipe reads, each with the recipe and the round that it comes from.

    A folder NAME_passages has the retriever that the recipe NAME has trained on passages, others have `pretrained`.
    """
    recipe, _ = load_recipe(name)
    named = {recipe.backbone.weights, *(round_.start for round_ in recipe.rounds)}
    return {folder: _source(folder.removeprefix(EXPORTS)) for folder in sorted(named) if folder.startswith(EXPORTS)}


def _source(stem: str) -> tuple[str, str]:
    if stem == "bert_passages":
        return "masked_lm", "retriever_2_without_pretraining"
    if stem.endswith("_passages"):
        return stem.removesuffix("_passages"), "retriever_2"
    return f"{stem}_released" if stem.endswith("_general") else stem, "pretrained"


def tokenizer_of(texts: list[str]) -> Tokenizer:
    """Return BERT's tokenizer of the words of some texts, and of letters for all other words."""
    tokenizer = fast_tokenizer()
    words = {word for text in texts for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text.lower())}
    pieces = [*PIECES, "[unused0]", "[unused1]", *sorted(words - set(PIECES))]
    tokenizer.model = models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]")
    return tokenizer


def shrunken(name: str) -> list[str]:
    """Return the changes that shrink a shipped recipe: `section.key=value`."""
    recipe, _ = load_recipe(name)
    values = recipe.model_dump(mode="json", by_alias=True)
    execution = ("execution.device=cpu", "execution.threads=1", "execution.workers=1")
    return [*smaller(values, ""), "dataset.complete=false", "bm25.engine=bm25s", "backbone.dropout=0.0", *execution]


def smaller(values: Any, path: str) -> list[str]:
    """Return the changes of a section: lengths of training, batches, lengths of texts, and sizes in `LARGEST`."""
    changes: list[str] = []
    for name, value in values.items() if isinstance(values, dict) else enumerate(values):
        key = f"{path}.{name}".removeprefix(".")
        if key in ("reported", "evaluate", "execution"):
            continue
        if isinstance(value, (dict, list)):
            changes += smaller(value, key)
        elif name == "steps" and "learn" not in path:
            changes.append(f"{key}=2")
        elif name == "epochs":
            changes.append(f"{key}={'null' if 'steps' in values else 1}")
        elif value and (limit := LARGEST.get(str(name), LENGTH if str(name).endswith("max_tokens") else None)):
            changes.append(f"{key}={min(value, limit)}")
    return changes
