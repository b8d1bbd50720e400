"""Batches without padding: layers compute only the real tokens, text after text.

Only attention needs one row per text; it uses padded rows, which costs little, since attention is a few percent of a
layer's arithmetic at the papers' lengths.

Shape suffixes: B batch, L length, N real tokens of all texts, M = B L positions, A attention heads; X is any size.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

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
        if visible is None and (self.has_padding or unattended_BL is not None):
            visible = mask_BL[:, None, None, :].bool()
        self.visible = visible

    def with_visible(self, visible: Tensor) -> Packing:
        """Return the same positions with another mask of which of them attend to which."""
        other = copy.copy(self)
        other.visible = visible
        return other

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
