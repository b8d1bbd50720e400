"""BERT's embeddings and post-norm transformer layers.

They are implemented here because five papers change their inside. Parameter names are those of Hugging Face. Layers
compute the real tokens of a batch without its padding (`models.layers.unpadding`).

Shape suffixes: B batch, L length, H hidden, A attention heads, D size of a head, N real or selected tokens, Q length of
a query stream.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from models.layers.attention import attention
from models.layers.bert_config import BertConfig
from models.layers.unpadding import Packing


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

        def heads(x_NH: Tensor) -> Tensor:
            return cast(Tensor, x_NH.unflatten(-1, (self.num_heads, -1)))

        mixed_NAD: Tensor = attention(
            heads(self.query(queries_NH)), heads(self.key(context_NH)), heads(self.value(context_NH)), rows=rows,
            columns=columns, dropout=self.dropout if self.training else 0.0,
        )  # fmt: skip
        return mixed_NAD.flatten(-2)


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


def initialise(module: nn.Module, deviation: float) -> None:
    """Initialise a module as BERT does: weights from N(0, deviation), biases and the padding's embedding 0."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, 0.0, deviation)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        with torch.no_grad():
            module.weight[module.padding_idx].zero_()
