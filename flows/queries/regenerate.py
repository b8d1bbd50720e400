"""Give up queries of a part of a corpus, so that the next build writes others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.chain.pseudo_queries import Generator
from flows.queries.chain import writer_of
from flows.recipe.schema import Recipe
from storage.artifact import Artifact
from storage.errors import UserError
from storage.formats.lines import read_lines
from storage.ledger.ledger import Ledger
from storage.ledger.regenerations import Replaced
from storage.rows import read_rows
from storage.store.store import Store
from storage.tables import Passages, passage_sha256, passage_text
from tasks.pseudo_queries.generate_queries import generate_queries
from tasks.session import Session, session

ALL, BUCKET = "all", re.compile(r"bucket:([0-9a-f]{2})", re.IGNORECASE)
SHOWN = 5


def replace(recipe: Recipe[Any], store: Store, what: str, name: str | None) -> str:
    """Have the ledgers of the recipe's generators, or of the one called `name`, give up what `what` says; in words.

    `what` is `all`, `bucket:` and two hexadecimal digits, or a file with a document's id on each line: then the corpus
    must have been split. What was asked for last and has not been built yet is not asked for again, so a command that
    was cut off can be given again.
    """
    with session(Session(store, planning=True)):
        writer, passages = writer_of(recipe, store)
    generators = _named(writer.generators, name)
    if what == ALL:
        more, words = Replaced(all=1), "all passages"
    elif found := BUCKET.fullmatch(what):
        more, words = Replaced(buckets={found[1].lower(): 1}), f"the passages of bucket {found[1].lower()}"
    else:
        more, words = _of_documents(Path(what), passages, store)
    lines = []
    for generator in generators:
        ledger = generator.writing().ledger_in(store.root, generator.model)
        with store.lock("ledger", f"{ledger.key}-replaced", lambda: None):
            waits = _waits(ledger, more, store)
            if not waits:
                ledger.replace(more)
        how = "asked for before, and not built yet" if waits else "replaced"
        lines.append(f"{how}: {words}, of {generator.name}")
    return "\n".join(lines)


def _waits(ledger: Ledger, more: Replaced, store: Store) -> bool:
    """Whether just this was asked for last, and no corpus has been made since."""
    last = ledger.replaced()
    if last is None or Replaced.last(last) != more:
        return False
    made = store.root / generate_queries.name
    manifests = [store.manifest(generate_queries.name, folder.name) for folder in made.glob("*/")]
    return not any(each and each.inputs.get("replaced") == last.reference for each in manifests)


def _named(generators: list[Generator], name: str | None) -> list[Generator]:
    if not generators:
        raise UserError("--replace: this corpus was imported, so no generator can write others; import another file")
    found = [each for each in generators if name in (None, each.name)]
    if not found:
        there = ", ".join(repr(each.name) for each in generators)
        raise UserError(f"--generator {name}: expected one of the recipe's generators, {there}")
    return found


def _of_documents(file: Path, passages: Artifact[Passages], store: Store) -> tuple[Replaced, str]:
    """The passages of a file's documents."""
    if not (wanted := set(_ids(file))):
        raise UserError(f"{file}: expected a document's id on each line, found none")
    if store.manifest(passages.stage, passages.key) is None:
        raise UserError(
            f"--replace {file}: the corpus as it is now has not been split; `pretrieve queries build` it, then replace"
        )
    store.check(passages)
    texts: dict[str, int] = {}
    found: set[str] = set()
    for row in read_rows(passages, Passages):
        if row["doc_id"] in wanted:
            found.add(row["doc_id"])
            texts[passage_sha256(passage_text(row["title"], row["text"]))] = 1
    if missing := sorted(wanted - found):
        raise UserError(
            f"{file}: {len(missing)} of {len(wanted)} documents are not in {passages.reference}, such as "
            f"{', '.join(missing[:SHOWN])}; expected ids of its doc_id; nothing was replaced"
        )
    return Replaced(texts=texts), f"{len(texts):,} passages of {len(found):,} documents"


def _ids(file: Path) -> Iterator[str]:
    """The lines of a file of ids."""
    if not file.is_file():
        raise UserError(
            f"--replace {file}: expected `all`, `bucket:` and two hexadecimal digits, or a file of document ids; there "
            "is no such file"
        )
    for _, line in read_lines(file):
        if line.strip():
            yield line.strip()
