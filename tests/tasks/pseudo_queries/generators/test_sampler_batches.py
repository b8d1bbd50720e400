"""What a batch may change: nothing by its order, next to nothing by its size, and no memory that is not there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storage.errors import UserError
from tasks.pseudo_queries.generate_queries import Generation
from tasks.pseudo_queries.generators.sampler import GenerationRequest, Sampler, is_out_of_memory
from tests.tiny import SPECIALS, save_t5

WORDS = [f"w{number}" for number in range(295)]
SETTINGS = Generation(
    queries_per_passage=5, prefix="", input_max_tokens=40, top_k=25, top_p=0.95, max_new_tokens=8, seed=42,
    shard_passages=1000, batch_tokens=2000,
)  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide enough that other batches are other products with other last bits."""
    shape = {"d_model": 64, "d_kv": 32, "d_ff": 128, "initializer_factor": 4.0}
    return save_t5(tmp_path_factory.mktemp("generator"), [*SPECIALS, *WORDS], **shape)


@pytest.fixture(scope="module")
def requests() -> list[GenerationRequest]:
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, size=random.integers(5, 40))) for _ in range(220)]
    return [GenerationRequest(text, range(5), draw=0) for text in texts]


def sampler(folder: Path, print_line: Callable[[str], None] = print, **changes: Any) -> Sampler:
    return Sampler(folder, SETTINGS.model_copy(update=changes), torch.device("cpu"), print_line)


def samples(of: Sampler, requests: Sequence[GenerationRequest]) -> list[list[str]]:
    results = sorted(pair for batch in of(requests) for pair in batch)
    assert [row for row, _ in results] == list(range(len(requests))), "each passage once"
    return [queries for _, queries in results]


def test_order_changes_nothing_and_other_batches_hardly_a_query(
    checkpoint: Path, requests: list[GenerationRequest]
) -> None:
    whole = samples(sampler(checkpoint), requests)
    order = np.random.default_rng(1).permutation(len(requests))

    shuffled = samples(sampler(checkpoint), [requests[row] for row in order])
    smaller = samples(sampler(checkpoint, batch_tokens=300), requests)
    every_other = samples(sampler(checkpoint), requests[::2])

    assert shuffled == [whole[row] for row in order]
    assert len({query for queries in whole for query in queries}) > 400
    for expected, results in ((whole, smaller), (whole[::2], every_other)):
        pairs = [pair for samples in zip(expected, results, strict=True) for pair in zip(*samples, strict=True)]
        assert sum(first == second for first, second in pairs) >= 0.999 * len(pairs)


def out_of_gpu_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


def out_of_cpu_memory() -> None:
    torch.empty(2**45)  # more than there is


def limited(of: Sampler, rows: int, fail: Callable[[], None]) -> list[int]:
    """Have the model fail with more rows; the list tells how many it was given."""
    inputs, start = [], of.generator.start

    def failing(ids: Sequence[list[int]]) -> Any:
        inputs.append(len(ids))
        if len(ids) > rows:
            fail()
        return start(ids)

    of.generator.start = failing  # type: ignore[method-assign]
    return inputs


@pytest.mark.parametrize("fail", [out_of_gpu_memory, out_of_cpu_memory])
def test_a_batch_that_does_not_fit_is_halved_and_stays_so(
    checkpoint: Path, requests: list[GenerationRequest], fail: Callable[[], None]
) -> None:
    lines: list[str] = []
    few = [GenerationRequest(f"{WORDS[row]} " * 20, range(2), draw=0) for row in range(20)]
    ours = sampler(checkpoint, lines.append)
    inputs = limited(ours, 6, fail)

    results = samples(ours, few)

    assert inputs == [20, 10, 5, 5, 5, 5]
    assert results == samples(sampler(checkpoint), few)
    assert lines == [
        "out of memory: 2 queries for each of 20 passages of 22 tokens; batches have at most 220 tokens from now on",
        "out of memory: 2 queries for each of 10 passages of 22 tokens; batches have at most 110 tokens from now on",
    ]
    inputs.clear()
    assert samples(ours, few[:7]) == results[:7]
    assert inputs == [5, 2], "the next call remembers"


def test_a_passage_that_does_not_fit_alone_is_named(checkpoint: Path) -> None:
    ours = sampler(checkpoint)
    limited(ours, 0, out_of_cpu_memory)

    with pytest.raises(UserError, match="passage 'w1 w2': 5 queries for its 4 tokens do not fit in memory"):
        samples(ours, [GenerationRequest("w1 w2", range(5), draw=0)])


def test_another_failure_is_not_taken_for_a_lack_of_memory(checkpoint: Path) -> None:
    ours = sampler(checkpoint)

    def broken() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    limited(ours, 0, broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        samples(ours, [GenerationRequest("w1 w2", range(5), draw=0)])
    assert not is_out_of_memory(RuntimeError("size mismatch"))
