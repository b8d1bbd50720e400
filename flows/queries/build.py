"""`pretrieve queries build` and `import`: build a corpus of pseudo-queries, or update it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.build import print_stages
from flows.chain.given_inputs import inputs_reported_together
from flows.chain.given_models import check_models
from flows.prefect_server.as_flow import as_flow
from flows.prefect_server.named_server import named_server
from flows.queries.chain import PseudoQueryCorpus, corpus
from flows.queries.page import publish_page, show_queries
from flows.queries.regenerate import replace
from flows.queries.versions import Version, note_version
from flows.recipe.changes import given_collection
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.shipped import recipe_name
from flows.run_names import run_name
from flows.terminal import say, unwrapped
from storage.artifact import Artifact
from storage.errors import UserError
from storage.store.run_notes import noted
from storage.store.store import Store
from tasks.job import needed_references
from tasks.pseudo_queries.compare_queries import compare_queries
from tasks.pseudo_queries.train_generator import train_generator
from tasks.report.page.corpus_page import QUERY_FATES
from tasks.session import Session, session

NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")
INSTEAD_OF_GENERATORS = ("model=null", "train=null", "generate=null", "also=[]", "shares=1")
FILTERED = {"filtered_out": "now dropped by the filter", "let_in": "no longer dropped by the filter"}


@dataclass(frozen=True)
class BuildResult:
    """The version that a build ended with, new or cached."""

    version: Version
    previous: Version | None
    """The version before it."""
    comparison: Artifact[Any] | None
    page: Path

    def summary(self) -> str:
        """Return in words what has become of the queries of the previous version."""
        lines = [f"{self.version.name}: {self.version.queries.path}"]
        if self.comparison is not None and self.previous is not None:
            counts = json.loads((self.comparison.path / "comparison.json").read_text(encoding="utf-8"))["queries"]
            fates = [f"{counts[fate]:,} {QUERY_FATES[fate]}" for fate in ("kept", "made", "rewritten", "dropped")]
            fates += [f"{counts[fate]:,} {words}" for fate, words in FILTERED.items() if counts[fate]]
            lines.append(f"compared with {self.previous.name}: {', '.join(fates)} (details: `pretrieve queries diff`)")
        return "\n".join([*lines, f"page: {self.page}"])


def build(
    name: str, folder: Path, changes: Sequence[str], replaced: str | None = None, generator: str | None = None,
    version_name: str | None = None,
) -> None:  # fmt: skip
    """Build a version of a corpus with the lines of its stages on standard error, and print what has changed."""
    print_line = unwrapped(stderr=True).print
    result = built(name, folder, changes, replaced, generator, version_name, print_line=print_line)
    say(result.summary())
    say(next_commands(result.version.name, folder))


def next_commands(version: str, folder: Path) -> str:
    """Return the commands that read a version of a store, one on each line."""
    store = "" if folder == Path("artifacts") else f" --store {shlex.quote(str(folder))}"
    return (
        f"next: pretrieve queries export {version} DIR --format beir{store}\n"
        f"      pretrieve queries stats {version}{store}"
    )


def built(
    name: str, folder: Path, changes: Sequence[str], replaced: str | None = None, generator: str | None = None,
    version_name: str | None = None, *, print_line: Callable[[str], None], with_server: bool = True,
) -> BuildResult:  # fmt: skip
    """Split the corpus and generate the queries that the generation cache lacks; return the version.

    Versions are named `version_name`, or like the recipe. `replaced` first invalidates queries (`regenerate.replace`).
    Without `with_server` no build is a Prefect flow.
    """
    recipe, path = load_recipe(name, changes)
    title, store = version_name or recipe_name(path), Store.open_or_new(folder)
    if not NAME.fullmatch(title):
        raise UserError(f"{title}: cannot name versions; expected letters, digits, dots, - and /; give --as NAME")
    if generator is not None and replaced is None:
        raise UserError(f"--generator {generator}: says whose queries --replace resamples; give both")
    collection = given_collection(recipe, changes) or recipe.dataset.description
    current = Session(store, recipe.execution, print_line=print_line)
    if replaced is not None:
        planned_corpus(recipe, store)  # errors of the recipe come before anything is invalidated
        print_line(replace(recipe, store, replaced, generator))
    plan = planned_corpus(recipe, store)
    steps = plan.done
    check_models(plan.jobs, plan)
    with noted(store, "queries build", title, needed_references(plan.jobs.values())) as current.note:
        missing = print_stages(f"pseudo-queries of {collection}", steps, current)
        is_flow = with_server and missing and _is_a_flow(plan, store)
        shown = page_heading(recipe, title, changes)
        flow_name = run_name(title, recipe.seed, changes) if is_flow else None
        result = _run(recipe, title, current, flow_name, shown)
        current.note.finish()
    return result


def page_heading(recipe: Recipe[Any], title: str, changes: Sequence[str]) -> str:
    """Return the heading of a version's page: the collection that the user gave, and the version's name."""
    given = given_collection(recipe, changes)
    return f"{given} ({title})" if given else title


def _is_a_flow(plan: Session, store: Store) -> bool:
    """Return whether a build is a flow run: on a server that the user has named, or where a generator is trained.

    A build that only adds queries to a corpus takes seconds, in which no embedded server needs to start.
    """
    trained = (step for step in plan.done.values() if step.stage == train_generator.name)
    is_trained = any(store.up_to_date(step.stage, step.key) is None for step in trained)
    return is_trained or named_server() is not None


def _run(recipe: Recipe[Any], title: str, current: Session, flow_name: str | None, shown: str) -> BuildResult:
    """Build the corpus in this process, as a Prefect flow where its name is given; record its version.

    `shown` is the heading of its page.
    """
    store = current.store

    def body() -> BuildResult:
        with session(current):
            return record_version(corpus(recipe, store), title, store, shown)

    def with_page() -> BuildResult:
        result = body()
        show_queries(title, result.page)
        return result

    return as_flow("generate_queries", flow_name, current, with_page) if flow_name else body()


def import_file(
    name: str, file: str, folder: Path, changes: Sequence[str], generator: str, version_name: str | None
) -> None:
    """Build a version of the recipe's corpus from queries that were generated elsewhere."""
    without_generators = [f"queries.{change}" for change in INSTEAD_OF_GENERATORS]
    file_and_name = [
        f"queries.generator={json.dumps(generator)}",
        f"queries.file={json.dumps(str(Path(file).resolve()))}",
    ]
    build(name, folder, [*changes, *without_generators, *file_and_name], version_name=version_name)


def planned_corpus(recipe: Recipe[Any], store: Store) -> Session:
    """Return a planning session with every stage of the recipe's corpus."""
    with session(Session(store, recipe.execution, planning=True)) as plan, inputs_reported_together(plan):
        corpus(recipe, store)
    return plan


def record_version(built: PseudoQueryCorpus, name: str, store: Store, shown: str | None = None) -> BuildResult:
    """Record a corpus as a version, compare it with the previous one, and publish its page with the heading `shown`."""
    version, previous = note_version(name, built.queries, built.passages, built.quality, store)
    comparison = (
        compare_queries(before=previous.queries, after=built.queries)
        if previous and is_stored(previous, store)
        else None
    )
    page = publish_page(store.root, name, built.quality, comparison, shown)
    return BuildResult(version, previous, comparison, page)


def is_stored(version: Version, store: Store) -> bool:
    """Return whether the store still has a version's queries."""
    return store.manifest(version.queries.stage, version.queries.key) is not None
