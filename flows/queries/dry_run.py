"""`pretrieve queries build --dry-run`: what a build would generate, and how long that would take."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flows.chain.given_inputs import inputs_reported_together
from flows.chain.given_models import check_models
from flows.chain.pseudo_queries import Generator
from flows.plan.plan import with_inputs
from flows.queries.chain import generators_of
from flows.queries.versions import Version, versions_of
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.shipped import recipe_name
from flows.terminal import Terminal, say, say_json
from storage.artifact import Artifact
from storage.external.database import Database
from storage.store.run_notes import noted
from storage.store.store import Store
from storage.tables import Passages
from tasks.job import needed_references
from tasks.pseudo_queries.generate_queries import fill_ledger, generate_queries
from tasks.pseudo_queries.pending_queries import compare_passages, count_pending, measured_rate, recorded_rate
from tasks.runtime.formatting import duration
from tasks.session import Session, session
from tasks.stage import run_job


def show_dry_run(
    name: str, folder: Path, changes: Sequence[str], version_name: str | None = None, as_json: bool = False
) -> None:
    """Print how many passages are new, changed and removed, and what each generator would generate, or print JSON."""
    result = dry_run(name, folder, changes, version_name, Terminal(stderr=True).print)
    if as_json:
        say_json(result)
        return
    for line in in_words(result):
        say(line)
    say("nothing was generated")


def dry_run(
    name: str, folder: Path, changes: Sequence[str], version_name: str | None, print_line: Callable[[str], None]
) -> dict[str, Any]:
    """Return how many passages are new, changed and removed, and what each generator would generate.

    The collection is split for this; the passages stay in the store, where the build finds them. Nothing else is built.
    """
    recipe, path = load_recipe(name, changes)
    title, store = version_name or recipe_name(path), Store.open_or_new(folder)
    with session(Session(store, recipe.execution, planning=True)) as plan, inputs_reported_together(plan):
        corpus_generators, passages = generators_of(recipe, store)
    check_models(plan.jobs, plan)
    with noted(store, "queries build --dry-run", title, needed_references(plan.jobs.values())) as note:
        current = Session(store, recipe.execution, print_line=print_line, note=note)
        with session(current):
            for reference, job in with_inputs(plan.jobs, [passages.reference]).items():
                current.done[reference] = run_job(job, current)
            result = _survey(title, recipe, corpus_generators.generators, passages, store)
        note.finish()
    return result


def _survey(
    title: str, recipe: Recipe[Any], generators: list[Generator], passages: Artifact[Passages], store: Store
) -> dict[str, Any]:
    """Return the value that is printed."""
    previous = next(reversed(versions_of(title, store)), None)
    with tempfile.TemporaryDirectory(prefix="pretrieve-") as scratch, Database(Path(scratch) / "database") as database:
        counts = compare_passages(database, _stored_passages(previous, store), passages)
        listed = [_of_generator(generator, database, passages, store) for generator in generators]
    return {
        "recipe": title, "previous": previous.name if previous else None, "passages": counts, "generators": listed,
    }  # fmt: skip


def _stored_passages(previous: Version | None, store: Store) -> Artifact[Passages] | None:
    """Return the passages of a version; None where there is no version, or its passages were deleted."""
    if previous is None or store.manifest(previous.passages.stage, previous.passages.key) is None:
        return None
    store.check(previous.passages)
    return previous.passages


def _of_generator(
    generator: Generator, database: Database, passages: Artifact[Passages], store: Store
) -> dict[str, Any]:
    settings = generator.stage_settings()
    pending = count_pending(database, settings.ledger_in(store.root, generator.model), settings)
    stages = (generate_queries.name, fill_ledger.name)
    builds = [(folder, manifest) for folder, manifest in store.manifests() if folder.parent.name in stages]
    rate = recorded_rate(builds, generator.model)
    if rate is None and pending.to_generate:
        rate = measured_rate(generator.model, settings, passages)
    return {
        "name": generator.name, "cached": pending.cached, "to_generate": pending.to_generate,
        "passages": pending.passages,
        "seconds": round(pending.to_generate / rate.queries_per_second, 3) if rate else None,
        "rate": round(rate.queries_per_second, 3) if rate else None, "rate_from": rate.measured if rate else None,
    }  # fmt: skip


def in_words(result: dict[str, Any]) -> list[str]:
    """Return the lines for a user."""
    counts, previous = result["passages"], result["previous"]
    fates = ", ".join(f"{counts[fate]:,} {fate}" for fate in ("new", "changed", "removed", "moved", "same"))
    compared = f"compared with {previous}" if previous else "of a first version"
    lines = [f"{result['recipe']}: passages {compared}: {fates}"]
    for generator in result["generators"]:
        line = f"{generator['name']}: {generator['to_generate']:,} queries to generate for {generator['passages']:,} "
        line += f"passages, {generator['cached']:,} are cached"
        if generator["to_generate"] and generator["rate"]:
            line += f"; about {duration(generator['seconds'])} at {generator['rate']:,.2f} queries a second "
            line += f"({generator['rate_from']})"
        elif generator["to_generate"]:
            line += "; no rate is known, since the generator is still to be trained"
        lines.append(line)
    if not result["generators"]:
        lines.append("its queries are imported from a file; nothing would be generated")
    return lines
