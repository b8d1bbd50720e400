"""Fine-tuning a generator: what it learns, what is measured of it and when, and that a killed run goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, BartConfig, BartForConditionalGeneration, GPT2Config

from storage.artifact import Source, source_of
from storage.errors import UserError
from storage.store.sources import weights
from storage.store.store import Store
from tasks.pseudo_queries.finetune_generator import GeneratorFinetuning, ends_of_epochs, finetune_generator
from tasks.pseudo_queries.generators.pair_files import Side, split
from tasks.pseudo_queries.generators.round_trip_search import Collection
from tasks.pseudo_queries.generators.seq2seq_batches import Seq2SeqTokenizer
from tasks.pseudo_queries.generators.validation import Epoch, Validation, ValidationPlan, best, summary
from tasks.session import Execution, Session, session
from tasks.training import loop
from tests.tasks.pairs_of_words import PAIRS, SETTINGS, save_pairs, save_start

ROOT = Path(__file__).resolve().parents[3]
CPU = torch.device("cpu")
LENGTHS = SETTINGS.model_copy(update={"input_max_tokens": 5, "query_max_tokens": 3})


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_start(tmp_path_factory.mktemp("start"), spread=0.3)


def files(folder: Path) -> dict[str, bytes]:
    """The artifact's data."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def start_and_pairs(start: Path, folder: Path) -> tuple[Source, Source]:
    pairs = save_pairs(folder / "pairs.jsonl")
    return weights(str(start)), source_of(pairs, [pairs])


def test_an_average_of_the_weights_is_refused_since_it_would_not_be_published() -> None:
    average = {**SETTINGS.fit.model_dump(), "average": {"decay": 0.99}}

    with pytest.raises(ValueError, match=r"fit\.average: a generator's validated weights are published"):
        GeneratorFinetuning.model_validate({**SETTINGS.model_dump(), "fit": average})


def test_passages_and_queries_become_what_t5_reads_and_writes(start: Path) -> None:
    pair_tokenizer = Seq2SeqTokenizer(start, LENGTHS, CPU)
    hub_tokenizer = pair_tokenizer.generator.tokenizer
    batch = pair_tokenizer.batch([("the red river", "river"), ("river", "the red river bridge")])

    words = [
        hub_tokenizer.convert_ids_to_tokens(row) for row in (*batch.texts.ids.tolist(), *batch.targets.ids.tolist())
    ]
    assert words[0][-2:] == ["s", "</s>"] or words[0][-1] == "</s>"
    assert len(words[0]) == 5
    assert words[2] == ["<pad>", "▁river", "</s>", "<pad>"]
    assert words[3] == ["<pad>", "▁the", "▁red", "</s>"]
    assert batch.targets.mask.tolist() == [[True, True, True, False], [True] * 4]
    assert batch.num_terms("cross_entropy") == 5


def test_a_target_has_one_start_and_one_end_whatever_the_tokenizer_adds(start: Path) -> None:
    pair_tokenizer = Seq2SeqTokenizer(start, LENGTHS, CPU)
    pad, end = 0, 1

    assert [pair_tokenizer.target(ids) for ids in ([], [7], [7, end], [pad, 7], [pad, 7, end])] == [
        [pad, end], [pad, 7, end], [pad, 7, end], [pad, 7, end], [pad, 7, end]
    ]  # fmt: skip
    pair_tokenizer.generator.starts = [2, 0]  # BART's: </s>, and <s>, which it always generates first
    assert [pair_tokenizer.target(ids) for ids in ([0, 7, end], [7], [2, 0, 7])] == [[2, 0, 7, end]] * 3


