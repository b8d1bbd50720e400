"""The auto-regressive decoder that CoT-MAE, CoT-MoTE and SEED have in common: it is handed one vector and little else.

A position sees the vector, which stands in the place of [CLS], and a window of the tokens before it; what the
window does not tell, the vector has to.

Shape suffixes: B batch, C length of the text decoded, H hidden, V vocabulary, N positions whose prediction counts.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu

from models.bert import BertConfig, BertForMaskedLM, SelfAttention, initialise
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
        hidden_BCH = torch.cat([vectors_BH[:, None], self.embeddings(context.ids)[:, 1:]], dim=1)
        hidden_BCH = dropout(hidden_BCH, self.dropout, self.training)
        visible = window_mask(context.ids.shape[1], self.window, context.ids.device) & context.mask[:, None, None, :]
        for block in self.blocks:
            hidden_BCH = block(hidden_BCH, visible)
        next_BC = labels_BC[:, 1:]
        asked_BC = next_BC != IGNORED
        return self.vocabulary(self.norm(hidden_BCH[:, :-1][asked_BC])), next_BC[asked_BC]


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

    def forward(self, x_BCH: Tensor, visible: Tensor) -> Tensor:
        attended = self.attention_output(self.attention(self.attention_norm(x_BCH), visible))
        x_BCH = x_BCH + dropout(attended, self.dropout, self.training)
        return x_BCH + dropout(self.narrow(gelu(self.widen(self.mlp_norm(x_BCH)))), self.dropout, self.training)


def window_mask(length: int, window: int, device: torch.device | None = None) -> Tensor:
    """[C, C], True where row i may see column j: column 0, the vector, and the last `window` columns up to i."""
    row, column = torch.arange(length, device=device)[:, None], torch.arange(length, device=device)
    recent = (column <= row) & ((row - column < window) if window > 0 else torch.tensor(True, device=device))
    return recent | (column == 0)


def shared(model: BertForMaskedLM) -> tuple[Any, Any]:
    """The encoder's head phi and embeddings as plain functions: the decoder uses them but does not own them."""
    return model.vocabulary, lambda ids_BC: model.bert.embeddings(ids_BC)
