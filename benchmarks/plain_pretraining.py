"""The pre-training step as the papers' scripts write it with Hugging Face.

Every row is padded to the maximum, the vocabulary head reads every position, and masks are made on the CPU by loops
over tokens. The collators follow those of Condenser and RetroMAE, the decoders those of CoT-MAE, RetroMAE and DupMAE,
in the layers of Transformers. Losses are those of `models/`; `equal_to` takes the weights of an objective of ours, and
`padded` its batches, so that both can be compared.

Shape suffixes: B batch, L length, Q decoder's positions, H hidden, A attention heads, D size of a head, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, pad, scaled_dot_product_attention
from transformers.models.bert.modeling_bert import BertLayer

from models.masking import IGNORED
from models.texts import Row
from models.tokens import Tokenizer

Inputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Collator:
    """Rows of ids to tensors of one width, masked by the walk over words that the releases share."""

    tokenizer: Tokenizer
    max_tokens: int

    def framed(self, ids: Row) -> list[int]:
        """Return [CLS] ids [SEP], truncated at the end."""
        return [self.tokenizer.cls, *ids[: self.max_tokens - 2], self.tokenizer.sep]

    def whole_word_mask(self, ids: Sequence[int], rate: float) -> list[int]:
        """Return 1 where a token is to be masked."""
        words: list[list[int]] = []
        for position, number in enumerate(ids[1:-1], start=1):
            if words and self.tokenizer.continues[number]:
                words[-1].append(position)
            else:
                words.append([position])
        random.shuffle(words)
        budget = max(1, round(len(ids) * rate))
        hidden: set[int] = set()
        for word in words:
            if len(hidden) >= budget:
                break
            if len(hidden) + len(word) <= budget:
                hidden.update(word)
        return [int(position in hidden) for position in range(len(ids))]

    def padded(self, rows: Sequence[Sequence[int]], filling: int) -> Tensor:
        """Return rows [B, L] of the maximum width."""
        return torch.tensor([[*row, *[filling] * (self.max_tokens - len(row))] for row in rows])

    def masked(self, ids_BL: Tensor, hidden_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs masked by BERT's 80/10/10 rule, and the labels."""
        hidden_BL = hidden_BL.bool()
        labels_BL = torch.where(hidden_BL, ids_BL, IGNORED)
        replaced_BL = torch.bernoulli(torch.full(ids_BL.shape, 0.8)).bool() & hidden_BL
        random_BL = torch.bernoulli(torch.full(ids_BL.shape, 0.5)).bool() & hidden_BL & ~replaced_BL
        words_BL = torch.randint(self.tokenizer.vocab_size, ids_BL.shape)
        masked_BL = torch.where(random_BL, words_BL, torch.where(replaced_BL, self.tokenizer.mask, ids_BL))
        return masked_BL, labels_BL

    def masked_text(self, rows: Sequence[Sequence[int]], rate: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return masked ids, labels and the mask of real tokens."""
        ids_BL = self.padded(rows, self.tokenizer.pad)
        hidden_BL = self.padded([self.whole_word_mask(row, rate) for row in rows], 0)
        return *self.masked(ids_BL, hidden_BL), self.padded([[1] * len(row) for row in rows], 0)

    def pairs(self, texts: Sequence[Row], contexts: Sequence[Row], rates: Sequence[float]) -> Inputs:
        """Return CoT-MAE's batch."""
        columns: dict[str, Tensor] = {}
        for side, rows, rate in (("text", texts, rates[0]), ("context", contexts, rates[1])):
            ids, labels, mask = self.masked_text([self.framed(row) for row in rows], rate)
            columns |= {side: ids, f"{side}_labels": labels, f"{side}_mask": mask}
        return columns

    def texts(self, texts: Sequence[Row], rates: Sequence[float]) -> Inputs:
        """Return RetroMAE's batch, with the visible positions of each decoder position."""
        rows = [self.framed(row) for row in texts]
        ids, labels, mask = self.masked_text(rows, rates[0])
        original_BL = self.padded(rows, self.tokenizer.pad)
        special_BL = torch.isin(original_BL, torch.tensor([self.tokenizer.cls, self.tokenizer.sep, self.tokenizer.pad]))
        predicted_BL = torch.where(special_BL, IGNORED, original_BL)
        return {
            "text": ids, "text_labels": labels, "text_mask": mask, "original": original_BL,
            "decoder_labels": predicted_BL, "visible": self.visible(rows, rates[1]),
        }  # fmt: skip

    def visible(self, rows: Sequence[Sequence[int]], rate: float) -> Tensor:
        """Return a mask [B, L, L], 1 where a row attends to a column."""
        visible_BLL = torch.zeros(len(rows), self.max_tokens, self.max_tokens, dtype=torch.long)
        visible_BLL[:, :, 0] = 1
        for number, row in enumerate(rows):
            masks = [self.whole_word_mask(row, rate) for _ in range(min(len(row), 256))]
            hidden = [list(masks[random.randrange(len(masks))]) for _ in row]
            for position, seen in enumerate(hidden):
                seen[position] = 1
            visible_BLL[number, 1 : len(row), : len(row)] = 1 - torch.tensor(hidden)[1:]
        return visible_BLL


class PlainPretraining(nn.Module):
    """A BertForMaskedLM and a decoder of one of its layers; a subclass says what is decoded."""

    def __init__(self, config: transformers.BertConfig) -> None:
        super().__init__()
        self.lm = transformers.BertForMaskedLM(config)
        self.layer: Any = BertLayer(self.lm.config)  # type: ignore[no-untyped-call]

    def equal_to(self, objective: Any, layer: nn.Module) -> PlainPretraining:
        """Load the weights of an objective of ours and of its decoder's layer."""
        self.lm.load_state_dict(objective.model.state_dict(), strict=False)  # tied weights have two names here
        self.layer.load_state_dict(layer.state_dict())
        return self

    def masked_lm(self, hidden_BLH: Tensor, labels_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of every position, and the MLM loss."""
        logits_BLV: Tensor = self.lm.cls(hidden_BLH)
        return logits_BLV, cross_entropy(logits_BLV.flatten(0, 1).float(), labels_BL.flatten(), ignore_index=IGNORED)

    def encoded(self, inputs: Inputs) -> Tensor:
        """Return the last hidden states [B, L, H]."""
        hidden_BLH: Tensor = self.lm.bert(inputs["text"], attention_mask=inputs["text_mask"]).last_hidden_state
        return hidden_BLH


class CotMae(PlainPretraining):
    """One layer over the masked context, whose [CLS] is the text's vector."""

    def losses(self, inputs: Inputs) -> dict[str, Tensor]:
        """Return the losses of both masked language models."""
        hidden_BLH = self.encoded(inputs)
        context_BLH = torch.cat([hidden_BLH[:, :1], self.lm.bert.embeddings(inputs["context"])[:, 1:]], dim=1)
        decoded_BLH = self.layer(context_BLH, attention_mask=inputs["context_mask"][:, None, None, :].bool())
        return {
            "mlm": self.masked_lm(hidden_BLH, inputs["text_labels"])[1],
            "context": self.masked_lm(decoded_BLH, inputs["context_labels"])[1],
        }


class RetroMae(PlainPretraining):
    """One layer whose query is vector and position, and which sees a part of the text that is sampled by position."""

    def queries(self, vectors_B1H: Tensor, length: int) -> Tensor:
        """Return the queries of the decoder [B, L, H]."""
        places_LH: Tensor = self.lm.bert.embeddings.position_embeddings.weight[:length]
        return vectors_B1H + places_LH

    def losses(self, inputs: Inputs) -> dict[str, Tensor]:
        """Return the losses of the masked language model, and of the decoder for every token."""
        hidden_BLH = self.encoded(inputs)
        return {
            "mlm": self.masked_lm(hidden_BLH, inputs["text_labels"])[1],
            "decoder": self.decoder_loss(hidden_BLH, inputs),
        }

    def decoder_loss(self, hidden_BLH: Tensor, inputs: Inputs) -> Tensor:
        """Return the decoder's loss over the ordinary tokens of the texts."""
        vectors_B1H, attention = hidden_BLH[:, :1], self.layer.attention
        queries_BLH = self.queries(vectors_B1H, hidden_BLH.shape[1])
        context_BLH = torch.cat([vectors_B1H, self.lm.bert.embeddings(inputs["original"])[:, 1:]], dim=1)

        def heads(projection: nn.Linear, x_BLH: Tensor) -> Tensor:
            projected_BLH: Tensor = projection(x_BLH)
            return projected_BLH.view(*x_BLH.shape[:2], attention.self.num_attention_heads, -1).transpose(1, 2)

        mixed_BALD = scaled_dot_product_attention(
            heads(attention.self.query, queries_BLH), heads(attention.self.key, context_BLH),
            heads(attention.self.value, context_BLH), attn_mask=inputs["visible"][:, None].bool(),
            dropout_p=attention.self.dropout.p if self.training else 0.0,
        )  # fmt: skip
        mixed_BLH = attention.output(mixed_BALD.transpose(1, 2).flatten(-2), queries_BLH)
        return self.masked_lm(self.layer.feed_forward_chunk(mixed_BLH), inputs["decoder_labels"])[1]


class DupMae(RetroMae):
    """The released objective: queries are embedded, and the largest logits of ordinary tokens predict the words."""

    def queries(self, vectors_B1H: Tensor, length: int) -> Tensor:
        """Return the queries of the decoder [B, L, H]."""
        embedded_BLH: Tensor = self.lm.bert.embeddings(inputs_embeds=vectors_B1H.expand(-1, length, -1))
        return embedded_BLH

    def losses(self, inputs: Inputs) -> dict[str, Tensor]:
        """Return RetroMAE's losses, and that of the bag of words with a weight of 0.1."""
        hidden_BLH = self.encoded(inputs)
        logits_BLV, mlm = self.masked_lm(hidden_BLH, inputs["text_labels"])
        padding_BL1 = inputs["text_mask"][:, 1:, None] == 0
        maxima_BV = logits_BLV[:, 1:].masked_fill(padding_BL1, float("-inf")).max(1).values
        predicted_BL = inputs["decoder_labels"] != IGNORED
        counts_BV = torch.zeros_like(maxima_BV).scatter_add(1, inputs["original"], predicted_BL.to(maxima_BV.dtype))
        weights_BV = (counts_BV > 0) / predicted_BL.sum(1, keepdim=True)
        bow = -(weights_BV * log_softmax(maxima_BV.float(), dim=1)).sum(1).mean()
        return {"mlm": mlm, "decoder": self.decoder_loss(hidden_BLH, inputs), "bow": 0.1 * bow}


def padded(batch: Any, width: int, visible: Callable[[Any], Tensor] | None = None) -> Inputs:
    """Return a batch as a collator builds it; `visible` says what a decoder's positions see, [B, Q, L]."""

    def wide(rows_BL: Tensor, filling: int) -> Tensor:
        return pad(rows_BL, (0, width - rows_BL.shape[1]), value=filling)

    def side(name: str, labels_BL: Tensor) -> dict[str, Tensor]:
        tokens = getattr(batch, name)
        return {
            name: wide(tokens.ids, 0), f"{name}_mask": wide(tokens.mask.long(), 0),
            f"{name}_labels": wide(labels_BL, IGNORED),
        }  # fmt: skip

    if visible is None:
        return {**side("text", batch.text_labels), **side("context", batch.context_labels)}
    seen_BQL = visible(batch)
    short = width - seen_BQL.shape[2]
    visible_BLL = pad(seen_BQL.long(), (0, short, 1, short))
    visible_BLL[:, :, 0] = 1  # rows without a prediction see something
    return {
        **side("text", batch.labels),
        "original": wide(batch.original, 0),
        "decoder_labels": wide(torch.where(batch.words >= 0, batch.original, IGNORED), IGNORED),
        "visible": visible_BLL,
    }