def validation_of(start: Path, out: Path, held_out: Side, rows: int, **changes: Any) -> Validation:
    pair_tokenizer = Seq2SeqTokenizer(start, SETTINGS, CPU)
    values: dict[str, Any] = {"ends": {0: 0, 4: 1, 8: 2}, "passages": 3, "keep": "last", "rows": rows}
    collection = Collection(out / "search", held_out.passages, SETTINGS.trip.bm25)
    return Validation(
        out, pair_tokenizer, held_out, collection, ValidationPlan(**values | changes), report=lambda line: None
    )


def test_the_loss_is_the_mean_over_all_held_out_tokens(start: Path, tmp_path: Path) -> None:
    held_out = Side([passage for passage, _ in PAIRS[:5]], [(n, f"{PAIRS[n][1]} {'castle ' * n}") for n in range(5)])
    validation = validation_of(start, tmp_path, held_out, rows=2)
    validation.objective.train()
    result = validation.loss()

    tokenizer = AutoTokenizer.from_pretrained(start)
    model = AutoModelForSeq2SeqLM.from_pretrained(start).eval()
    lost = []
    for passage, query in held_out.pairs(range(5)):
        text = torch.tensor([tokenizer(f"ask: {passage}")["input_ids"][:16]])
        target = [*tokenizer(query, add_special_tokens=False)["input_ids"][:5], 1]
        for position, token in enumerate(target):  # one token after another, without padding or a batch
            with torch.no_grad():
                logits = model(input_ids=text, decoder_input_ids=torch.tensor([[0, *target[:position]]])).logits[0, -1]
            lost.append(-(logits[token].double() - logits.double().logsumexp(0)).item())

    assert len({len(query.split()) for _, query in held_out.pairs(range(5))}) > 2
    assert result == pytest.approx(sum(lost) / len(lost), rel=1e-5)
    assert validation.objective.training  # the dropout is back


def test_an_epoch_ends_when_every_pair_has_come_so_often() -> None:
    assert ends_of_epochs(10, 4, 3) == {0: 0, 3: 1, 5: 2, 8: 3}
    assert ends_of_epochs(5, 5, 2) == {0: 0, 1: 1, 2: 2}
    assert ends_of_epochs(1, 1, 3) == {0: 0, 1: 1, 2: 2, 3: 3}


def epoch(number: int, round_trip: float, loss: float) -> Epoch:
    return Epoch(number, number * 4, loss, round_trip, round_trip / 2)


def test_the_best_epoch_has_the_best_round_trip_then_the_lower_loss_then_comes_first() -> None:
    assert best([epoch(0, 0.5, 1.0), epoch(1, 0.6, 9.0), epoch(2, 0.4, 0.1)]).epoch == 1
    assert best([epoch(0, 0.6, 2.0), epoch(1, 0.6, 1.0), epoch(2, 0.5, 0.1)]).epoch == 1
    assert best([epoch(0, 0.6, 1.0), epoch(1, 0.6, 1.0)]).epoch == 0
    curve = [epoch(0, 0.6, 1.0), epoch(1, 0.5, 1.0)]
    assert [json.loads(summary(curve, keep, {}))["published"] for keep in ("best", "last")] == [0, 1]  # type: ignore[arg-type]


