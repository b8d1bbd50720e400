"""Encoding passages with `TextEncoder`, as in the stage `encode`; baselines: sentence-transformers and a plain loop.

All contenders read the same checkpoint of six layers (MiniLM; on a GPU twelve layers with random weights) and the same
texts, cut to 144 WordPiece tokens, in single precision (on a GPU in bfloat16). Their vectors are equal: the mean over
the tokens, or the state of [CLS], as in the papers. A last case encodes in bfloat16 on a CPU (`encode.precision`); the
baselines have both formats, and a note says which share of the ten nearest passages of each passage stays the same.
`SentenceTransformer.encode` sorts texts by their characters; its batch size is 8, the fastest of 8, 16, 32 (its
default) and 64 on a CPU here. The plain loop pads batches of 32 in the order of the texts. The time includes
tokenising.
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
from tasks.runtime.device import Precision

DEVICES = ("cpu", "cuda")
PEER, PLAIN = "SentenceTransformer.encode", "plain Hugging Face loop"
HALF_PEER = f"{PEER}, bfloat16"
PLAIN_BATCH = 32
LEAST_COSINE: dict[Precision, float] = {"float32": 1 - 1e-6, "bfloat16": 0.995}  # bfloat16 has two to three digits
NEAREST = 10

Encode = Callable[[], np.ndarray[Any, Any]]


def cases(device: str, *, small: bool) -> Iterator[Case]:
    """Yield a case for each pooling."""
    texts = leads(4 if small else 10_000 if device == "cuda" else 128, device)
    for pooling in POOLED:
        with tempfile.TemporaryDirectory() as folder:
            yield encoding(Path(folder), texts, device, pooling, plain=pooling == "mean" or device == "cuda")
    if device == "cpu":
        with tempfile.TemporaryDirectory() as folder:
            yield in_bfloat16(Path(folder), texts)


def encoding(folder: Path, texts: list[str], device: str, pooling: Pooling, *, plain: bool) -> Case:
    """Encode texts with a checkpoint that is written to a folder."""
    save_checkpoint(folder, device, pooling)
    precision: Precision = "bfloat16" if device == "cuda" else "float32"
    contenders: dict[str, Encode] = {OURS: ours(folder, texts, device, precision)}
    if _has_peer():
        contenders[PEER] = peer(folder, texts, device, precision)
    if plain:
        contenders[PLAIN] = loop(folder, texts, device, pooling)
    target = 3.0 if device == "cuda" else 1.3
    return Case(
        f"{described(folder, texts)}, {POOLED[pooling]}", contenders,
        {name: target for name in contenders if name != OURS}, compared(LEAST_COSINE[precision]), repeats=3,
        units=units(folder, texts),
    )  # fmt: skip


def in_bfloat16(folder: Path, texts: list[str]) -> Case:
    """Encode texts on a CPU in bfloat16."""
    save_checkpoint(folder, "cpu", "mean")
    contenders = {OURS: ours(folder, texts, "cpu", "bfloat16")}
    if _has_peer():
        contenders |= {PEER: peer(folder, texts, "cpu", "float32"), HALF_PEER: peer(folder, texts, "cpu", "bfloat16")}
    exact = ours(folder, texts, "cpu", "float32")()

    def compare(encodings: Mapping[str, Any]) -> dict[str, Any]:
        share = {f"share of the {NEAREST} nearest of float32": round(same_nearest(encodings[OURS], exact), 4)}
        return {**compared(LEAST_COSINE["bfloat16"])(encodings), **share}

    return Case(
        f"{described(folder, texts)}, {POOLED['mean']}, in bfloat16", contenders,
        {name: 1.3 for name in contenders if name != OURS}, compare, repeats=3, units=units(folder, texts),
    )  # fmt: skip


def _has_peer() -> bool:
    return all(map(importlib.util.find_spec, ("sentence_transformers", "datasets")))


def described(folder: Path, texts: list[str]) -> str:
    """Return the number of texts and their mean length."""
    sizes = units(folder, texts)
    return f"{len(texts):,} passages of {sizes['tokens'] / len(texts):.0f} tokens"


def units(folder: Path, texts: list[str]) -> dict[str, int]:
    """Return the number of texts, and of tokens by the tokenizer of a folder."""
    tokens = sum(map(len, Tokenizer.load(folder).encode(texts, MAX_TOKENS)))
    return {"passages": len(texts), "tokens": tokens}


def same_nearest(vectors: np.ndarray[Any, Any], exact: np.ndarray[Any, Any]) -> float:
    """Return the mean share of the texts nearest to each text that are so by the exact vectors, too."""
    nearest = [np.argsort(-(rows @ rows.T), axis=1, kind="stable")[:, :NEAREST] for rows in (vectors, exact)]
    return float(np.mean([len({*ours_} & {*theirs}) / len(theirs) for ours_, theirs in zip(*nearest, strict=True)]))


def ours(folder: Path, texts: list[str], device: str, precision: Precision) -> Encode:
    """Return this project's encoder."""
    with on_one_thread(device):
        encoder = TextEncoder(folder, precision)

    def encode() -> np.ndarray[Any, Any]:
        dense = encoder(texts, "passage", MAX_TOKENS).dense
        assert dense is not None
        return dense

    return encode


def peer(folder: Path, texts: list[str], device: str, precision: Precision) -> Encode:
    """Return sentence-transformers' encoder."""
    from sentence_transformers import SentenceTransformer

    model: Any = SentenceTransformer(str(folder), device=device, model_kwargs={"dtype": getattr(torch, precision)})
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


def compared(least_cosine: float) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Return a check that all vectors equal ours."""

    def compare(encodings: Mapping[str, Any]) -> dict[str, Any]:
        own = encodings[OURS] / np.linalg.norm(encodings[OURS], axis=1, keepdims=True)
        least = {
            name: float((own * vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).sum(1).min())
            for name, vectors in encodings.items()
            if name != OURS
        }
        assert all(cosine > least_cosine for cosine in least.values()), least
        return {f"least cosine with {name}": round(cosine, 7) for name, cosine in least.items()}

    return compare
