"""Inner products in the fastest way that the device has, and how far from the true ones they can be.

They only choose what is scored in double precision, so they may be coarse: where a CPU multiplies matrices of bfloat16
(AMX), PyTorch rounds the factors to these and sums in single precision, several times faster than in single precision
throughout.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

UNIT = float(np.finfo(np.float32).eps)  # twice what one rounding can take away, so that bounds have room
COARSE_UNIT = 2.0**-8  # what rounding to bfloat16 takes from a number at most, as a share


def factors(vectors_ND: Tensor, *, coarse: bool) -> tuple[Tensor, Tensor]:
    """The vectors as `products` is to multiply them with others, [N, D], and what a product is off by at most, [N].

    That is per unit of the other vector's length, and rounding to float32 included: the sum of |q_i p_i| is at most
    |q| |p|; a sum of D products in any order is off by less than D units of that; `coarse`, q is rounded here, and
    rounding p takes a share of each product.
    """
    summing = (vectors_ND.shape[1] + 8) * UNIT * vectors_ND.norm(dim=1)
    if not (coarse and _multiplies_bfloat16(vectors_ND.device)):
        return vectors_ND, summing
    rounded_ND = vectors_ND.bfloat16().float()
    return rounded_ND, summing * 1.01 + (vectors_ND - rounded_ND).norm(dim=1) + COARSE_UNIT * rounded_ND.norm(dim=1)


def products(factors_ND: Tensor, others_MD: Tensor, *, coarse: bool) -> Tensor:
    """All inner products, [N, M]; `coarse` ones where the device is faster at these.

    That is a switch of the whole process: no other thread may multiply meanwhile what must be precise.
    """
    if not (coarse and _multiplies_bfloat16(factors_ND.device)):
        return factors_ND @ others_MD.T
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    try:
        return factors_ND @ others_MD.T
    finally:
        matmul.fp32_precision = before


def on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array as a tensor that is only read; a CPU's is the array itself, also where it is memory-mapped."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array).to(device)


@cache
def _multiplies_bfloat16(device: torch.device) -> bool:
    return device.type == "cpu" and bool(torch.cpu.get_capabilities().get("amx_bf16", False))
