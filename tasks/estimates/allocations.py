"""Record what operations allocate: the bytes of live tensors after each operation. Products are not computed."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm)
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
ATTENTION_GRADIENTS = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@contextlib.contextmanager
def recording() -> Iterator[Allocations]:
    """Record the memory of the operations in the block; matrix products are not computed."""
    record = Allocations()
    with Uncomputed(), record:
        yield record


@contextlib.contextmanager
def in_half_precision(half: bool) -> Iterator[None]:
    """Emulate a GPU's autocast in the block."""
    if not half:
        yield
        return
    with torch.autocast("cpu", dtype=torch.bfloat16), SinglePrecision():
        yield


class SinglePrecision(TorchFunctionMode):
    """Computes in float32 what autocast computes in float32 on a GPU, and on a CPU in half precision."""

    FUNCTIONS = frozenset({
        functional.layer_norm, functional.cross_entropy, functional.nll_loss, functional.log_softmax,
        functional.softmax, torch.log_softmax, torch.softmax, torch.logsumexp, Tensor.log_softmax, Tensor.softmax,
        Tensor.logsumexp,
    })  # fmt: skip

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.FUNCTIONS and torch.is_autocast_enabled("cpu"):
            args, kwargs = tree_map(_single, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _single(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


class _Observer(TorchDispatchMode):
    """A mode for which PyTorch does not import its compiler; importing it takes longer than planning a recipe."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled in these blocks, so no mark for the compiler is needed


class Uncomputed(_Observer):
    """Replaces matrix products by zeros of their shape, and counts their floating-point operations.

    Fused attention and the noise of dropout, which take most of the remaining time, are zeros too; the operations of
    fused attention are not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        operation = func.overloadpacket
        if operation is ATTENTION:
            query = args[0]
            return torch.zeros_like(query), query.new_zeros(query.shape[:-1], dtype=torch.float32)
        if operation is ATTENTION_GRADIENTS:
            return tuple(torch.zeros_like(tensor) for tensor in args[1:4])
        if operation is torch.ops.aten.bernoulli_:
            return args[0].zero_()
        if operation not in PRODUCTS:
            return func(*args, **(kwargs or {}))
        left, right = args[-2:]
        self.flops += 2 * left.numel() * right.shape[-1]
        return left.new_zeros(*left.shape[:-1], right.shape[-1])


class Allocations(_Observer):
    """Records the bytes of the live tensors that operations have created; those that existed before do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.live: list[int] = []
        self.moved = 0
        self._bytes = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        for tensor in given:
            self._note(tensor, 0)
        result = func(*args, **(kwargs or {}))
        returned = [value for value in tree_leaves(result) if isinstance(value, Tensor)]
        for tensor in returned:
            self._note(tensor, tensor.untyped_storage().nbytes())
        if not func.is_view and func.overloadpacket not in PRODUCTS:
            self.moved += sum(tensor.nbytes for tensor in (*given, *returned))
        self.live.append(self._bytes)
        return result

    def _note(self, tensor: Tensor, size: int) -> None:
        """Add a storage that is seen for the first time, until it is freed."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._known:
            return

        def freed(_: Any) -> None:
            self._bytes -= size
            del self._known[address]

        self._known[address] = weakref.ref(storage, freed)
        self._bytes += size