@pytest.mark.usefixtures("on_one_thread")
@pytest.mark.parametrize(("keep", "remaining"), [("last", "002"), ("best", "001")])
def test_what_was_looked_at_is_not_looked_at_again_and_the_chosen_model_stays(
    keep: str, remaining: str, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BM25 is left out: the ranks are written down."""
    ranks = {"000": [0, 0, 2], "001": [1, 0, 4], "002": [10, 0, 0]}
    folders: list[str] = []
    monkeypatch.setattr(Validation, "queries", lambda self, folder: folders.append(folder.name) or [folder.name])
    monkeypatch.setattr(Collection, "ranks", lambda self, queries: ranks[queries[0]])
    side = Side([passage for passage, _ in PAIRS[:3]], [(n, PAIRS[n][1]) for n in range(3)])
    validation = validation_of(start, tmp_path, side, 2, keep=keep)

    results = [validation(steps) for steps in range(9)]
    again = validation_of(start, tmp_path, side, 2, keep=keep)
    resumed = [again(steps) for steps in range(3, 9)]

    assert [{name: values[name] for name in ("round_trip@10", "MRR@10")} for values in results if values] == [
        {"round_trip@10": 1 / 3, "MRR@10": 0.5 / 3}, {"round_trip@10": 2 / 3, "MRR@10": 1.25 / 3},
        {"round_trip@10": 1 / 3, "MRR@10": pytest.approx(0.1 / 3)},
    ]  # fmt: skip
    assert [bool(values) for values in results] == [step in (0, 4, 8) for step in range(9)]
    assert resumed == results[3:]
    assert folders == ["000", "001", "002"]
    assert [path.name for path in (tmp_path / "models").iterdir()] == [remaining]
    assert again.chosen().name == remaining


def test_what_is_no_generator_is_named(start: Path, tmp_path: Path) -> None:
    causal, small = (Path(shutil.copytree(start, tmp_path / name)) for name in ("causal", "small"))
    GPT2Config(n_layer=1).save_pretrained(causal)
    shape = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
             "encoder_attention_heads": 2, "decoder_attention_heads": 2}  # fmt: skip
    BartForConditionalGeneration(BartConfig(vocab_size=10, **shape)).save_pretrained(small)  # type: ignore[arg-type]

    with pytest.raises(UserError, match="causal: expected a seq2seq model, such as T5 or BART, found gpt2"):
        Seq2SeqTokenizer(causal, SETTINGS, CPU)
    with pytest.raises(UserError, match=r"small: expected a tokenizer of at most 10 tokens, .* found 43"):
        Seq2SeqTokenizer(small, SETTINGS, CPU)


@pytest.fixture(scope="module")
def uninterrupted(start: Path, tmp_path_factory: pytest.TempPathFactory, on_one_thread: Session) -> Path:
    """An unbroken run's artifact."""
    folder = tmp_path_factory.mktemp("whole")
    model, pairs = start_and_pairs(start, folder)
    return finetune_generator(start=model, pairs=pairs, settings=SETTINGS).path


@pytest.mark.slow
def test_it_learns_and_says_so_by_epoch(uninterrupted: Path) -> None:
    results = json.loads((uninterrupted / "validation.json").read_text())
    curve = results["epochs"]

    assert [row["epoch"] for row in curve] == [0, 1, 2, 3]
    assert curve[-1]["validation_loss"] < curve[0]["validation_loss"] - 0.5
    assert results["train"]["passages"] + results["held_out"]["passages"] == len(PAIRS)
    assert results["published"] == 3
    assert results["round_trip"] == {"asked": 4, "searched": results["held_out"]["passages"] + 5}
    logged = [json.loads(line) for line in (uninterrupted / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["validation_loss"]) for line in logged if "validation_loss" in line] == [
        (row["step"], row["validation_loss"]) for row in curve
    ]
    assert json.loads(files(uninterrupted)["tokenizer.json"])["truncation"] is None  # training cuts texts itself
    assert sorted(files(uninterrupted)) == [
        "config.json", "generation_config.json", "manifest.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json", "validation.json",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_round_trip_is_what_bm25_finds(uninterrupted: Path, start: Path, tmp_path: Path) -> None:
    passages = ["the red river", "the blue river", "a castle", "nothing else"]
    collection = Collection(tmp_path, passages, SETTINGS.trip.bm25)

    assert collection.ranks(["red river", "river", "zebra", ""]) == [1, 2, 0, 0]
    assert Collection(tmp_path, passages, SETTINGS.trip.bm25).ranks(["zebra", "blue"]) == [0, 1]  # the index is there


KILL = """
import os, signal, sys
from pathlib import Path
from storage.artifact import source_of
from storage.store.sources import weights
from storage.store.store import Store
from tasks.training import loop
from tasks.pseudo_queries.finetune_generator import finetune_generator
from tasks.pseudo_queries.generators.round_trip_search import Collection
from tasks.session import Execution, Session, session
from tests.tasks.pairs_of_words import SETTINGS

loop.SECONDS_BETWEEN_CHECKPOINTS = 0.0
ranks = Collection.ranks
looked = []
def killed(self, queries):
    looked.append(queries)
    if len(looked) == 3:  # the second epoch's model is written, its record is not
        os.kill(os.getpid(), signal.SIGKILL)
    return ranks(self, queries)
Collection.ranks = killed
pairs = Path(sys.argv[2])
with session(Session(Store(Path(sys.argv[3])), Execution(workers=1, threads=1, device="cpu"))):
    finetune_generator(start=weights(sys.argv[1]), pairs=source_of(pairs, [pairs]), settings=SETTINGS)
"""


@pytest.mark.slow
def test_a_run_that_was_killed_while_it_validated_ends_with_the_same_bytes(
    uninterrupted: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = Path(shutil.copytree(start, tmp_path / "elsewhere"))  # nor does the start's place change a byte
    inputs = start_and_pairs(elsewhere, tmp_path)
    arguments = [sys.executable, "-c", KILL, str(elsewhere), str(inputs[1].path), str(tmp_path / "store")]
    killed = subprocess.run(
        arguments, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    looked, ranks = [], Collection.ranks
    monkeypatch.setattr(Collection, "ranks", lambda self, queries: looked.append(queries) or ranks(self, queries))

    with session(Session(Store(tmp_path / "store"), Execution(workers=1, threads=1, device="cpu"))):
        built = finetune_generator(start=inputs[0], pairs=inputs[1], settings=SETTINGS)

    assert len(looked) == 2  # epochs 2 and 3
    results, expected = files(built.path), files(uninterrupted)
    assert {name: results[name] for name in results if name != "manifest.json"} == {
        name: expected[name] for name in expected if name != "manifest.json"
    }


@pytest.mark.slow
def test_the_best_epochs_model_is_published_where_that_is_asked(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_one_thread: Session
) -> None:
    settings: GeneratorFinetuning = SETTINGS.model_copy(update={"keep": "best", "epochs": 2})
    ranks = iter([[0, 0], [1, 0], [0, 0]])
    searched: list[list[str]] = []
    monkeypatch.setattr(Collection, "ranks", lambda self, queries: searched.append(list(self.texts)) or next(ranks))
    stopped: dict[str, torch.Tensor] = {}
    call = Validation.__call__

    def noting(self: Validation, steps: int) -> dict[str, float]:
        if self.plan.ends.get(steps) == 1:
            stopped.update({name: value.detach().clone() for name, value in self.objective.model.state_dict().items()})
        return call(self, steps)

    monkeypatch.setattr(Validation, "__call__", noting)
    finetune_generator.body(tmp_path / "out", *start_and_pairs(start, tmp_path), settings=settings)

    train, held_out = split(tmp_path / "pairs.jsonl", settings.validation)
    assert searched[0][: -settings.trip.others] == held_out.passages  # a query's own passage has the query's number
    assert set(searched[0][-settings.trip.others :]) < set(train.passages)
    assert json.loads((tmp_path / "out" / "validation.json").read_text())["published"] == 1
    published = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(value, published[name]) for name, value in stopped.items())


@pytest.mark.slow
@pytest.mark.usefixtures("on_one_thread")
def test_a_batch_of_more_than_all_pairs_is_all_of_them_once_an_epoch(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Collection, "ranks", lambda self, queries: [0 for _ in queries])
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    finetune_generator.body(
        tmp_path, *start_and_pairs(start, tmp_path), settings=SETTINGS.model_copy(update={"batch": 1000})
    )

    assert [epoch["step"] for epoch in json.loads((tmp_path / "validation.json").read_text())["epochs"]] == [0, 1, 2, 3]
