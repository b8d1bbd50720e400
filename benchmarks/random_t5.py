"""A random T5 whose texts end after about fifteen tokens, its tokenizer, and passages of its words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing

SHORTEST, LONGEST = 12, 144  # lengths of passages in tokens
PAD, END, UNKNOWN, START = range(4)
EMBEDDING, LOGITS = 0.05, 2.0  # standard deviations
END_ADVANTAGE = 5.0  # so that a query has some fifteen tokens


@dataclass(frozen=True)
class Shape:
    """The sizes of a T5."""

    vocabulary: int
    width: int
    layers: int
    heads: int


def make_model(folder: Path, size: Shape) -> None:
    """Write a random T5 and its tokenizer.

    One dimension is the same for all words, and makes the end likelier than a word.
    """
    torch.manual_seed(7)
    words = Tokenizer(WordLevel({name(number): number for number in range(size.vocabulary)}, unk_token=name(UNKNOWN)))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = TemplateProcessing(single=f"$A {name(END)}", special_tokens=[(name(END), END)])
    transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=words, eos_token=name(END), pad_token=name(PAD), unk_token=name(UNKNOWN)
    ).save_pretrained(folder)
    config = transformers.T5Config(
        vocab_size=size.vocabulary, d_model=size.width, d_kv=size.width // size.heads, num_heads=size.heads,
        d_ff=4 * size.width, num_layers=size.layers, pad_token_id=PAD, eos_token_id=END,
    )  # fmt: skip
    config.decoder_start_token_id = START
    model: Any = transformers.T5ForConditionalGeneration(config)
    with torch.no_grad():
        words_VD = model.shared.weight
        words_VD *= EMBEDDING
        words_VD[:, 0] = 1.0
        for special, first in ((PAD, -9.0), (UNKNOWN, -9.0), (END, 1.0 + END_ADVANTAGE)):
            words_VD[special] = 0.0
            words_VD[special, 0] = first
        for parameter_name, weight in model.decoder.named_parameters():
            if parameter_name.endswith((".o.weight", ".wo.weight")):
                weight[0] = 0.0
        model.decoder.final_layer_norm.weight.fill_(LOGITS / EMBEDDING)
    model.save_pretrained(folder)


def name(number: int) -> str:
    """Return the word of a token."""
    return f"w{number}"


def passages(count: int, size: Shape) -> list[str]:
    """Return passages of random words with realistic lengths."""
    random = np.random.default_rng(3)
    lengths = random.integers(SHORTEST, LONGEST, size=count)
    return [
        " ".join(name(number) for number in random.integers(START + 1, size.vocabulary, size=length - 1))
        for length in lengths
    ]
