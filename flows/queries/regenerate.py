"""Invalidate queries of a part of a corpus, so that the next build resamples them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.chain.pseudo_queries import Generator
from flows.queries.chain import generators_of
from flows.queries.versions import all_versions
from flows.recipe.replacement import ALL, BUCKET, EXPECTED
from flows.recipe.schema import Recipe
from storage.artifact import Artifact
from storage.errors import UserError
from storage.formats.lines import read_lines
from storage.generation_cache.cache import GenerationCache
from storage.generation_cache.invalidations import Invalidations
from storage.rows import read_rows
from storage.store.lookup import lineage
from storage.store.store import Store
from storage.tables import Passages, passage_sha256, passage_text
from tasks.session import Session, session

SHOWN = 5


def replace(recipe: Recipe[Any], store: Store, what: str, name: str | None) -> str:
    """Invalidate queries in the caches of the recipe's generators, or of the one named `name`; return a summary.

    `what` is `all`, `bucket:` and two hexadecimal digits, or a file with a document's id on each line; for a file the
    corpus must have been split. An invalidation that was requested last and has not been built yet is not repeated, so
    that an interrupted command can be run again.
    """
    with session(Session(store, planning=True)):
        corpus_generators, passages = generators_of(recipe, store)
    generators = _named(corpus_generators.generators, name)
    if what == ALL:
        more, words = Invalidations(all=1), "all passages"
    elif bucket := BUCKET.fullmatch(what):
        more, words = Invalidations(buckets={bucket[1].lower(): 1}), f"the passages of bucket {bucket[1].lower()}"
    else:
        more, words = _of_documents(Path(what), passages, store)
    lines = []
    for generator in generators:
        cache = generator.stage_settings().ledger_in(store.root, generator.model)
        with store.lock("ledger", f"{cache.key}-replaced", lambda: None):
            pending = _is_pending(cache, more, store)
            if not pending:
                cache.invalidate(more)
        how = "requested before, and in no version yet" if pending else "replaced"
        lines.append(f"{how}: {words}, of {generator.name}")
    return "\n".join(lines)


def _is_pending(cache: GenerationCache, more: Invalidations, store: Store) -> bool:
    """Return whether the same was requested last, and no version has queries of it yet.

    Generated queries alone are not enough: a build that was interrupted after them would resample them once more.
    """
    last = cache.invalidated()
    if last is None or Invalidations.last(last) != more:
        return False
    versions = [version.queries.reference for version in all_versions(store)]
    return not any(last.reference in lineage(reference, store) for reference in versions)


def _named(generators: list[Generator], name: str | None) -> list[Generator]:
    if not generators:
        raise UserError("--replace: this corpus was imported, so no generator can resample it; import another file")
    matches = [generator for generator in generators if name in (None, generator.name)]
    if not matches:
        known = ", ".join(repr(generator.name) for generator in generators)
        raise UserError(f"--generator {name}: expected one of the recipe's generators, {known}")
    return matches


def _of_documents(file: Path, passages: Artifact[Passages], store: Store) -> tuple[Invalidations, str]:
    """Return the invalidation of the passages of a file's documents, and a description."""
    if not (wanted := set(_ids(file))):
        raise UserError(f"{file}: expected a document's id on each line, but the file has none")
    if store.manifest(passages.stage, passages.key) is None:
        raise UserError(
            f"--replace {file}: the corpus as it is now has not been split; `pretrieve queries build` it, then replace"
        )
    store.check(passages)
    texts: dict[str, int] = {}
    seen: set[str] = set()
    for row in read_rows(passages, Passages):
        if row["doc_id"] in wanted:
            seen.add(row["doc_id"])
            texts[passage_sha256(passage_text(row["title"], row["text"]))] = 1
    if missing := sorted(wanted - seen):
        raise UserError(
            f"{file}: {len(missing)} of {len(wanted)} documents are not in {passages.reference}, such as "
            f"{', '.join(missing[:SHOWN])}; expected ids of its doc_id; nothing was replaced"
        )
    return Invalidations(texts=texts), f"{len(texts):,} passages of {len(seen):,} documents"


def _ids(file: Path) -> Iterator[str]:
    """Yield the ids of a file, one per line."""
    if not file.is_file():
        raise UserError(f"--replace {file}: {EXPECTED}; there is no such file")
    for _, line in read_lines(file):
        if line.strip():
            yield line.strip()
