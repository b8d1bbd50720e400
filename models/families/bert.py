"""BERT: the fast path, with layers of this project."""

from models.layers.bert import BertForMaskedLM as Family

__all__ = ["Family"]
