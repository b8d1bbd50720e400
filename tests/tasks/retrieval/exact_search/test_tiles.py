"""How often and where exact search reads the vectors: by blocks of queries, and kept on an accelerator.

An accelerator's code runs here on the CPU's tensors.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from storage.vectors import Encoded
from tasks.retrieval.engines import exact
from tasks.retrieval.engines.exact import ExactSearch
from tasks.retrieval.exact_search import tiles, top_k, upper_bounds
from tasks.retrieval.exact_search.double_scores import StoredVectors
from tasks.retrieval.exact_search.numba_kernels import all_lexical_scores
from tests.tasks.retrieval.engines.test_exact import VIEWS, mixed, same
from tests.tasks.stored import names, store, texts

pytestmark = pytest.mark.usefixtures("on_one_thread")


class CountingVectors(StoredVectors):
    """Stored vectors that count how often each row is read to be compared with a block of queries."""

    def __init__(self, folder: Path, view: str) -> None:
        super().__init__(folder, view)
        self.passes = 0

    def shards(self) -> Iterator[tuple[int, Encoded]]:
        self.passes += 1
        yield from super().shards()


def counting_search(folder: Path, view: str) -> ExactSearch:
    stored = CountingVectors(folder, view)
    return ExactSearch(stored, names(len(stored)))


def use_accelerator(patch: pytest.MonkeyPatch) -> None:
    for module in (exact, tiles, upper_bounds):
        patch.setattr(module, "is_accelerator", lambda device: True)
    patch.setattr(exact, "top_keys", top_k.DeviceTopKeys)


@pytest.mark.parametrize(("block_bytes", "passes"), [(2**30, 1), (64 * 2**14, 4), (16 * 2**14, 16)])
def test_vectors_are_read_once_for_each_block_of_queries(
    block_bytes: int, passes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query takes 16 KiB and its vector, so that a block has slightly fewer queries than its size has 16 KiB."""
    passages, queries = mixed(300, 200)
    folder = store(tmp_path, passages, rows=100)
    expected = counting_search(folder, "dense")(queries, 5)
    monkeypatch.setattr(exact, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(exact, "MEMORY_BYTES", 8 * 2**14)  # about 8 queries at a time, whatever the block
    search = counting_search(folder, "dense")
    hits = search(queries, 5)
    assert same(hits, expected)
    in_block = block_bytes // exact._query_bytes(queries, 42)
    assert search.stored.passes == -(-200 // in_block) <= passes + 1


@pytest.mark.parametrize(("view", "exact_match"), VIEWS)
def test_an_accelerator_reads_the_vectors_once_and_has_the_same_lists(
    view: str, exact_match: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passages, queries = mixed(300, 30)
    folder = store(tmp_path, passages, rows=100, exact_match=exact_match)
    expected = counting_search(folder, view)(queries, 10)
    use_accelerator(monkeypatch)
    monkeypatch.setattr(exact, "BLOCK_BYTES", 10 * 2**15)
    monkeypatch.setattr(exact, "DEVICE_QUERIES", 4)
    search = counting_search(folder, view)
    assert same(search(queries, 10), expected)
    assert same(search(queries, 10), expected)
    assert search.stored.passes == 1


def test_an_accelerator_whose_memory_is_too_small_reads_the_vectors_for_every_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passages, queries = mixed(300, 30)
    folder = store(tmp_path, passages, rows=100)
    expected = counting_search(folder, "late")(queries, 10)
    use_accelerator(monkeypatch)
    monkeypatch.setattr(tiles, "free_bytes", lambda device: 1000)
    search = counting_search(folder, "late")
    assert same(search(queries, 10), expected)
    assert same(search(queries, 10), expected)
    assert search.stored.passes == 2
    assert not search.tiles._kept


def test_weights_of_queries_on_an_accelerator_limit_the_queries_of_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passages, queries = mixed(300, 30)
    folder = store(tmp_path, passages, rows=100)
    use_accelerator(monkeypatch)
    monkeypatch.setattr(exact, "DEVICE_QUERIES", 4)
    weights = 8 * (int(queries.lexical.ids.max()) + 2)
    for view, free, limit in [("lexical", 8 * 7 * weights, 7), ("lexical", 0, 4), ("sum", 8 * 7 * weights, 7)]:
        monkeypatch.setattr(exact, "free_bytes", lambda device, free=free: free)
        assert counting_search(folder, view)._queries_per_pass(queries, 52) == limit
    assert counting_search(folder, "dense")._queries_per_pass(queries, 52) > 10_000


@pytest.mark.parametrize("signed", [False, True])
def test_lexical_bounds_of_an_accelerator_are_those_of_the_cpu(
    signed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, cpu = np.random.default_rng(3), torch.device("cpu")
    queries, passages = (texts(draw, count, words=30, signed=signed) for count in (20, 200))
    similarity = StoredVectors(store(tmp_path, passages, rows=200), "lexical").similarity
    scores_QP = torch.from_numpy(all_lexical_scores(queries.lexical, passages.lexical))
    use_accelerator(monkeypatch)
    monkeypatch.setattr(upper_bounds, "all_lexical_scores", None)  # the CPU computes nothing
    tile = upper_bounds.tile_on_device(passages, similarity, cpu, coarse=True)
    bounds_QP = upper_bounds.upper_bounds(queries, similarity, cpu, coarse=True)(tile)
    assert torch.equal(bounds_QP, scores_QP + scores_QP.abs() * upper_bounds.UNIT)
    assert (bounds_QP == 0).any()
