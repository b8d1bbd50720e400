"""Encoding passages with `TextEncoder`, as in the stage `encode`; baselines: sentence-transformers and a plain loop.

All contenders read the same checkpoint of six layers (MiniLM; on a GPU twelve layers with random weights) and the same
texts, cut to 144 WordPiece tokens, in single precision (on a GPU in bfloat16). Their vectors are equal: the mean over
the tokens, or the state of [CLS], as in the papers. `SentenceTransformer.encode` sorts texts by their characters; its
batch size is 8, the fastest of 8, 16, 32 (its default) and 64 on a CPU here. The plain loop pads batches of 32 in the
order of the texts. The time includes tokenising.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.contest import OURS, Case
from benchmarks.encoders import MAX_TOKENS, POOLED, leads, on_one_thread, save_checkpoint
from models.representation import Pooling
from models.tokens import Tokenizer
from tasks.retrieval.encode import TextEncoder

DEVICES = ("cpu", "cuda")
PEER, PLAIN = "SentenceTransformer.encode", "plain Hugging Face loop"
PLAIN_BATCH = 32
LEAST_COSINE = {"cpu": 1 - 1e-6, "cuda": 0.995}  # bfloat16 has two to three digits

Encode = Callable[[], np.ndarray[Any, Any]]


def cases(device: str, *, small: bool) -> Iterator[Case]:
    """Yield a case for each pooling."""
    texts = leads(4 if small else 20_000 if device == "cuda" else 128, device)
    for pooling in POOLED:
        with tempfile.TemporaryDirectory() as folder:
            yield encoding(Path(folder), texts, device, pooling, plain=pooling == "mean" or device == "cuda")


def encoding(folder: Path, texts: list[str], device: str, pooling: Pooling, *, plain: bool) -> Case:
    """Encode texts with a checkpoint that is written to a folder."""
    save_checkpoint(folder, device, pooling)
    tokens = sum(map(len, Tokenizer.load(folder).encode(texts, MAX_TOKENS)))
    contenders: dict[str, Encode] = {OURS: ours(folder, texts, device)}
    if importlib.util.find_spec("sentence_transformers"):
        contenders[PEER] = peer(folder, texts, device)
    if plain:
        contenders[PLAIN] = loop(folder, texts, device, pooling)
    target = 3.0 if device == "cuda" else 1.3
    return Case(
        f"{len(texts):,} passages of {tokens / len(texts):.0f} tokens, {POOLED[pooling]}", contenders,
        {name: target for name in contenders if name != OURS}, compared(device), repeats=3,
        units={"passages": len(texts), "tokens": tokens},
    )  # fmt: skip


def ours(folder: Path, texts: list[str], device: str) -> Encode:
    """Return this project's encoder."""
    with on_one_thread(device):
        encoder = TextEncoder(folder)

    def encode() -> np.ndarray[Any, Any]:
        dense = encoder(texts, "passage", MAX_TOKENS).dense
        assert dense is not None
        return dense

    return encode


def peer(folder: Path, texts: list[str], device: str) -> Encode:
    """Return sentence-transformers' encoder."""
    from sentence_transformers import SentenceTransformer

    kind = {"dtype": torch.bfloat16 if device == "cuda" else torch.float32}
    model: Any = SentenceTransformer(str(folder), device=device, model_kwargs=kind)
    model.max_seq_length = MAX_TOKENS
    size = 256 if device == "cuda" else 8
    return lambda: np.asarray(model.encode(texts, batch_size=size, convert_to_tensor=True).float().cpu())


def loop(folder: Path, texts: list[str], device: str, pooling: Pooling) -> Encode:
    """Return a plain loop with Hugging Face."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    model: Any = AutoModel.from_pretrained(str(folder), dtype=kind).to(device).eval()

    @torch.inference_mode()
    def encode() -> np.ndarray[Any, Any]:
        blocks = []
        for start in range(0, len(texts), PLAIN_BATCH):
            batch = texts[start : start + PLAIN_BATCH]
            inputs = tokenizer(batch, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
            inputs = inputs.to(device)
            hidden_BLH = model(**inputs).last_hidden_state.float()
            weights_BL1 = inputs["attention_mask"][..., None].float()
            means_BH = (hidden_BLH * weights_BL1).sum(1) / weights_BL1.sum(1)
            blocks.append((hidden_BLH[:, 0] if pooling == "cls" else means_BH).cpu().numpy())
        return np.concatenate(blocks)

    return encode


def compared(device: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Return a check that all vectors equal ours."""

    def compare(encodings: Mapping[str, Any]) -> dict[str, Any]:
        own = encodings[OURS] / np.linalg.norm(encodings[OURS], axis=1, keepdims=True)
        least = {
            name: float((own * vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).sum(1).min())
            for name, vectors in encodings.items()
            if name != OURS
        }
        assert all(cosine > LEAST_COSINE[device] for cosine in least.values()), least
        return {f"least cosine with {name}": round(cosine, 7) for name, cosine in least.items()}

    return compare
