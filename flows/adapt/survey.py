"""The contents of a collection in numbers: documents, languages, lengths, duplicates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from storage.formats.records import TextRow
from tasks.pseudo_queries.language_id import language_of
from tasks.pseudo_queries.salient_sentences import words

LANGUAGES_READ = 500  # documents whose language is identified
SHOWN = 3  # languages


@dataclass(frozen=True)
class Survey:
    """The contents of a collection in numbers."""

    form: str
    documents: int
    empty: int
    duplicates: int
    """Documents whose text, without regard to blanks, is that of an earlier one."""
    titles: int
    languages: dict[str, int]
    """Languages of the first documents by how many there are, the most frequent first."""
    median_words: int
    percentile_95_words: int

    @property
    def language(self) -> str:
        """The most frequent language; English where none was identified."""
        known = [name for name in self.languages if name not in ("too short", "unsure")]
        return known[0] if known else "en"

    def shares(self) -> str:
        """Return the shares of the most frequent languages in words: `en 98 %, de 2 %`."""
        total = sum(self.languages.values()) or 1
        return ", ".join(f"{name} {100 * number / total:.0f} %" for name, number in [*self.languages.items()][:SHOWN])

    def lines(self) -> list[str]:
        """Return the survey in words."""
        return [
            f"found {self.form}: {self.documents:,} documents, {self.titles:,} with a title, {self.empty:,} empty, "
            f"{self.duplicates:,} duplicates",
            f"languages of the first {sum(self.languages.values()):,}: {self.shares()}; words of a document: "
            f"median {self.median_words:,}, 95 % have at most {self.percentile_95_words:,}",
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the numbers by name."""
        return asdict(self)


def text_hash(text: str) -> str:
    """Return the hash of a text in lower case without regard to blanks: equal for exact duplicates."""
    return sha256(" ".join(text.lower().split()).encode()).hexdigest()


def survey(form: str, documents: Iterable[TextRow]) -> Survey:
    """Return the survey of a collection, whose documents are read once."""
    lengths: list[int] = []
    languages: Counter[str] = Counter()
    seen: set[str] = set()
    empty = duplicates = titles = 0
    for row in documents:
        lengths.append(len(words(row["text"])))
        titles += bool(row["title"].strip())
        if not row["text"].strip():
            empty += 1
            continue
        if len(lengths) <= LANGUAGES_READ:
            languages[language_of(row["text"])] += 1
        duplicates += (name := text_hash(row["text"])) in seen
        seen.add(name)
    median, most = (int(np.percentile(lengths or [0], share)) for share in (50, 95))
    return Survey(form, len(lengths), empty, duplicates, titles, dict(languages.most_common()), median, most)
