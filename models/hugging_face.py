"""An encoder of the package `transformers`, opened so that all of its weights are those of its file."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models.model_files import UNUSED, check_finite, check_names, check_numbers, check_safetensors, read_json

ENCODERS = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
"""Of models that also have a decoder, by model_type, the class that has none."""
HEADS = re.compile(
    r"cls\.|lm_head\.|mlm\.|predictions\.|discriminator_predictions\.|generator_|mask_predictions\.|lm_predictions\."
    r"|vocab_(transform|layer_norm|projector)\."  # DistilBERT's
    r"|qa_outputs\.(weight|bias)$"
)
"""Heads of pre-training, which predict tokens: in the files of many encoders, and no part of what reads a text."""


def load_encoder(home: Path) -> Any:
    """The encoder of `transformers`, all of whose weights are those of its file."""
    import transformers

    check_safetensors(home)
    said = read_json(home / "config.json", "a model's configuration")
    kind: Any = getattr(transformers, ENCODERS.get(str(said.get("model_type")), "AutoModel"))
    with quiet_transformers():
        found, read = kind.from_pretrained(
            home, use_safetensors=True, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
        )
    missing = [name for name in read["missing_keys"] if not UNUSED.search(name)]
    unexpected = [name for name in read["unexpected_keys"] if not (UNUSED.search(name) or HEADS.match(name))]
    check_names(missing, unexpected, home, "config.json")
    check_numbers(found.config.to_dict(), home / "config.json")
    check_finite(found.state_dict(), home)
    return found


def num_positions(encoder: nn.Module) -> int | None:
    """For how many tokens an encoder has learned positions; None where it has none, such as with rotary ones."""
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa's positions begin after the number of its padding.
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return None


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without what `transformers` says of weights that an encoder has beside or has not, such as a pooler's."""
    from transformers.utils import logging

    loudness = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(loudness)
