"""PyLate's layout of a late-interaction model, which `MultiVectorEncoder` of sentence-transformers 6 reads, too.

PyLate normalises the vectors of all tokens, compares all tokens of a query, and pads each query to one length. A
retriever that does otherwise gets the modules of sentence-transformers 6, which PyLate 1.6 cannot read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.retrievers.retriever_settings import RetrieverSettings
from models.tokens import Tokenizer
from tasks.retrieval.package_modules import Lengths


def fits(settings: RetrieverSettings, lengths: Lengths) -> bool:
    """Return whether PyLate computes the scores of a late-interaction retriever."""
    late = settings.late
    if late is None or settings.prompts is not None or lengths.passage is None or lengths.query is None:
        return False
    return late.normalise and late.use_cls and late.use_sep and late.query_masks in (None, lengths.query)


def transformer_settings(lengths: Lengths) -> dict[str, Any]:
    """Return the settings of the encoder, whose length both packages set for queries and for documents."""
    return {"max_seq_length": max(lengths.query or 0, lengths.passage or 0), "do_lower_case": False}


def configuration(folder: Path, settings: RetrieverSettings, lengths: Lengths) -> dict[str, Any]:
    """Return the model's configuration, with the tokens of documents that are not compared."""
    if settings.late is None:
        raise TypeError("expected a late-interaction retriever")
    tokenizer = Tokenizer.load(folder)
    skipped = tokenizer.punctuation.tolist() if settings.late.skip_punctuation else []
    return {
        "model_type": "ColBERT", "prompts": {}, "default_prompt_name": None, "similarity_fn_name": "MaxSim",
        "query_prefix": "", "document_prefix": "", "query_length": lengths.query, "document_length": lengths.passage,
        "do_query_expansion": settings.late.query_masks is not None, "attend_to_expansion_tokens": False,
        "skiplist_words": [tokenizer.token_name(token) for token in skipped],
    }  # fmt: skip
