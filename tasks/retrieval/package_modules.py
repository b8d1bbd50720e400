"""The modules of sentence-transformers that compute the representations of a retriever, and which ones it cannot.

`SparseEncoder` has one pooling: log(1 + ReLU) of the maximum logits of the vocabulary head over all tokens, of which
one number of largest weights is kept in queries and documents. `MultiVectorEncoder` compares all tokens but those of a
list.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.views.late import LateSettings
from models.retrievers.views.lexical import LexicalSettings
from models.tokens import Tokenizer

DENSE_MODULE = "2_Dense"
TYPES = {
    "SpladePooling": "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling",
    "MultiVectorMask": "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "PyLateDense": "pylate.models.Dense.Dense",
}
"""The full names of modules; others are in `sentence_transformers.models`."""


@dataclass(frozen=True)
class Lengths:
    """The maximum numbers of tokens of texts; None for those of the tokenizer."""

    query: int | None
    passage: int | None


@dataclass(frozen=True)
class Module:
    """A module of the package and the folder of its settings."""

    kind: str
    path: str

    def entry(self, number: int) -> dict[str, Any]:
        """Return the entry of modules.json."""
        full_name = TYPES.get(self.kind, f"sentence_transformers.models.{self.kind}")
        return {"idx": number, "name": str(number), "path": self.path, "type": full_name}


def package_class(
    settings: RetrieverSettings, lengths: Lengths, *, has_two_encoders: bool, unattended_limit: int | None
) -> tuple[str | None, str]:
    """Return the class that computes a retriever's scores, or None and the reason why there is none.

    `unattended_limit` is that of the retriever's `Backbone`.
    """
    if len(settings.views) > 1:
        return None, f"it adds the scores of {' and '.join(settings.views)} representations"
    if settings.shared_layers is not None:
        return None, "its representation has layers of its own above shared ones"
    if settings.lexical:
        reason = _unlike_splade(settings.lexical)
        return (None, reason) if reason else ("SparseEncoder", "")
    if settings.late:
        reason = _unlike_colbert(settings.late, lengths, has_two_encoders=has_two_encoders)
        reason = reason or _other_masks(settings.late, unattended_limit)
        return (None, reason) if reason else ("MultiVectorEncoder", "")
    return "SentenceTransformer", ""


def _unlike_splade(settings: LexicalSettings) -> str:
    if settings.head != "mlm":
        return f"its weights are not those of the vocabulary head but of {settings.head}"
    if settings.activation != "log1p_relu":
        return f"its weights have the activation {settings.activation}, not log(1 + ReLU)"
    if not settings.pool_specials:
        return "its maximum leaves out [CLS] and [SEP]"
    if settings.top_queries != settings.top_passages:
        return "it keeps other numbers of weights in queries than in passages"
    return ""


def _unlike_colbert(settings: LateSettings, lengths: Lengths, *, has_two_encoders: bool) -> str:
    if settings.exact_match:
        return "it compares equal tokens only"
    if settings.markers:
        return "a marker follows [CLS]"
    if has_two_encoders:
        return "queries have an encoder of their own, and the package adds their [MASK]s in one encoder only"
    if settings.query_masks is not None and (lengths.query is None or lengths.query < settings.query_masks):
        return f"queries of {lengths.query} tokens are padded with [MASK] to {settings.query_masks}"
    return ""


def _other_masks(settings: LateSettings, limit: int | None) -> str:
    masks = settings.query_masks
    if masks is None or limit is None or masks <= limit:
        return ""
    queries = f"queries are padded with [MASK] to {masks} tokens, and transformers computes these tokens otherwise"
    return f"{queries} in this model above {limit}" if limit else f"{queries} in this family"


def transformer_settings(settings: RetrieverSettings, lengths: Lengths) -> dict[str, Any]:
    """Return the settings of the package's Transformer."""
    stated = {"query_length": lengths.query, "document_length": lengths.passage}
    value: dict[str, Any] = {name: length for name, length in stated.items() if length is not None}
    if settings.lexical:
        text = {"method": "forward", "method_output_name": "logits"}
        value |= {"transformer_task": "fill-mask", "modality_config": {"text": text}}
        value |= {"module_output_name": "token_embeddings"}
    if settings.late and settings.late.query_masks is not None:
        value["query_expansion"] = {"strategy": "min", "attend": False, "length": settings.late.query_masks}
    return value


def lexical_modules(folder: Path) -> list[Module]:
    """Write the settings of SPLADE's pooling, in which `relu` means log(1 + ReLU)."""
    module = Module("SpladePooling", "1_SpladePooling")
    (folder / module.path).mkdir()
    write_json(folder / module.path / "config.json", {"pooling_strategy": "max", "activation_function": "relu"})
    return [module]


def normalisation(folder: Path, number: int, *, of_tokens: bool) -> Module:
    """Write the settings of a normalisation of vectors of texts or tokens."""
    module, feature = (
        Module("Normalize", f"{number}_Normalize"),
        "token_embeddings" if of_tokens else "sentence_embedding",
    )
    (folder / module.path).mkdir()
    write_json(folder / module.path / "config.json", {"module_input_name": feature, "module_output_name": feature})
    return module


def mask_modules(folder: Path, settings: LateSettings, tokenizer: Tokenizer, *, first: int) -> list[Module]:
    """Write which tokens are compared: punctuation is skipped in documents, [CLS] and [SEP] in queries too."""
    specials = [tokenizer.cls] * (not settings.use_cls) + [tokenizer.sep] * (not settings.use_sep)
    marks = tokenizer.punctuation.tolist() if settings.skip_punctuation else []
    skipped = [(marks, ["document"]), *([(specials, ["query", "document"])] if specials else [])]
    modules = []
    for number, (ids, tasks) in enumerate(skipped, first):
        modules.append(module := Module("MultiVectorMask", f"{number}_MultiVectorMask"))
        (folder / module.path).mkdir()
        words = [tokenizer.token_name(token) for token in ids]
        write_json(folder / module.path / "config.json", {"skiplist_words": words, "skiplist_tasks": tasks})
    return modules


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file of the package."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
