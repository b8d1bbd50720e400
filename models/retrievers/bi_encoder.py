"""The bi-encoder that pre-training starts with and makes: a BERT for queries and passages, one vector a text.

A checkpoint's folder says how its vectors are pooled in the files that sentence-transformers reads
(`modules.json`, `1_Pooling/config.json`), so it opens there too.
"""

from __future__ import annotations

import json
from pathlib import Path

from torch import nn

from models.layers import bert
from models.layers.cls_only import cls_states
from models.model_files import read_json
from models.representation import Pooling, Representation, Role, pool
from models.tokens import Tokens

POOLING = Path("1_Pooling") / "config.json"


class DenseEncoder(nn.Module):
    """A BERT for passages and one for queries, whose pooled last hidden states are the texts' vectors.

    Both are one and the same where nothing else is said; `models.retrievers.towers` makes two that share some parts.
    """

    def __init__(self, passage: bert.BertForMaskedLM, pooling: Pooling, query: bert.BertForMaskedLM | None = None):
        super().__init__()
        self.passage, self.query, self.pooling = passage, query or passage, pooling

    def forward(self, tokens: Tokens, role: Role) -> Representation:
        network = self.tower(role).bert
        if self.pooling == "cls":
            return Representation(dense=cls_states(network, tokens.ids, tokens.mask))
        return Representation(dense=pool(network(tokens.ids, tokens.mask), tokens.mask, self.pooling))

    @property
    def num_positions(self) -> int:
        """How many tokens a text may have."""
        return self.passage.config.max_position_embeddings

    def tower(self, role: Role) -> bert.BertForMaskedLM:
        """The network that reads texts of a role."""
        return self.query if role == "query" else self.passage


def load_pooling(folder: Path) -> Pooling:
    """How a checkpoint's vectors are pooled; [CLS], as in the papers, where its folder does not say."""
    path = folder / POOLING
    if not path.exists():
        return "cls"
    value = read_json(path, "how vectors are pooled")
    old = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}  # as older releases write it
    modes = [old.get(name, name) for name in value if name.startswith("pooling_mode_") and value[name]]
    found = value.get("pooling_mode") or ", ".join(modes)
    known: dict[str, Pooling] = {"cls": "cls", "mean": "mean"}
    if found not in known:
        raise ValueError(f"{path}: expected cls or mean, found {found}")
    return known[found]


def save_pooling(folder: Path, pooling: Pooling, dim: int) -> None:
    """Write how vectors are pooled, as sentence-transformers reads it."""
    (folder / POOLING).parent.mkdir(exist_ok=True)
    modes = {"pooling_mode_cls_token": pooling == "cls", "pooling_mode_mean_tokens": pooling == "mean"}
    (folder / POOLING).write_text(json.dumps({"word_embedding_dimension": dim, **modes}, indent=1) + "\n")
    modules = [("", "Transformer"), (POOLING.parent.name, "Pooling")]
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed, indent=1) + "\n")
