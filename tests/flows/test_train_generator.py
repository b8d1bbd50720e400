"""`pretrieve train-generator`: from a file of pairs to a folder that a recipe can name; what it refuses before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from flows.cli import app
from storage.errors import UserError
from storage.store.sources import weights
from tasks.pseudo_queries.generators.sampler import GenerationRequest, Sampler
from tasks.pseudo_queries.generators.validation import Greedy
from tests.tasks.pairs_of_words import PAIRS, save_pairs, save_start


def run(folder: Path, *options: str, pairs: str = "pairs.jsonl") -> Result:
    arguments = ["train-generator", str(folder / "start"), str(folder / pairs), "--out", str(folder / "out"), *options]
    return CliRunner().invoke(app, [*arguments, "--store", str(folder / "store"), "--device", "cpu", "--threads", "1"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A start and pairs."""
    save_start(tmp_path / "start")
    save_pairs(tmp_path / "pairs.jsonl")
    return tmp_path


def refused(folder: Path, message: str, *options: str, pairs: str = "pairs.jsonl") -> None:
    """It says so, and neither a store nor the folder is begun."""
    result = run(folder, *options, pairs=pairs)
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception)
    assert not (folder / "store").exists()


def test_what_cannot_work_is_refused_before_anything_is_built(folder: Path) -> None:
    refused(folder, "none.tsv: expected a file of pairs", pairs="none.tsv")
    (folder / "broken.tsv").write_text("a passage without a query\n")
    refused(folder, "broken.tsv line 1: expected passage<TAB>query", pairs="broken.tsv")
    refused(folder, "--learning-rate 0.0: Input should be greater than 0", "--learning-rate", "0")
    refused(folder, "--validation 1.0: Input should be less than 1", "--validation", "1")
    assert run(folder, "--epochs", "0").exit_code == 2
    assert run(folder, "--keep", "middle").exit_code == 2
    (folder / "start" / "config.json").write_text("{")
    refused(folder, "Hugging Face cannot load it")
    (folder / "out").mkdir()
    (folder / "out" / "mine").write_text("")
    refused(folder, "expected a folder that does not exist yet, or an empty one")
    assert [path.name for path in (folder / "out").iterdir()] == ["mine"]


@pytest.mark.slow
def test_a_generator_is_trained_and_written(folder: Path) -> None:
    options = ("--epochs", "2", "--batch", "8", "--learning-rate", "0.005", "--validation", "0.2", "--round-trips", "3")

    result = run(folder, *options)

    assert result.exit_code == 0, result.output
    results = json.loads((folder / "out" / "validation.json").read_text())
    for epoch in results["epochs"]:
        row = [f"{epoch[name]:.4f}" for name in ("validation_loss", "round_trip", "mrr")]
        assert any(
            line.replace("│", " ").split()[:4] == [str(epoch["epoch"]), *row] for line in result.stdout.split("\n")
        )
    assert str(folder / "out") in result.stdout.replace("\n", "")
    assert results["train"]["pairs"] + results["held_out"]["pairs"] == len(PAIRS)
    card = (folder / "out" / "README.md").read_text()
    assert "AutoModelForSeq2SeqLM" in card
    assert weights(str(folder / "start")).key in card
    sampler = Sampler(weights(str(folder / "out")).path, Greedy("", 16, 8), torch.device("cpu"), print)
    assert [texts for batch in sampler([GenerationRequest("the red river", range(2), draw=0)]) for _, texts in batch]
    with pytest.raises(UserError, match="an empty one"):
        raise run(folder, *options).exception or AssertionError
