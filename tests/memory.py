"""The most memory that a call takes of NumPy, Python and Arrow, without that of other libraries and mapped files."""

import tracemalloc
from collections.abc import Callable

import pyarrow as pa

_pools: list[pa.MemoryPool] = []  # a pool must outlive what was allocated from it


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the peak of Python's and NumPy's memory plus the peak of Arrow's."""
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    _pools.append(pool)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] + pool.max_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
