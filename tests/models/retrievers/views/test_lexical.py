"""The lexical view: a slow reference from the formula, what is pooled, what is kept, and FLOPS regularisation."""

import math
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from models.layers.bert import BertForMaskedLM
from models.layers.max_logits import max_logits
from models.representation import Representation, Role
from models.retrievers.views.lexical import LexicalSettings, LexicalView, flops, largest, mean_nonzero
from models.tokens import Tokenizer, Tokens, pad
from tests.tiny import SHAPE, tiny_bert

V = SHAPE["vocab_size"]
DEFAULT: dict[str, Any] = {
    "activation": "log1p_relu", "head": "mlm", "pool_specials": True, "top_passages": None, "top_queries": None
}  # fmt: skip


def settings(**changes: Any) -> LexicalSettings:
    return LexicalSettings(**{**DEFAULT, **changes})


def random_tokens(count: int, seed: int) -> Tokens:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 8, (count,), generator=random).tolist()
    return pad([[2, *torch.randint(5, V, (length,), generator=random).tolist(), 3] for length in lengths])


def weights(view: LexicalView, model: BertForMaskedLM, tokens: Tokens, role: Role = "passage") -> Tensor:
    result = view(model.bert(tokens.ids, tokens.mask), tokens, role, model)
    assert (result.dense, result.tokens, result.token_mask, result.token_ids) == (None,) * 4
    return cast(Tensor, result.lexical)


def slow(
    hidden_BLH: Tensor, tokens: Tokens, chosen: LexicalSettings, model: BertForMaskedLM, top: int | None
) -> Tensor:
    """Double precision, the activation before the maximum, one word piece at a time."""
    words, head = model.bert.embeddings.word_embeddings.weight.double(), model.cls.predictions
    rows = []
    for states, ids, mask in zip(hidden_BLH, tokens.ids.tolist(), tokens.mask.tolist(), strict=True):
        row = [0.0] * V
        votes = []
        for state, number, there in zip(states, ids, mask, strict=True):
            if not there or (number in (2, 3) and not chosen.pool_specials):
                continue
            if chosen.head == "mlm":
                logits = words @ head.transform(state).double() + head.bias.double()
            else:
                logits = words @ state.double()
            kinds = {"none": lambda x: x, "relu": lambda x: max(x, 0), "log1p_relu": lambda x: math.log(1 + max(x, 0))}
            votes.append([kinds[chosen.activation](x) for x in logits.tolist()])
        if votes:
            row = [max(vote[piece] for vote in votes) for piece in range(V)]
        if top is not None:
            kept = sorted(range(V), key=lambda piece: (-row[piece], piece))[:top]
            row = [row[piece] if piece in kept else 0.0 for piece in range(V)]
        rows.append(row)
    return torch.tensor(rows)


@pytest.mark.parametrize("activation", ["log1p_relu", "relu", "none"])
@pytest.mark.parametrize("head", ["mlm", "embeddings"])
@pytest.mark.parametrize("pool_specials", [True, False])
@pytest.mark.parametrize("top", [None, 5])
def test_weights_by_the_formula(
    tokenizer: Tokenizer, activation: str, head: str, pool_specials: bool, top: int | None
) -> None:
    model, tokens = tiny_bert(), random_tokens(7, seed=3)
    chosen = settings(activation=activation, head=head, pool_specials=pool_specials, top_passages=top)
    hidden = model.bert(tokens.ids, tokens.mask)

    result = weights(LexicalView(model.config, chosen, tokenizer), model, tokens)

    assert result.dtype == torch.float32
    torch.testing.assert_close(result, slow(hidden, tokens, chosen, model, top), rtol=1e-5, atol=1e-5)
    everything = weights(LexicalView(model.config, chosen, tokenizer), model, tokens, "query")
    torch.testing.assert_close(everything, slow(hidden, tokens, chosen, model, None), rtol=1e-5, atol=1e-5)


