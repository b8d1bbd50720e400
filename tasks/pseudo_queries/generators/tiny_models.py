"""Random models that are tiny but have a real vocabulary: an encoder and a generator for rehearsals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import BertConfig
from models.retrievers import cross_encoder
from models.retrievers.bi_encoder import save_pooling
from models.tokens import Tokenizer

WIDTH, LAYERS, POSITIONS = 32, 2, 512
TEXTS, TOKENS = 8, 80
WEIGHTS = 150  # tokens of a text with a lexical weight, as of SPLADE on MS MARCO's passages
SPREAD = 0.1  # of the noise added to weights; without it all texts are nearly alike, and every score is a tie


def write_encoder(folder: Path, tokenizer: Path) -> None:
    """Write a random BERT of two layers of 32 dimensions with the vocabulary of a tokenizer's folder."""
    config = BertConfig(
        vocab_size=_copy_tokenizer(tokenizer, folder), hidden_size=WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=2, intermediate_size=2 * WIDTH, max_position_embeddings=POSITIONS,
    )  # fmt: skip
    torch.manual_seed(0)
    model = BertForMaskedLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * SPREAD)
        model.cls.predictions.bias.copy_(_bias_of_few_weights(model))
    model.save(folder)
    save_pooling(folder, "cls", WIDTH)


def write_cross_encoder(folder: Path, tokenizer: Path, encoder: Path) -> None:
    """Write a cross-encoder with the BERT of a folder and a random classifier."""
    _copy_tokenizer(tokenizer, folder)
    torch.manual_seed(0)
    cross_encoder.save(cross_encoder.load_for_training(encoder), folder)


def _bias_of_few_weights(model: BertForMaskedLM) -> Tensor:
    """Return a bias of the vocabulary with which few tokens of a text have a positive logit, as in a trained model.

    A random model gives a lexical weight to half of the vocabulary, and a lexical index would be a hundred times as
    large as that of a trained retriever.
    """
    ids_BL = torch.randint(model.config.vocab_size, (TEXTS, TOKENS))
    hidden_BLH = model.eval().bert(ids_BL, torch.ones_like(ids_BL, dtype=torch.bool))
    highest_BV = model.vocabulary(hidden_BLH).amax(1)
    size = model.config.vocab_size
    number = TEXTS * (size - min(WEIGHTS, size // 2))  # kthvalue counts from 1
    return -highest_BV.flatten().kthvalue(number).values.expand(size)


def write_generator(folder: Path, tokenizer: Path) -> None:
    """Write a random T5 of one layer with the vocabulary of a tokenizer's folder."""
    special = Tokenizer.load(tokenizer)
    shape: dict[str, Any] = {
        "vocab_size": _copy_tokenizer(tokenizer, folder), "d_model": WIDTH, "d_kv": 16, "num_heads": 2,
        "d_ff": 2 * WIDTH, "num_layers": 1, "pad_token_id": special.pad, "decoder_start_token_id": special.cls,
        "eos_token_id": special.sep,
    }  # fmt: skip
    torch.manual_seed(0)
    T5ForConditionalGeneration(T5Config(**shape)).save_pretrained(folder)


def _copy_tokenizer(tokenizer: Path, folder: Path) -> int:
    """Copy a tokenizer's files into a new folder, and return the size of its vocabulary."""
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, folder / name)
    return len(json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"])
