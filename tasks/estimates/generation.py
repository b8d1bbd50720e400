"""FLOPs of a T5 that reads passages and writes queries, by formula, before anything is built.

The count has the multiplications and additions of every matrix product, as `tasks.estimates.flops` counts encoders.
Left out is the attention of a query's tokens to those before them, which are few.
"""

from __future__ import annotations

from dataclasses import dataclass

from tasks.estimates.flops import Cost


@dataclass(frozen=True)
class T5Shape:
    """The sizes of a T5, by the names of its config.json where they differ."""

    encoder_layers: int
    """`num_layers`"""
    decoder_layers: int
    """`num_decoder_layers`"""
    width: int
    """`d_model`"""
    attention: int
    """The width of all heads: `num_heads` × `d_kv`."""
    inner: int
    """The width of feed-forward layers, `d_ff`."""
    gated: bool
    """Whether a feed-forward layer has two products into its inner layer instead of one (T5 1.1)."""
    vocabulary: int

    @property
    def _feed_forward(self) -> int:
        return (3 if self.gated else 2) * self.width * self.inner

    @property
    def parameters(self) -> int:
        """The numbers in its matrices, with a head of its own for the vocabulary, which some T5s share."""
        encoder = self.encoder_layers * (4 * self.width * self.attention + self._feed_forward)
        decoder = self.decoder_layers * (8 * self.width * self.attention + self._feed_forward)
        return encoder + decoder + 2 * self.width * self.vocabulary

    def reading_flops(self, passage_tokens: float) -> float:
        """Return the FLOPs of encoding a passage, with the keys and values that the decoder's layers take from it."""
        projections = self.encoder_layers * (4 * self.width * self.attention + self._feed_forward)
        keys = self.decoder_layers * 2 * self.width * self.attention
        looking = 4 * self.encoder_layers * passage_tokens * self.attention
        return passage_tokens * (2 * (projections + keys) + looking)

    def writing_flops(self, passage_tokens: float) -> float:
        """Return the FLOPs of one token of a query."""
        projections = self.decoder_layers * (6 * self.width * self.attention + self._feed_forward)
        looking = 4 * self.decoder_layers * passage_tokens * self.attention
        return 2 * (projections + self.width * self.vocabulary) + looking

    def reading(self, passage_tokens: int) -> Cost:
        """Return the cost of reading a passage, once for all its queries."""
        return Cost(passage_tokens, self.reading_flops(passage_tokens))

    def writing(self, passage_tokens: int, query_tokens: int) -> Cost:
        """Return the cost of a query."""
        return Cost(query_tokens, query_tokens * self.writing_flops(passage_tokens))

    def training(self, passage_tokens: int, query_tokens: int) -> Cost:
        """Return the cost of a training example: gradients take twice the products of the forward pass."""
        read, written = self.reading(passage_tokens), self.writing(passage_tokens, query_tokens)
        return Cost(read.tokens + written.tokens, 3 * (read.flops + written.flops))


T5_BASE = T5Shape(
    encoder_layers=12, decoder_layers=12, width=768, attention=768, inner=3072, gated=False, vocabulary=32_128
)
