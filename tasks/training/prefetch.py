"""Batches made ahead: while a GPU computes a step, a thread of the CPU reads and masks the next step's texts.

A batch is drawn from its step alone (`tasks.training.loop`), so it is the same in every process and at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from models.objective import Batch


def prefetch(batch_of: Callable[[int], Batch], steps: range, *, ahead: bool) -> Iterator[Batch]:
    """The batch of each step; where `ahead`, the next is made while the caller works with one.

    What `batch_of` raises is raised at its step.
    """
    if not ahead:
        yield from map(batch_of, steps)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as thread:
        coming = None
        for step in steps:
            batch = (coming or thread.submit(batch_of, step)).result()
            coming = thread.submit(batch_of, step + 1) if step + 1 in steps else None
            yield batch
