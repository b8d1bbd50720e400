"""BERT's parts in numpy, float64, written row by row from the formulas: what the models' tests compare with.

One text at a time: x is [L, H]; `w` are a module's parameters by name, `name` the part in question.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

from tests.tiny import SHAPE

Array = NDArray[np.float64]


def numbers(module: nn.Module) -> dict[str, Array]:
    return {name: value.detach().double().numpy() for name, value in module.state_dict().items()}


def norm(x: Array, w: dict[str, Array], name: str) -> Array:
    deviation = np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    return (x - x.mean(-1, keepdims=True)) / deviation * w[f"{name}.weight"] + w[f"{name}.bias"]


def dense(x: Array, w: dict[str, Array], name: str) -> Array:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def gelu(x: Array) -> Array:
    return np.vectorize(lambda value: value * 0.5 * (1 + math.erf(value / math.sqrt(2))))(x)


def attend(x: Array, w: dict[str, Array], name: str, visible: Sequence[set[int]]) -> Array:
    """Each row, for each head, over the columns that it sees."""
    size = SHAPE["hidden_size"] // SHAPE["num_attention_heads"]
    query, key, value = (dense(x, w, f"{name}.{part}") for part in ("query", "key", "value"))
    out = np.zeros_like(x)
    for row, columns in enumerate(visible):
        for start in range(0, x.shape[1], size):
            part, seen = slice(start, start + size), sorted(columns)
            weights = np.exp([query[row, part] @ key[column, part] / math.sqrt(size) for column in seen])
            out[row, part] = sum(
                p * value[column, part] for p, column in zip(weights / weights.sum(), seen, strict=True)
            )
    return out


def embedded(w: dict[str, Array], ids: list[int], types: Sequence[int] | None = None) -> Array:
    name = "bert.embeddings"
    rows = [
        w[f"{name}.word_embeddings.weight"][number]
        + w[f"{name}.position_embeddings.weight"][position]
        + w[f"{name}.token_type_embeddings.weight"][types[position] if types else 0]
        for position, number in enumerate(ids)
    ]
    return norm(np.array(rows), w, f"{name}.LayerNorm")


def vocabulary(x: Array, w: dict[str, Array]) -> Array:
    name = "cls.predictions"
    transformed = norm(gelu(dense(x, w, f"{name}.transform.dense")), w, f"{name}.transform.LayerNorm")
    return transformed @ w["bert.embeddings.word_embeddings.weight"].T + w[f"{name}.bias"]


def bert_layer(x: Array, w: dict[str, Array], name: str, visible: Sequence[set[int]]) -> Array:
    """One post-norm block; row i sees the columns of visible[i]."""
    mixed = dense(attend(x, w, f"{name}.attention.self", visible), w, f"{name}.attention.output.dense")
    x = norm(x + mixed, w, f"{name}.attention.output.LayerNorm")
    widened = dense(gelu(dense(x, w, f"{name}.intermediate.dense")), w, f"{name}.output.dense")
    return norm(x + widened, w, f"{name}.output.LayerNorm")


def bert_layers(w: dict[str, Array], ids: list[int], types: Sequence[int] | None = None) -> list[Array]:
    """Hidden states of a text without padding: the embeddings, then after each layer."""
    states = [embedded(w, ids, types)]
    for layer in range(SHAPE["num_hidden_layers"]):
        states.append(bert_layer(states[-1], w, f"bert.encoder.layer.{layer}", [set(range(len(ids)))] * len(ids)))
    return states


def log_softmax(scores: Array) -> Array:
    """Along the last axis."""
    shifted = scores - scores.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
