"""The tensors of the simulated device `simulated`, and what they refuse and count.

A simulated tensor is a wrapper around a CPU tensor, on which its operations run. As on a GPU, an operation refuses
tensors of the CPU, except for scalars (0 dimensions). Operations whose result the host must wait for are counted as
synchronisations, and copies between host and device as transfers, each with the line of the product that caused it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
NAME = "simulated"
ROOT = Path(__file__).parents[2]
PRODUCT = tuple(str(ROOT / folder) for folder in ("models", "tasks", "storage", "flows"))

SYNCHRONISING = {
    aten._local_scalar_dense, aten.is_nonzero, aten.equal, aten.nonzero, aten.masked_select, aten.bincount,
    aten.unique_consecutive, aten.unique_dim, aten._unique, aten._unique2, aten.histc,
}  # fmt: skip
"""Operations whose result, or its shape, the host reads."""
SELECTING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
"""They synchronise if an index is a mask, whose number of true values the host must know."""


class DeviceMismatch(RuntimeError):
    """An operation mixes tensors of the simulated device and of the CPU."""


@dataclass
class Traffic:
    """What the host waited for, and the bytes between host and device, by the line of the product."""

    synchronisations: Counter[str] = field(default_factory=Counter)
    to_device: Counter[str] = field(default_factory=Counter)
    to_host: Counter[str] = field(default_factory=Counter)

    def clear(self) -> None:
        """Start counting at 0."""
        for counts in vars(self).values():
            counts.clear()


traffic = Traffic()


class SimulatedTensor(Tensor):
    """A tensor of the simulated device; `host` has its values, which the product must never touch."""

    host: Tensor
    __torch_function__: ClassVar[Any] = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, host: Tensor) -> SimulatedTensor:
        with torch.inference_mode(False):  # a view of a normal tensor must be a normal tensor
            built: SimulatedTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls, host.shape, strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype,
                device=torch.device(NAME, 0),
            )  # fmt: skip
        built.host = host
        return built

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"SimulatedTensor({self.host})"

    def tolist(self) -> Any:
        """Return the values as lists, which waits for the device."""
        return self.cpu().tolist()

    def numpy(self, *args: Any, **keywords: Any) -> Any:
        """Refuse, as tensors of a GPU do."""
        raise TypeError(f"can't convert {self.device} device type tensor to numpy; use Tensor.cpu() first")

    @classmethod
    def __torch_dispatch__(
        cls, op: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if _is_composite(op):
            return op.decompose(*args, **(kwargs or {}))  # in inference mode no autograd kernel has decomposed it
        if op.overloadpacket in (aten.copy_, aten._to_copy):
            return copy(op, *args, **(kwargs or {}))
        return run(op, args, kwargs or {})


def run(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU tensors of its arguments; its results are tensors of the simulated device."""
    on_cpu = torch.device(kwargs["device"]).type == "cpu" if kwargs.get("device") is not None else False
    if "device" in kwargs:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    inputs = list(_tensors((args, kwargs)))
    if any(not isinstance(value, SimulatedTensor) and value.ndim for value in inputs):
        kinds = ", ".join(f"{tuple(value.shape)} on {value.device}" for value in inputs)
        raise DeviceMismatch(f"{op}: expected all tensors on one device, got {kinds} at {_line()}")
    if _synchronises(op.overloadpacket, args, kwargs):
        traffic.synchronisations[f"{_line()} {op.overloadpacket.__name__}"] += 1
    results = op(*mapped(_host, args), **mapped(_host, kwargs))
    owners = {id(value.host): value for value in inputs if isinstance(value, SimulatedTensor)}

    def wrapped(value: Tensor) -> Tensor:
        if on_cpu:
            return value
        owner = owners.get(id(value))
        if owner is None:
            return SimulatedTensor(value)
        if owner.shape != value.shape or owner.stride() != value.stride():
            raise RuntimeError(
                f"{op} changes the shape of a tensor in place; use an operation that returns a new tensor"
            )
        return owner

    return mapped(wrapped, results)


def copy(op: Any, first: Any, second: Any = None, non_blocking: bool = False, **options: Any) -> Any:
    """Copy within the device, to it, or from it; the latter two are counted."""
    if op.overloadpacket is aten.copy_:
        _count(second, first, non_blocking)
        _host(first).copy_(_host(second))
        return first
    device = options.pop("device", None)
    copied = aten._to_copy.default(_host(first), **options)
    result = copied if device is not None and device.type == "cpu" else SimulatedTensor(copied)
    _count(first, result, non_blocking)
    return result


class CountedTraffic(TorchDispatchMode):
    """Counts the traffic of a real device, such as a GPU, as that of the simulated one."""

    def __torch_dispatch__(
        self, op: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count what the host waits for and what is copied."""
        keywords = kwargs or {}
        if _is_composite(op):
            with self:
                return op.decompose(*args, **keywords)
        result = op(*args, **keywords)
        inputs = list(_tensors((args, keywords)))
        if op.overloadpacket is aten.copy_:
            _count(args[1], args[0], args[2] if len(args) > 2 else keywords.get("non_blocking", False))
        elif op.overloadpacket is aten._to_copy:
            _count(args[0], result, keywords.get("non_blocking", False))
        elif any(value.device.type != "cpu" for value in inputs) and _synchronises(op.overloadpacket, args, keywords):
            traffic.synchronisations[f"{_line()} {op.overloadpacket.__name__}"] += 1
        return result


def _count(source: Tensor, target: Tensor, non_blocking: bool) -> None:
    leaves, arrives = source.device.type != "cpu", target.device.type != "cpu"
    size = source.numel() * source.element_size()
    if arrives and not leaves:
        traffic.to_device[_line()] += size
    if leaves and not arrives:
        traffic.to_host[_line()] += size
        if not non_blocking:
            traffic.synchronisations[f"{_line()} copy to the host"] += 1


def _synchronises(packet: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    if packet in SELECTING:
        return any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    if packet is aten.repeat_interleave:
        return isinstance(args[0], Tensor) and keywords.get("output_size") is None
    return packet in SYNCHRONISING


@cache
def _is_composite(op: Any) -> bool:
    """Return whether PyTorch runs an operation as other operations."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of arguments; PyTorch's own functions for this take most of the time of a tiny operation."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return arguments or results with the function's result for each tensor."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {name: mapped(function, part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [mapped(function, part) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value


def _host(value: Any) -> Any:
    return value.host if isinstance(value, SimulatedTensor) else value


def _line() -> str:
    """Return the innermost line of the product that is being run; `elsewhere` in autograd's own threads."""
    frame = sys._getframe()
    while frame := frame.f_back:
        if frame.f_code.co_filename.startswith(PRODUCT):
            return f"{Path(frame.f_code.co_filename).relative_to(ROOT)}:{frame.f_code.co_name}"
    return "elsewhere"
