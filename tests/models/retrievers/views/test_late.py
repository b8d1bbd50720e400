"""The late view: MaxSim and COIL against slow loops, what is compared, and queries filled up with [MASK]."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from models.representation import Representation, Role
from models.retrievers.views import late
from models.retrievers.views.late import LateSettings, LateView
from models.tokens import Tokenizer, Tokens, pad
from tests.tiny import PIECES, tiny_bert

CLS, SEP, MASK, DOT, COMMA = (PIECES.index(piece) for piece in ("[CLS]", "[SEP]", "[MASK]", ".", ","))
DEFAULT: dict[str, Any] = {
    "dim": 6, "bias": False, "normalise": False, "exact_match": False, "skip_punctuation": False, "query_masks": None,
    "use_cls": True, "use_sep": True,
}  # fmt: skip


def make(tokenizer: Tokenizer, **changes: Any) -> LateView:
    torch.manual_seed(0)
    return LateView(tiny_bert().config, LateSettings(**{**DEFAULT, **changes}), tokenizer)


def random_texts(count: int, length: int, seed: int, *, negative: bool = False) -> Representation:
    """Some tokens not compared, a text without any, and ids that repeat."""
    random = torch.Generator().manual_seed(seed)
    vectors = torch.randn(count, length, 5, generator=random)
    if negative:
        vectors = vectors.abs() * (-1) ** seed
    mask = torch.rand(count, length, generator=random) < 0.7
    mask[-1] = False
    ids = torch.randint(0, 4, (count, length), generator=random)
    return Representation(tokens=vectors, token_mask=mask, token_ids=ids)


def slow(queries: Representation, passages: Representation, exact: bool) -> Tensor:
    """Double precision, token by token; COIL's and ColBERT's formulas."""

    def lists(texts: Representation) -> Iterator[list[tuple[list[float], int]]]:
        assert texts.tokens is not None
        assert texts.token_mask is not None
        assert texts.token_ids is not None
        for vectors, mask, ids in zip(texts.tokens, texts.token_mask, texts.token_ids, strict=True):
            yield [(vectors[i].double().tolist(), int(ids[i])) for i in range(len(ids)) if mask[i]]

    rows = []
    for query in lists(queries):
        row = []
        for passage in lists(passages):
            score = 0.0
            for a, word in query:
                results = [sum(x * y for x, y in zip(a, b, strict=True))
                         for b, other in passage if not exact or other == word]  # fmt: skip
                best = max(results, default=0.0)
                score += max(best, 0.0) if exact else best
            row.append(score)
        rows.append(row)
    return torch.tensor(rows)


def changed(texts: Representation, **parts: Tensor) -> Representation:
    return Representation(**{**vars(texts), **parts})


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (3, 4, 5, 6), (6, 7, 2, 3)])
def test_scores_by_the_formula(
    tokenizer: Tokenizer, exact: bool, negative: bool, sizes: tuple[int, int, int, int]
) -> None:
    queries = random_texts(sizes[0], sizes[1], 1, negative=negative)
    passages = random_texts(sizes[2], sizes[3], 2, negative=negative)

    results = make(tokenizer, exact_match=exact).similarity(queries, passages)

    torch.testing.assert_close(results, slow(queries, passages, exact), rtol=1e-5, atol=1e-5)
    assert not results[:, -1].any()  # a passage without any token that is compared


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("limit", [1, 41, 42, 100, 300])
def test_in_parts_as_in_one(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, exact: bool, limit: int) -> None:
    view, queries, passages = make(tokenizer, exact_match=exact), random_texts(5, 6, 1), random_texts(4, 7, 2)
    wanted, sizes = view.similarity(queries, passages), []
    maxsim = late.maxsim

    def watched(asking: late.Compared, passages: late.Compared) -> Tensor:
        sizes.append(asking.mask.numel() * passages.mask.numel())
        return maxsim(asking, passages)

    monkeypatch.setattr(late, "MAX_ELEMENTS", limit)
    monkeypatch.setattr(late, "maxsim", watched)

    torch.testing.assert_close(view.similarity(queries, passages), wanted, rtol=1e-6, atol=1e-6)
    assert max(sizes) <= max(limit, 42)  # a pair of a query and a passage is the least
    assert sum(sizes) == 5 * 6 * 4 * 7


@pytest.mark.parametrize("exact", [False, True])
def test_order_and_padding_of_a_passage_change_nothing(tokenizer: Tokenizer, exact: bool) -> None:
    view, queries, passages = make(tokenizer, exact_match=exact), random_texts(3, 4, 1), random_texts(5, 6, 2)
    wanted = view.similarity(queries, passages)
    order = torch.tensor([3, 0, 5, 1, 4, 2])

    shuffled = Representation(**{name: part[:, order] for name, part in vars(passages).items() if part is not None})
    padded = Representation(
        tokens=torch.cat([passages.tokens, 100 * torch.randn(5, 9, 5)], dim=1),
        token_mask=torch.cat([passages.token_mask, torch.zeros(5, 9, dtype=torch.bool)], dim=1),
        token_ids=torch.cat([passages.token_ids, torch.zeros(5, 9, dtype=torch.long)], dim=1),
    )

    torch.testing.assert_close(view.similarity(queries, shuffled), wanted)
    torch.testing.assert_close(view.similarity(queries, padded), wanted)


@pytest.mark.parametrize("exact", [False, True])
def test_gradients_are_those_of_the_best_tokens(tokenizer: Tokenizer, exact: bool) -> None:
    queries, passages = random_texts(3, 4, 1), random_texts(5, 6, 2)
    price = torch.randn(3, 5)
    q, p = queries.tokens.clone().requires_grad_(), passages.tokens.clone().requires_grad_()

    scores = make(tokenizer, exact_match=exact).similarity(changed(queries, tokens=q), changed(passages, tokens=p))
    (scores * price).sum().backward()

    wanted_q, wanted_p = torch.zeros_like(q), torch.zeros_like(p)
    similar = torch.einsum("ikd,jnd->ikjn", q, p).tolist()
    for i in range(3):
        for k in range(4):
            for j in range(5):
                seen = [n for n in range(6) if passages.token_mask[j, n]
                        and (not exact or passages.token_ids[j, n] == queries.token_ids[i, k])]  # fmt: skip
                if not queries.token_mask[i, k] or not seen:
                    continue
                best = max(seen, key=similar[i][k][j].__getitem__)
                if exact and similar[i][k][j][best] <= 0:
                    continue
                wanted_q[i, k] += price[i, j] * p[j, best].detach()
                wanted_p[j, best] += price[i, j] * q[i, k].detach()
    torch.testing.assert_close(q.grad, wanted_q, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(p.grad, wanted_p, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
def test_vectors_by_the_formula(tokenizer: Tokenizer, bias: bool, normalise: bool) -> None:
    model, tokens = tiny_bert(), pad([[CLS, 60, 61, SEP], [CLS, SEP]])
    view = make(tokenizer, bias=bias, normalise=normalise)
    assert view.projection.weight.std().item() == pytest.approx(0.02, rel=0.3)
    if bias:
        assert not view.projection.bias.any()
        torch.nn.init.normal_(view.projection.bias)
    hidden = model.bert(tokens.ids, tokens.mask)

    result = view(hidden, tokens, "passage", model)

    wanted = torch.einsum("blh,dh->bld", hidden.double(), view.projection.weight.double())
    wanted = wanted + view.projection.bias.double() if bias else wanted
    wanted = wanted / (wanted**2).sum(2, keepdim=True).sqrt() if normalise else wanted
    assert result.tokens is not None
    torch.testing.assert_close(result.tokens[tokens.mask].double(), wanted[tokens.mask], rtol=1e-4, atol=1e-6)
    assert (result.dense, result.lexical, result.token_ids) == (None, None, None)
    assert torch.equal(cast(Tensor, result.token_mask), tokens.mask)


TEXT = [CLS, 60, DOT, 61, COMMA, SEP]


@pytest.mark.parametrize(
    ("changes", "role", "wanted"),
    [
        ({}, "passage", [1, 1, 1, 1, 1, 1]),
        ({"use_cls": False}, "passage", [0, 1, 1, 1, 1, 1]),
        ({"use_sep": False}, "query", [1, 1, 1, 1, 1, 0]),
        ({"skip_punctuation": True}, "passage", [1, 1, 0, 1, 0, 1]),
        ({"skip_punctuation": True}, "query", [1, 1, 1, 1, 1, 1]),
        ({"use_cls": False, "use_sep": False, "skip_punctuation": True}, "passage", [0, 1, 0, 1, 0, 0]),
    ],
)
def test_which_tokens_are_compared(
    tokenizer: Tokenizer, changes: dict[str, Any], role: Role, wanted: list[int]
) -> None:
    tokens = pad([TEXT, [CLS, *range(60, 66), SEP]])  # the first is padded
    view = make(tokenizer, **changes)

    mask, ids = view.compared(tokens, role)

    assert mask[0].int().tolist() == [*wanted, 0, 0]
    assert ids is None
    exact_mask, exact_ids = make(tokenizer, exact_match=True, **changes).compared(tokens, role)
    assert torch.equal(exact_mask, mask)
    assert torch.equal(cast(Tensor, exact_ids), tokens.ids)


def test_queries_are_filled_up_with_masks(tokenizer: Tokenizer) -> None:
    view = make(tokenizer, query_masks=6)
    short, long = [CLS, 60, SEP], [CLS, 60, 61, 62, 63, 64, SEP]

    wide, narrow = view.augmented(pad([short, long]), "query"), view.augmented(pad([short]), "query")

    assert wide.ids.tolist() == [[*short, MASK, MASK, MASK, 0], long]
    assert wide.mask.int().tolist() == [[1, 1, 1, 0, 0, 0, 0], [1] * 7]
    assert narrow.ids.tolist() == [[*short, MASK, MASK, MASK]]
    assert narrow.mask.int().tolist() == [[1, 1, 1, 0, 0, 0]]
    assert view.compared(wide, "query")[0].int().tolist() == [[1, 1, 1, 1, 1, 1, 0], [1] * 7]
    assert wide.positions.tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13]
    assert narrow.positions.tolist() == [0, 1, 2, 3, 4, 5]
    again = view.augmented(wide, "query")
    assert torch.equal(again.ids, wide.ids)
    assert torch.equal(again.mask, wide.mask)
    passages = pad([short, long])
    assert view.augmented(passages, "passage") is passages
    assert make(tokenizer).augmented(passages, "query") is passages
    assert view.compared(passages, "passage")[0].int().tolist() == [[1, 1, 1, 0, 0, 0, 0], [1] * 7]


def test_masks_read_the_query_and_the_query_does_not_read_them(tokenizer: Tokenizer) -> None:
    model = tiny_bert()
    plain, filled = make(tokenizer), make(tokenizer, query_masks=5)
    query, other = pad([[CLS, 60, SEP]]), pad([[CLS, 61, SEP]])

    def vectors(view: LateView, tokens: Tokens) -> Tensor:
        read = view.augmented(tokens, "query")
        hidden = model.bert(read.ids, read.mask, unattended_BL=read.unattended)
        return cast(Tensor, view(hidden, read, "query", model).tokens)

    torch.testing.assert_close(vectors(filled, query)[:, :3], vectors(plain, query), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(vectors(filled, query)[:, 3:], vectors(filled, other)[:, 3:], atol=1e-3)


def test_a_score_depends_on_no_neighbour_in_the_batch(tokenizer: Tokenizer) -> None:
    model, view = tiny_bert(), make(tokenizer, query_masks=6, skip_punctuation=True)
    queries = [[CLS, 60, SEP], [CLS, *range(60, 70), SEP]]
    passages = [TEXT, [CLS, *range(61, 80), SEP]]

    def texts(rows: list[list[int]], role: Role) -> Representation:
        read = view.augmented(pad(rows), role)
        return cast(Representation, view(model.bert(read.ids, read.mask), read, role, model))

    together = view.similarity(texts(queries, "query"), texts(passages, "passage"))

    for i, query in enumerate(queries):
        for j, passage in enumerate(passages):
            alone = view.similarity(texts([query], "query"), texts([passage], "passage"))
            torch.testing.assert_close(together[i, j], alone[0, 0], rtol=1e-4, atol=1e-5)


def test_what_a_checkpoint_keeps_and_autocast_does_not_round(tokenizer: Tokenizer) -> None:
    model, view = tiny_bert(), make(tokenizer, skip_punctuation=True, bias=True)
    hidden, tokens = torch.randn(1, 6, 32), pad([TEXT])

    def scores() -> Tensor:
        built = view(hidden, tokens, "passage", model)
        return view.similarity(built, built)

    assert set(view.state_dict()) == {"projection.weight", "projection.bias"}
    exact = scores()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(scores(), exact)


def test_settings_that_are_refused(tokenizer: Tokenizer) -> None:
    for changes, message in (
        ({"dim": 0}, "dim of 1 or more"),
        ({"query_masks": 0}, "query_masks of 1 or more"),
        ({"exact_match": True, "query_masks": 32}, "no passage has a .MASK. to match"),
        ({"weight": -1.0}, "weight: expected a number above 0"),
        ({"dim": 33}, r"late\.dim: expected at most the model's 32, got 33"),
        ({"query_masks": 65}, r"late\.query_masks: expected at most the model's 64 positions, got 65"),
    ):
        with pytest.raises(ValueError, match=message):
            make(tokenizer, **changes)
    texts = random_texts(2, 3, 1)
    with pytest.raises(ValueError, match="expected tokens with their mask"):
        make(tokenizer).similarity(texts, Representation(tokens=texts.tokens))
    with pytest.raises(ValueError, match="expected tokens with their mask"):
        make(tokenizer, exact_match=True).similarity(
            texts, Representation(tokens=texts.tokens, token_mask=texts.token_mask)
        )
