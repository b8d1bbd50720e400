"""Packing away padding: what comes back, and that nothing is computed for padding."""

import pytest
import torch
from torch import Tensor

from models.layers.unpadding import Packing
from tests.tiny import SHAPE, tiny_bert

LENGTHS = [3, 1, 5, 2]


def rows(lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Random ids with something in the padding's place, and the mask."""
    ids = torch.randint(
        5, SHAPE["vocab_size"], (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(0)
    )
    return ids, torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def test_tokens_in_a_row_and_back_in_rows() -> None:
    ids, mask = rows(LENGTHS)
    packing = Packing(mask)

    packed = packing.packed(ids)

    assert packed.tolist() == [
        number for row, length in zip(ids.tolist(), LENGTHS, strict=True) for number in row[:length]
    ]
    assert packing.starts_B.tolist() == [0, 3, 4, 9]
    assert torch.equal(packing.padded(packed), ids * mask)
    vectors = torch.tensor([-1, -2, -3, -4])
    changed = packing.padded(packing.with_first(packed, vectors))
    assert torch.equal(changed[:, 0], vectors)
    assert torch.equal(changed[:, 1:], (ids * mask)[:, 1:])


def test_texts_have_boundaries_and_first_tokens() -> None:
    _, mask = rows(LENGTHS)
    packing = Packing(mask)
    firsts = packing.of_firsts()

    assert packing.boundaries.tolist() == [0, 3, 4, 9, 11]
    assert firsts.boundaries.tolist() == [0, 1, 2, 3, 4]
    assert packing.boundaries.dtype == firsts.boundaries.dtype == torch.int32
    assert torch.equal(firsts.padded(torch.arange(4)[:, None]), torch.arange(4)[:, None, None])
    assert firsts.visible is not None
    assert firsts.visible.tolist() == mask[:, None, None, :].tolist()
    assert firsts.sees_text


def test_only_a_mask_of_padding_lets_each_token_see_its_whole_text() -> None:
    _, mask = rows(LENGTHS)
    some = torch.ones(4, 1, 5, 5, dtype=torch.bool)

    assert Packing(mask).sees_text
    assert not Packing(mask, some).sees_text
    assert not Packing(mask).with_visible(some).sees_text
    assert not Packing(mask, unattended_BL=~mask).sees_text


def test_without_padding_there_is_nothing_to_do() -> None:
    ids, mask = rows([4, 4])
    packing = Packing(mask)

    assert packing.packed(ids).data_ptr() == ids.data_ptr()
    assert torch.equal(packing.padded(packing.packed(ids)), ids)
    assert packing.visible is None


def test_what_is_unseen_reads_and_is_not_read() -> None:
    model, (ids, mask) = tiny_bert().eval(), rows([3, 2])
    unattended = ~mask

    hidden, changed = (
        model.bert(tokens, mask, unattended_BL=unattended) for tokens in (ids, torch.where(unattended, 9, ids))
    )

    torch.testing.assert_close(hidden[mask], model.bert(ids, mask)[mask], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(hidden[mask], changed[mask], atol=1e-5, rtol=1e-5)
    whole = model.bert(
        ids[1:, [0, 1, 2]], torch.tensor([[True, True, False]]), unattended_BL=torch.tensor([[False, False, True]])
    )
    torch.testing.assert_close(hidden[1], whole[0], atol=1e-5, rtol=1e-5)
    assert (hidden[1, 2] - changed[1, 2]).abs().max() > 0.1


@pytest.mark.parametrize("training", [True, False])
def test_layers_see_the_real_tokens_alone(training: bool) -> None:
    model, (ids, mask) = tiny_bert().train(training), rows(LENGTHS)
    seen: list[int] = []
    for module in model.bert.encoder.modules():
        if isinstance(module, (torch.nn.Linear, torch.nn.LayerNorm)):
            module.register_forward_hook(lambda module, inputs, out: seen.append(len(inputs[0])))

    hidden = model.bert(ids, mask)

    assert set(seen) == {sum(LENGTHS)}
    assert hidden.shape == (4, 5, SHAPE["hidden_size"])
    assert not hidden[~mask].any()


def test_a_text_is_alone_what_it_is_in_a_batch() -> None:
    model, (ids, mask) = tiny_bert(), rows(LENGTHS)
    weights = torch.randn(4, 5, SHAPE["hidden_size"])

    (model.bert(ids, mask) * weights).sum().backward()
    together = {name: parameter.grad for name, parameter in model.bert.named_parameters()}
    hidden = model.bert(ids, mask)
    model.zero_grad()
    for number, length in enumerate(LENGTHS):
        alone = model.bert(ids[number, None, :length], mask[number, None, :length])
        torch.testing.assert_close(alone[0], hidden[number, :length], atol=1e-5, rtol=1e-5)
        (alone[0] * weights[number, :length]).sum().backward()

    for name, parameter in model.bert.named_parameters():
        torch.testing.assert_close(parameter.grad, together[name], atol=1e-4, rtol=1e-4)
