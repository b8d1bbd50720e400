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

from torch import Tensor

from models.batch import HostProperty
from models.layers.decoder import AutoRegressiveDecoder
from models.losses import masked_lm_loss, recovery_loss
from models.masked_texts import MaskedTexts
from models.objective import LocalObjective, Losses, Vectors
from models.pretraining import Initialisation, RawBatch, Reads, check_decoder_width, check_lengths, check_rates
from models.representation import pool
from models.row_random import RowRandom
from models.settings import VALIDATED, omitted_at
from models.tokens import Tokenizer


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


class Batch(MaskedTexts):
    """Masked texts and the ids to recover; labels are IGNORED at all other positions."""

    @HostProperty
    def after_cls(self) -> Tensor:
        """The flat positions [N] of all tokens but [CLS]."""
        return self.tokens.after_first()

    def num_terms(self, loss: str) -> int:
        """Return the number of positions whose token a loss predicts; the decoder predicts every token after [CLS]."""
        return len({"mlm": self.labelled, "decoder": self.after_cls}[loss])


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: RowRandom) -> Batch:
    """Crop, add special tokens, mask each token on its own as in BERT, and pad."""
    return Batch.make(raw.texts, settings.max_tokens, settings.mask_rate, tokenizer, random, whole_words=False)


class Pretraining(LocalObjective):
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
        tokens, labels_BL = batch.tokens, batch.labels
        hidden_BLH = self.model(tokens)
        vectors_BH = pool(hidden_BLH, tokens.mask, self.pooling)
        unmasked = batch.unmasked()
        return (), {
            "mlm": recovery_loss(self.model.vocabulary, hidden_BLH, labels_BL, batch.labelled),
            "decoder": masked_lm_loss(*self.decoder(vectors_BH, unmasked, unmasked.ids, batch.after_cls)),
        }
