"""Invalidated queries, which are resampled: those of all texts, of buckets or of single texts."""

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
class Invalidations:
    """The number of times that the queries of texts have been invalidated. The three counts of a text add up."""

    all: int = 0
    buckets: Mapping[str, int] = field(default_factory=dict)
    texts: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def read(source: Source | None) -> Invalidations:
        """Return the sum of all invalidations in a file (`GenerationCache.invalidated`); none for None."""
        return Invalidations() if source is None else Invalidations(**_content(source)["sum"])

    @staticmethod
    def last(source: Source) -> Invalidations:
        """Return the invalidations that were requested when the file was written."""
        return Invalidations(**_content(source)["asked"])

    def draw(self, sha256: str) -> int:
        """Return the draw of a text's valid queries: 0 where they have never been invalidated."""
        return self.all + self.buckets.get(sha256[:2], 0) + self.texts.get(sha256, 0)

    def plus(self, more: Invalidations) -> Invalidations:
        """Return the sum of both."""
        buckets, texts = Counter(self.buckets) + Counter(more.buckets), Counter(self.texts) + Counter(more.texts)
        return Invalidations(self.all + more.all, dict(sorted(buckets.items())), dict(sorted(texts.items())))

    def as_json(self, requested: Invalidations) -> str:
        """Return the content of a file for `read` and `last`."""
        return json.dumps({"sum": dataclasses.asdict(self), "asked": dataclasses.asdict(requested)}, indent=0)


def _content(source: Source) -> dict[str, dict[str, Any]]:
    if sha256_of(source.path)[:DIGITS] != source.path.stem.rpartition("-")[2]:
        raise UserError(
            f"{source.path}: its bytes do not match the hash in its name; restore a copy of it, or delete it to cancel "
            "its request"
        )
    content: dict[str, dict[str, Any]] = json.loads(source.path.read_text(encoding="utf-8"))
    return content
