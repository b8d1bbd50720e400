"""A study in miniature, as a user runs it: two claims, tiny recipes, a run that is killed, and code that changes."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.matrix.attempts import Attempts
from flows.matrix.planned_run import PlannedRun
from flows.recipe.shipped import find_recipe
from flows.study.claims import load_study
from flows.study.costs import KnownCosts
from flows.study.judge import judge_claims
from flows.study.order import needed
from flows.study.run import run
from flows.study.status import state
from flows.study.trials import attempts_of
from storage.errors import UserError
from storage.results.study_runs import Trial, read_study_run, read_study_runs
from storage.store.run_notes import noted, read_notes
from storage.store.store import Store
from tasks.report.page.study_curves import PANELS
from tasks.session import Done
from tests import warm
from tests.studies import results
from tests.tiny import WORDS, save_backbone
from tests.warm import environment

TEXTS = [" ".join(WORDS[(3 * n + k) % 16] for k in range(6)) + "." for n in range(16)]
ASKED = {"train": range(16), "dev": range(0, 16, 2)}


def collection(folder: Path) -> None:
    """Documents of words in an order, and questions of two of these."""
    (folder / "qrels").mkdir(parents=True)
    corpus = [{"_id": f"d{n}", "title": "", "text": text} for n, text in enumerate(TEXTS)]
    queries = []
    for split, numbers in ASKED.items():
        queries += [{"_id": f"{split}{n}", "text": " ".join(TEXTS[n].split()[:2])} for n in numbers]
        judged = [f"{split}{n}\td{n}\t1" for n in numbers]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n")
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")


def recipe(workplace: Path, name: str, steps: int) -> dict[str, Any]:
    """One of the study's, made very small."""
    value: dict[str, Any] = yaml.safe_load(find_recipe(f"study/{name}").read_text())
    value["dataset"] |= {"path": str(workplace / "toy"), "train_split": "train", "eval_splits": ["dev"]}
    value["corpora"]["pretrain"] = "corpus"
    value["backbone"]["weights"] = str(workplace / "bert")
    value["pretrain"] |= {"steps": steps, "batch": 4, "probe": {"every": 10, "pairs": 4}}
    value["pretrain"]["objective"]["max_tokens"] = 16
    value["encode"] = {"query_max_tokens": 8, "passage_max_tokens": 16}
    value["search"] = {"documents": 10}
    value["backbone"]["vocabulary"] = None
    value["rounds"] = value["rounds"][1:2]
    value["rounds"][0]["train"] |= {
        "steps": 2, "batch_queries": 4, "query_max_tokens": 8, "passage_max_tokens": 16,
    }  # fmt: skip
    value["evaluate"]["comparisons"] = []
    value["execution"] = {"threads": 1, "workers": 1, "device": "cpu"}
    return value


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    collection(folder / "toy")
    (folder / "bert").mkdir()
    save_backbone(folder / "bert")
    arms = {}
    for name, steps in (("masked_lm", 60), ("retro_mae", 300)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(recipe(folder, name, steps), sort_keys=False))
        arms[name] = {"recipe": str(folder / f"{name}.yaml"), "row": "retriever_1"}
    common = {"paper": "CPDAE", "source": "Table 1", "printed_metric": None, "collection": "toy/dev",
            "queries": len(ASKED["dev"]), "contrasts": [{"arm": "retro_mae", "than": "masked_lm"}]}  # fmt: skip
    claims = [
        common | {"name": "better", "statement": "It is better.", "metric": "MRR@10", "seeds": [1, 2], "arms": arms,
                "smallest": 0.1},
        common | {"name": "cheaper", "statement": "It is cheaper.", "metric": None, "seeds": [1], "smallest": None,
                "measures": "cost of a step", "arms": {name: arm | {"row": None} for name, arm in arms.items()}},
    ]  # fmt: skip
    study = {"title": "Small", "description": "Made for a test.", "claims": claims}
    (folder / "claims.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    return folder


def study(workplace: Path, *arguments: str) -> tuple[int, str]:
    """`pretrieve study` on the claims of the place: its exit code and all that it says."""
    done = warm.run(workplace, "study", *arguments, "--claims", "claims.yaml", "--results", "results")
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_study_resumes_after_a_kill_and_repeats_runs_of_other_code(workplace: Path) -> None:
    code, output = study(workplace, "run", "--hours", "0")
    assert code == 0
    assert "not started: masked_lm, seed 1" in output

    command = ["study", "run", "--hours", "1", "--claims", "claims.yaml", "--results", "results"]
    files = workplace / "stdout", workplace / "stderr"
    files[1].touch()
    env = environment(workplace)
    cut = warm.start(*command, cwd=workplace, env=env, stdout=files[0], stderr=files[1])
    deadline = time.monotonic() + 900
    while "pretrain" not in files[1].read_text().partition("retro_mae, seed 1")[2]:
        assert time.monotonic() < deadline
        assert cut.poll() is None, files[1].read_text()
        time.sleep(0.05)
    cut.end()
    assert [run.folder.parent.name for run in read_study_runs(workplace / "results")] == ["masked_lm"]
    first = (workplace / "results" / "masked_lm" / "seed-1" / "scores.parquet").read_bytes()

    code, output = study(workplace, "run", "--hours", "1")
    assert code == 0, output
    assert "nothing is missing" in output
    assert "masked_lm, seed 1" not in output  # it was kept before the kill
    assert (workplace / "results" / "masked_lm" / "seed-1" / "scores.parquet").read_bytes() == first

    better, cheaper = judge_claims(load_study(workplace / "claims.yaml"), workplace / "results")
    assert better.verdict in ("supported", "inconclusive", "contradicted")
    assert [len(arm.runs) for arm in better.arms] == [2, 2]
    one = read_study_run(Trial("masked_lm", 2).folder(workplace / "results"))
    assert one is not None
    assert one.facts.pretraining["steps"] == 60
    assert set(one.scores["cluster"].to_pylist()) == {f"d{number}" for number in ASKED["dev"]}
    assert {"pre-training", "retriever_1", "pre-training, retrieval probe"} == set(one.curves["training"].to_pylist())
    logged = zip(one.curves["training"].to_pylist(), one.curves["name"].to_pylist(), strict=True)
    assert set(PANELS.values()) <= set(logged)  # what the page draws is there
    report = json.loads((workplace / "artifacts" / "report" / one.facts.report / "report.json").read_text())
    [row] = [row for row in report["rows"] if (row["run"], row["metric"]) == ("retriever_1", "MRR@10")]
    measured = one.measured("retriever_1", "MRR@10")
    assert measured is not None
    assert measured[1].mean() == pytest.approx(row["value"])
    assert "4 of 4 runs kept" in study(workplace, "status")[1]
    # the killed pre-training was timed in its last attempt only, if it had begun
    assert cheaper.verdict in ("not run", "inconclusive")

    path, first_run = workplace / "masked_lm.yaml", Trial("masked_lm", 1).folder(workplace / "results")
    before = read_study_run(first_run)
    path.write_text(path.read_text().replace("temperature: 1.0", "temperature: 0.5"))
    _, output = study(workplace, "status")
    assert "masked_lm, seed 1: built by other code or data" in output
    code, output = study(workplace, "run", "--hours", "1", "--only", "cheaper")
    assert code == 0
    assert "built by other code or data; running it again" in " ".join(output.split())
    assert read_study_run(first_run) != before
    assert "masked_lm, seed 2" not in output


def test_a_run_is_expected_to_take_what_its_like_took(workplace: Path, tmp_path: Path) -> None:
    plan = PlannedRun.of(Trial(str(workplace / "masked_lm.yaml"), 1), Store(tmp_path))
    [train] = [step for step in plan.steps if step.stage == "train"]
    like, unlike = replace(train, round="one"), replace(train, round="two")
    nothing, known = KnownCosts.of(tmp_path), KnownCosts.of(results(tmp_path))

    def expected(costs: KnownCosts, *steps: Done) -> float:
        return costs.wall_seconds(replace(plan, steps=steps))

    assert expected(nothing, like) == 0
    assert expected(known, like) == 75  # seeds took 60 and 120 seconds, both 90 of CPU time
    assert expected(known, unlike, unlike) == 150
    assert expected(known, replace(like, cached=True)) == 0
    counted: set[tuple[str, str]] = set()
    assert known.cpu_seconds(replace(plan, steps=[like]), counted) == 90
    assert known.cpu_seconds(replace(plan, steps=[like]), counted) == 0  # a stage of two runs counts once
    assert KnownCosts.of(tmp_path / "none", tmp_path).cpu == known.cpu


def test_a_pretraining_is_expected_to_take_its_steps(workplace: Path, tmp_path: Path) -> None:
    plan = PlannedRun.of(Trial(str(workplace / "masked_lm.yaml"), 1, None, 30), Store(tmp_path))
    known = KnownCosts({}, {("pretrain",): [0.5]})

    assert known.cpu_seconds(plan, set()) == 15.0


def test_only_how_it_runs_may_be_changed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--set pretrain.steps=1: .* expected execution\.KEY=VALUE"):
        run(1.0, tmp_path, changes=["pretrain.steps=1"])


def test_runs_of_other_processes_are_left_to_them(
    workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    store, claims = Store.open_or_new(tmp_path / "store"), workplace / "claims.yaml"
    plans = [PlannedRun.of(trial, store) for trial in needed(load_study(claims))]
    reports = [f"report/{plan.report}" for plan in plans]

    with noted(store, "study run", "elsewhere", reports):
        run(1.0, store.root, tmp_path / "results", claims=claims)

    printed = " ".join(capsys.readouterr().err.split())
    assert "4 runs, 0 kept, 4 missing" in printed
    assert "other processes run what is missing: masked_lm, seed 1; retro_mae, seed 1;" in printed


def test_runs_are_chosen_by_one_process_at_a_time(
    workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, held = Store.open_or_new(tmp_path / "store"), list[bool]()

    def begin(*arguments: Any) -> None:
        held.append(store.is_being_built(store.work("runs", "next")))
        raise KeyboardInterrupt

    monkeypatch.setattr(Attempts, "begin", begin)
    with pytest.raises(KeyboardInterrupt):
        run(1.0, store.root, tmp_path / "results", claims=workplace / "claims.yaml")

    assert held == [True]
    assert not store.is_being_built(store.work("runs", "next"))


def test_the_status_says_why_a_run_failed(workplace: Path, tmp_path: Path) -> None:
    store = Store.open_or_new(tmp_path / "store")
    plan, attempts = PlannedRun.of(Trial(str(workplace / "masked_lm.yaml"), 1), store), attempts_of(store)

    def fail(note: Any) -> None:
        raise RuntimeError("out of memory")

    assert state(plan, tmp_path, attempts, []) == "missing"
    attempts.attempt(plan, attempts.begin(plan, "study run", "masked_lm, seed 1"), fail, print)
    assert state(plan, tmp_path, attempts, []) == "failed: RuntimeError: out of memory"
    with noted(store, "study run", "again", [f"report/{plan.report}"]):
        assert state(plan, tmp_path, attempts, read_notes(store.root)) == "running"
