"""Registers `simulated` as a device of PyTorch in this process: factory functions, copies and autocast."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch import library as kernels
from torch.utils import backend_registration

from tests.simulated_device.tensor import NAME, copy, mapped, run

LOWERED = (
    "linear", "matmul", "mm", "mv", "addmm", "addmv", "addr", "bmm", "baddbmm", "addbmm", "einsum",
    "scaled_dot_product_attention", "conv1d", "conv2d",
)  # fmt: skip
"""Operations that autocast runs in its lower precision, as on CUDA."""
RAISED = (
    "layer_norm", "group_norm", "softmax.int", "log_softmax.int", "nll_loss", "cross_entropy_loss", "exp", "expm1",
    "log", "log1p", "log2", "log10", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "reciprocal", "rsqrt",
    "softplus", "logsumexp", "norm.Scalar", "norm.ScalarOpt_dim", "linalg_vector_norm", "cosine_similarity", "cdist",
    "dist", "prod", "prod.dim_int", "cumsum", "cumprod", "sum", "sum.dim_IntList", "mse_loss", "l1_loss",
    "smooth_l1_loss", "binary_cross_entropy_with_logits", "kl_div",
)  # fmt: skip
"""Operations that autocast runs in float32, as on CUDA."""


def is_real() -> bool:
    """Return whether the cases run on a GPU instead of the simulated device: PRETRIEVE_TEST_DEVICE=cuda."""
    return os.environ.get("PRETRIEVE_TEST_DEVICE") == "cuda"


@cache
def register() -> torch.device:
    """Register the device and return it; once for each process."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_module())
    of_device = kernels.Library("aten", "IMPL")
    for name, op in _factories():
        of_device.impl(name, _factory(op), "PrivateUse1")
    of_device.impl("_copy_from", _copy_from, "PrivateUse1")
    for names, dtype in ((LOWERED, None), (RAISED, torch.float32)):
        for name in names:
            of_device.impl(name, _autocast(_op(name), dtype), "AutocastPrivateUse1")
    others = kernels.Library("_", "IMPL")
    others.fallback(kernels.fallthrough_kernel, "AutocastPrivateUse1")
    _KEPT.extend((of_device, others))
    return torch.device(NAME)


_KEPT: list[kernels.Library] = []  # a library's kernels are registered as long as it exists


def _module() -> ModuleType:
    """Return the module `torch.simulated`, which PyTorch asks about the device."""
    module = ModuleType(f"torch.{NAME}")
    functions = {
        "is_available": lambda: True, "is_initialized": lambda: True, "device_count": lambda: 1,
        "current_device": lambda: 0, "_is_in_bad_fork": lambda: False, "manual_seed_all": lambda seed: None,
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
    }  # fmt: skip
    vars(module).update(functions)
    return module


def _op(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _factories() -> Iterator[tuple[str, Any]]:
    """Yield the operations that make a tensor of a given device from no tensor."""
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::") or "quantized" in name or "sparse" in name:
            continue
        op = _op(name.removeprefix("aten::"))
        arguments = {argument.name: str(argument.type) for argument in op._schema.arguments}
        if "device" in arguments and not any("Tensor" in kind or "Storage" in kind for kind in arguments.values()):
            yield name.removeprefix("aten::"), op


def _factory(op: Any) -> Any:
    return lambda *args, **kwargs: run(op, args, {**kwargs, "pin_memory": False} if "pin_memory" in kwargs else kwargs)


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Fill a new tensor: `torch.tensor(..., device=...)` calls this directly."""
    copied: Tensor = copy(torch.ops.aten.copy_.default, target, source, non_blocking)
    return copied


def keep_ties(to: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Return `nn.Module.to` with shared parameters that stay shared, as on devices that PyTorch knows.

    PyTorch replaces parameters where a device's tensors are of another class, one occurrence at a time.
    """

    def moved(module: nn.Module, *args: Any, **keywords: Any) -> nn.Module:
        occurrences: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
        for part in module.modules():
            for name, parameter in part._parameters.items():
                occurrences[id(parameter)].append((part, name))
        result = to(module, *args, **keywords)
        for (first, shared), *others in occurrences.values():
            for part, name in others:
                part._parameters[name] = first._parameters[shared]
        return result

    return moved


def _autocast(op: Any, dtype: torch.dtype | None) -> Any:
    """Return a kernel that casts tensors of the device; `dtype` is None for autocast's own lower precision."""
    excluded = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def cast(value: Tensor) -> Tensor:
        is_cast = value.is_floating_point() and value.dtype != torch.float64
        return value.to(dtype or torch.get_autocast_dtype(NAME)) if is_cast and value.device.type == NAME else value

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return op(*mapped(cast, args), **mapped(cast, kwargs))

    return kernel
