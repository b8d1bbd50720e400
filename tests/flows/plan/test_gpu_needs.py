"""`pretrieve plan --gpu` states memory and hours, and proposes a chunk that fits."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import T5Config

from flows.plan.costs import CostEstimate, in_words_of_time
from flows.plan.generator_costs import GeneratorCosts, read_shape
from flows.plan.gpu_needs import Need, gpu_needs
from flows.plan.gpus import GIB, Gpu, find_gpu
from flows.plan.plan import planned
from flows.plan.show import show_plan
from flows.recipe.load import load_recipe
from flows.recipe.shipped import GPUS, shipped_recipes
from models.layers.bert_config import BertConfig
from storage.datasets import msmarco
from storage.errors import UserError
from storage.formats.yaml_files import read_yaml
from storage.store import sources
from storage.store.store import Store
from tasks.estimates.flops import Cost
from tests.tiny import save_backbone

LENGTH = 24
NAMES = (
    "pretrain.objective.max_tokens", "pretrain.objective.context_max_tokens", "encode.passage_max_tokens",
    "rounds.0.train.passage_max_tokens", "rounds.1.train.passage_max_tokens",
)  # fmt: skip
MEGABYTES = 10 * 2**20


def small_gpu(folder: Path, gib: float) -> Path:
    file = folder / "small.yaml"
    file.write_text(f"memory_gib: {gib}\nteraflops: 1\ngigabytes_per_second: 100\nsource: made up\nusable_share: 1.0\n")
    return file


@pytest.fixture
def changes(tmp_path: Path) -> list[str]:
    (tmp_path / "backbone").mkdir()
    backbone = save_backbone(tmp_path / "backbone")
    shape = ["backbone.layers=[0]", "pretrain.batch=64", "pretrain.fit.chunk=null"]
    return ["dataset.path=nowhere", f"backbone.weights={backbone}", *shape, *(f"{name}={LENGTH}" for name in NAMES)]


def test_a_stage_that_does_not_fit_has_a_chunk_that_does(
    tmp_path: Path, changes: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    gpu = small_gpu(tmp_path, MEGABYTES / GIB)

    show_plan("cot_mae", tmp_path / "store", changes, as_json=True, gpu=str(gpu))
    planned = json.loads(capsys.readouterr().out)["gpu"]
    stages = {(stage["stage"], stage["round"]): stage for stage in planned["stages"]}
    pretraining = stages["pretrain", ""]
    assert {"pretrain", "train", "encode"} == {stage for stage, _ in stages}
    assert (pretraining["rows"], pretraining["fits"]) == (128, False)  # text and context are exchanged
    assert pretraining["peak_bytes"] > MEGABYTES
    assert all(stage["hours"] >= 0 for stage in stages.values())
    setting, _, says = pretraining["advice"].partition(" ")
    assert setting.startswith("pretrain.fit.chunk=")
    assert says == "fits"

    show_plan("cot_mae", tmp_path / "store", [*changes, setting], gpu=str(gpu))
    printed, progress = capsys.readouterr()
    assert f"stage 2 of {len(stages)}: train retriever_1 …" in progress.splitlines()
    [line] = [line for line in printed.splitlines() if line.startswith("│ pretrain") and "MiB" in line]
    assert line.rstrip("│ ").endswith("yes")
    hours = sum(stage["hours"] for stage in stages.values())
    [total] = [line for line in printed.splitlines() if line.startswith("in total on one small: ")]
    assert f": ~{in_words_of_time(hours)}, every text at its full length, for {len(planned['stages'])} of " in total
    assert re.search(r"│ +~\d", line)  # an estimate, no upper bound
    assert "what-a-reproduction-of-each-paper-costs has another estimate" in printed
    assert "matrix products reach 41% of the peak" in printed
    assert "GFLOP/s" not in printed, "this machine was measured"
    assert "compares them with an H100" in printed


def test_a_teacher_with_weights_of_its_own_has_their_shape(tmp_path: Path) -> None:
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    (backbone := tmp_path / "backbone").mkdir()
    BertConfig(vocab_size=400, hidden_dropout_prob=0.1, **shape).save(backbone)

    def needs(*changes: str) -> list[tuple[str, Cost, Need]]:
        given = ["dataset.path=nowhere", f"backbone.weights={backbone}", *changes]
        recipe, path = load_recipe("small/dup_mae", given)
        with sources.assuming_present():
            plan = planned(recipe, path.stem, Store(tmp_path / "store"))
            steps = [step for step in plan.done.values() if step.stage in ("train_teacher", "score", "rerank")]
            estimate = CostEstimate(recipe, list(plan.done.values()))
            found = gpu_needs(estimate, GeneratorCosts(estimate, plan.jobs), steps, find_gpu("h200"))
            return [(step.stage, estimate.of_one(step), need) for step, need in zip(steps, found, strict=True)]

    complete = needs("backbone.layers=null", "backbone.dropout=0.1")
    assert {stage for stage, *_ in complete} == {"train_teacher", "score", "rerank"}
    assert needs("backbone.layers=[0]", f"teacher.weights={backbone}") == complete
    for (_, less, smaller), (_, more, larger) in zip(needs("backbone.layers=[0]"), complete, strict=True):
        assert less.flops < more.flops
        assert 0 < (smaller.peak_bytes or 0) < (larger.peak_bytes or 0)


def test_what_is_built_needs_no_gpu(tmp_path: Path, changes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe, path = load_recipe("cot_mae", changes)
    with sources.assuming_present():
        plan = planned(recipe, path.stem, Store(tmp_path / "store"))
        steps = list(plan.done.values())
        estimate = CostEstimate(recipe, steps)
        built = [replace(step, cached=step.stage == "pretrain") for step in steps]
        needs = gpu_needs(estimate, GeneratorCosts(estimate, plan.jobs), built, find_gpu("h200"))
        stages = {need.stage for need in needs}

    assert stages == {"train", "encode"}


def test_queries_are_read_and_written_at_different_shares_of_the_peak(
    tmp_path: Path, changes: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    T5Config(d_model=32, d_kv=8, num_heads=3, d_ff=80, vocab_size=50, num_layers=2).save_pretrained(tmp_path / "t5")
    gpu = small_gpu(tmp_path, 1)
    t5 = [f"queries.model={tmp_path / 't5'}", f"queries.generate.input_max_tokens={LENGTH}", "corpora.pretrain=corpus"]
    recipe, _ = load_recipe("cot_mae_query_as_context", [*changes, *t5])
    assert recipe.queries
    assert recipe.queries.generate
    settings, shape = recipe.queries.generate, read_shape(tmp_path / "t5")
    assert shape

    show_plan("cot_mae_query_as_context", tmp_path / "store", [*changes, *t5], as_json=True, gpu=str(gpu))
    printed = json.loads(capsys.readouterr().out)

    queries = settings.queries_per_passage
    read, written = shape.reading(LENGTH), shape.writing(LENGTH, settings.max_new_tokens).times(queries)
    [stage] = [stage for stage in printed["stages"] if stage["stage"] == "generate_queries"]
    passages = msmarco.NUM_ROWS["corpus", None]
    assert stage["num_tokens"] == passages * (read.tokens + written.tokens)
    [need] = [need for need in printed["gpu"]["stages"] if need["stage"] == "generate_queries"]
    seconds = passages * (read.flops / 0.41 + written.flops / 0.026) / 1e12
    assert need["hours"] == pytest.approx(seconds / 3600, abs=0.001)
    assert (need["rows"], need["peak_bytes"], need["fits"]) == (None, None, None)


def test_every_known_gpu_states_its_source_and_is_no_recipe() -> None:
    for name in read_yaml(GPUS):
        gpu = find_gpu(name)
        assert "data sheet" in gpu.source
        assert gpu.usable_bytes < gpu.memory_gib * GIB
    assert not [name for name in shipped_recipes() if "gpus" in name]


def test_seconds_are_products_over_their_rate_and_other_bytes_over_theirs() -> None:
    gpu = Gpu(memory_gib=1, teraflops=2, gigabytes_per_second=10, source="", product_share=0.5, bandwidth_share=0.1)
    slower = gpu.model_copy(update={"teraflops_float32": 0.5, "bfloat16": False})

    assert gpu.seconds(3e12, 4e9) == gpu.seconds(3e12, 4e9, "float16") == pytest.approx(3 + 4)
    assert slower.seconds(3e12, 4e9, "float32") == pytest.approx(12 + 4)
    assert gpu.seconds(3e12, 4e9, "float32") is None
    assert slower.seconds(3e12, 4e9, "bfloat16") is None


def test_a_stage_in_a_precision_that_the_gpu_only_emulates_has_one_that_runs(
    tmp_path: Path, changes: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    gpu = small_gpu(tmp_path, 1)
    gpu.write_text(gpu.read_text() + "bfloat16: false\n")
    mixed = [*changes, "encode.precision=float32", "rounds.0.train.fit.precision=float16"]

    show_plan("cot_mae", tmp_path / "store", mixed, as_json=True, gpu=str(gpu))
    stages = json.loads(capsys.readouterr().out)["gpu"]["stages"]
    by_name = {f"{stage['stage']} {stage['round']}".strip(): stage for stage in stages}

    assert by_name["pretrain"]["advice"] == "it has no bfloat16; pretrain.fit.precision=float16"
    assert (by_name["pretrain"]["fits"], by_name["pretrain"]["hours"]) == (False, None)
    assert by_name["train retriever_1"]["fits"]
    assert by_name["train retriever_1"]["hours"] is not None
    assert (by_name["encode retriever_1"]["precision"], by_name["encode retriever_1"]["fits"]) == ("float32", True)
    assert by_name["encode retriever_1"]["hours"] is None  # no peak in float32 is given


def test_an_unknown_gpu_and_a_wrong_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no GPU 'h20' is known; did you mean h200"):
        find_gpu("h20")
    (tmp_path / "gpu.yaml").write_text("memory_gib: -1\n")
    with pytest.raises(UserError, match=r"gpu\.yaml: memory_gib: "):
        find_gpu(str(tmp_path / "gpu.yaml"))
