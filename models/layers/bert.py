"""BERT, written out: post-norm transformer layers, embeddings, and the masked-language-model head.

Five papers reach inside it, so it is our own; parameter names are Hugging Face's, and so are the
outputs (a test holds both equal). Checkpoints open in `transformers`.

Layers read the real tokens of a batch without its padding (`models.layers.unpadding`).

Shape suffixes: B batch, L length, H hidden, A attention heads, D size of a head, V vocabulary, N real tokens, or
selected ones, Q length of a stream that attends to another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from models.layers.bert_config import CONFIG as CONFIG
from models.layers.bert_config import BertConfig as BertConfig
from models.layers.unpadding import Packing
from models.model_files import UNUSED, check_fit, read_weights
from models.model_files import WEIGHTS as WEIGHTS

HEAD, DECODER = "cls.predictions.", "cls.predictions.decoder."
LAYER = "bert.encoder.layer."
OTHER_HEADS = re.compile(r"cls\.seq_relationship\.|bert\.classifier\.")
"""Of next-sentence prediction, and of a cross-encoder, from whose BERT a retriever may start: not this model's."""
WORDS = "bert.embeddings.word_embeddings.weight"


class Embeddings(nn.Module):
    """Words, positions and token types, 0 where none are given, then LayerNorm and dropout."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, ids_BL: Tensor, types_BL: Tensor | None = None) -> Tensor:
        length, longest = ids_BL.shape[1], self.position_embeddings.num_embeddings
        if length > longest:
            raise ValueError(f"a text has {length} tokens, but the model positions for {longest}; lower max_tokens")
        types = self.token_type_embeddings.weight[0] if types_BL is None else self.token_type_embeddings(types_BL)
        words_BLH = self.word_embeddings(ids_BL) + types
        return cast(Tensor, self.dropout(self.LayerNorm(words_BLH + self.position_embeddings.weight[:length])))


class SelfAttention(nn.Module):
    """Multi-head attention over the positions that a packing lets be seen."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = config.attention_probs_dropout_prob

    def forward(self, x_NH: Tensor, packing: Packing) -> Tensor:
        return self.attend(x_NH, x_NH, rows=packing, columns=packing)

    def attend(self, queries_NH: Tensor, context_NH: Tensor, *, rows: Packing, columns: Packing) -> Tensor:
        """What a stream takes [N, H] of another, of as many texts; its own packing says which columns its rows see."""

        def heads(projection: nn.Linear, x_NH: Tensor, packing: Packing) -> Tensor:
            projected_BLH = packing.padded(projection(x_NH))
            return projected_BLH.view(*packing.shape, self.num_heads, -1).transpose(1, 2)

        mixed_BAQD = scaled_dot_product_attention(
            heads(self.query, queries_NH, rows), heads(self.key, context_NH, columns),
            heads(self.value, context_NH, columns), attn_mask=rows.visible,
            dropout_p=self.dropout if self.training else 0.0,
        )  # fmt: skip
        return rows.packed(mixed_BAQD.transpose(1, 2).flatten(-2))


class Residual(nn.Module):
    """Project, drop out, add what came in, normalise: BERT's post-norm."""

    def __init__(self, size: int, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, new: Tensor, x_NH: Tensor) -> Tensor:
        return cast(Tensor, self.LayerNorm(self.dropout(self.dense(new)) + x_NH))


class Attention(nn.Module):
    """Self-attention with its residual."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.self = SelfAttention(config)
        self.output = Residual(config.hidden_size, config)

    def forward(self, x_NH: Tensor, packing: Packing) -> Tensor:
        return cast(Tensor, self.output(self.self(x_NH, packing), x_NH))


class Intermediate(nn.Module):
    """The widening half of the feed-forward layer."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)

    def forward(self, x_NH: Tensor) -> Tensor:
        return gelu(self.dense(x_NH))


class Layer(nn.Module):
    """One transformer block."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.intermediate = Intermediate(config)
        self.output = Residual(config.intermediate_size, config)

    def forward(self, x_NH: Tensor, packing: Packing) -> Tensor:
        mixed_NH: Tensor = self.attention(x_NH, packing)
        return cast(Tensor, self.output(self.intermediate(mixed_NH), mixed_NH))


class Layers(nn.Module):
    """The stack of blocks."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))


