"""Positions of a decoder's inputs, where the backbone has no embeddings of absolute positions.

Decoders are BERT layers and see positions only in their inputs. Families with rotary or relative positions have none
there, so a decoder on them learns its own; on other families this module has no parameters.

Shape suffixes: B batch, L length, P positions, H hidden.
"""

from __future__ import annotations

from torch import Tensor, empty, nn

from models.layers.backbone import Backbone


class OwnPositions(nn.Module):
    """The learned positions [P, H] of a decoder, for as many tokens as it reads; None with a backbone that has them."""

    def __init__(self, model: Backbone, max_tokens: int) -> None:
        super().__init__()
        self.weight: nn.Parameter | None = None
        if model.positions is None:
            self.weight = nn.Parameter(empty(max_tokens, model.config.hidden_size))
            nn.init.normal_(self.weight, 0.0, model.config.initializer_range)

    def forward(self, embedded_BLH: Tensor) -> Tensor:
        """Return embeddings with positions: the backbone's have them already, unless this module has its own."""
        return embedded_BLH if self.weight is None else embedded_BLH + self.weight[: embedded_BLH.shape[1]]

    def embeddings(self, model: Backbone) -> Tensor:
        """Return the position embeddings [P, H] of this module or of the backbone."""
        positions_PH = model.positions if self.weight is None else self.weight
        assert positions_PH is not None  # since there are own ones without the backbone's
        return positions_PH
