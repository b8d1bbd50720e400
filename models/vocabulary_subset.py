"""A subset of a BERT's vocabulary: a tokenizer of the kept tokens, and a model with their embeddings only.

WordPiece takes the longest token that matches. A word whose tokens are all kept is therefore tokenised as before, and
another word falls back to shorter tokens. Kept tokens are renumbered in the order of their original ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import tensor

from models.layers.bert import HEAD, WORDS, BertForMaskedLM
from models.retrievers.views.late import MARKERS
from models.tokens import SPECIALS

PREFIX = "##"  # of tokens that continue a word


def check_wordpiece(tokenizer: Mapping[str, Any]) -> None:
    """Raise ValueError unless a tokenizer.json has WordPiece tokens, of which any with all characters suffice."""
    if (kind := tokenizer["model"].get("type", "WordPiece")) != "WordPiece":
        raise ValueError(f"expected WordPiece tokens, of which some suffice for all words, found {kind}")


def required_tokens(tokenizer: Mapping[str, Any], characters: str = "") -> set[str]:
    """Return the tokens of a tokenizer.json that every subset keeps.

    These are special tokens, the late view's markers, and ASCII characters and those in `characters`, each as the
    beginning and as the continuation of a word.
    """
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    kept = {*SPECIALS, *MARKERS.values(), *(token["content"] for token in tokenizer.get("added_tokens", ()))}
    for character in {*map(chr, range(128)), *characters}:
        kept |= {character, PREFIX + character}
    return kept & vocabulary.keys()


def characters_of(tokens: Sequence[str]) -> str:
    """Return the different characters of WordPiece tokens, sorted."""
    return "".join(sorted(set("".join(token.removeprefix(PREFIX) for token in tokens))))


def subset_tokenizer(tokenizer: Mapping[str, Any], kept: Sequence[int]) -> dict[str, Any]:
    """Return the content of a tokenizer.json with only the tokens of the ids `kept`, numbered in this order."""
    tokens = {number: token for token, number in tokenizer["model"]["vocab"].items()}
    numbers = {tokens[number]: new for new, number in enumerate(kept)}
    value: dict[str, Any] = json.loads(json.dumps(tokenizer))
    value["model"]["vocab"] = numbers
    value["added_tokens"] = [{**token, "id": numbers[token["content"]]} for token in value.get("added_tokens", ())]
    _renumber_processor(value.get("post_processor"), numbers)
    if value.get("padding"):
        value["padding"]["pad_id"] = numbers[value["padding"]["pad_token"]]
    return value


def _renumber_processor(processor: dict[str, Any] | None, numbers: Mapping[str, int]) -> None:
    """Give the special tokens of a post-processor their new ids; `tokenizers` writes them in two forms."""
    if processor is None:
        return
    for inner in processor.get("processors", ()):
        _renumber_processor(inner, numbers)
    for role in ("sep", "cls"):  # BertProcessing
        if role in processor:
            processor[role][1] = numbers[processor[role][0]]
    specials = processor.get("special_tokens")  # TemplateProcessing
    for special in specials.values() if isinstance(specials, dict) else ():
        special["ids"] = [numbers[token] for token in special["tokens"]]


def subset_model(model: BertForMaskedLM, kept: Sequence[int]) -> BertForMaskedLM:
    """Return the model with the embeddings and the vocabulary head's bias of the ids `kept` only, in this order."""
    config = replace(model.config, vocab_size=len(kept), pad_token_id=list(kept).index(model.config.pad_token_id))
    weights, rows = model.state_dict(), tensor(kept)
    for name in (WORDS, f"{HEAD}bias"):
        weights[name] = weights[name][rows]
    smaller = BertForMaskedLM(config)
    smaller.load_state_dict(weights)
    return smaller
