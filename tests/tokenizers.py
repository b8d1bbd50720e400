"""Tokenizers of the three kinds, trained on a few sentences, as Hugging Face folders with a tiny BERT."""

from __future__ import annotations

import json
import string
from functools import cache
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import BertConfig
from models.retrievers.bi_encoder import save_pooling
from tests.tiny import SHAPE, fast_tokenizer

KINDS = ["wordpiece", "byte_level", "sentencepiece"]
SENTENCES = [
    "The river ran by the old castle, and the painter's garden was full of bridges.",
    "In winter 1984 the mountains were white; the ocean (they say) was grey.",
    "Engines sang: stone, bread and letters! The king's music, heard again?",
    "The painters were painting the mountains, and the bridges of the kingdom.",
]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


@cache
def trained(kind: str) -> str:
    """tokenizer.json of a kind; the last two have RoBERTa's special tokens and frame."""
    if kind == "wordpiece":
        return fast_tokenizer().to_str()
    if kind == "byte_level":
        fast = Tokenizer(models.BPE())
        fast.pre_tokenizer, fast.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=380, special_tokens=ROBERTA, initial_alphabet=alphabet)
    else:
        fast = Tokenizer(models.Unigram())
        fast.normalizer = normalizers.Sequence(
            [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")]
        )
        fast.pre_tokenizer, fast.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        alphabet = list(string.printable + "éøßñжд中文字漢")
        trainer = trainers.UnigramTrainer(
            vocab_size=200, special_tokens=ROBERTA, unk_token="<unk>", initial_alphabet=alphabet
        )
    trainer.show_progress = False
    fast.train_from_iterator(SENTENCES, trainer)
    cls, sep = (fast.token_to_id(name) for name in ("<s>", "</s>"))
    fast.post_processor = processors.RobertaProcessing(("</s>", sep), ("<s>", cls), trim_offsets=kind == "byte_level")
    return fast.to_str()


def fast(kind: str) -> Tokenizer:
    """A new tokenizer of a kind."""
    return Tokenizer.from_str(trained(kind))


def save(folder: Path, kind: str) -> Path:
    """Write the tokenizer of a kind and a BERT with as many tokens."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(trained(kind))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 64}))
    torch.manual_seed(0)
    numbers = fast(kind).get_vocab()
    shape = {**SHAPE, "vocab_size": len(numbers), "pad_token_id": numbers["[PAD]" if kind == "wordpiece" else "<pad>"]}
    BertForMaskedLM(BertConfig(**shape)).save(folder)
    save_pooling(folder, "cls", SHAPE["hidden_size"])
    return folder
