"""The largest logit of each word piece: the same numbers and gradients as of all logits, which are not kept."""

import pytest
import torch
from torch import Tensor

from models.layers import max_logits as module
from models.layers.max_logits import max_logits, max_of_logits

V, H = 23, 6
POOL = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0]]) > 0


def parts(dtype: torch.dtype = torch.double) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(3)
    shapes = ((int(POOL.sum()), H), (V, H), (V,))
    states, words, bias = (torch.randn(shape, generator=random, dtype=dtype, requires_grad=True) for shape in shapes)
    return states, words, bias


def slow(states: Tensor, words: Tensor, bias: Tensor, pool: Tensor = POOL) -> Tensor:
    """All logits; a text's maximum, 0 for a text without any."""
    rows, start = [], 0
    for count in pool.sum(1).tolist():
        logits = states[start : start + count] @ words.T + bias
        rows.append(logits.max(0).values if count else torch.zeros(V, dtype=logits.dtype))
        start += count
    return torch.stack(rows)


@pytest.fixture(params=[1, 2**25], ids=["a text at a time", "all texts at once"], autouse=True)
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ELEMENTS", request.param)


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_numbers_and_gradients_are_those_of_all_logits(share: float) -> None:
    ours, theirs = parts(), parts()
    upstream = torch.randn(len(POOL), V, dtype=torch.double) * (torch.rand(len(POOL), V) < share)

    result, wanted = max_logits(ours[0], ours[1], POOL, ours[2]), slow(*theirs)
    (result * upstream).sum().backward()
    (wanted * upstream).sum().backward()

    torch.testing.assert_close(result, wanted)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad, other.grad)
        assert mine.grad.any() == (share > 0)


def test_the_gradient_is_the_slope() -> None:
    assert torch.autograd.gradcheck(lambda *given: max_logits(given[0], given[1], POOL, given[2]), parts())


def test_without_a_bias_and_in_single_precision() -> None:
    states, words, _ = parts(torch.float)

    results = max_logits(states, words, POOL)

    assert results.dtype == torch.float
    torch.testing.assert_close(results, slow(states, words, torch.zeros(V)))
    assert not results[[1, 4]].any()
    assert max_logits(states[:0], words, POOL[:0]).shape == (0, V)
    assert not max_logits(states[:0], words, POOL[[1]]).any()


@pytest.mark.parametrize("frozen", [0, 1])
def test_what_is_frozen_has_no_gradient(frozen: int) -> None:
    ours, theirs = parts(), parts()
    for inputs in (ours, theirs):
        inputs[frozen].requires_grad_(False)

    max_logits(ours[0], ours[1], POOL).exp().sum().backward()
    slow(theirs[0], theirs[1], torch.zeros(V)).exp().sum().backward()

    assert ours[frozen].grad is None
    torch.testing.assert_close(ours[1 - frozen].grad, theirs[1 - frozen].grad)


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_gradient_of_few_tokens_or_of_all(everywhere: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU gradients of 0 take part, which are not counted there."""
    if everywhere:
        texts, tokens = torch.meshgrid(torch.arange(len(POOL)), torch.arange(V), indexing="xy")
        monkeypatch.setattr(module, "_with_gradient", lambda gradient: (texts.flatten(), tokens.flatten()))
    ours, theirs, upstream = parts(), parts(), torch.randn(len(POOL), V, dtype=torch.double).relu()

    (max_logits(ours[0], ours[1], POOL, ours[2]) * upstream).sum().backward()
    (slow(*theirs) * upstream).sum().backward()

    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_maxima_of_given_logits() -> None:
    ours, theirs = (torch.randn(int(POOL.sum()), V, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    upstream = torch.randn(len(POOL), V)

    result = max_of_logits(ours.requires_grad_(), POOL)
    wanted = slow(theirs.requires_grad_(), torch.eye(V), torch.zeros(V))
    (result * upstream).sum().backward()
    (wanted * upstream).sum().backward()

    assert torch.equal(result, wanted)
    assert torch.equal(ours.grad, theirs.grad)  # type: ignore[arg-type]
    assert not max_of_logits(ours[:0], POOL[[1]]).any()


def test_no_logits_are_kept() -> None:
    states, words, bias = parts()
    kept: list[tuple[int, ...]] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        max_logits(states, words, POOL, bias)

    sizes = {tuple(states.shape), tuple(words.shape), (len(POOL), 1), (V,)}
    assert set(kept) <= sizes | {(len(POOL), V)}  # the positions of the maxima


def test_under_autocast_the_products_are_lower_and_the_sums_are_not() -> None:
    states, words, bias = parts(torch.float)
    upstream = torch.randn(len(POOL), V)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = max_logits(states, words, POOL, bias)
        (result * upstream).sum().backward()
    exact = slow(states.detach().bfloat16(), words.detach().bfloat16(), torch.zeros(V, dtype=torch.bfloat16)).float()

    assert result.dtype == torch.float
    assert torch.equal(result.detach(), exact + bias.detach() * POOL.any(1, keepdim=True))
    whole = parts(torch.float)
    (slow(*whole) * upstream).sum().backward()
    for mine, other in zip((states, words, bias), whole, strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-6, atol=1e-6)
