"""Keys against sorting everything, added in tiles of any size."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.retrieval.exact_search.top_k import CpuTopKeys, DeviceTopKeys, TopKeys, score_of, sort_keys, top_keys

CPU = torch.device("cpu")


def test_sort_keys_rise_with_the_score_then_with_the_rank() -> None:
    scores = torch.tensor([-torch.inf, -3.0, -1e-30, -0.0, 0.0, 1e-30, 2.0, torch.inf])
    keys = sort_keys(scores[:, None], torch.tensor([0, 2**32 - 1]))
    flat = keys.flatten().tolist()
    assert flat[6:8] == flat[8:10]  # -0.0 is 0.0
    assert flat[:8] + flat[10:] == sorted(set(flat))
    assert torch.equal(score_of(keys)[:, 0], scores)


@pytest.mark.parametrize("device", ["cpu", "others"])
@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 700), kept=st.integers(1, 700), queries=st.integers(1, 4), size=st.integers(1, 300),
    kinds=st.sampled_from([1, 3, 2**20]), rising=st.booleans(), seed=st.integers(0, 2**16),
)  # fmt: skip
def test_top_keys_equal_those_of_a_sort(
    device: str, count: int, kept: int, queries: int, size: int, kinds: int, rising: bool, seed: int
) -> None:
    draw, kept = np.random.default_rng(seed), min(kept, count)
    bounds_QP = draw.integers(-kinds, kinds + 1, (queries, count)).astype(np.float32)
    bounds_QP *= draw.choice(np.array([-0.1, 0.1], np.float32), (queries, count))  # -0.0, too
    ranks_P = draw.permutation(2**32 - 1 - np.arange(count))
    if rising:  # each tile has what is better than all before
        bounds_QP.sort()
    best: TopKeys = CpuTopKeys(queries, kept) if device == "cpu" else DeviceTopKeys(queries, kept, CPU)
    for start in range(0, count, size):
        best.add(torch.from_numpy(bounds_QP[:, start : start + size]), ranks_P[start : start + size])
    expected = [
        sorted(zip((row + 0.0).tolist(), ranks_P.tolist(), strict=True), reverse=True)[:kept] for row in bounds_QP
    ]
    keys_QK = best.keys()
    assert keys_QK.shape == (queries, kept)
    for keys, wanted in zip(keys_QK, expected, strict=True):
        result = zip(score_of(torch.from_numpy(keys.copy())).tolist(), (keys & 0xFFFFFFFF).tolist(), strict=True)
        assert list(result) == wanted


def test_the_cpu_uses_the_compiled_loop() -> None:
    assert isinstance(top_keys(1, 1, CPU), CpuTopKeys)
