"""The interface of an encoder with a vocabulary head: what objectives and retrievers use of any model family.

Embeddings, layers, final normalisation and head are separate steps, so an objective can take the states of an early
layer, run copies of some layers, or build a decoder on the same embeddings. Layers read and return the real tokens of
a batch, text after text; a `Packing` has their positions.

Shape suffixes: B batch, L length, P positions, H hidden, E size of word embeddings, V vocabulary, N real tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Self

from torch import Tensor, nn
from torch.nn.functional import linear

from models.layers.bert_config import BertConfig
from models.layers.unpadding import Packing
from models.tokens import Tokens


class Backbone(nn.Module, ABC):
    """An encoder with its vocabulary head; a family is a subclass in `models.families`."""

    config: BertConfig
    """The sizes, dropout rates and constants of new layers, heads and decoders on this encoder."""
    has_new_head: bool = False
    """Whether the vocabulary head was initialised at random because the folder's weights lack it."""
    feed_forward: ClassVar[tuple[str, ...]] = ("intermediate", "output.dense")
    """The modules of a layer that a mixture of textual experts has for each role."""
    feed_forward_norm: ClassVar[str] = "output.LayerNorm"
    """The LayerNorm of these modules."""

    @classmethod
    @abstractmethod
    def sizes(cls, folder: Path) -> BertConfig:
        """Read the sizes of a folder's model from its config.json; ValueError for a configuration that cannot be used.

        `max_position_embeddings` is the maximum number of tokens of a text.
        """

    @classmethod
    def unattended_limit(cls, folder: Path) -> int | None:
        """Return the length up to which `transformers` has the same states of unattended tokens; None for any length.

        These are the [MASK]s that pad a query: they attend to the query, but no token attends to them.
        """
        return None

    @classmethod
    @abstractmethod
    def create(cls, config: BertConfig, folder: Path, layers: Sequence[int] | None = None) -> Self:
        """Return a model of a folder's family with random weights.

        `config` has the folder's sizes, or others of dropout and vocabulary; `layers` has the indices of the layers to
        keep, counted from 0, or None for all.
        """

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, *, layers: Sequence[int] | None = None) -> Self:
        """Load a folder's model; only the vocabulary head may be missing, and is then initialised at random."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write config.json and model.safetensors, which `transformers` opens."""

    @abstractmethod
    def configure_dropout(self, rate: float) -> None:
        """Change the dropout rate in the configuration that is saved, not that of the existing layers."""

    @abstractmethod
    def set_dropout(self, rate: float) -> None:
        """Change the dropout rate of all layers; the saved configuration keeps the backbone's rate."""

    @property
    @abstractmethod
    def encoder(self) -> nn.Module:
        """The encoder without its vocabulary head."""

    @property
    @abstractmethod
    def layers(self) -> nn.ModuleList:
        """The transformer layers."""

    @property
    @abstractmethod
    def words(self) -> Tensor:
        """The word embeddings [V, E]; E is H except in a few families."""

    @property
    @abstractmethod
    def positions(self) -> Tensor | None:
        """The embeddings [P, H] of absolute positions; None for a family without any, or with others than of size H."""

    @property
    @abstractmethod
    def output(self) -> tuple[Tensor, Tensor | None]:
        """The matrix [V, E] and the bias [V] that map transformed states to logits."""

    @abstractmethod
    def embed(self, ids_BL: Tensor) -> Tensor:
        """Return the embeddings [B, L, H] that the first layer reads."""

    @abstractmethod
    def embed_sums(self, sums_BLH: Tensor) -> Tensor:
        """Return what the embedding layer makes of sums of word and position embeddings: normalisation and dropout."""

    @abstractmethod
    def run(self, layers: Iterable[nn.Module], hidden_NH: Tensor, packing: Packing) -> Tensor:
        """Return the states [N, H] after some of the layers, or after copies of them."""

    @abstractmethod
    def final_norm(self, hidden_NH: Tensor) -> Tensor:
        """Normalise the states of a layer as those of the last layer; pre-norm families do it once, at the end."""

    @abstractmethod
    def transform(self, hidden_NH: Tensor) -> Tensor:
        """Return the states [N, E] that the output matrix multiplies: the first half of the vocabulary head."""

    @abstractmethod
    def forward(self, tokens: Tokens) -> Tensor:
        """Return the last hidden states [B, L, H], which are 0 at padding."""

    @abstractmethod
    def first_states(self, tokens: Tokens) -> Tensor:
        """Return the last hidden state of each text's first token [B, H]."""

    def vocabulary(self, hidden_NH: Tensor) -> Tensor:
        """Return logits [N, V] over the vocabulary (phi); pass only the positions whose prediction is needed."""
        return linear(self.transform(hidden_NH), *self.output)

    def check_width(self, purpose: str) -> None:
        """Raise ValueError if word embeddings and hidden states differ in size; `purpose` is the setting's name."""
        if (width := self.words.shape[1]) != self.config.hidden_size:
            raise ValueError(
                f"{purpose}: expected a model whose word embeddings have the size of its hidden states, "
                f"found {width} and {self.config.hidden_size}"
            )
