"""BERT's configuration with Hugging Face's names: read from config.json, validated, and written to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.model_files import read_json

CONFIG = "config.json"
COUNTS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "type_vocab_size",
)  # fmt: skip


@dataclass(frozen=True)
class BertConfig:
    """The sizes, dropout rates and constants of a BERT, with Hugging Face's names."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    pad_token_id: int = 0

    def __post_init__(self) -> None:
        for name in COUNTS:
            if type(count := getattr(self, name)) is not int or count < 1:
                raise ValueError(f"{name}: expected a whole number of 1 or more, found {count!r}")
        if self.hidden_size % self.num_attention_heads:
            heads = f"divides hidden_size {self.hidden_size}, found {self.num_attention_heads}"
            raise ValueError(f"num_attention_heads: expected a number that {heads}")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps", "initializer_range"):
            if type(value := getattr(self, name)) not in (int, float) or not 0 <= value < 1:
                raise ValueError(f"{name}: expected a number of 0 or more and below 1, found {value!r}")
        if self.pad_token_id not in range(self.vocab_size):
            raise ValueError(f"pad_token_id: expected a number below {self.vocab_size}, found {self.pad_token_id!r}")

    @staticmethod
    def load(folder: Path) -> BertConfig:
        """Read config.json of a Hugging Face folder; ValueError for other model types and invalid values."""
        path = folder / CONFIG
        value = read_json(path, "the configuration of a BERT")
        supported = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
        for name, expected in supported.items():
            if value.get(name, None if name == "model_type" else expected) != expected:
                raise ValueError(f"{path}: expected {name} {expected}, found {value.get(name)}")
        try:
            return BertConfig(**{name: value[name] for name in BertConfig.__dataclass_fields__ if name in value})
        except TypeError as error:
            raise ValueError(f"{path}: {str(error).partition('() ')[2]}") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}; copy the model's own file") from None

    def kept(self, layers: Sequence[int] | None) -> list[int]:
        """Return the indices of the layers to keep, all for None; ValueError for a layer that does not exist."""
        if layers is not None and not set(layers) <= set(range(self.num_hidden_layers)):
            raise ValueError(f"layers: expected some of 0 to {self.num_hidden_layers - 1}, found {list(layers)}")
        return list(range(self.num_hidden_layers) if layers is None else layers)

    def save(self, folder: Path, architecture: str = "BertForMaskedLM", **more: Any) -> None:
        """Write config.json for `transformers`, with an architecture's additional values in `more`."""
        value = {"architectures": [architecture], "model_type": "bert", "hidden_act": "gelu", **more, **self.__dict__}
        (folder / CONFIG).write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
