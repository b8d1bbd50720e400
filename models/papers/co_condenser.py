"""coCondenser: Condenser with a contrastive loss over pairs of texts.

The vectors of two texts that belong together (passages of one document or, in query-as-context pre-training, a passage
and a query generated from it) should be nearer to each other than to any other text of the batch.

Gao and Callan, Unsupervised Corpus Aware Language Model Pre-training for Dense Passage Retrieval; here by Wu et al.,
Query-as-context Pre-training for Dense Passage Retrieval, section 2.1, equations 5-7. Passages and contexts are
both masked, encoded and recovered; the contrast compares the vectors of the masked texts.

Shape suffixes: B pairs, H hidden, N = 2B texts, where rows 2k and 2k + 1 are a pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from models.batch import Rows
from models.losses import partner_contrast, recovery_loss
from models.masked_texts import MaskedTexts
from models.objective import Losses, Vectors
from models.papers import condenser
from models.papers.condenser import Head
from models.pretraining import Initialisation, RawBatch, Reads, check_lengths
from models.row_random import RowRandom
from models.tokens import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Settings(condenser.Settings):
    """Condenser's settings and those of the contrastive loss."""

    reads: ClassVar[Reads] = "pairs"

    temperature: float
    """tau of equation 5."""
    masked_lm_weight: float
    """The weight of both MLM losses: 1 in equation 7; effectively 2 in the released code when it caches gradients."""
    context_max_tokens: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_lengths(context_max_tokens=self.context_max_tokens)
        if self.temperature <= 0 or self.masked_lm_weight <= 0:
            raise ValueError("temperature and masked_lm_weight: expected numbers above 0")


@dataclass(frozen=True)
class Batch(Rows):
    """Pairs of masked texts; texts and contexts are padded separately."""

    text: MaskedTexts
    context: MaskedTexts

    def num_terms(self, loss: str) -> int:
        """Return the number of masked tokens of texts and contexts, which both MLM losses predict."""
        return len(self.text.labelled) + len(self.context.labelled)


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: RowRandom) -> Batch:
    """Crop, mask and pad the texts and their contexts."""
    sides = ((raw.texts, settings.max_tokens), (raw.contexts, settings.context_max_tokens))
    return Batch(*(MaskedTexts.make(texts, longest, settings.mask_rate, tokenizer, random) for texts, longest in sides))


class Pretraining(nn.Module):
    """L = L_mlm + L_mlm^aux + L_co (equation 7)."""

    def __init__(self, initial: Initialisation, settings: Settings) -> None:
        super().__init__()
        initial.check_positions(settings.max_tokens, settings.context_max_tokens)
        self.model, self.settings = initial.model, settings
        self.head = Head(initial.model, settings.head_layers, settings.head_from, initial.pooling)

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """Return the vectors [2B, H], text and context alternating, and the MLM losses over all masked tokens."""
        vectors, late, headed, labels = [], [], [], []
        for side in (batch.text, batch.context):
            vectors_BH, late_BLH, headed_BLH = self.head(self.model, side.tokens)
            vectors.append(vectors_BH)
            late.append(late_BLH.flatten(0, 1))
            headed.append(headed_BLH.flatten(0, 1))
            labels.append(side.labels.flatten())
        weight, all_labels = self.settings.masked_lm_weight, torch.cat(labels)
        labelled_N = torch.cat([batch.text.labelled, batch.context.labelled + batch.text.labels.numel()])
        return (torch.stack(vectors, dim=1).flatten(0, 1),), {
            "mlm": weight * recovery_loss(self.model.vocabulary, torch.cat(late), all_labels, labelled_N),
            "head": weight * recovery_loss(self.model.vocabulary, torch.cat(headed), all_labels, labelled_N),
        }

    def compare(self, vectors: Vectors, batch: Batch) -> Losses:
        """Return the contrastive loss of each text's partner against 2B - 2 in-batch negatives (equation 5)."""
        vectors_NH = vectors[0].float()
        return {"contrast": partner_contrast(vectors_NH @ vectors_NH.T, temperature=self.settings.temperature)}
