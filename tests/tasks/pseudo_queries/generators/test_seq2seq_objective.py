"""The loss of a query generator's training equals that of `transformers`."""

import torch

from models.tokens import pad
from tasks.pseudo_queries.generators.seq2seq_objective import Batch, Seq2SeqObjective
from tests.tiny import tiny_t5


def test_the_loss_is_that_of_transformers_with_padding_and_without() -> None:
    torch.manual_seed(5)
    model = tiny_t5(40).eval()
    for texts in ([[2, 7, 8, 9, 3], [2, 11, 3], [2, 3]], [[2, 7, 3], [2, 11, 3], [2, 12, 3]]):
        batch = Batch(pad(texts), pad([[2, 7, 3], [2, 11, 12, 13, 3], [2, 3]]))
        labels = batch.targets.ids[:, 1:].masked_fill(~batch.targets.mask[:, 1:], -100)

        _, losses = Seq2SeqObjective(model).encode(batch)

        ids, mask = batch.texts.ids, batch.texts.mask.long()
        start = batch.targets.ids[:, :-1]
        expected = model(input_ids=ids, attention_mask=mask, decoder_input_ids=start, labels=labels).loss
        torch.testing.assert_close(losses["cross_entropy"], expected)
