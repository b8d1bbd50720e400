"""The initialisation of a small T5 that can copy words of its input before any training.

After a random initialisation, a few thousand pairs teach a T5 queries of the right form about the wrong topic. It
lacks the circuit that finds the last generated word in the input and continues with the word after it (induction
heads, Olsson et al. 2022). These initial weights contain that circuit in half of the heads, on top of the word
embeddings of a given encoder; all weights are trained afterwards.

Shape suffixes: V vocabulary, D width, K width of a head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from tasks.training.seeds import random_generator

EMBEDDING = 0.2  # standard deviation; small, so that a step of Adam's moves an embedding and not only the layers
QUIET = 0.5  # scale of the random part of the layers, relative to an embedding
COPIED = 1.5  # scale of a copied word
LOGITS = 1.5  # standard deviation of the first logits
ATTEND = 7.0  # a relative position's bias that takes 9 parts in 10 of the attention among 64 tokens
MATCH = 10.0  # attention logit between a word and itself
ITSELF, ONE_BEFORE = 0, 1  # T5's buckets of relative positions


def copying_t5(embeddings_VD: Tensor, config: T5Config, seed: int) -> T5ForConditionalGeneration:
    """Return a T5 of the given configuration, at least two layers, with these word embeddings (rows of any norm).

    One half of an embedding, A, identifies the word to copy; the other half, B, the word to search for. The first
    encoder layer stores at each word the B of the word before. The first decoder layer searches these notes for the
    last generated word and adds the A of the word found there. The decoder's self-attention subtracts the last
    generated word, which the tied vocabulary head would otherwise repeat.
    """
    if config.num_layers < 2 or config.d_model != config.num_heads * config.d_kv:
        raise ValueError(f"expected at least two layers, and heads whose widths sum to the model's, found {config}")
    torch.manual_seed(seed)
    model = T5ForConditionalGeneration(config)
    basis, notes = (_orthogonal(config.d_model, seed, number) for number in range(2))
    half = config.d_model // 2
    copied_AD, sought_AD = basis[:half], basis[half:]
    with torch.no_grad():
        _make_quiet(model, embeddings_VD)
        encoder, decoder = _blocks(model)
        _move(encoder[0].layer[0].SelfAttention, sought_AD, notes[:half], EMBEDDING, at=ONE_BEFORE)
        _move(decoder[0].layer[0].SelfAttention, copied_AD, copied_AD, -EMBEDDING, at=ITSELF)
        _match(decoder[0].layer[1].EncDecAttention, sought_AD, notes[:half])
        _move(decoder[0].layer[1].EncDecAttention, copied_AD, copied_AD, EMBEDDING * COPIED, at=None)
        _move(decoder[-1].layer[0].SelfAttention, sought_AD, sought_AD, -EMBEDDING, at=ITSELF)
    return model


def _blocks(model: Any) -> tuple[Any, Any]:
    return model.encoder.block, model.decoder.block


def resized(embeddings_VE: Tensor, width: int, seed: int) -> Tensor:
    """Return the embeddings with another width: principal components, rotated randomly; the rest is random. [V, D]"""
    centred = embeddings_VE.double().numpy()
    centred = centred - centred.mean(0)
    _, components = np.linalg.eigh(centred.T @ centred)
    components = components[:, ::-1][:, :width]
    components = components * np.sign(components[np.abs(components).argmax(0), np.arange(components.shape[1])])
    kept = centred @ components
    random = random_generator(seed, 2)
    missing = random.standard_normal((len(kept), width - kept.shape[1])) * kept.std()
    turned = np.concatenate([kept, missing], axis=1) @ _orthogonal(width, seed, 3).double().numpy()
    return torch.from_numpy(turned).float()


def _make_quiet(model: T5ForConditionalGeneration, embeddings_VD: Tensor) -> None:
    """Insert the embeddings with equal norms, and scale the layers' random weights so that they add less."""
    width = embeddings_VD.shape[1]
    lengths = embeddings_VD.norm(dim=1, keepdim=True).clamp_min(1e-6)
    model.shared.weight.copy_(embeddings_VD / lengths * width**0.5 * EMBEDDING)
    for name, parameter in model.named_parameters():
        if name.endswith(("DenseReluDense.wo.weight", "Attention.o.weight")):
            parameter.mul_(EMBEDDING * QUIET)
    model.decoder.final_layer_norm.weight.fill_(LOGITS / EMBEDDING)


def _move(attention: Any, read_AD: Tensor, write_AD: Tensor, gain: float, *, at: int | None) -> None:
    """Let the first half of the heads copy one part of a word's vector into another subspace.

    With `at`, they attend to the word at that relative position; the layers above share the bias.
    """
    half = len(read_AD)
    attention.v.weight[:half] = read_AD
    attention.o.weight[:, :half] = write_AD.T * gain
    if at is not None:
        attention.q.weight[:half] *= 0.1
        if attention.has_relative_attention_bias:
            attention.relative_attention_bias.weight[:, : attention.n_heads // 2] = 0.0
            attention.relative_attention_bias.weight[at, : attention.n_heads // 2] = ATTEND


def _match(attention: Any, query_AD: Tensor, key_AD: Tensor) -> None:
    """Let the first half of the heads attend to words whose note matches the query word."""
    half, gain = len(query_AD), (MATCH / attention.key_value_proj_dim) ** 0.5
    attention.q.weight[:half] = query_AD * gain
    attention.k.weight[:half] = key_AD * gain


def _orthogonal(width: int, seed: int, number: int) -> Tensor:
    normal_numbers = random_generator(seed, number).standard_normal((width, width))
    return torch.from_numpy(np.linalg.qr(normal_numbers)[0]).float()
