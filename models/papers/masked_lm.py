"""BERT, further pre-trained: hide some tokens of a text and ask for them, nothing else.

The control of every other pre-training: what it gains over this does not come from more steps on the same texts.

Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.random import Generator
from torch import Tensor, nn

from models.batch import Rows
from models.losses import recovery_loss
from models.masking import IGNORED, replace_selected, select_tokens, select_words
from models.objective import Losses, Vectors
from models.pretraining import Initialisation, RawBatch, Reads, check_lengths, check_rates, crop_with_specials
from models.settings import VALIDATED
from models.tokens import Tokenizer, Tokens, pad


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much is hidden, and in which pieces."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED
    reads: ClassVar[Reads] = "texts"
    counts_terms: ClassVar[bool] = False

    mask_rate: float
    whole_words: bool
    """Whether the pieces of a word are hidden together or not at all; in BERT's paper each token stands alone."""
    max_tokens: int
    """The length of a text with [CLS] and [SEP]; a longer one is cropped at both ends."""

    def __post_init__(self) -> None:
        check_rates(mask_rate=self.mask_rate)
        check_lengths(max_tokens=self.max_tokens)


@dataclass(frozen=True)
class Batch(Rows):
    """Masked texts and the ids to recover; labels are IGNORED at all other positions."""

    text: Tokens
    text_labels: Tensor

    def num_terms(self, loss: str) -> int:
        """The number of positions whose token the loss predicts."""
        return int(({"mlm": self.text_labels}[loss] != IGNORED).sum())


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: Generator) -> Batch:
    """Crop, add special tokens, mask and pad."""
    chosen = select_words if settings.whole_words else select_tokens
    texts = [crop_with_specials(ids, settings.max_tokens, tokenizer, random) for ids in raw.texts]
    hidden = [chosen(ids, tokenizer, settings.mask_rate, random) for ids in texts]
    inputs, labels = replace_selected(texts, hidden, tokenizer, random)
    return Batch(pad(inputs, tokenizer.pad), pad(labels, IGNORED).ids)


class Pretraining(nn.Module):
    """L = L_mlm."""

    def __init__(self, initial: Initialisation, settings: Settings) -> None:
        super().__init__()
        initial.check_positions(settings.max_tokens)
        self.model = initial.model

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """The one loss is local to a chunk; no vectors are compared."""
        hidden_BLH = self.model.bert(batch.text.ids, batch.text.mask)
        return (), {"mlm": recovery_loss(self.model.vocabulary, hidden_BLH, batch.text_labels)}

    def compare(self, vectors: Vectors, batch: Batch) -> Losses:
        """No losses: the objective has no contrast."""
        return {}