def test_padding_never_votes_even_where_all_logits_are_negative(tokenizer: Tokenizer) -> None:
    model = tiny_bert()
    with torch.no_grad():
        model.cls.predictions.bias.sub_(1000)
    view = LexicalView(model.config, settings(activation="none"), tokenizer)
    alone, padded = pad([[2, 60, 61, 3]]), pad([[2, 60, 61, 3], [2, 60, 61, 62, 63, 64, 65, 3]])

    wanted = weights(view, model, alone)[0]

    assert wanted.max() < -900
    torch.testing.assert_close(weights(view, model, padded)[0], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ["log1p_relu", "relu", "none"])
def test_a_text_with_nothing_to_pool_is_zero_and_has_no_gradient(tokenizer: Tokenizer, activation: str) -> None:
    model = tiny_bert()
    view = LexicalView(model.config, settings(activation=activation, pool_specials=False, top_passages=3), tokenizer)
    tokens = Tokens(
        torch.tensor([[2, 60, 3], [2, 3, 0], [0, 0, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 0]]) > 0
    )
    hidden = torch.randn(3, 3, 32, requires_grad=True)

    results = view(hidden, tokens, "passage", model).lexical
    results.sum().backward()

    assert results[0].any()
    assert not results[1:].any()
    assert hidden.grad is not None
    assert hidden.grad[0, 1].any()
    assert not hidden.grad[1:].any()
    assert not hidden.grad[0, [0, 2]].any()
    none_at_all = view(hidden[1:], tokens.rows(1, 3), "passage", model).lexical
    assert none_at_all.shape == (2, V)
    assert not none_at_all.any()


def test_the_head_sees_only_what_is_pooled(tokenizer: Tokenizer) -> None:
    model, seen = tiny_bert(), []
    model.cls.predictions.transform.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape[0]))
    tokens = pad([[2, 60, 61, 62, 3], [2, 60, 3]])

    weights(LexicalView(model.config, settings(), tokenizer), model, tokens)
    weights(LexicalView(model.config, settings(pool_specials=False), tokenizer), model, tokens)

    assert seen == [8, 4]


def test_the_maximum_before_the_activation_has_the_same_gradient() -> None:
    pool = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1], [0, 0, 1, 0]]) > 0
    states, words, upstream = (
        torch.randn(7, 5, dtype=torch.double),
        torch.randn(11, 5, dtype=torch.double),
        torch.randn(3, 11),
    )
    first, second = states.clone().requires_grad_(), states.clone().requires_grad_()

    (torch.log1p(torch.relu(max_logits(first, words, pool))) * upstream).sum().backward()
    texts = torch.log1p(torch.relu(second @ words.T)).split([3, 3, 1])
    (torch.stack([text.amax(0) for text in texts]) * upstream).sum().backward()

    torch.testing.assert_close(first.grad, second.grad)


