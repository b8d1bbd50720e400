"""The auto-regressive decoder that CoT-MAE, CoT-MoTE and SEED have in common: it is handed one vector and little else.

A position sees the vector, which stands in the place of [CLS], and a window of the tokens before it; what the
window does not tell, the vector has to.

Shape suffixes: B batch, C length of the text decoded, H hidden, V vocabulary, N real tokens, or those requested.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, pad

from models.layers.bert import BertConfig, BertForMaskedLM, SelfAttention, initialise
from models.layers.unpadding import Packing
from models.masking import IGNORED
from models.tokens import Tokens


class AutoRegressiveDecoder(nn.Module):
    """GPT-2's pre-norm blocks over [vector, context]; every next token, [SEP] too, is predicted."""

    def __init__(self, model: BertForMaskedLM, *, num_blocks: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.dropout = model.config.hidden_dropout_prob
        self.blocks = nn.ModuleList(PreNormBlock(model.config, num_blocks) for _ in range(num_blocks))
        self.norm = nn.LayerNorm(model.config.hidden_size, eps=model.config.layer_norm_eps)
        self.vocabulary, self.embeddings = shared(model)

    def forward(self, vectors_BH: Tensor, context: Tokens, labels_BC: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [N, V] of every next token, and their labels [N]; padding asks nothing."""
        # A row sees no later column, so none that is padding.
        packing = Packing(context.mask, window_mask(context.ids.shape[1], self.window, context.ids.device))
        hidden_NH = packing.with_first(packing.packed(self.embeddings(context.ids)), vectors_BH)
        hidden_NH = dropout(hidden_NH, self.dropout, self.training)
        for block in self.blocks:
            hidden_NH = block(hidden_NH, packing)
        next_N = packing.packed(pad(labels_BC[:, 1:], (0, 1), value=IGNORED))
        asked_N = next_N != IGNORED
        return self.vocabulary(self.norm(hidden_NH[asked_N])), next_N[asked_N]


class PreNormBlock(nn.Module):
    """x += Attention(LN(x)); x += MLP(LN(x)). What is added to x starts small where there are many blocks."""

    def __init__(self, config: BertConfig, num_blocks: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = SelfAttention(config)
        self.attention_output = nn.Linear(config.hidden_size, config.hidden_size)
        self.mlp_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.widen = nn.Linear(config.hidden_size, config.intermediate_size)
        self.narrow = nn.Linear(config.intermediate_size, config.hidden_size)
        self.dropout = config.hidden_dropout_prob
        self.apply(lambda module: initialise(module, config.initializer_range))
        for projection in (self.attention_output, self.narrow):
            nn.init.normal_(projection.weight, 0.0, config.initializer_range / math.sqrt(2 * num_blocks))

    def forward(self, x_NH: Tensor, packing: Packing) -> Tensor:
        attended = self.attention_output(self.attention(self.attention_norm(x_NH), packing))
        x_NH = x_NH + dropout(attended, self.dropout, self.training)
        return x_NH + dropout(self.narrow(gelu(self.widen(self.mlp_norm(x_NH)))), self.dropout, self.training)


def window_mask(length: int, window: int, device: torch.device | None = None) -> Tensor:
    """[C, C], True where row i may see column j: column 0, the vector, and the last `window` columns up to i."""
    row, column = torch.arange(length, device=device)[:, None], torch.arange(length, device=device)
    recent = (column <= row) & (row - column < window)
    return recent | (column == 0)


def shared(model: BertForMaskedLM) -> tuple[Any, Any]:
    """The encoder's head phi and embeddings as plain functions: the decoder uses them but does not own them."""
    return model.vocabulary, lambda ids_BC: model.bert.embeddings(ids_BC)
