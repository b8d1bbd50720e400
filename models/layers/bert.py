"""BERT with its masked-language-model head, and its files.

Parameter names are those of Hugging Face, a test checks that the outputs are equal, and checkpoints open in
`transformers`.

Shape suffixes: B batch, L length, P positions, H hidden, V vocabulary, N real or selected tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from models.layers.backbone import Backbone
from models.layers.bert_config import CONFIG, BertConfig
from models.layers.bert_layers import Bert, SelfAttention, Transform, initialise
from models.layers.cls_only import cls_states
from models.layers.unpadding import Packing
from models.model_files import UNUSED, WEIGHTS, check_fit, read_weights
from models.tokens import Tokens

HEAD, DECODER = "cls.predictions.", "cls.predictions.decoder."
LAYER = "bert.encoder.layer."
OTHER_HEADS = re.compile(r"cls\.seq_relationship\.|bert\.classifier\.")
"""Weights of other heads, which are skipped: next-sentence prediction, and a cross-encoder's classifier."""
WORDS = "bert.embeddings.word_embeddings.weight"


class Predictions(nn.Module):
    """The vocabulary head without its matrix, which is the word embeddings."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.transform = Transform(config)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))


class VocabularyHead(nn.Module):
    """Contains `predictions`; the class exists for Hugging Face's parameter names."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.predictions = Predictions(config)


class BertForMaskedLM(Backbone):
    """BERT with its masked-language-model head phi, tied to the word embeddings."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = Bert(config)
        self.cls = VocabularyHead(config)
        self.apply(lambda module: initialise(module, config.initializer_range))

    @classmethod
    def sizes(cls, folder: Path) -> BertConfig:
        return BertConfig.load(folder)

    @classmethod
    def create(cls, config: BertConfig, folder: Path, layers: Sequence[int] | None = None) -> BertForMaskedLM:
        return cls(replace(config, num_hidden_layers=len(config.kept(layers))))

    @classmethod
    def load(cls, folder: Path, *, layers: Sequence[int] | None = None) -> BertForMaskedLM:
        """Load the BERT of a Hugging Face folder, or only the layers with the given indices, counted from 0.

        Weights must match config.json. Only the vocabulary head may be missing; it is then initialised from the current
        random state.
        """
        config = BertConfig.load(folder)
        kept = config.kept(layers)
        model, path = cls(replace(config, num_hidden_layers=len(kept))), folder / WEIGHTS
        weights = {_own_name(name): tensor for name, tensor in read_weights(path).items()}
        weights = {
            name: tensor for name, tensor in weights.items() if not (UNUSED.search(name) or OTHER_HEADS.match(name))
        }
        _drop_tied(weights, path)
        expected = model.state_dict()
        model.has_new_head = not any(name.startswith(HEAD) for name in weights)
        if model.has_new_head:
            weights |= {name: tensor for name, tensor in expected.items() if name.startswith(HEAD)}
        sources = {_source_name(name, kept): tensor for name, tensor in expected.items()}
        dropped = {
            name
            for name in weights
            if (number := _layer(name)) in range(config.num_hidden_layers) and number not in kept
        }
        check_fit({name: weights[name] for name in weights.keys() - dropped}, sources, path, CONFIG)
        model.load_state_dict({name: weights[_source_name(name, kept)] for name in expected})
        return model

    def save(self, folder: Path) -> None:
        self.config.save(folder)
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})

    def configure_dropout(self, rate: float) -> None:
        self.config = replace(self.config, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)

    def set_dropout(self, rate: float) -> None:
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                module.p = rate
            elif isinstance(module, SelfAttention):
                module.dropout = rate

    @property
    def encoder(self) -> Bert:
        return self.bert

    @property
    def layers(self) -> nn.ModuleList:
        return self.bert.encoder.layer

    @property
    def words(self) -> Tensor:
        return self.bert.embeddings.word_embeddings.weight

    @property
    def positions(self) -> Tensor:
        return self.bert.embeddings.position_embeddings.weight

    @property
    def output(self) -> tuple[Tensor, Tensor]:
        return self.words, self.cls.predictions.bias

    def embed(self, ids_BL: Tensor) -> Tensor:
        embedded_BLH: Tensor = self.bert.embeddings(ids_BL)
        return embedded_BLH

    def embed_sums(self, sums_BLH: Tensor) -> Tensor:
        embeddings = self.bert.embeddings
        embedded_BLH: Tensor = embeddings.dropout(
            embeddings.LayerNorm(sums_BLH + embeddings.token_type_embeddings.weight[0])
        )
        return embedded_BLH

    def run(self, layers: Iterable[nn.Module], hidden_NH: Tensor, packing: Packing) -> Tensor:
        for layer in layers:
            hidden_NH = layer(hidden_NH, packing)
        return hidden_NH

    def final_norm(self, hidden_NH: Tensor) -> Tensor:
        """Return the states unchanged: each of BERT's layers ends with a normalisation."""
        return hidden_NH

    def transform(self, hidden_NH: Tensor) -> Tensor:
        transformed_NH: Tensor = self.cls.predictions.transform(hidden_NH)
        return transformed_NH

    def forward(self, tokens: Tokens) -> Tensor:
        hidden_BLH: Tensor = self.bert(
            tokens.ids, tokens.mask, unattended_BL=tokens.unattended, positions_N=tokens.positions
        )
        return hidden_BLH

    def first_states(self, tokens: Tokens) -> Tensor:
        return cls_states(self.bert, tokens.ids, tokens.mask, positions_N=tokens.positions)


def _drop_tied(weights: dict[str, Tensor], path: Path) -> None:
    """Remove the copies of tied weights that some releases save; refuse a head that differs from the embeddings."""
    for name, shared in ((f"{DECODER}weight", WORDS), (f"{DECODER}bias", f"{HEAD}bias")):
        copy = weights.pop(name, None)
        if copy is not None and shared in weights and not torch.equal(copy, weights[shared]):
            raise ValueError(f"{path}: expected {name} to equal {shared}, found an untied head, which is not supported")


def _source_name(name: str, kept: Sequence[int]) -> str:
    """Return a weight's name in the checkpoint, where layers are counted before some are dropped."""
    number = _layer(name)
    return name if number is None else name.replace(f"{LAYER}{number}.", f"{LAYER}{kept[number]}.", 1)


def _layer(name: str) -> int | None:
    """Return the index of a weight's layer; None for a weight outside the layers."""
    number = name.removeprefix(LAYER).partition(".")[0] if name.startswith(LAYER) else ""
    return int(number) if number.isdecimal() else None


def _own_name(name: str) -> str:
    """Return our name of a checkpoint's weight.

    Bare encoders are saved without `bert.`; very old checkpoints call LayerNorm's weights gamma and beta.
    """
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return name if name.startswith(("bert.", "cls.")) else f"bert.{name}"
