"""Loading a generator from a folder or hub name; errors name what is missing, and nothing gets a random value."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES as SEQ2SEQ,
)

from models.hugging_face import quiet_transformers
from models.model_files import (
    LONGEST_REASON,
    UNUSED,
    UnusableModel,
    check_finite,
    check_names,
    check_numbers,
    check_safetensors,
)
from storage.errors import UserError


@dataclass(frozen=True)
class ModelSource:
    """A generator to load, with its precision and its device."""

    checkpoint: Path
    """A folder or a hub name."""
    config: Any
    """Its configuration, from `open_config`."""
    dtype: str
    """torch's name, or "auto": bfloat16 on a GPU, float32 on a CPU."""
    device: torch.device


def open_config(checkpoint: Path) -> Any:
    """Return the configuration of a text generator; its `is_encoder_decoder` states the kind."""
    with _naming(checkpoint, "the config.json of a seq2seq or causal language model"):
        config = AutoConfig.from_pretrained(str(checkpoint), trust_remote_code=False)
        check_numbers(config.to_dict(), checkpoint / "config.json")
    kind = config.model_type
    if config.is_encoder_decoder:
        generates = kind in SEQ2SEQ
    else:  # an encoder such as BERT has a causal class too, but it generates noise unless it was trained as a decoder
        generates = kind in CAUSAL and (kind not in MASKED or getattr(config, "is_decoder", False))
    if not generates:
        raise UserError(
            f"{checkpoint}: config.json says model_type {kind!r}, which does not generate text; "
            "use a seq2seq model, such as T5 or BART, or a causal one, such as GPT-2 or Llama"
        )
    return config


def open_tokenizer(checkpoint: Path) -> Any:
    """Return the tokenizer; raise UserError if a folder has no vocabulary: Hugging Face would create an empty one."""
    with _naming(checkpoint, "a tokenizer, such as tokenizer.json"):
        tokenizer: Any = AutoTokenizer.from_pretrained(str(checkpoint), trust_remote_code=False)
    files = sorted({"tokenizer.json", *tokenizer.vocab_files_names.values()})
    if checkpoint.is_dir() and not any((checkpoint / file).exists() for file in files):
        raise UserError(
            f"{checkpoint}: expected a tokenizer, found none of {', '.join(files)}; copy the files that the model "
            "was trained with"
        )
    return tokenizer


def open_model(source: ModelSource) -> Any:
    """Return the model with all its weights."""
    checkpoint, config, dtype = source.checkpoint, source.config, source.dtype
    kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with _naming(checkpoint, "weights, such as model.safetensors"):
        check_safetensors(checkpoint)
        model, loaded = kind.from_pretrained(
            str(checkpoint), config=config, dtype=number_format(dtype, source.device), output_loading_info=True,
            use_safetensors=True, trust_remote_code=False,
        )  # fmt: skip
        unexpected = [name for name in loaded["unexpected_keys"] if not UNUSED.search(name)]
        check_names(loaded["missing_keys"], unexpected, checkpoint, f"a {type(model).__name__}, which generates text")
        check_finite(model.state_dict(), checkpoint)
    return model.to(source.device).eval()


def number_format(dtype: str, device: torch.device) -> torch.dtype:
    """Return the number format of a setting; "auto" is bfloat16 on a GPU, float32 on a CPU."""
    if dtype == "auto":
        dtype = "float32" if device.type == "cpu" else "bfloat16"
    result: torch.dtype = getattr(torch, dtype)
    return result


def check_length(checkpoint: Path, config: Any, tokens: int, setting: str) -> None:
    """Raise UserError if a part of the model has fewer positions than `tokens`."""
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and tokens > limit:
        raise UserError(f"{setting}: {checkpoint} has {limit} positions, found {tokens}; set it to fit")


def first(*values: Any) -> Any:
    """Return the first value that is not None."""
    return next((value for value in values if value is not None), None)


@contextlib.contextmanager
def _naming(checkpoint: Path, expected: str) -> Iterator[None]:
    """Turn any error of Hugging Face into one line that names the folder; silence its loading reports."""
    with quiet_transformers():
        try:
            yield
        except UnusableModel as error:
            raise UserError(str(error)) from None
        except MemoryError:
            raise
        except Exception as error:  # a broken tokenizer raises Exception itself, a configuration almost anything
            reason = " ".join(str(error).split())[:LONGEST_REASON]
            raise UserError(f"{checkpoint}: expected {expected}, but Hugging Face cannot load it: {reason}") from error
