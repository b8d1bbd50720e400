"""SEED: a strong encoder, pre-trained with a weak decoder.

A strong decoder can generate a text as a language model and ignore the encoder's vector. SEED's decoder has few
layers, which see only the vector and the last few tokens, so the vector has to represent the text.

Lu et al., Less is More: Pre-train a Strong Text Encoder for Dense Retrieval Using a Weak Decoder, section 3; the
main baseline of A Contrastive Pre-training Approach to Learn Discriminative Autoencoder for Dense Retrieval.

Shape suffixes: B batch, L length of the text, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from models.batch import HostProperty, Rows, flat_positions
from models.layers.decoder import AutoRegressiveDecoder
from models.losses import masked_lm_loss, recovery_loss
from models.masking import IGNORED, mask_tokens
from models.objective import Losses, Vectors
from models.pretraining import Initialisation, RawBatch, Reads, check_decoder_width, check_lengths, check_rates
from models.representation import pool
from models.row_random import RowRandom
from models.settings import VALIDATED, omitted_at
from models.texts import crop_with_specials
from models.tokens import Tokenizer, Tokens


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The decoder's depth and attention span, the encoder's mask rate, and the length limit."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED
    reads: ClassVar[Reads] = "texts"
    counts_terms: ClassVar[bool] = False

    decoder_layers: int
    window: int
    """The restricted attention span: the number of tokens a position sees besides the vector, its own included."""
    decoder_width: Annotated[int | None, omitted_at(None)] = None
    """The inner size of the decoder's MLPs, 4 times the hidden size in GPT-2; null for the backbone's."""
    mask_rate: float
    """The mask rate of the encoder's input; the decoder reads the unmasked text."""
    max_tokens: int
    """The length of a text with [CLS] and [SEP]; a longer one is cropped at both ends."""

    def __post_init__(self) -> None:
        check_rates(mask_rate=self.mask_rate)
        check_lengths(max_tokens=self.max_tokens)
        wrong = [name for name in ("decoder_layers", "window") if getattr(self, name) < 1]
        if wrong:
            raise ValueError(f"{' and '.join(wrong)}: expected 1 or more")
        check_decoder_width(self.decoder_width)


@dataclass(frozen=True)
class Batch(Rows):
    """Masked texts and the ids to recover; labels are IGNORED at all other positions."""

    text: Tokens
    text_labels: Tensor

    @HostProperty
    def labelled(self) -> Tensor:
        """The flat positions [N] of masked tokens."""
        return flat_positions(self.text_labels != IGNORED)

    @HostProperty
    def after_cls(self) -> Tensor:
        """The flat positions [N] of all tokens but [CLS]."""
        return self.text.after_first()

    def num_terms(self, loss: str) -> int:
        """Return the number of positions whose token a loss predicts; the decoder predicts every token after [CLS]."""
        return len({"mlm": self.labelled, "decoder": self.after_cls}[loss])


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: RowRandom) -> Batch:
    """Crop, add special tokens, mask each token on its own as in BERT, and pad."""
    texts = crop_with_specials(raw.texts, settings.max_tokens, tokenizer, random)
    inputs, labels = mask_tokens(texts, tokenizer, settings.mask_rate, random)
    return Batch(texts.tokens(inputs), torch.from_numpy(labels))


class Pretraining(nn.Module):
    """L = L_mlm + L_dec, where L_dec = - mean log P(x_t | the few tokens before x_t, h)."""

    def __init__(self, initial: Initialisation, settings: Settings) -> None:
        super().__init__()
        initial.check_positions(settings.max_tokens)
        self.model, self.pooling = initial.model, initial.pooling
        self.decoder = AutoRegressiveDecoder(
            initial.model,
            num_blocks=settings.decoder_layers,
            window=settings.window,
            width=settings.decoder_width,
            max_tokens=settings.max_tokens,
        )

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """Return no vectors and the losses of encoder and decoder."""
        mask_BL, labels_BL = batch.text.mask, batch.text_labels
        hidden_BLH = self.model(batch.text)
        vectors_BH = pool(hidden_BLH, mask_BL, self.pooling)
        unmasked_BL = torch.where(labels_BL == IGNORED, batch.text.ids, labels_BL)
        unmasked = batch.text.with_ids(unmasked_BL)
        return (), {
            "mlm": recovery_loss(self.model.vocabulary, hidden_BLH, labels_BL, batch.labelled),
            "decoder": masked_lm_loss(*self.decoder(vectors_BH, unmasked, unmasked_BL, batch.after_cls)),
        }

    def compare(self, vectors: Vectors, batch: Batch) -> Losses:
        """Return no losses: the objective has no contrast."""
        return {}
