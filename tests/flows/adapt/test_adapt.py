"""`pretrieve adapt` from a file of texts to a model, an index and a report, on a tiny BERT."""

from __future__ import annotations

import gzip
import html
import json
import re
import shutil
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from starlette.requests import Request

import pretrieve
from flows.adapt import hours, results, run
from flows.adapt.collections import HELDOUT, JUDGED, ORIGINAL, TRAIN, TRAINING, of_salient_sentences, write_collections
from flows.adapt.hours import amounts
from flows.adapt.recipes import SIZES, Size
from flows.adapt.run import adapt
from flows.adapt.survey import survey
from flows.browse import queries
from flows.browse.application import Pages
from flows.browse.loading import contents_of
from flows.browse.searches import TOP, Searches
from flows.recipe.load import load_recipe
from storage.errors import UserError
from storage.rows import first_rows
from storage.store.store import Store
from storage.tables import Passages
from tasks.runtime.formatting import duration
from tests import warm
from tests.flows.adapt.test_collections import documents
from tests.in_process import pretrieve as pretrieve_command
from tests.in_process import refused
from tests.killed_adaptation import request_of
from tests.tiny import save_backbone

pytestmark = pytest.mark.slow
KILLED = (1, 25, 60, 10_000)
"""Before which rename each of several processes is killed; the last is not."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection, judged queries, a model, and an adaptation of it in `out`."""
    folder = tmp_path_factory.mktemp("adapt")
    rows = documents(90)
    (folder / "texts.jsonl").write_text("".join(json.dumps({**row, "id": row["doc_id"]}) + "\n" for row in rows))
    judged = [f"{row['text'].split('.')[0]}\t{row['doc_id']}" for row in rows[:20]]
    (folder / "judged.tsv").write_text("\n".join(judged) + "\n")
    (folder / "start").mkdir()
    save_backbone(folder / "start", spread=0.2, pooling="mean")
    adapt(request_of(folder), folder / "store", print, with_server=False)
    return folder


def test_the_folder_has_model_recipe_and_reports_and_the_verdict_fits_the_numbers(folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    report = json.loads((folder / "out" / "report.json").read_text())
    values = {(row["dataset"], row["run"]): row["value"] for row in report["rows"]}
    assert {of for of, _ in values} == {"heldout", "judged"}
    assert all(values[of, report["winner"]] >= values[of, "start"] for of in ("heldout", "judged"))
    page = (folder / "out" / "report.html").read_text()
    assert report["verdict"].split(" (")[0].split(";")[0] in page.replace("&#39;", "'")
    recipe, _ = load_recipe(str(folder / "out" / report["recipe"]))
    assert [round_.name for round_ in recipe.rounds] == ["start", *SIZES[-1].candidates(None)]
    model = SentenceTransformer(str(folder / "out" / "model"))
    ours = pretrieve.load(folder / "out").encode_passages(["river mountain"])
    theirs = model.encode(["river mountain"])
    cosine = float((ours @ theirs.T).item() / np.linalg.norm(ours) / np.linalg.norm(theirs))
    assert cosine == pytest.approx(1, abs=1e-4)


def test_the_index_has_the_original_documents(folder: Path) -> None:
    answers = pretrieve.load(folder / "out").search(documents(90)[3]["text"], top_k=90)

    assert len(answers) == 90
    assert {answer.text for answer in answers} == {row["text"] for row in documents(90)}


def test_the_folder_is_no_run_but_names_that_of_its_candidates(folder: Path) -> None:
    out, report = folder / "out", json.loads((folder / "out" / "report.json").read_text())

    with pytest.raises(UserError) as raised:
        pretrieve.open_run(out)

    message, _, run_folder = str(raised.value).rpartition(" ")
    assert message == (
        f"{out}: expected a run, found the folder of an adaptation; `pretrieve.load({str(out)!r})` and "
        f"`pretrieve search {out}` use its model; its candidates are of the run"
    )
    assert set(report["checkpoints"]) <= set(pretrieve.open_run(run_folder))


def test_the_estimate_counts_the_stages_that_are_built(folder: Path) -> None:
    """It counts no other, but for the exported model's index, whose keys are not known before."""
    request, store = request_of(folder), Store(folder / "store")
    start, index = run.start_of(request), json.loads((request.out / "index.json").read_text())
    collections = [run._collection(request, *of) for of in ((TRAINING, HELDOUT), (ORIGINAL, JUDGED))]
    suite = results.suite(start, collections, request.name)

    plan = hours.planned_adaptation(
        request.out / f"{request.name}.yaml", store, suite, run._collection(request, ORIGINAL, JUDGED), start
    )

    assert [step.stage for step in plan.done.values() if not step.cached] == ["encode", "index"]
    built = {manifest.reference: manifest.built["seconds"] for _, manifest in store.manifests() if manifest}
    known = {step.reference for step in plan.done.values() if step.cached}
    assert set(built) == known | {index["vectors"], index["index"]}
    report = json.loads((request.out / "report.json").read_text())
    assert report["stage_seconds"] == pytest.approx(sum(built.values()))
    assert report["estimated_seconds"] == json.loads((request.out / "size.json").read_text())["hours"] * 3600


def test_the_report_has_what_was_found_of_the_collection(folder: Path) -> None:
    page = (folder / "out" / "report.html").read_text()

    report = json.loads((folder / "out" / "report.json").read_text())
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page))
    assert facts["documents"] == "90, 90 with a title, 0 duplicates, 0 empty"
    assert facts["words of a document"] == "median 30, 95 % have at most 30"
    assert facts["languages"] == survey("", documents(90)).shares()
    times = [duration(report[name]) for name in ("estimated_seconds", "stage_seconds")]
    assert facts["plan"] == f"100 steps: estimated {times[0]}, its stages took {times[1]}"
    assert report["checkpoints"].keys() == set(SIZES[-1].candidates(None))
    assert all(Store(folder / "store").manifest("train", key) for key in report["checkpoints"].values())


