"""Sampling a token: the nucleus of candidates, and the choice of one of them (the Gumbel-max trick).

Each candidate has an exponentially distributed random time, -log(u) / p, and the candidate with the shortest time is
sampled. The random number u depends only on the sample and the token. A last bit of a logit, which may differ with
the batch size, therefore changes the choice only if two times are almost equal. Inverting the cumulative distribution
instead would let such a bit move the bounds of all tokens that follow.

Shape suffixes: R rows of a batch, V vocabulary, K candidates.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

# SplitMix64 (Steele et al. 2014): the step between two states and the two mixing factors, as wrapping signed numbers.
STEP, MIX, MIX_AGAIN = (number - 2**64 for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True)
class Candidates:
    """The tokens that may be sampled, the likeliest first, and their probabilities."""

    tokens: Tensor
    """[rows, K]"""
    shares: Tensor
    """[rows, K], probabilities that need not sum to 1; 0 for a token outside the nucleus."""

    def repeated(self, times: int) -> Candidates:
        """Return each row `times` times, as neighbours."""
        return Candidates(self.tokens.repeat_interleave(times, dim=0), self.shares.repeat_interleave(times, dim=0))

    def draw(self, numbers_R: Tensor) -> Tensor:
        """Return one token of each row, sampled by its probability with the row's 64 random bits. [rows]"""
        bits_RK = _mixed(numbers_R[:, None] + self.tokens * STEP)
        uniforms_RK = (_shifted(bits_RK, 11).double() + 0.5) * 2.0**-53
        times_RK = -uniforms_RK.log() / self.shares
        return self.tokens.gather(1, times_RK.argmin(1, keepdim=True)).squeeze(1)


def nucleus(logits_RV: Tensor, top_k: int, top_p: float, temperature: float = 1.0) -> Candidates:
    """Return, of the `top_k` likeliest tokens, the fewest that have a share of `top_p` of their probability.

    The order is that of Hugging Face: top-k first, then top-p (Holtzman et al. 2020, section 3.1).
    """
    logits_RK, tokens_RK = logits_RV.topk(min(top_k, logits_RV.shape[1]))
    shares_RK = (logits_RK.double() / temperature).softmax(1)
    before_RK = shares_RK.cumsum(1) - shares_RK
    return Candidates(tokens_RK, shares_RK.masked_fill(before_RK >= top_p, 0.0))


def numbers(seed: int, draw: int, text: str, ranks: range, size: int) -> NDArray[np.int64]:
    """Return 64 random bits for each step of each sample; a sample's do not depend on other ranks. [ranks, size]"""
    key = int.from_bytes(hashlib.sha256(f"{seed}\n{draw}\n{text}".encode()).digest()[:16], "little")
    streams = (np.random.Philox(key=key, counter=[0, 0, 0, rank]) for rank in ranks)
    return np.stack([stream.random_raw(size) for stream in streams]).view(np.int64)


def _mixed(state: Tensor) -> Tensor:
    """Return SplitMix64's output; each of its bits depends on all bits of the state."""
    state = (state ^ _shifted(state, 30)) * MIX
    state = (state ^ _shifted(state, 27)) * MIX_AGAIN
    return state ^ _shifted(state, 31)


def _shifted(bits: Tensor, right: int) -> Tensor:
    """Shift right as unsigned numbers: zeros enter from the left."""
    return (bits >> right) & ((1 << (64 - right)) - 1)
