"""Find what a finished run or an adaptation has to browse."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.adapt.collections import HELDOUT, TRAIN
from flows.adapt.decision import NAMES
from flows.adapt.request import OTHER_FOLDER, REQUEST
from flows.adapted_folder import ADAPTED, MODEL, encoder_of, is_adapted, read_json
from flows.browse.contents import Collection, Contents, DocumentQueries, RankedSystem, Training
from flows.finished_runs import PAGE, FinishedRun, Measurement, finished_run
from flows.recipe.shipped import shipped_recipes
from storage.artifact import Artifact, Manifest
from storage.errors import UserError
from storage.store.lookup import artifact, lookup, must_exist
from storage.store.store import Store
from storage.tables import Positives, PseudoQueries, Qrels, Queries, Run
from tasks.retrieval.interactive import Searched

DATA = ("passages", "queries", "positives", "negatives")
"""The inputs of a training that `Training` has, in this order."""


def contents_of(name: str | None, folder: Path) -> Contents:
    """Return the contents of a finished run, of the folder of an adaptation, or of the newest run of a store.

    Raises UserError where there is no finished run.
    """
    if name is not None and is_adapted(name):
        return _of_adaptation(Path(name))
    store = Store.open_or_new(folder)
    if name is None:
        return _of_run(finished_run(newest_run(store), store))
    try:
        return _of_run(finished_run(name, store))
    except UserError as error:
        if Path(name).exists() or name in shipped_recipes():
            raise
        raise UserError(f"{error}; for an adaptation, name the folder of `pretrieve adapt … --out DIR`") from None


def newest_run(store: Store) -> str:
    """Return the folder of the newest published report of a recipe. Raises UserError where there is none."""
    pages = sorted((store.root / "reports").rglob(PAGE), key=lambda page: page.stat().st_mtime, reverse=True)
    for page in pages:
        if "report" in json.loads(page.read_text(encoding="utf-8")).get("inputs", {}):
            return str(page.parent)
    raise UserError(
        f"{store.root}: no finished run to browse; `pretrieve reproduce quickstart` builds one, or name another --store"
    )


def _of_run(run: FinishedRun, extra: Sequence[Collection] = ()) -> Contents:
    settings: Mapping[str, Any] = run.report.settings
    descriptions: dict[str, str] = settings["runs"]
    return Contents(
        name=str(settings["recipe"]), title=str(settings["title"]), description=str(settings["dataset"]),
        metric=str(settings["metric"]), preferred=(str(settings["main"]), str(settings["baseline"])), store=run.store,
        collections=[*extra, *(_collection(measurement, descriptions) for measurement in run.measurements)],
        trainings=dict(_trainings(run)), pseudo_queries=list(_pseudo_queries(run)),
    )  # fmt: skip


def _collection(measurement: Measurement, descriptions: Mapping[str, str]) -> Collection:
    """Return a split with its systems; the queries are those of the rankings."""
    store, manifest, runs = measurement.store, measurement.manifest, measurement.runs()
    systems = {name: _system(name, ranking, runs, descriptions, store) for name, ranking in runs.items()}
    qrels = manifest.inputs["qrels"]
    return Collection(
        measurement.name, measurement.passages, systems, queries=_queries_of(next(iter(runs.values())), store),
        qrels=artifact(str(qrels), store) if qrels else None, metrics=measurement.path,
        relevant_from=int(manifest.settings["relevant_from"]),
        ignore_identical_ids=bool(manifest.settings["ignore_identical_ids"]),
    )  # fmt: skip


def _system(
    name: str, ranking: Artifact[Run], runs: Mapping[str, Artifact[Run]], descriptions: Mapping[str, str], store: Store
) -> RankedSystem:
    manifest, description = must_exist(ranking.reference, store), descriptions.get(name, "")
    if manifest.stage == "search":
        return RankedSystem(
            name, description, _searched(manifest, store), str(manifest.settings["view"]), ranking, row=name
        )  # fmt: skip
    names = {run.reference: other for other, run in runs.items()}
    references: Any = manifest.inputs.get("runs") or []
    members = {names.get(reference, reference): artifact(reference, store) for reference in references}
    return RankedSystem(name, description, ranking=ranking, members=members, row=name)


def _searched(search: Manifest, store: Store) -> Searched | None:
    """Return what a `search` has read; None where an input is not in the store."""
    inputs = {name: search.inputs[name] for name in ("passages", "index", "vectors", "checkpoint")}
    if any(reference is not None and lookup(str(reference), store) is None for reference in inputs.values()):
        return None
    opened = {name: artifact(str(reference), store) if reference else None for name, reference in inputs.items()}
    return Searched(**opened)  # type: ignore[arg-type]


def _queries_of(ranking: Artifact[Run], store: Store) -> Artifact[Queries]:
    """Return the queries of a ranking, which a fusion has from its first member."""
    inputs: Mapping[str, Any] = must_exist(ranking.reference, store).inputs
    if "queries" in inputs:
        return artifact(inputs["queries"], store)
    return _queries_of(artifact((inputs.get("runs") or [inputs["run"]])[0], store), store)


def _trainings(run: FinishedRun) -> Iterator[tuple[str, Training]]:
    """Yield the fine-tuning rounds whose negatives are still in the store; rounds with the same data are one."""
    rounds: dict[tuple[str, ...], list[str]] = {}
    for name, reference in run.checkpoints.items():
        manifest = lookup(reference, run.store)
        if manifest is not None and manifest.inputs.get("negatives"):
            rounds.setdefault(tuple(str(manifest.inputs[part]) for part in DATA), []).append(name)
    for data, names in rounds.items():
        if all(lookup(reference, run.store) for reference in data):
            yield ", ".join(names), Training(", ".join(names), *(artifact(reference, run.store) for reference in data))


def _pseudo_queries(run: FinishedRun) -> Iterator[Artifact[PseudoQueries]]:
    """Yield the pseudo-queries of a run in their last state: those that no other stage has filtered."""
    manifests = {reference: lookup(reference, run.store) for reference in run.lineage}
    tables = {name: manifest for name, manifest in manifests.items() if manifest and manifest.schema == "PseudoQueries"}
    replaced = {reference for manifest in tables.values() for reference in manifest.references()}
    yield from (artifact(name, run.store) for name in sorted(set(tables) - replaced))


def _of_adaptation(folder: Path) -> Contents:
    """Return the user's documents with the start and the adapted model, and the run that has trained it."""
    index, report = read_json(folder / ADAPTED), read_json(folder / PAGE)
    if "generated" not in report or "start" not in index:
        raise UserError(f"{folder}: adapted by an earlier version; run the same `pretrieve adapt` again, then browse")
    store = Store.open(Path(index["store"]))
    request = read_json(folder / REQUEST, "start", "collection", remedy=OTHER_FOLDER)
    passages = artifact(index["passages"], store)

    def retriever(references: Mapping[str, str], model: str) -> Searched:
        vectors = artifact(references["vectors"], store)
        return Searched(passages, artifact(references["index"], store), vectors, encoder_of(vectors, model, store))

    adapted, start = str((folder / MODEL).resolve()), request["start"]
    returned = RankedSystem("adapted", f"the model that was returned ({report['winner']})", retriever(index, adapted))
    systems = [returned] if report["gained"] else []  # else it is the start
    description = report["verdict"]
    try:
        opened = retriever(index["start"], start)
        systems.append(RankedSystem("start", f"the model before the adaptation ({start})", opened))
    except UserError as error:
        description = f"{description} The start is left out ({error})."
    systems.append(
        RankedSystem("bm25", "Lucene's BM25", Searched(passages, artifact(index["bm25"], store), None, None))
    )
    own = Collection("your documents", passages, {system.name: system for system in systems})
    contents = _of_run(finished_run(report["run"], store), [_with_queries(own, report, store)])
    title = f"Adaptation to {Path(request['collection']).name}"
    return replace(
        contents, name=folder.name, title=title, description=description,
        preferred=("adapted", *contents.preferred), collections=[*map(_in_words, contents.collections)],
        pseudo_queries=[artifact(report["generated"], store)] if report["generated"] else [],
        document_queries=list(_document_queries(contents)),
    )  # fmt: skip


