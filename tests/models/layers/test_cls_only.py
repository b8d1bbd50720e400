"""First tokens alone are the first tokens of all: numbers, gradients, and who reads no others."""

import pytest
import torch

from models.layers.cls_only import cls_states
from models.tokens import Tokens
from tests.models.layers.test_bert import batch
from tests.tiny import tiny_bert, tiny_retriever

PRECISION = {"atol": 1e-5, "rtol": 1e-5}


@pytest.mark.parametrize("padded", [True, False])
def test_states_and_gradients_are_those_of_a_whole_pass(padded: bool) -> None:
    model, (ids, mask) = tiny_bert(), batch()
    mask = mask if padded else torch.ones_like(mask)
    types = (torch.arange(12) >= 4).long().expand(4, 12)
    weights = torch.randn(4, model.config.hidden_size)
    passed, grads = [], []
    for states in (cls_states(model.bert, ids, mask, types), model.bert(ids, mask, types)[:, 0]):
        model.zero_grad()
        (states * weights).sum().backward()
        passed.append(states)
        grads.append({name: grad.grad.clone() for name, grad in model.bert.named_parameters() if grad.grad is not None})

    torch.testing.assert_close(*passed, **PRECISION)
    assert set(grads[0]) == set(grads[1]) == {name for name, _ in model.bert.named_parameters()}
    largest = max(float(grad.abs().max()) for grad in grads[1].values())
    for name, grad in grads[1].items():
        assert float((grads[0][name] - grad).abs().max()) < 1e-5 * largest, name


def test_dropout_falls_on_them() -> None:
    model, (ids, mask) = tiny_bert(dropout=0.3).train(), batch()
    torch.manual_seed(4)
    results = [cls_states(model.bert, ids, mask) for _ in range(2)]
    assert (results[0] - results[1]).abs().max() > 0.1


def test_a_dense_retriever_of_cls_reads_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its pooling is the mean, or where it has another view, all tokens are computed."""
    (ids, mask), rows = batch(), []
    for kind, pooling in (("dpr", "cls"), ("dpr", "mean"), ("hybrid", "cls")):
        retriever = tiny_retriever(kind).eval()
        retriever.encoder.pooling = retriever.heads["dense"].pooling = pooling
        retriever.encoder.passage.bert.encoder.layer[-1].intermediate.register_forward_hook(
            lambda module, given, output: rows.append(len(output))
        )
        hidden = retriever.encoder.passage.bert(ids, mask)
        del rows[-1]
        expected = hidden[:, 0] if pooling == "cls" else (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        result = retriever(Tokens(ids, mask), "passage").dense
        torch.testing.assert_close(result, expected, **PRECISION)
        torch.testing.assert_close(retriever.encoder(Tokens(ids, mask), "passage").dense, expected, **PRECISION)
    assert rows == [4, 4, *[int(mask.sum())] * 3, 4]