class Bert(nn.Module):
    """Embeddings and blocks, without a pooler."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = Layers(config)

    def forward(
        self, ids_BL: Tensor, mask_BL: Tensor, types_BL: Tensor | None = None, *, unattended_BL: Tensor | None = None
    ) -> Tensor:
        """Last hidden states [B, L, H], 0 where there is padding; tokens without types are of type 0."""
        packing = Packing(mask_BL, unattended_BL=unattended_BL)
        hidden_NH = packing.packed(self.embeddings(ids_BL, types_BL))
        for layer in self.encoder.layer:
            hidden_NH = layer(hidden_NH, packing)
        return packing.padded(hidden_NH)


class Transform(nn.Module):
    """The first half of the vocabulary head: Linear, GELU, LayerNorm."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        normed: Tensor = self.LayerNorm(gelu(self.dense(hidden)))
        return normed


class Predictions(nn.Module):
    """The vocabulary head but for its matrix, which is the word embeddings."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.transform = Transform(config)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))


class VocabularyHead(nn.Module):
    """Holds `predictions`, for Hugging Face's parameter names."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.predictions = Predictions(config)


class BertForMaskedLM(nn.Module):
    """BERT with its masked-language-model head phi, tied to the word embeddings."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = Bert(config)
        self.cls = VocabularyHead(config)
        self.apply(lambda module: initialise(module, config.initializer_range))

    def vocabulary(self, hidden_NH: Tensor) -> Tensor:
        """Logits [N, V] over the vocabulary: phi. Give it the positions whose prediction counts, no others."""
        head = self.cls.predictions
        return linear(head.transform(hidden_NH), self.bert.embeddings.word_embeddings.weight, head.bias)


def initialise(module: nn.Module, deviation: float) -> None:
    """BERT's start: weights from N(0, deviation), biases 0, LayerNorms the identity, the padding's embedding 0."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, 0.0, deviation)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        with torch.no_grad():
            module.weight[module.padding_idx].zero_()


def load(folder: Path, *, layers: Sequence[int] | None = None) -> BertForMaskedLM:
    """The BERT of a Hugging Face folder; of those of its layers only, counted from 0, where some are named.

    Weights must fit config.json. Only the vocabulary head may be missing, which then keeps the start that the current
    random state gave it.
    """
    config = BertConfig.load(folder)
    kept = config.kept(layers)
    model, path = BertForMaskedLM(replace(config, num_hidden_layers=len(kept))), folder / WEIGHTS
    found = {_own_name(name): tensor for name, tensor in read_weights(path).items()}
    found = {name: each for name, each in found.items() if not (UNUSED.search(name) or OTHER_HEADS.match(name))}
    _drop_tied(found, path)
    wanted = model.state_dict()
    if not any(name.startswith(HEAD) for name in found):
        found |= {name: tensor for name, tensor in wanted.items() if name.startswith(HEAD)}
    sources = {_source_name(name, kept): tensor for name, tensor in wanted.items()}
    dropped = {
        name for name in found if (number := _layer(name)) in range(config.num_hidden_layers) and number not in kept
    }
    check_fit({name: found[name] for name in found.keys() - dropped}, sources, path, CONFIG)
    model.load_state_dict({name: found[_source_name(name, kept)] for name in wanted})
    return model


def _drop_tied(found: dict[str, Tensor], path: Path) -> None:
    """Leave out the copies that some releases save of weights which the head shares; refuse a head of its own."""
    for name, shared in ((f"{DECODER}weight", WORDS), (f"{DECODER}bias", f"{HEAD}bias")):
        copy = found.pop(name, None)
        if copy is not None and shared in found and not torch.equal(copy, found[shared]):
            raise ValueError(f"{path}: expected {name} to equal {shared}, found a head of its own, which is not read")


def save(model: BertForMaskedLM, folder: Path) -> None:
    """Write config.json and model.safetensors."""
    model.config.save(folder)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def _source_name(name: str, kept: Sequence[int]) -> str:
    """Under which name a weight lies in a checkpoint of which only some layers are kept."""
    number = _layer(name)
    return name if number is None else name.replace(f"{LAYER}{number}.", f"{LAYER}{kept[number]}.", 1)


def _layer(name: str) -> int | None:
    """The number of the layer that a weight belongs to; None for one outside the layers."""
    number = name.removeprefix(LAYER).partition(".")[0] if name.startswith(LAYER) else ""
    return int(number) if number.isdecimal() else None


def _own_name(name: str) -> str:
    """Bare encoders are saved without `bert.`; very old checkpoints call LayerNorm's weights gamma and beta."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return name if name.startswith(("bert.", "cls.")) else f"bert.{name}"
