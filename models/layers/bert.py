"""BERT: embeddings, post-norm transformer layers, and the masked-language-model head.

It is implemented here because five papers change its inside. Parameter names are those of Hugging Face, a test checks
that the outputs are equal, and checkpoints open in `transformers`. Layers compute the real tokens of a batch without
its padding (`models.layers.unpadding`).

Shape suffixes: B batch, L length, H hidden, A attention heads, D size of a head, V vocabulary, N real or selected
tokens, Q length of a query stream.
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
"""Weights of other heads, which are skipped: next-sentence prediction, and a cross-encoder's classifier."""
WORDS = "bert.embeddings.word_embeddings.weight"


class Embeddings(nn.Module):
    """The sum of word, position and token-type embeddings (type 0 by default), LayerNorm, and dropout."""

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
            raise ValueError(f"a text has {length} tokens, but the model only {longest} positions; lower max_tokens")
        types = self.token_type_embeddings.weight[0] if types_BL is None else self.token_type_embeddings(types_BL)
        words_BLH = self.word_embeddings(ids_BL) + types
        return cast(Tensor, self.dropout(self.LayerNorm(words_BLH + self.position_embeddings.weight[:length])))


class SelfAttention(nn.Module):
    """Multi-head attention; a packing says which positions attend to which."""

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
        """Return the attention output [N, H] of queries over a context of as many texts.

        `rows` is the packing of the queries, which also says which columns each row sees; `columns` is the context's.
        """

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
    """Linear, dropout, residual connection and LayerNorm, in BERT's post-norm order."""

    def __init__(self, size: int, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, new: Tensor, x_NH: Tensor) -> Tensor:
        return cast(Tensor, self.LayerNorm(self.dropout(self.dense(new)) + x_NH))


class Attention(nn.Module):
    """Self-attention with its residual connection."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.self = SelfAttention(config)
        self.output = Residual(config.hidden_size, config)

    def forward(self, x_NH: Tensor, packing: Packing) -> Tensor:
        return cast(Tensor, self.output(self.self(x_NH, packing), x_NH))


class Intermediate(nn.Module):
    """The first linear map of the feed-forward layer, with GELU."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)

    def forward(self, x_NH: Tensor) -> Tensor:
        return gelu(self.dense(x_NH))


class Layer(nn.Module):
    """A transformer layer."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.intermediate = Intermediate(config)
        self.output = Residual(config.intermediate_size, config)

    def forward(self, x_NH: Tensor, packing: Packing) -> Tensor:
        mixed_NH: Tensor = self.attention(x_NH, packing)
        return cast(Tensor, self.output(self.intermediate(mixed_NH), mixed_NH))


class Layers(nn.Module):
    """The stack of layers; the class exists for Hugging Face's parameter names."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))


class Bert(nn.Module):
    """Embeddings and layers, without a pooler."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = Layers(config)

    def forward(
        self, ids_BL: Tensor, mask_BL: Tensor, types_BL: Tensor | None = None, *, unattended_BL: Tensor | None = None,
        positions_N: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the last hidden states [B, L, H], which are 0 at padding; token types are 0 by default.

        `positions_N` are the flat positions of real tokens, if they are known.
        """
        packing = Packing(mask_BL, unattended_BL=unattended_BL, positions_N=positions_N)
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
    """The vocabulary head without its matrix, which is the word embeddings."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.transform = Transform(config)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))


class VocabularyHead(nn.Module):
    """Contains `predictions`; the class exists for Hugging Face's parameter names."""

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
        """Return logits [N, V] over the vocabulary (phi); pass only the positions whose prediction is needed."""
        head = self.cls.predictions
        return linear(head.transform(hidden_NH), self.bert.embeddings.word_embeddings.weight, head.bias)


def initialise(module: nn.Module, deviation: float) -> None:
    """Initialise a module as BERT does: weights from N(0, deviation), biases and the padding's embedding 0."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, 0.0, deviation)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        with torch.no_grad():
            module.weight[module.padding_idx].zero_()


def load(folder: Path, *, layers: Sequence[int] | None = None) -> BertForMaskedLM:
    """Load the BERT of a Hugging Face folder, or only the layers with the given indices, counted from 0.

    Weights must match config.json. Only the vocabulary head may be missing; it is then initialised from the current
    random state.
    """
    config = BertConfig.load(folder)
    kept = config.kept(layers)
    model, path = BertForMaskedLM(replace(config, num_hidden_layers=len(kept))), folder / WEIGHTS
    weights = {_own_name(name): tensor for name, tensor in read_weights(path).items()}
    weights = {name: tensor for name, tensor in weights.items() if not (UNUSED.search(name) or OTHER_HEADS.match(name))}
    _drop_tied(weights, path)
    expected = model.state_dict()
    if not any(name.startswith(HEAD) for name in weights):
        weights |= {name: tensor for name, tensor in expected.items() if name.startswith(HEAD)}
    sources = {_source_name(name, kept): tensor for name, tensor in expected.items()}
    dropped = {
        name for name in weights if (number := _layer(name)) in range(config.num_hidden_layers) and number not in kept
    }
    check_fit({name: weights[name] for name in weights.keys() - dropped}, sources, path, CONFIG)
    model.load_state_dict({name: weights[_source_name(name, kept)] for name in expected})
    return model


def _drop_tied(weights: dict[str, Tensor], path: Path) -> None:
    """Remove the copies of tied weights that some releases save; refuse a head that differs from the embeddings."""
    for name, shared in ((f"{DECODER}weight", WORDS), (f"{DECODER}bias", f"{HEAD}bias")):
        copy = weights.pop(name, None)
        if copy is not None and shared in weights and not torch.equal(copy, weights[shared]):
            raise ValueError(f"{path}: expected {name} to equal {shared}, found an untied head, which is not supported")


def save(model: BertForMaskedLM, folder: Path) -> None:
    """Write config.json and model.safetensors."""
    model.config.save(folder)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def _source_name(name: str, kept: Sequence[int]) -> str:
    """Return a weight's name in the checkpoint, where layers are counted before some are dropped."""
    number = _layer(name)
    return name if number is None else name.replace(f"{LAYER}{number}.", f"{LAYER}{kept[number]}.", 1)


def _layer(name: str) -> int | None:
    """Return the index of a weight's layer; None for a weight outside the layers."""
    number = name.removeprefix(LAYER).partition(".")[0] if name.startswith(LAYER) else ""
    return int(number) if number.isdecimal() else None


def _own_name(name: str) -> str:
    """Return our name of a checkpoint's weight.

    Bare encoders are saved without `bert.`; very old checkpoints call LayerNorm's weights gamma and beta.
    """
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return name if name.startswith(("bert.", "cls.")) else f"bert.{name}"
