"""A tiny T5 with a tokenizer like SentencePiece's, and pairs that it can learn: what tests of fine-tuning share."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from tasks.pseudo_queries.finetune_generator import GeneratorFinetuning

NOUNS = ["river", "castle", "planet", "garden", "engine", "bridge", "letter", "winter"]
COLOURS = ["red", "blue", "green", "white"]
PAIRS = [(f"the {colour} {noun}", f"{noun} {colour}") for noun in NOUNS for colour in COLOURS]
WORDS = sorted({word for pair in PAIRS for text in pair for word in text.split()})
SETTINGS = GeneratorFinetuning.model_validate({
    "prefix": "ask: ", "input_max_tokens": 16, "query_max_tokens": 6, "epochs": 3, "batch": 8, "validation": 0.25,
    "trip": {"passages": 4, "others": 5, "bm25": {"engine": "bm25", "k1": 0.9, "b": 0.4}}, "keep": "last", "seed": 3,
    "fit": {"learning_rate": 5e-3, "warmup_ratio": 0.1, "weight_decay": 0.0, "max_gradient_norm": 1.0, "chunk": None},
})  # fmt: skip


def save_start(folder: Path, *, spread: float = 0.0) -> Path:
    """A random T5's folder. Sequences end in </s> and start from <pad>, as T5's do."""
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -6.0)]
    vocabulary += [(f"▁{word}", -2.0) for word in WORDS] + [(chr(letter), -8.0) for letter in range(97, 123)]
    fast = Tokenizer(models.Unigram(vocabulary, unk_id=2))
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    fast.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=fast, **names).save_pretrained(folder)
    torch.manual_seed(1)
    shape: dict[str, Any] = {"d_model": 32, "d_kv": 16, "num_heads": 2, "d_ff": 64, "num_layers": 1}
    model = T5ForConditionalGeneration(
        T5Config(vocab_size=len(vocabulary), decoder_start_token_id=0, dropout_rate=0.1, **shape)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * spread)
    model.save_pretrained(folder)
    return folder


def save_pairs(path: Path) -> Path:
    """All pairs, as JSON lines."""
    path.write_text("".join(json.dumps({"passage": passage, "query": query}) + "\n" for passage, query in PAIRS))
    return path
