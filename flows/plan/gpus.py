"""The GPUs that `pretrieve plan --gpu` knows: memory, peak and bandwidth, and the shares that a run reaches."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from flows.recipe.shipped import GPUS
from storage.errors import UserError, suggestion
from storage.formats.yaml_files import read_yaml
from storage.settings import Settings
from tasks.runtime.device import Precision

GIB = 1 << 30


class Gpu(Settings):
    """A GPU's figures, and what a run is taken to reach of them."""

    memory_gib: float = Field(gt=0)
    teraflops: float = Field(gt=0)
    """Peak of dense half-precision products with float32 sums."""
    teraflops_float32: float | None = Field(default=None, gt=0)
    """Peak of products in float32, without TF32; null where it is not known."""
    bfloat16: bool = True
    """Whether the GPU multiplies bfloat16 numbers; PyTorch only emulates them on one that does not."""
    gigabytes_per_second: float = Field(gt=0)
    """Bandwidth of the memory."""
    source: str
    product_share: float = Field(default=0.41, gt=0, le=1)
    """Share of the peak that matrix products reach; as fitted to steps on an H100 (docs/scale.md) by default."""
    bandwidth_share: float = Field(default=0.74, gt=0, le=1)
    """Share of the bandwidth that all other operations reach; fitted likewise."""
    writing_share: float = Field(default=0.026, gt=0, le=1)
    """Share of the peak that a generator's products reach while it writes queries; as measured on an H200
    (docs/scale.md) by default."""
    usable_share: float = Field(default=0.9, gt=0, le=1)
    """Share of the memory that tensors can fill; the rest is for libraries and the allocator's gaps."""

    @property
    def usable_bytes(self) -> int:
        """Return the bytes that tensors can fill."""
        return round(self.memory_gib * GIB * self.usable_share)

    def seconds(self, flops: float, moved_bytes: float, precision: Precision = "bfloat16") -> float | None:
        """Return the time of matrix products and then of the bytes that other operations move.

        Returns None where the peak in this precision is not known.
        """
        if (peak := self.peak(precision)) is None:
            return None
        products = flops / (peak * 1e12 * self.product_share)
        return products + moved_bytes / (self.gigabytes_per_second * 1e9 * self.bandwidth_share)

    def writing_seconds(self, flops: float, precision: Precision = "bfloat16") -> float | None:
        """Return the time in which a generator writes queries; None where the peak in this precision is not known."""
        peak = self.peak(precision)
        return None if peak is None else flops / (peak * 1e12 * self.writing_share)

    def peak(self, precision: Precision) -> float | None:
        """Return the peak of products in TFLOP/s; None where it is not known or only emulated."""
        if precision == "bfloat16" and not self.bfloat16:
            return None
        return self.teraflops_float32 if precision == "float32" else self.teraflops

    def rates(self, name: str) -> str:
        """Return a sentence with the figures, which are stated by `source`, assumed or fitted."""
        halves = ["float16", *(["bfloat16"] if self.bfloat16 else [])]
        single = f" and {self.teraflops_float32:g} in float32" if self.teraflops_float32 else ""
        return (
            f"{name}: {self.memory_gib:g} GiB, {self.teraflops:g} TFLOP/s in {' or '.join(halves)}{single}, "
            f"{self.gigabytes_per_second:g} GB/s "
            f"({self.source}); assumed: {self.usable_share:.0%} of the memory is usable, matrix products reach "
            f"{self.product_share:.0%} of the peak and {self.writing_share:.1%} where queries are written, other "
            f"operations {self.bandwidth_share:.0%} of the bandwidth "
            "(by default as fitted to an H100's steps and measured on an H200, docs/scale.md)"
        )


def find_gpu(name: str) -> Gpu:
    """Return the GPU of a name in `configs/hardware/gpus.yaml`, or of a YAML file; UserError if it is neither."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise UserError(f"--gpu: {path}: no such file; expected a YAML file like {GPUS}, or the name of a GPU")
        return _parsed(read_yaml(path), path)
    known = read_yaml(GPUS)
    if name not in known:
        raise UserError(f"--gpu: no GPU {name!r} is known; {suggestion(name, list(known))} Or give a YAML file.")
    return _parsed(known[name], GPUS)


def _parsed(value: object, path: Path) -> Gpu:
    try:
        return Gpu.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "content"
        raise UserError(f"{path}: {key}: {first['msg']}; see {GPUS}") from None
