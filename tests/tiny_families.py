"""Tiny models of the supported families with random weights, as `transformers` builds and saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from models import backbones
from models.layers.backbone import Backbone
from tests.tiny import PIECES

SIZES: dict[str, Any] = {
    "vocab_size": len(PIECES), "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 48, "pad_token_id": 0, "max_position_embeddings": 40,
}  # fmt: skip
FAIRSEQ = {"pad_token_id": 1, "max_position_embeddings": 42}
"""Position embeddings begin after the id of the padding token."""
FAMILIES: dict[str, dict[str, Any]] = {
    "deberta-v2": {
        "relative_attention": True, "position_biased_input": False, "pos_att_type": ["p2c", "c2p"],
        "type_vocab_size": 0, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    },
    "distilbert": {"dim": 32, "hidden_dim": 48, "n_layers": 3, "n_heads": 4},
    "electra": {"embedding_size": 32},
    "modernbert": {"local_attention": 8, "global_attn_every_n_layers": 2, "reference_compile": False},
    "mpnet": FAIRSEQ,
    "roberta": FAIRSEQ,
}  # fmt: skip
"""What the configuration of each family has beyond `SIZES`; DistilBERT has its own names."""
ALIKE: dict[str, dict[str, Any]] = {"camembert": FAIRSEQ, "xlm-roberta": FAIRSEQ}
"""The families with the code of another: only their states and files are tested, not each objective on them."""


def tiny_network(family: str, *, seed: int = 0, spread: float = 0.1, **changes: Any) -> Any:
    """A masked language model of `transformers`; biases and LayerNorms are random too."""
    from transformers import AutoConfig, AutoModelForMaskedLM

    sizes = {"vocab_size": SIZES["vocab_size"], "max_position_embeddings": 40} if family == "distilbert" else SIZES
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **sizes | (FAMILIES | ALIKE)[family] | changes)
    network = AutoModelForMaskedLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * spread)
    return network.eval()


def tiny_family(folder: Path, family: str, *, seed: int = 0, spread: float = 0.1, **changes: Any) -> Backbone:
    """The same as a backbone without dropout, loaded from the folder to which it is saved."""
    tiny_network(family, seed=seed, spread=spread, **changes).save_pretrained(folder)
    model = backbones.load(folder)
    model.configure_dropout(0.0)
    model.set_dropout(0.0)
    return model
