"""Queries that have been given up, so that others are written: of all texts, of buckets, of single texts."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storage.artifact import Source
from storage.errors import UserError
from storage.files import sha256_of

DIGITS = 16


@dataclass(frozen=True)
class Replaced:
    """How often the queries of texts have been given up; a text's counts add up."""

    all: int = 0
    buckets: Mapping[str, int] = field(default_factory=dict)
    texts: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def read(source: Source | None) -> Replaced:
        """All that a ledger's file says (`Ledger.replaced`)."""
        return Replaced() if source is None else Replaced(**_content(source)["sum"])

    @staticmethod
    def last(source: Source) -> Replaced:
        """What was asked for when the file was written."""
        return Replaced(**_content(source)["asked"])

    def draw(self, sha256: str) -> int:
        """Which draw a text's queries are to be of: 0 where they have never been replaced."""
        return self.all + self.buckets.get(sha256[:2], 0) + self.texts.get(sha256, 0)

    def plus(self, more: Replaced) -> Replaced:
        """Both."""
        buckets, texts = Counter(self.buckets) + Counter(more.buckets), Counter(self.texts) + Counter(more.texts)
        return Replaced(self.all + more.all, dict(sorted(buckets.items())), dict(sorted(texts.items())))

    def as_json(self, asked: Replaced) -> str:
        """As `read` and `last` read it."""
        return json.dumps({"sum": dataclasses.asdict(self), "asked": dataclasses.asdict(asked)}, indent=0)


def _content(source: Source) -> dict[str, dict[str, Any]]:
    if sha256_of(source.path)[:DIGITS] != source.path.stem.rpartition("-")[2]:
        raise UserError(
            f"{source.path}: its bytes are not those of its name; put back a copy of it, or delete it to take back "
            "what it asked for"
        )
    content: dict[str, dict[str, Any]] = json.loads(source.path.read_text())
    return content
