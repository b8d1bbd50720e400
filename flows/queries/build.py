"""`pretrieve queries build` and `import`: a corpus of pseudo-queries, made or brought up to date."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.chain.given_models import check_models
from flows.queries.chain import Corpus, corpus
from flows.queries.page import publish_page, show_queries
from flows.queries.regenerate import replace
from flows.queries.versions import Version, note_version
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.shipped import recipe_name
from flows.reproduce import as_flow
from flows.terminal import say, unwrapped
from storage.artifact import Artifact
from storage.errors import UserError
from storage.store.run_notes import noted
from storage.store.store import Store
from tasks.pseudo_queries.compare_queries import compare_queries
from tasks.session import Session, session

NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")
INSTEAD_OF_GENERATORS = ("model=null", "train=null", "generate=null", "also=[]", "shares=1")
FILTERED = {"filtered_out": "now dropped by the filter", "let_in": "no longer dropped by the filter"}


@dataclass(frozen=True)
class Built:
    """A version that was built, or found built."""

    version: Version
    before: Version | None
    """The version before it."""
    comparison: Artifact[Any] | None
    page: Path

    def in_words(self) -> str:
        """What has become of the queries of the version before."""
        lines = [f"{self.version.name}: {self.version.queries.reference}"]
        if self.comparison is not None and self.before is not None:
            counts = json.loads((self.comparison.path / "comparison.json").read_text())["queries"]
            fates = [f"{counts[fate]:,} {fate}" for fate in ("kept", "made", "rewritten", "dropped")]
            fates += [f"{counts[fate]:,} {words}" for fate, words in FILTERED.items() if counts[fate]]
            lines.append(f"beside {self.before.name}: {', '.join(fates)} (`pretrieve queries diff` says more)")
        return "\n".join([*lines, f"page: {self.page}"])


def build(
    name: str, folder: Path, changes: Sequence[str], replaced: str | None = None, generator: str | None = None,
    called: str | None = None,
) -> None:  # fmt: skip
    """Split the corpus, write what the ledgers lack of its queries, and say what was kept, made and dropped.

    Its versions are `called` so, or as the recipe.
    """
    recipe, path = load_recipe(name, changes)
    title, store = called or recipe_name(path), Store.open_or_new(folder)
    if not NAME.fullmatch(title):
        raise UserError(f"{title}: cannot name versions; expected letters, digits, dots, - and /; give --as NAME")
    if generator is not None and replaced is None:
        raise UserError(f"--generator {generator}: says whose queries --replace gives up; give both")
    console = unwrapped(stderr=True)
    current = Session(store, recipe.execution, tell=console.print)
    if replaced is not None:
        planned_corpus(recipe, store)  # what is wrong with the recipe is told before anything is given up
        console.print(replace(recipe, store, replaced, generator))
    plan = planned_corpus(recipe, store)
    steps = plan.done
    check_models(plan)
    with noted(store, "queries build", title, steps) as current.note:
        missing = sum(store.manifest(step.stage, step.key) is None for step in steps.values())
        counts = f"{len(steps)} stages, {len(steps) - missing} cached, {missing} to build"
        console.print(f"{recipe.title}: pseudo-queries: {counts}; store {store.root}")
        say(_run(recipe, title, current, missing > 0).in_words())
        current.note.finish()


def _run(recipe: Recipe[Any], title: str, current: Session, as_a_flow: bool) -> Built:
    """Build the corpus in this process, as a Prefect flow where something is missing, and note its version."""
    store = current.store

    def body() -> Built:
        with session(current):
            return built(corpus(recipe, store), title, store)

    def shown() -> Built:
        made = body()
        show_queries(title, made.page)
        return made

    return as_flow("generate_queries", title, current, shown) if as_a_flow else body()


def import_file(name: str, file: str, folder: Path, changes: Sequence[str], generator: str, called: str | None) -> None:
    """Make a version of the recipe's corpus of queries that were written elsewhere."""
    instead = [f"queries.{each}" for each in INSTEAD_OF_GENERATORS]
    given = [f"queries.generator={json.dumps(generator)}", f"queries.file={json.dumps(str(Path(file).resolve()))}"]
    build(name, folder, [*changes, *instead, *given], called=called)


def planned_corpus(recipe: Recipe[Any], store: Store) -> Session:
    """Every stage of the recipe's corpus: how it would be called, its key, and whether the store has it."""
    with session(Session(store, recipe.execution, planning=True)) as plan:
        corpus(recipe, store)
    return plan


def built(made: Corpus, name: str, store: Store) -> Built:
    """Note a corpus as a version, compare it with the one before, and publish its page."""
    version, before = note_version(name, made.queries, made.passages, made.quality, store)
    comparison = (
        compare_queries(before=before.queries, after=made.queries) if before and is_there(before, store) else None
    )
    return Built(version, before, comparison, publish_page(store.root, name, made.quality, comparison))


def is_there(version: Version, store: Store) -> bool:
    """Whether the store still has a version's queries."""
    return store.manifest(version.queries.stage, version.queries.key) is not None
