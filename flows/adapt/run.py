"""`pretrieve adapt`: adapt a retriever to a collection, and return it only if it is better than its start.

The work is that of ordinary commands on files in the output folder: `queries build` where there is a generator,
`reproduce` of the recipe, and `evaluate` of its checkpoints next to the start. The same command resumes it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flows.adapt import collections as data
from flows.adapt import hours, recipes, results
from flows.adapt.chunk import chunk_that_fits
from flows.adapt.decision import Decision, decide
from flows.adapt.judgements import read_judgements
from flows.adapt.request import Request, check, started
from flows.adapt.survey import survey
from flows.adapted_folder import read_json
from flows.chain.given_models import check_models
from flows.evaluate.evaluate import EvaluationRequest, evaluated
from flows.evaluate.systems import named_system
from flows.finished_runs import FinishedRun, finished_run
from flows.plan.plan import planned
from flows.queries.build import built as built_queries
from flows.queries.dry_run import dry_run, in_words
from flows.recipe.load import load_recipe
from flows.recipe.suite_schema import Collection, Suite
from flows.reproduce import reproduced
from storage.artifact import Artifact
from storage.datasets.support.collection_files import kind, read_documents
from storage.errors import UserError
from storage.files import write_atomically
from storage.formats.records import TextRow
from storage.rows import read_rows
from storage.store import sources
from storage.store.store import Store
from storage.tables import PseudoQueries
from tasks.retrieval.encode import views_and_max_tokens
from tasks.retrieval.stated_model import stated_model
from tasks.runtime.formatting import duration


@dataclass(frozen=True)
class Adaptation:
    """A finished adaptation."""

    out: Path
    decision: Decision
    page: Path
    """The report of the adaptation."""


def adapt(
    request: Request, store_folder: Path, print_line: Callable[[str], None], *, with_server: bool = True
) -> Adaptation:
    """Adapt a model to a collection, and write model, index, recipe and report to the output folder.

    Raises UserError for what the user can fix, and for an output folder that belongs to another request.
    """
    check(request, store_folder)
    start, store = start_of(request), Store.open_or_new(store_folder)
    surveyed = survey(kind(request.collection), read_documents(request.collection))
    if surveyed.documents == surveyed.empty:
        raise UserError(f"{request.collection}: expected documents with a text, found none; name another collection")
    for line in surveyed.lines():
        print_line(line)
    documents = list(read_documents(request.collection))
    judgements = None
    if request.judgements is not None:
        judgements = read_judgements(request.judgements, {row["doc_id"] for row in documents}, surveyed.form)
    with started(request):
        generated = None
        if request.generator is None:
            pseudo = data.of_salient_sentences(documents, surveyed.language)
        else:
            generated = generated_queries(
                request, request.generator, documents, start, surveyed.language, store,
                print_line=print_line, with_server=with_server,
            )  # fmt: skip
            pseudo = data.of_generated(documents, kept_by_document(generated))
        counts = data.write_collections(
            request.out, documents, pseudo, judgements, None if generated else request.hours
        )
        split = f"{counts[data.TRAIN]:,} to train on, {counts[data.HELDOUT]:,} held out"
        print_line(f"pseudo-queries: {split} ({_method(request)})")
        num_judged = 0
        if judgements is not None:
            num_judged, left_out = len(judgements.queries), len(judgements.left_out)
            note = f" (left out: {left_out:,} without a relevant document)" if left_out else ""
            print_line(f"judged queries, which also decide: {num_judged:,}{note}")
        judged = [] if judgements is None else [_collection(request, data.ORIGINAL, data.JUDGED)]
        collections = [_collection(request, data.TRAINING, data.HELDOUT), *judged]
        suite = results.suite(start, collections, request.name, surveyed.language)
        queries = counts | ({} if judgements is None else {data.JUDGED: len(judgements.queries)})
        known = hours.amounts(documents, queries, start, surveyed.language)
        print_line(f"passages: about {known.passages:,}, of {known.mean_tokens:.0f} tokens on average")
        file, size, estimate = _recipe(request, start, known, suite, data.digest(request.out), print_line, store)
    page = reproduced(str(file), store_folder, [], print_line=print_line, with_server=with_server)
    if page is None:
        raise TypeError("a complete run always has a report")
    evaluation = _evaluated(request, size, suite, store, print_line, with_server)
    content = json.loads(evaluation.with_suffix(".json").read_text(encoding="utf-8"))
    content["comparisons"] = results.deciding_tests(content, store)
    decision = _decision(content, size.candidates(request.teacher))
    checkpoints = checkpoints_of(request, store)
    model = results.write_model(request, decision, checkpoints, store)
    original = _collection(request, data.ORIGINAL, data.JUDGED)
    index = results.write_index(request.out, model, original, start, surveyed, store)
    plan = hours.planned_adaptation(file, store, suite, original, start)
    measured = content["inputs"]
    facts = {
        "run": run_of(request, store).report.key,
        "judged_queries": num_judged,
        "judged": f"evaluate/{measured[data.JUDGED]}" if data.JUDGED in measured else None,
        "generated": generated and generated.reference,
        "survey": surveyed.as_json(), "languages": surveyed.shares(), "counts": counts, "method": _method(request),
        "size": size.name, "estimated_seconds": 3600 * estimate,
        "stage_seconds": hours.seconds_of_stages(plan, index, store),
        "request": request.as_json(), "index": index, "recipe": file.name, "metric": recipes.METRIC,
        "checkpoints": {name: checkpoints[name] for name in size.candidates(request.teacher)},
    }  # fmt: skip
    pages = {"training": page, "evaluation": evaluation}
    return Adaptation(request.out, decision, results.write_report(request.out, decision, content, facts, pages))


def start_of(request: Request) -> recipes.Start:
    """Return the start with what it reads. Raises UserError for a model that is no dense bi-encoder."""
    folder = sources.weights(request.start).path
    views, max_tokens = views_and_max_tokens(folder)
    if views != ("dense",):
        raise UserError(f"--start {request.start}: expected one dense vector, found {' + '.join(views)}; name another")
    most = views_and_max_tokens(sources.weights(request.teacher).path)[1] if request.teacher else max_tokens
    return recipes.Start(request.start, stated_model(folder), max_tokens, request.teacher, most)


def _method(request: Request) -> str:
    if request.generator:
        return f"generated by {request.generator}"
    return "no generator: titles and salient sentences, which are removed from their documents, and parts of them"


def generated_queries(
    request: Request, generator: str, documents: Sequence[TextRow], start: recipes.Start, language: str, store: Store,
    *, print_line: Callable[[str], None], with_server: bool,
) -> Artifact[PseudoQueries]:  # fmt: skip
    """Return the queries that a generator writes for all passages; those that do not find theirs are not kept."""
    name, folder = f"{request.name}_queries", request.out / data.ORIGINAL
    data.write_originals(folder, documents)
    size = recipes.SIZES[-1]
    content = recipes.recipe_content(request.name, folder.resolve(), start, size, language)
    file = request.out / f"{name}.yaml"
    _write_recipe(file, recipes.query_recipe_content(content, folder.resolve(), generator))
    for line in in_words(dry_run(str(file), store.root, [], None, print_line)):
        print_line(line)
    result = built_queries(str(file), store.root, [], print_line=print_line, with_server=with_server)
    print_line(result.summary())
    return result.version.queries


def kept_by_document(generated: Artifact[PseudoQueries]) -> dict[str, list[str]]:
    """Return the queries that are kept, by document id."""
    queries: dict[str, list[str]] = defaultdict(list)
    for row in read_rows(generated, PseudoQueries):
        if row["kept"]:
            queries[row["doc_id"]].append(row["query"])
    return queries


def _recipe(
    request: Request,
    start: recipes.Start,
    known: hours.Amounts,
    suite: Suite,
    digest: str,
    print_line: Callable[[str], None],
    store: Store,
) -> tuple[Path, recipes.Size, float]:
    """Return the recipe, its size and hours: those of an earlier call on these texts, else the largest that fits.

    Raises UserError for a model that the recipe cannot use, before anything is built.
    """
    file, chosen = request.out / f"{request.name}.yaml", request.out / "size.json"
    if chosen.is_file() and file.is_file():
        earlier = read_json(chosen, "size", "hours", "texts")
        size = next((size for size in recipes.SIZES if size.name == earlier["size"]), None)
        if size and earlier["texts"] == digest:
            _check_candidates(file, size.candidates(request.teacher))
            print_line(f"recipe: {file} ({size.name}), chosen by an earlier call")
            return file, size, earlier["hours"]
        print_line(f"documents or queries are not those of the last call; {file} is planned and written again")
    folder = (request.out / data.TRAINING).resolve()

    def write(size: recipes.Size, chunk: int | None) -> None:
        content = recipes.recipe_content(request.name, folder, start, size, suite.split.language, chunk)
        _write_recipe(file, content | {"seed": request.seed})

    estimates: dict[recipes.Size, float] = {}
    original = _collection(request, data.ORIGINAL, data.JUDGED)
    sizes = recipes.sizes(request.size)
    write(sizes[0], None)  # the models are the same in all
    plan = planned(load_recipe(str(file))[0], file.stem, store)
    check_models(plan.jobs, plan)
    chunk = chunk_that_fits(file)
    for size in sizes:
        write(size, chunk)
        estimate, origin = hours.estimated_hours(file, store, known, suite, original, start)
        if estimates and estimate >= min(estimates.values()):
            continue  # a fixed number of steps may be more than the epochs of a small collection, so it fits no better
        estimates[size] = estimate
        print_line(f"plan {size.name!r}: about {duration(estimate * 3600)} on this machine with all stages, {origin}")
        if estimate <= request.hours or request.size:
            break
    else:
        size = min(estimates, key=estimates.__getitem__)
        write(size, chunk)
        takes = duration(estimates[size] * 3600)
        limit = f"more than --hours {request.hours:g}"
        print_line(f"even the smallest plan, {size.name!r}, takes about {takes}, {limit}; it is run")
    write_atomically(chosen, json.dumps({"size": size.name, "hours": estimates[size], "texts": digest}) + "\n")
    print_line(f"recipe: {file} ({size.name}); candidates: {', '.join(size.candidates(request.teacher))}")
    return file, size, estimates[size]


def _check_candidates(file: Path, candidates: Sequence[str]) -> None:
    """Raise UserError where a round was removed or renamed that the decision has as a candidate."""
    rounds = {round_.name for round_ in load_recipe(str(file))[0].rounds}
    if missing := [name for name in candidates if name not in rounds]:
        raise UserError(
            f"{file}: the plan's candidates are {', '.join(candidates)}, and the recipe has no round "
            f"{', '.join(missing)}; add it again, or remove the file, which is then written again"
        )


def _write_recipe(file: Path, content: dict[str, Any]) -> None:
    write_atomically(file, yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=110))


def _collection(request: Request, folder: str, split: str) -> Collection:
    return Collection(name=split, reader="beir", path=str((request.out / folder).resolve()), eval_split=split)


def _evaluated(
    request: Request, size: recipes.Size, suite: Suite, store: Store, print_line: Callable[[str], None],
    with_server: bool,
) -> Path:  # fmt: skip
    """Measure the start as it is published, and every candidate, on the held-out and the judged queries."""
    systems = [named_system(f"{recipes.START}={request.start}", suite, store)]
    checkpoints = checkpoints_of(request, store)
    systems += [named_system(f"{name}={checkpoints[name]}", suite, store) for name in size.candidates(request.teacher)]
    systems.append(named_system("bm25", suite, store))
    evaluation = EvaluationRequest(request.name, suite, suite.collections, {}, systems)
    return evaluated(evaluation, store, print_line=print_line, with_server=with_server)


def run_of(request: Request, store: Store) -> FinishedRun:
    """Return the run that has trained the candidates of a request."""
    published = store.root / "reports" / request.name / "report.json"
    return finished_run(json.loads(published.read_text(encoding="utf-8"))["inputs"]["report"], store)


def checkpoints_of(request: Request, store: Store) -> dict[str, str]:
    """Return the keys of the checkpoints that a request's run has trained, by the names of their rounds."""
    references = run_of(request, store).checkpoints
    return {name: reference.partition("/")[2] for name, reference in references.items()}


def _decision(content: dict[str, Any], candidates: Sequence[str]) -> Decision:
    """Return the decision by the measurements of `_evaluated`."""
    metric = recipes.METRIC
    tests = [row for row in content["comparisons"] if row["metric"] == metric and row["run"] in candidates]
    values = {(row["dataset"], row["run"]): row["value"] for row in content["rows"] if row["metric"] == metric}
    return decide(tests, values, candidates)