def test_what_is_kept_by_hand() -> None:
    rows = torch.tensor([[1.0, 3.0, 3.0, -2.0, 3.0], [-5.0, -1.0, -4.0, -3.0, -2.0], [0.0, 0.0, 7.0, 0.0, 0.0]])

    kept = largest(rows.requires_grad_(), 2)

    assert kept.int().tolist() == [[0, 1, 1, 0, 0], [0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]
    assert largest(rows, 5).all()


def test_only_what_is_kept_has_a_gradient(tokenizer: Tokenizer) -> None:
    model, tokens = tiny_bert(), random_tokens(4, seed=5)
    view = LexicalView(model.config, settings(activation="none", head="embeddings", top_passages=6), tokenizer)
    full = LexicalView(model.config, settings(activation="none", head="embeddings"), tokenizer)
    upstream = torch.randn(4, V)
    hidden = model.bert(tokens.ids, tokens.mask).detach()

    def gradient(of: LexicalView, scale: Tensor) -> Tensor:
        leaf = hidden.clone().requires_grad_()
        (of(leaf, tokens, "passage", model).lexical * scale).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    kept = largest(full(hidden, tokens, "passage", model).lexical, 6)
    torch.testing.assert_close(gradient(view, upstream), gradient(full, upstream * kept))


@pytest.mark.parametrize("activation", ["log1p_relu", "none"])
@pytest.mark.parametrize("top", [1, 9, V])
def test_dup_maes_score_is_gathered_at_what_the_passage_keeps(tokenizer: Tokenizer, activation: str, top: int) -> None:
    model, queries, passages = tiny_bert(), random_tokens(3, seed=1), random_tokens(5, seed=2)
    whole = LexicalView(model.config, settings(activation=activation, pool_specials=False), tokenizer)
    view = LexicalView(model.config, settings(activation=activation, pool_specials=False, top_passages=top), tokenizer)
    query_weights, kept = weights(view, model, queries, "query"), weights(view, model, passages)

    results = view.similarity(Representation(lexical=query_weights), Representation(lexical=kept))

    # Equation 12: sums over the passage's N largest, where the query keeps everything.
    mu_q, mu_d = weights(whole, model, queries, "query"), weights(whole, model, passages)
    values, ids = (part.tolist() for part in mu_d.topk(top))
    for query in range(3):
        for passage in range(5):
            wanted = sum(mu_q[query, v].item() * x for v, x in zip(ids[passage], values[passage], strict=True))
            assert results[query, passage].item() == pytest.approx(wanted, rel=1e-4, abs=1e-4)
    if top == V:
        torch.testing.assert_close(results, mu_q @ mu_d.T)


def test_queries_keep_their_own_number(tokenizer: Tokenizer) -> None:
    model, tokens = tiny_bert(), random_tokens(4, seed=7)
    view = LexicalView(model.config, settings(activation="none", top_queries=3, top_passages=8), tokenizer)

    assert (weights(view, model, tokens, "query") != 0).sum(1).tolist() == [3] * 4
    assert (weights(view, model, tokens, "passage") != 0).sum(1).tolist() == [8] * 4


def test_flops_and_how_many_pieces_weigh_by_hand() -> None:
    one, two = torch.tensor([[1.0, 0.0, -3.0]]), torch.tensor([[1.0, -2.0, 0.0, 4.0], [3.0, 2.0, 0.0, 0.0]])

    assert flops(one).item() == 10  # one row: the sum of squares
    assert flops(two).item() == 12  # 2^2 + 2^2 + 0 + 2^2
    assert (mean_nonzero(one).item(), mean_nonzero(two).item()) == (2, 2.5)
    row = torch.randn(1, 500)
    assert flops(row).item() == pytest.approx((row.double() ** 2).sum().item(), rel=1e-5)


def test_autocast_rounds_no_weight_and_no_score(tokenizer: Tokenizer) -> None:
    model = tiny_bert()
    view = LexicalView(model.config, settings(), tokenizer)
    built = Representation(lexical=torch.rand(4, V) * 3)
    exact = view.similarity(built, built)
    tokens = random_tokens(3, seed=9)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(view.similarity(built, built), exact)
        hidden = model.bert(tokens.ids, tokens.mask)
        result = view(hidden, tokens, "passage", model).lexical
        states = model.cls.predictions.transform(hidden[tokens.mask])
        products = states @ model.bert.embeddings.word_embeddings.weight.T

    assert products.dtype == torch.bfloat16
    wanted = torch.stack([scores.float().amax(0) for scores in products.split(tokens.mask.sum(1).tolist())])
    assert torch.equal(result, torch.log1p(torch.relu(wanted + model.cls.predictions.bias)))


def test_settings_that_are_refused(tokenizer: Tokenizer) -> None:
    for changes, message in (
        ({"activation": "tanh"}, "expected an activation of log1p_relu, relu, none"),
        ({"head": "other"}, "a head of mlm, embeddings, own"),
        ({"top_passages": 0}, "top_passages: expected 1 or more"),
        ({"top_queries": -1}, "top_queries: expected 1 or more"),
        ({"weight": 0.0}, "weight: expected a number above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            settings(**changes)
    with pytest.raises(ValueError, match=rf"lexical\.top_passages: expected at most the vocabulary's {V}, got {V + 1}"):
        LexicalView(tiny_bert().config, settings(top_passages=V + 1), tokenizer)
    with pytest.raises(ValueError, match="expected a lexical part on both sides"):
        LexicalView(tiny_bert().config, settings(), tokenizer).similarity(Representation(), Representation())