@pytest.mark.parametrize("gained", [False, True])
def test_the_start_and_the_adapted_model_are_browsed_side_by_side(gained: bool, folder: Path, tmp_path: Path) -> None:
    """Without a gain the start was returned, and is compared with BM25."""
    out, winner = tmp_path / "out", SIZES[-1].candidates(None)[0] if gained else "start"
    shutil.copytree(folder / "out", out)
    report = json.loads((out / "report.json").read_text()) | {"gained": gained, "winner": winner}
    (out / "report.json").write_text(json.dumps(report))

    contents = contents_of(str(out), tmp_path / "nowhere")

    own, held_out = contents.collections
    assert (own.name, held_out.name) == ("your documents", "held-out pseudo-queries")
    assert list(own.systems) == [*(["adapted"] if gained else []), "start", "bm25"]
    assert own.pair(contents.preferred) == (("adapted", "start") if gained else ("start", "bm25"))
    assert set(held_out.systems) >= {"start", "bm25", *SIZES[-1].candidates(None)}
    assert len(queries.compared(own, own.pair(contents.preferred), contents.metric)) == 20
    assert contents.description == report["verdict"]
    with closing(Searches(contents.store)) as searches:
        for name in own.systems:
            question = partial(searches.results, own, name, "title 5", None)
            *reported, found = result(searches.run(question))
            assert f"searching with {name}" in reported
            assert len(found) == TOP


def test_a_folder_that_is_not_as_it_was_written_is_refused(folder: Path, tmp_path: Path) -> None:
    """So is one without a report, as a kill leaves it between the index and the report."""
    out, store = tmp_path / "out", str(tmp_path / "nowhere")
    shutil.copytree(folder / "out", out)
    (out / "report.json").unlink()
    assert "report.json: there is no such file, so the adaptation has not ended; run the same" in refused(
        "browse", str(out), "--store", store
    )
    shutil.copy(folder / "out" / "report.json", out)
    weights = out / "model" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    commands = ("search", str(out), "salt"), ("browse", str(out))
    for command in commands:
        message = refused(*command, "--store", store)
        assert "model: files were changed or added since the collection was encoded with this model" in message
    (out / "index.json").write_text("{")
    for command in commands:
        assert "index.json: expected JSON as `pretrieve adapt` writes it" in refused(*command, "--store", store)
    (out / "index.json").write_text("{}")
    assert "index.json: expected JSON as `pretrieve adapt` writes it (without store)" in refused(*commands[0])


