"""Inner products as fast as the device computes them, with a sound bound of their rounding errors.

The products only select which pairs are scored in double precision, so they may be inexact as long as the bound holds.
On a CPU with AMX, and on GPUs since the A100, the factors of a matrix product can be rounded to bfloat16 and summed in
single precision: several times faster than float32 throughout.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

UNIT = float(np.finfo(np.float32).eps)  # twice the unit roundoff of float32, so that error bounds have slack
BFLOAT16_UNIT = 2.0**-8  # the unit roundoff of bfloat16: the largest relative error of rounding to it


def factors_with_errors(vectors_ND: Tensor, *, coarse: bool) -> tuple[Tensor, Tensor]:
    """Return the vectors to pass to `inner_products`, [N, D], and the error bounds of their products, [N].

    A product of row n with a vector p, rounded to float32, differs from the true one by at most errors[n] * |p|.

    Why this is sound: by Cauchy-Schwarz, sum_i |q_i p_i| <= |q| |p|. A float32 sum of D products, in any order, has an
    error of less than (D + 1) u times that sum, where u is the unit roundoff; UNIT = 2 u and the 8 extra terms cover
    second-order terms and the rounding of norms. With `coarse` products there are two more errors: q is rounded to
    bfloat16 here, which moves the product by at most |q - rounded(q)| |p|, and p is rounded in the product, which
    moves it by at most BFLOAT16_UNIT |rounded(q)| |p|. The factor 1.01 covers |rounded(q)| > |q|. Tensor cores may cut
    off digits where a CPU rounds, of the sum and of every term, which at most doubles the error of a sum: hence the 2.
    """
    summation_errors = (vectors_ND.shape[1] + 8) * UNIT * vectors_ND.norm(dim=1)
    if not (coarse and multiplies_bfloat16(vectors_ND.device)):
        return vectors_ND, summation_errors
    rounded_ND = vectors_ND.bfloat16().float()
    rounding_errors = (vectors_ND - rounded_ND).norm(dim=1) + BFLOAT16_UNIT * rounded_ND.norm(dim=1)
    return rounded_ND, summation_errors * 2 * 1.01 + rounding_errors


def inner_products(factors_ND: Tensor, others_MD: Tensor, *, coarse: bool) -> Tensor:
    """Return all inner products, [N, M]; with `coarse`, in bfloat16 where the device multiplies these faster.

    Either side may have been rounded to bfloat16 already, as tiles that stay on an accelerator are. PyTorch's switch
    for bfloat16 products is global to the process: no other thread may multiply in the meantime.
    """
    if not (coarse and multiplies_bfloat16(factors_ND.device)):
        return factors_ND @ others_MD.T
    if factors_ND.device.type == "cuda":
        return torch.mm(factors_ND.bfloat16(), others_MD.bfloat16().T, out_dtype=torch.float32)
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    try:
        return factors_ND.float() @ others_MD.float().T
    finally:
        matmul.fp32_precision = before


def on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return the array as a read-only tensor; on the CPU it shares memory, also with a memory-mapped file."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array).to(device)


@cache
def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether the device multiplies bfloat16 numbers faster, with sums in single precision."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and bool(torch.cpu.get_capabilities().get("amx_bf16", False))
