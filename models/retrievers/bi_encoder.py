"""The bi-encoder before and after pre-training: an encoder for queries and passages, with one vector per text.

A checkpoint's folder states its pooling in the files of sentence-transformers (`modules.json`,
`1_Pooling/config.json`), so that package opens it too.
"""

from __future__ import annotations

import json
from pathlib import Path

from torch import nn

from models.layers.backbone import Backbone
from models.model_files import read_json
from models.representation import Pooling, Representation, Role, pool
from models.tokens import Tokens

POOLING = Path("1_Pooling") / "config.json"


class DenseEncoder(nn.Module):
    """An encoder for passages and one for queries, whose pooled last hidden states are the texts' vectors.

    By default both are the same; `models.retrievers.towers` builds encoders that share only some parts.
    """

    def __init__(self, passage: Backbone, pooling: Pooling, query: Backbone | None = None):
        super().__init__()
        self.passage, self.query, self.pooling = passage, query or passage, pooling

    def forward(self, tokens: Tokens, role: Role) -> Representation:
        network = self.tower(role)
        if self.pooling == "cls":
            return Representation(dense=network.first_states(tokens))
        return Representation(dense=pool(network(tokens), tokens.mask, self.pooling))

    @property
    def num_positions(self) -> int:
        """Return the maximum number of tokens of a text."""
        return self.passage.config.max_position_embeddings

    def tower(self, role: Role) -> Backbone:
        """Return the encoder of texts of a role."""
        return self.query if role == "query" else self.passage


def load_pooling(folder: Path) -> Pooling:
    """Return a checkpoint's pooling; [CLS], as in the papers, if its folder does not state one."""
    path = folder / POOLING
    if not path.exists():
        return "cls"
    value = read_json(path, "how vectors are pooled")
    old = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}  # as older releases write it
    modes = [old.get(name, name) for name in value if name.startswith("pooling_mode_") and value[name]]
    mode = value.get("pooling_mode") or ", ".join(modes)
    supported: dict[str, Pooling] = {"cls": "cls", "mean": "mean"}
    if mode not in supported:
        raise ValueError(f"{path}: expected cls or mean, found {mode}")
    return supported[mode]


def save_pooling(folder: Path, pooling: Pooling, dim: int) -> None:
    """Write the pooling in the layout of sentence-transformers."""
    (folder / POOLING).parent.mkdir(exist_ok=True)
    modes = {"pooling_mode_cls_token": pooling == "cls", "pooling_mode_mean_tokens": pooling == "mean"}
    (folder / POOLING).write_text(
        json.dumps({"word_embedding_dimension": dim, **modes}, indent=1) + "\n", encoding="utf-8"
    )
    modules = [("", "Transformer"), (POOLING.parent.name, "Pooling")]
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
