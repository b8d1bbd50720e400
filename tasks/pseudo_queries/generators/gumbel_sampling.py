"""Drawing tokens: who may come next, and how one of them is chosen.

A token is drawn by a race: each candidate has a clock of its own, which rings after a random time that is shorter the
likelier the token, and the first to ring is written. A token's clock depends on the sample and the token alone, so
that a last bit of a logit, which may differ with the size of a batch, changes a draw only where two clocks ring
together; inverting a cumulative distribution instead, one such bit moves the bounds of all tokens that come after.

Shape suffixes: R rows of a batch, V vocabulary, K candidates.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

# SplitMix64 (Steele et al. 2014): the step between two states, and what mixes a state; as signed numbers, which wrap.
STEP, MIX, MIX_AGAIN = (number - 2**64 for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True)
class Candidates:
    """The tokens that may come next, the likeliest first, and their probabilities."""

    tokens: Tensor
    """[rows, K]"""
    shares: Tensor
    """[rows, K], not of sum 1; 0 where a token may not come."""

    def repeated(self, times: int) -> Candidates:
        """Each row `times` times, standing together."""
        return Candidates(*(each.repeat_interleave(times, dim=0) for each in (self.tokens, self.shares)))

    def draw(self, numbers_R: Tensor) -> Tensor:
        """One of the row's tokens, each as often as its share says, decided by the row's 64 random bits. [rows]"""
        bits_RK = _mixed(numbers_R[:, None] + self.tokens * STEP)
        uniforms_RK = (_shifted(bits_RK, 11).double() + 0.5) * 2.0**-53
        times_RK = -uniforms_RK.log() / self.shares
        return self.tokens.gather(1, times_RK.argmin(1, keepdim=True)).squeeze(1)


def nucleus(logits_RV: Tensor, top_k: int, top_p: float, temperature: float = 1.0) -> Candidates:
    """The `top_k` likeliest tokens, of these the fewest that hold a share of `top_p` of their probability.

    As Hugging Face does it: top-k first, top-p of what it leaves (Holtzman et al. 2020, section 3.1).
    """
    logits_RK, tokens_RK = logits_RV.topk(min(top_k, logits_RV.shape[1]))
    shares_RK = (logits_RK.double() / temperature).softmax(1)
    before_RK = shares_RK.cumsum(1) - shares_RK
    return Candidates(tokens_RK, shares_RK.masked_fill(before_RK >= top_p, 0.0))


def numbers(seed: int, draw: int, text: str, ranks: range, size: int) -> NDArray[np.int64]:
    """64 random bits for each step of each of a text's samples, whichever others are asked for. [ranks, size]"""
    key = int.from_bytes(hashlib.sha256(f"{seed}\n{draw}\n{text}".encode()).digest()[:16], "little")
    streams = (np.random.Philox(key=key, counter=[0, 0, 0, rank]) for rank in ranks)
    return np.stack([stream.random_raw(size) for stream in streams]).view(np.int64)


def _mixed(state: Tensor) -> Tensor:
    """SplitMix64's output: bits of which each depends on all of the state's."""
    state = (state ^ _shifted(state, 30)) * MIX
    state = (state ^ _shifted(state, 27)) * MIX_AGAIN
    return state ^ _shifted(state, 31)


def _shifted(bits: Tensor, right: int) -> Tensor:
    """Shifted as unsigned numbers are: zeros come in from the left."""
    return (bits >> right) & ((1 << (64 - right)) - 1)
