"""Load an encoder of the package `transformers` and check that its file has every weight."""

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
"""The encoder-only class of a model type that also has a decoder."""
HEAD_NAMES = re.compile(
    r"cls\.|lm_head\.|mlm\.|predictions\.|discriminator_predictions\.|generator_|mask_predictions\.|lm_predictions\."
    r"|vocab_(transform|layer_norm|projector)\."  # DistilBERT's
    r"|qa_outputs\.(weight|bias)$"
)
"""Names of pre-training and question-answering heads, which many files contain and no encoder needs."""


def load_encoder(home: Path) -> Any:
    """Load the encoder of a folder in float32; ValueError if its weights do not fit its configuration.

    `transformers` on its own would initialise missing weights at random. Only safetensors are read, and no code.
    """
    import transformers

    check_safetensors(home)
    model_type = str(read_json(home / "config.json", "a model's configuration").get("model_type"))
    encoder_class: Any = getattr(transformers, ENCODERS.get(model_type, "AutoModel"))
    with quiet_transformers():
        encoder, report = encoder_class.from_pretrained(
            home, use_safetensors=True, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
        )
    missing = [name for name in report["missing_keys"] if not UNUSED.search(name)]
    unexpected = [name for name in report["unexpected_keys"] if not (UNUSED.search(name) or HEAD_NAMES.match(name))]
    check_names(missing, unexpected, home, "config.json")
    check_numbers(encoder.config.to_dict(), home / "config.json")
    check_finite(encoder.state_dict(), home)
    return encoder


def num_positions(encoder: nn.Module) -> int | None:
    """Return the number of learned positions of an encoder; None without any, as with rotary embeddings."""
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa's positions begin after the index of the padding token.
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return None


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress warnings of `transformers` about additional or missing weights, such as a pooler's."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
