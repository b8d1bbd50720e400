"""A BERT, a T5 and a WordPiece tokenizer that are small enough for a test, as Hugging Face folders.

Processes of trainings import this file, so transformers, whose import takes seconds, is imported where it is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import BertConfig
from models.pretraining import Initialisation, TermCounts
from models.representation import Pooling
from models.retrievers.bi_encoder import DenseEncoder, save_pooling
from models.retrievers.retriever import Retriever
from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.views.dense import DenseSettings
from models.retrievers.views.late import LateSettings
from models.retrievers.views.lexical import LexicalSettings
from models.tokens import Tokenizer as WordPieces

if TYPE_CHECKING:
    from transformers import T5ForConditionalGeneration

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = list("abcdefghijklmnopqrstuvwxyz")
WORDS = [
    "river", "mountain", "castle", "painter", "music", "planet", "ocean", "tree", "king", "letter", "stone", "bread",
    "winter", "garden", "engine", "bridge",
]  # fmt: skip
ENDINGS = ["##s", "##ing", "##er", "##land", "##ish", "##ly"]
PIECES = [*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS if letter != "s"), *WORDS, *ENDINGS, ".", ","]
SHAPE = {
    "vocab_size": len(PIECES), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
LENGTH = 24
SMALL_LENGTHS = [
    f"{name}={LENGTH}"
    for name in (
        "pretrain.objective.max_tokens", "pretrain.objective.context_max_tokens", "encode.passage_max_tokens",
        "rounds.0.train.passage_max_tokens", "rounds.1.train.passage_max_tokens",
    )
]  # fmt: skip
"""Changes of a full recipe whose texts then fit into `SHAPE`'s positions."""


def random_texts(count: int, longest: int, random: np.random.Generator) -> list[list[int]]:
    """Texts of 3 to `longest` - 1 random token ids, without special tokens."""
    lengths = random.integers(3, longest, size=count)
    return [random.integers(len(SPECIALS), len(PIECES), size=length).tolist() for length in lengths]


def fast_tokenizer() -> Tokenizer:
    """BERT's WordPiece tokens of `PIECES`."""
    numbers = {piece: number for number, piece in enumerate(PIECES)}
    fast = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    fast.normalizer = normalizers.BertNormalizer(lowercase=True)
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.WordPiece()
    fast.post_processor = processors.BertProcessing(("[SEP]", numbers["[SEP]"]), ("[CLS]", numbers["[CLS]"]))
    fast.add_special_tokens(SPECIALS)
    return fast


def tiny_tokenizer() -> WordPieces:
    """The same, as models read it."""
    return WordPieces(fast_tokenizer())


def save_tokenizer(folder: Path) -> None:
    """Write tokenizer.json, its configuration and vocab.txt."""
    fast = fast_tokenizer()
    fast.save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "model_max_length": 64}\n')


def tiny_t5(size: int, **changes: float) -> T5ForConditionalGeneration:
    """A T5 with random weights that begins with [CLS], ends with [SEP] and pads with [PAD]."""
    from transformers import T5Config, T5ForConditionalGeneration

    shape = {"d_model": 16, "d_kv": 8, "num_heads": 2, "d_ff": 32, "num_layers": 2} | changes
    return T5ForConditionalGeneration(
        T5Config(vocab_size=size, decoder_start_token_id=2, pad_token_id=0, eos_token_id=3, **shape)
    )


def save_t5(folder: Path, pieces: list[str], *, seed: int = 5, **changes: float) -> Path:
    """A folder with such a T5 and a tokenizer of these WordPiece tokens, which begin with `SPECIALS`."""
    from transformers import BertTokenizer

    torch.manual_seed(seed)
    BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)}).save_pretrained(folder)
    tiny_t5(len(pieces), **changes).save_pretrained(folder)
    return folder


def tiny_bert(
    *, seed: int = 0, dropout: float = 0.0, spread: float = 0.2, max_position_embeddings: int = 64
) -> BertForMaskedLM:
    """Random weights, biases and LayerNorms too: far enough from 0 that a wrong one shows."""
    torch.manual_seed(seed)
    shape = {**SHAPE, "max_position_embeddings": max_position_embeddings}
    config = BertConfig(**shape, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    model = BertForMaskedLM(config)
    if spread:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * spread)
    return model


def save_backbone(
    folder: Path, *, seed: int = 0, dropout: float = 0.0, spread: float = 0.0, pooling: Pooling = "cls"
) -> Path:
    """A whole checkpoint's folder; by default weights are as a fresh BERT's."""
    (model := tiny_bert(seed=seed, dropout=dropout, spread=spread)).save(folder)
    save_pooling(folder, pooling, model.config.hidden_size)
    save_tokenizer(folder)
    return folder


def start(
    *,
    seed: int = 0,
    pooling: Pooling = "cls",
    dropout: float = 0.0,
    spread: float = 0.2,
    terms: TermCounts | None = None,
) -> Initialisation:
    """What a paper's pre-training of the tiny BERT begins with."""
    return Initialisation(DenseEncoder(tiny_bert(seed=seed, dropout=dropout, spread=spread), pooling), terms)


LATE = {
    "dim": 8, "bias": False, "normalise": False, "exact_match": False, "skip_punctuation": True, "query_masks": None,
    "use_cls": True, "use_sep": True,
}  # fmt: skip
LEXICAL = {
    "activation": "log1p_relu", "head": "mlm", "pool_specials": True, "top_passages": None, "top_queries": None
}  # fmt: skip
RETRIEVERS = {
    "dpr": RetrieverSettings(dense=DenseSettings(dim=None)),
    "splade": RetrieverSettings(lexical=LexicalSettings(**LEXICAL)),
    "colbert": RetrieverSettings(late=LateSettings(**LATE | {"normalise": True, "query_masks": 12})),
    "coil": RetrieverSettings(
        dense=DenseSettings(dim=6), late=LateSettings(**LATE | {"exact_match": True, "use_cls": False})
    ),
    "hybrid": RetrieverSettings(
        dense=DenseSettings(dim=None, weight=0.5), lexical=LexicalSettings(**LEXICAL, weight=2.0)
    ),
    "duplex": RetrieverSettings(
        dense=DenseSettings(dim=16),
        lexical=LexicalSettings(**LEXICAL | {"activation": "none", "pool_specials": False, "top_passages": 9}),
    ),
    "mixture": RetrieverSettings(
        dense=DenseSettings(dim=None), late=LateSettings(**LATE), lexical=LexicalSettings(**LEXICAL),
        shared_layers=1,
    ),
}  # fmt: skip
"""One of each kind that the papers have."""


def tiny_retriever(kind: str, *, seed: int = 0, dropout: float = 0.0, spread: float = 0.2) -> Retriever:
    """A retriever of one of the kinds, over the tiny BERT."""
    encoder = DenseEncoder(tiny_bert(seed=seed, dropout=dropout, spread=spread), "cls")
    model = Retriever(encoder, RETRIEVERS[kind], tiny_tokenizer())
    with torch.no_grad():
        for parameter in model.own().values():  # copies of layers are all alike at first, projections small
            parameter.add_(torch.randn_like(parameter) * spread)
    return model