def _document_queries(contents: Contents) -> Iterator[DocumentQueries]:
    """Yield the pseudo-queries of an adaptation's training collection, by split; all rounds train with the same."""
    for training in [*contents.trainings.values()][:1]:
        yield DocumentQueries(TRAIN, training.queries, training.positives, Positives)
    for collection in contents.collections:
        if _split(collection) == HELDOUT and collection.queries and collection.qrels:
            yield DocumentQueries(HELDOUT, collection.queries, collection.qrels, Qrels)


def _split(collection: Collection) -> str:
    return collection.name.removeprefix("beir/")


def _in_words(collection: Collection) -> Collection:
    """Return a collection; the held-out queries of an adaptation have a name that a user knows."""
    return replace(collection, name=NAMES.get(_split(collection), collection.name))


def _with_queries(own: Collection, report: Mapping[str, Any], store: Store) -> Collection:
    """Return the user's documents with the judged queries, if there are some, and their rankings."""
    if not report["judged"]:
        return own
    measured = _collection(Measurement(store, must_exist(report["judged"], store)), {})
    names = {"adapted": report["winner"], "start": "start", "bm25": "bm25"}
    systems = {
        name: replace(system, ranking=measured.systems[names[name]].ranking, row=names[name])
        for name, system in own.systems.items()
    }
    return replace(measured, name=own.name, systems=systems)
