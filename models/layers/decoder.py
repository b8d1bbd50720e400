"""The auto-regressive decoder of CoT-MAE, CoT-MoTE and SEED, which reconstructs a text from one vector.

A position attends to the vector, which replaces [CLS], and to a window of preceding tokens. The vector has to provide
what the window does not contain.

Shape suffixes: B batch, C length of the decoded text, H hidden, V vocabulary, N real or predicted tokens.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu

from models.layers.backbone import Backbone
from models.layers.bert_config import BertConfig
from models.layers.bert_layers import SelfAttention, initialise
from models.layers.own_positions import OwnPositions
from models.layers.unpadding import Packing
from models.tokens import Tokens


class AutoRegressiveDecoder(nn.Module):
    """GPT-2's pre-norm blocks over [vector, context]; they predict every next token including [SEP]."""

    def __init__(
        self, model: Backbone, *, num_blocks: int, window: int, max_tokens: int, width: int | None = None
    ) -> None:
        """Create the decoder of texts up to `max_tokens`; `width` is its MLPs' inner size, None for the backbone's."""
        super().__init__()
        self.window = window
        self.dropout = model.config.hidden_dropout_prob
        inner = model.config.intermediate_size if width is None else width
        self.blocks = nn.ModuleList(PreNormBlock(model.config, num_blocks, inner) for _ in range(num_blocks))
        self.norm = nn.LayerNorm(model.config.hidden_size, eps=model.config.layer_norm_eps)
        self.vocabulary, self.embeddings = shared(model)
        self.own_positions = OwnPositions(model, max_tokens)

    def forward(
        self, vectors_BH: Tensor, context: Tokens, labels_BC: Tensor, predicted_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the logits [N, V] and the labels [N] of the tokens at ascending flat positions, none of them first.

        Each is predicted from the position before it.
        """
        # Padding is at the end and a row sees no later column, so this mask also hides padding.
        visible_CC = window_mask(context.ids.shape[1], self.window, context.ids.device)
        packing = Packing(context.mask, visible_CC, positions_N=context.positions)
        hidden_NH = packing.with_first(packing.packed(self.own_positions(self.embeddings(context.ids))), vectors_BH)
        hidden_NH = dropout(hidden_NH, self.dropout, self.training)
        for block in self.blocks:
            hidden_NH = block(hidden_NH, packing)
        before_NH = packing.at(hidden_NH, predicted_N - 1)
        return self.vocabulary(self.norm(before_NH)), labels_BC.flatten().index_select(0, predicted_N)


class PreNormBlock(nn.Module):
    """x += Attention(LN(x)); x += MLP(LN(x)). As in GPT-2, output projections start smaller with more blocks."""

    def __init__(self, config: BertConfig, num_blocks: int, width: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = SelfAttention(config)
        self.attention_output = nn.Linear(config.hidden_size, config.hidden_size)
        self.mlp_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.widen = nn.Linear(config.hidden_size, width)
        self.narrow = nn.Linear(width, config.hidden_size)
        self.dropout = config.hidden_dropout_prob
        self.apply(lambda module: initialise(module, config.initializer_range))
        for projection in (self.attention_output, self.narrow):
            nn.init.normal_(projection.weight, 0.0, config.initializer_range / math.sqrt(2 * num_blocks))

    def forward(self, x_NH: Tensor, packing: Packing) -> Tensor:
        attended = self.attention_output(self.attention(self.attention_norm(x_NH), packing))
        x_NH = x_NH + dropout(attended, self.dropout, self.training)
        return x_NH + dropout(self.narrow(gelu(self.widen(self.mlp_norm(x_NH)))), self.dropout, self.training)


def window_mask(length: int, window: int, device: torch.device | None = None) -> Tensor:
    """Return a mask [C, C], True where row i attends to column j: 0 (the vector) and i - window + 1 to i."""
    row, column = torch.arange(length, device=device)[:, None], torch.arange(length, device=device)
    recent = (column <= row) & (row - column < window)
    return recent | (column == 0)


def shared(model: Backbone) -> tuple[Any, Any]:
    """Return the encoder's head phi and embeddings as functions, so that they are no parameters of the decoder."""
    return model.vocabulary, model.embed
