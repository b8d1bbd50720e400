"""Batches without padding: layers compute only the real tokens, text after text (attention: `models.layers.attention`).

Shape suffixes: B batch, L length, N real tokens of all texts, M = B L positions, A attention heads; X is any size.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from models.batch import flat_positions


class Packing:
    """The positions of the real tokens of a padded batch, and which of them attend to which."""

    def __init__(
        self, mask_BL: Tensor, visible: Tensor | None = None, *, unattended_BL: Tensor | None = None,
        positions_N: Tensor | None = None,
    ) -> None:  # fmt: skip
        """`visible` is boolean and broadcasts to [B, A, L, L], True where a row attends to a column; None for all.

        `unattended_BL` is True at additional positions that are computed but not attended to. `positions_N` are the
        flat positions of real tokens, if they are known (`Tokens.positions`), so that a GPU need not be waited for.
        """
        real_BL = mask_BL.bool() if unattended_BL is None else mask_BL.bool() | unattended_BL
        self.shape, self.positions_N = mask_BL.shape, flat_positions(real_BL) if positions_N is None else positions_N
        lengths_B = real_BL.sum(1)
        self.starts_B = lengths_B.cumsum(0) - lengths_B
        """[B], the index of each text's first token among the N."""
        self.has_padding = len(self.positions_N) < self.shape.numel()
        self.sees_text = visible is None and unattended_BL is None
        """Whether each token sees all the real tokens of its text, and no others."""
        if visible is None and (self.has_padding or unattended_BL is not None):
            visible = mask_BL[:, None, None, :].bool()
        self.visible = visible

    def with_visible(self, visible: Tensor) -> Packing:
        """Return the same positions with another mask of which of them attend to which."""
        other = copy.copy(self)
        other.visible, other.sees_text = visible, False
        return other

    def of_firsts(self) -> Packing:
        """Return the packing of only the first token of each text, which sees what it sees here."""
        firsts = copy.copy(self)
        firsts.shape = torch.Size((self.shape[0], 1))
        firsts.positions_N = firsts.starts_B = torch.arange(self.shape[0], device=self.positions_N.device)
        firsts.has_padding = False
        firsts.visible = None if self.visible is None else self.visible[..., :1, :]
        return firsts

    @property
    def boundaries(self) -> Tensor:
        """[B + 1], the index of each text's first token among the N, and N; int32, as FlashAttention reads them."""
        return nn.functional.pad(self.starts_B.int(), (0, 1), value=len(self.positions_N))

    def packed(self, x_BLX: Tensor) -> Tensor:
        """Return the real tokens [N, X] of padded rows."""
        x_MX = x_BLX.flatten(0, 1)
        return x_MX.index_select(0, self.positions_N) if self.has_padding else x_MX

    def at(self, x_NX: Tensor, positions_K: Tensor) -> Tensor:
        """Return the real tokens [K, X] at ascending flat positions of the padded rows."""
        return x_NX.index_select(0, among(self.positions_N, positions_K) if self.has_padding else positions_K)

    def padded(self, x_NX: Tensor) -> Tensor:
        """Return padded rows [B, L, X], which are 0 at padding."""
        if self.has_padding:
            x_NX = x_NX.new_zeros(self.shape.numel(), *x_NX.shape[1:]).index_copy_(0, self.positions_N, x_NX)
        x_BLX: Tensor = x_NX.unflatten(0, self.shape)
        return x_BLX

    def with_first(self, x_NX: Tensor, vectors_BX: Tensor) -> Tensor:
        """Return the tokens [N, X], with the first token of each text, [CLS], replaced by the text's vector."""
        return x_NX.index_copy(0, self.starts_B, vectors_BX.to(x_NX.dtype))


def among(positions_N: Tensor, chosen_K: Tensor) -> Tensor:
    """Return the indices [K] of chosen positions among N; both are ascending."""
    return torch.searchsorted(positions_N, chosen_K)