def test_queries_of_titles_and_sentences_are_browsed_in_both_collections(folder: Path, tmp_path: Path) -> None:
    contents, training = contents_of(str(folder / "out"), tmp_path / "nowhere"), folder / "out" / TRAINING
    with gzip.open(training / "queries.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = {row["_id"]: row["text"] for row in map(json.loads, lines)}

    for split in (TRAIN, HELDOUT):
        rows = [line.split("\t") for line in (training / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]]
        doc_id = rows[0][1]
        expected = [{"query": texts[query], "split": split} for query, document, _ in rows if document == doc_id]
        assert expected
        assert queries.document_queries(contents, doc_id) == expected
        for collection in contents.collections:
            passage = first_rows(collection.passages, Passages, "doc_id", [doc_id], ["passage_id"])[doc_id]
            request = Request({
                "type": "http", "query_string": urlencode({"in": collection.name, "id": passage["passage_id"]}).encode()
            })  # fmt: skip
            with closing(Searches(contents.store)) as searches:
                page = bytes(Pages(contents, searches, "/token").passage(request).body).decode()
            section = page.partition('<section aria-labelledby="h-pseudo">')[2].partition("</section>")[0]
            shown = [html.unescape(text) for text in re.findall("<bdi>(.*?)</bdi>", section)]
            assert shown == [row["query"] for row in expected], collection.name
            assert "no generator" not in section


def result(steps: Generator[str, None, Any]) -> list[Any]:
    """Return what was reported, and last the result."""
    reported: list[Any] = []
    while True:
        try:
            reported.append(next(steps))
        except StopIteration as stop:
            return [*reported, stop.value]


def test_an_adaptation_that_is_killed_again_and_again_ends_as_any_other(folder: Path, tmp_path: Path) -> None:
    for name in ("texts.jsonl", "judged.tsv"):
        (tmp_path / name).symlink_to(folder / name)

    codes = [
        warm.run(tmp_path, str(tmp_path), str(folder / "start"), str(last), module="tests.killed_adaptation").returncode
        for last in KILLED
    ]

    assert codes == [-9] * (len(KILLED) - 1) + [0]
    assert results_of(tmp_path) == results_of(folder)


def results_of(folder: Path) -> dict[str, Any]:
    """Return the hashes of the artifacts but reports, which name their recipe, the model's files, and the verdict."""
    manifests = [json.loads(path.read_text()) for path in (folder / "store").glob("[!.]*/*/manifest.json")]
    report = json.loads((folder / "out" / "report.json").read_text())
    return {
        "hashes": sorted(f"{of['stage']}/{of['key']} {of['hash']}" for of in manifests if of["stage"] != "report"),
        "model": {path.name: path.read_bytes() for path in (folder / "out" / "model").iterdir() if path.is_file()},
        "decision": (report["verdict"], report["rows"], report["counts"]),
    }  # fmt: skip


def test_the_same_request_restores_the_model_and_builds_nothing_again_and_another_one_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(folder / "store")
    before = {path: manifest and manifest.built for path, manifest in store.manifests()}
    config = folder / "out" / "model" / "config.json"
    written = config.read_bytes()
    config.write_bytes(written + b"\n")

    adapt(request_of(folder), folder / "store", print, with_server=False)

    assert config.read_bytes() == written
    (aside,) = (folder / "out").glob("model.changed-*")
    assert (aside / config.name).read_bytes() == written + b"\n"
    shutil.rmtree(aside)
    assert {path: manifest and manifest.built for path, manifest in store.manifests()} == before
    assert ", 0 to build" in capsys.readouterr().out
    with pytest.raises(UserError, match="has the adaptation of another request"):
        adapt(request_of(folder, size="one round"), folder / "store", print, with_server=False)


def test_wrong_requests_end_with_one_line(folder: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "new")
    assert "name your collection" in refused("adapt", str(folder / "nothing"), "--out", out)
    assert "above 0" in refused("adapt", str(folder / "texts.jsonl"), "--hours", "0", "--out", out)
    assert "an empty one" in refused("adapt", str(folder / "texts.jsonl"), "--out", str(folder))
    assert "no folder on this machine, and no model on a hub can have this name" in refused(
        "adapt", str(folder / "texts.jsonl"), "--start", "./gone", "--out", out
    )


@pytest.mark.parametrize("option", ["--teacher", "--generator"])
def test_a_model_of_another_kind_is_refused_before_anything_is_built(option: str, folder: Path, tmp_path: Path) -> None:
    """The folder is left to the corrected command."""
    start, out = str(folder / "start"), tmp_path / "new"

    ended = pretrieve_command(
        "adapt", str(folder / "texts.jsonl"), "--start", start, option, start, "--out", str(out),
        "--store", str(folder / "store"), seconds=60,
    )  # fmt: skip

    assert ended.code == 2
    message = "expected a cross-encoder" if option == "--teacher" else "does not generate text"
    assert message in ended.err.splitlines()[-1]
    assert not out.exists()


def test_documents_without_texts_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("id,text\n1,\n")

    options = ("--start", str(folder / "start"), "--out", str(tmp_path / "new"))
    assert "expected documents with a text, found none" in refused("adapt", str(tmp_path / "texts.csv"), *options)


def test_where_no_plan_fits_the_hours_the_one_of_the_least_computation_is_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a small collection the last ones, whose steps are many epochs, take longer and are left out."""
    request = replace(request_of(folder, size=None), out=tmp_path / "new", hours=1e-9)
    store = Store.open_or_new(tmp_path / "store")  # that of the folder has the stages of "100 steps"
    rows, printed = documents(90), list[str]()
    counts = write_collections(request.out, rows, of_salient_sentences(rows, "en"), None, hours=1)

    start = run.start_of(request)
    suite = results.suite(start, [run._collection(request, TRAINING, HELDOUT)], request.name)

    known = amounts(rows, counts, start, "en")

    def chosen(digest: str) -> tuple[Path, Size, float]:
        return run._recipe(request, start, known, suite, digest, printed.append, store)

    monkeypatch.setattr(run, "chunk_that_fits", lambda file: None)
    file, size, takes = chosen("of the documents")

    plans = [(line.split("'")[1], line.split("about ")[1].split(" on ")[0]) for line in printed[:-2]]
    assert [name for name, _ in plans] == ["complete", "medium", "without pre-training", "one round"]
    assert size.name == "one round"
    assert printed[-2].startswith(f"even the smallest plan, 'one round', takes about {plans[-1][1]}, more than --hours")
    trained = load_recipe(str(file))[0].rounds[1].train
    assert trained is not None
    assert (trained.epochs, trained.steps, trained.fit.chunk) == (size.epochs, size.steps, None)
    kept = {"size": size.name, "hours": takes, "texts": "of the documents"}
    assert json.loads((request.out / "size.json").read_text()) == kept

    printed.clear()
    assert chosen("of the documents")[1] == size
    assert printed == [f"recipe: {file} (one round), chosen by an earlier call"]
    written = file.read_text()
    file.write_text(written.replace("adapted_bm25", "mine"))
    with pytest.raises(UserError, match="candidates are adapted_bm25, and the recipe has no round adapted_bm25; add"):
        chosen("of the documents")
    file.write_text(written)
    printed.clear()
    monkeypatch.setattr(run, "chunk_that_fits", lambda file: 16)  # on a machine with less memory
    assert chosen("of others")[1] == size
    trained = load_recipe(str(file))[0].rounds[1].train
    assert trained is not None
    assert trained.fit.chunk == 16
    assert printed[0] == f"documents or queries are not those of the last call; {file} is planned and written again"
    assert printed[-1].startswith(f"recipe: {file} (one round); candidates")
