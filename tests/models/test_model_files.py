"""Broken folders of models, each opened by every loader: one line that names the file, and nothing made up."""

import json
import math
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DistilBertConfig, DistilBertModel

from models.layers.bert_config import BertConfig
from models.retrievers import cross_encoder, retriever
from models.retrievers.cross_encoder import CrossEncoder
from storage.errors import UserError
from tasks.cross_encoder.pairs import Scoring, load_teacher
from tasks.pretraining.initialise import BackboneSettings, open_backbone
from tasks.retrieval.encode import open_retriever, views_and_max_tokens
from tests.tiny import PIECES, SHAPE, save_backbone, save_tokenizer, tiny_retriever

BACKBONE = BackboneSettings(
    weights="x", start="weights", towers="siamese", layers=None, dropout=0.1, pooling="cls", seed=1
)
SCORING = Scoring(query_max_tokens=8, max_tokens=16)
WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"


unpickled = list[None]()


def ran() -> None:
    """What a pickle would call."""
    unpickled.append(None)


class Pickled:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[object, ...]]:
        return ran, ()


def save_distilbert(folder: Path) -> None:
    torch.manual_seed(3)
    shape = {"vocab_size": len(PIECES), "max_position_embeddings": 64, "dim": 32, "n_layers": 2, "n_heads": 4}
    DistilBertModel(DistilBertConfig(**shape, hidden_dim=48)).save_pretrained(folder)
    save_tokenizer(folder)


def save_cross_encoder(folder: Path) -> None:
    cross_encoder.save(CrossEncoder(BertConfig(**SHAPE)), folder)
    save_tokenizer(folder)


def save_colbert(folder: Path) -> None:
    retriever.save(tiny_retriever("colbert"), folder)
    save_tokenizer(folder)


KINDS: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "bert": (save_backbone, open_retriever),
    "colbert": (save_colbert, open_retriever),
    "distilbert": (save_distilbert, open_retriever),
    "backbone": (save_backbone, lambda folder: open_backbone(folder, BACKBONE)),
    "cross-encoder": (save_cross_encoder, lambda folder: load_teacher(folder, SCORING, "teacher")),
}
"""What is saved, and what opens it."""


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An intact folder of each kind."""
    folders = {}
    for kind, (save, _) in KINDS.items():
        folders[kind] = tmp_path_factory.mktemp(kind)
        save(folders[kind])
    return folders


def tensors(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[[Path], object]:
    def broken(folder: Path) -> None:
        save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, {"format": "pt"})

    return broken


def config(**changes: Any) -> Callable[[Path], object]:
    names = {"num_attention_heads": "n_heads", "num_hidden_layers": "n_layers", "hidden_size": "dim"}

    def broken(folder: Path) -> None:
        said = json.loads((folder / CONFIG).read_text())
        said |= {name if name in said else names.get(name, name): value for name, value in changes.items()}
        (folder / CONFIG).write_text(json.dumps(said))

    return broken


def filled(results: dict[str, torch.Tensor], value: float) -> dict[str, torch.Tensor]:
    name = next(name for name in results if name.endswith("word_embeddings.weight"))
    results[name][7, 3] = value
    return results


def integers(results: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to(torch.int8) for name, tensor in results.items()}


def only_a_pickle(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Pickled()))


def half(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(
        (folder / name).read_bytes()[: (folder / name).stat().st_size // 2]
    )


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights are missing": (lambda folder: (folder / WEIGHTS).unlink(), "expected weights in model.safetensors"),
    "weights are empty": (lambda folder: (folder / WEIGHTS).write_bytes(b""), ""),
    "weights are garbage": (lambda folder: (folder / WEIGHTS).write_bytes(b"nonsense" * 99), ""),
    "weights are cut off": (half(WEIGHTS), ""),
    "only a pickle": (only_a_pickle, "found only pytorch_model.bin, a pickle, which is not opened"),
    "a weight is missing": (
        tensors(lambda weights: {name: tensor for name, tensor in weights.items() if "word_embeddings" not in name}),
        "1 weights are missing",
    ),
    "a weight too many": (
        tensors(lambda weights: weights | {"bert.encoder.layer.7.output.dense.weight": torch.zeros(2, 2)}),
        "1 weights are unexpected",
    ),
    "a weight is NaN": (tensors(lambda weights: filled(weights, math.nan)), "found NaN or infinity"),
    "a weight is infinite": (tensors(lambda weights: filled(weights, math.inf)), "found NaN or infinity"),
    "another shape": (config(hidden_size=16), ""),
    "configuration is no JSON": (half(CONFIG), CONFIG),
    "configuration is a list": (lambda folder: (folder / CONFIG).write_text("[]"), CONFIG),
    "heads do not divide": (config(num_attention_heads=5), ""),
    "no heads": (config(num_attention_heads=0), ""),
    "no layers": (config(num_hidden_layers=0), ""),
    "fewer layers": (config(num_hidden_layers=1), "weights are unexpected"),
    "more layers": (config(num_hidden_layers=3), "weights are missing"),
    "negative layers": (config(num_hidden_layers=-1), ""),
    "negative width": (config(hidden_size=-32), ""),
    "no vocabulary": (config(vocab_size=0), ""),
    "a smaller vocabulary": (config(vocab_size=20), ""),
    "words for a number": (config(vocab_size="many"), ""),
    "NaN as dropout": (config(hidden_dropout_prob=math.nan, dropout=math.nan), "dropout"),
    "more positions": (config(max_position_embeddings=512), ""),
    "an unknown type": (config(model_type="nothing"), "nothing"),
    "tokenizer is missing": (
        lambda folder: [path.unlink() for path in (*folder.glob("tokenizer*"), *folder.glob("vocab*"))], "tokenizer"
    ),
    "tokenizer is garbage": (lambda folder: (folder / TOKENIZER).write_text("{nonsense"), ""),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_an_intact_folder_opens(intact: dict[str, Path], kind: str) -> None:
    KINDS[kind][1](intact[kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_refused_in_one_line(intact: dict[str, Path], tmp_path: Path, kind: str, name: str) -> None:
    folder = Path(shutil.copytree(intact[kind], tmp_path / "model"))
    (breaks, said), opener = BROKEN[name], KINDS[kind][1]
    breaks(folder)

    with pytest.raises(UserError) as error:
        opener(folder)

    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 700
    assert said in message
    assert not unpickled


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ("{", "modules.json: expected a list of modules"),
        ('{"0": "x"}', "modules.json: expected a list of modules"),
        ('[{"type": "a.Transformer"}]', "a path within the model's folder"),
        ('[{"type": "a.Transformer", "path": "../../etc"}, {"type": "a.Pooling", "path": "p"}]', "within the model's"),
        (
            '[{"type": "a.Transformer", "path": "/etc"}, {"type": "a.Pooling", "path": "p"}]',
            "within the model's folder",
        ),
    ],
)
def test_modules_that_are_broken_or_outside_are_refused(
    intact: dict[str, Path], tmp_path: Path, modules: str, said: str
) -> None:
    folder = Path(shutil.copytree(intact["distilbert"], tmp_path / "model"))
    (folder / "modules.json").write_text(modules)

    for opener in (views_and_max_tokens, open_retriever):
        with pytest.raises(UserError, match=said):
            opener(folder)


def test_more_tokens_than_positions_are_refused(intact: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(intact["distilbert"], tmp_path / "model"))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 512}')

    with pytest.raises(UserError, match="max_seq_length: expected at most the encoder's 64 positions, found 512"):
        open_retriever(folder)


def test_integers_are_no_weights(intact: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(intact["bert"], tmp_path / "model"))
    tensors(integers)(folder)

    with pytest.raises(UserError, match="in floating point, found int8; quantised weights are not read"):
        open_retriever(folder)


def test_a_cross_encoder_is_no_retriever(intact: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="expected a retriever, found a cross-encoder"):
        open_retriever(intact["cross-encoder"])


@pytest.mark.parametrize(
    "extra", ["bert.pooler.dense.weight", "bert.embeddings.position_ids", "cls.seq_relationship.bias"]
)
def test_weights_that_nothing_reads_may_be_there(intact: dict[str, Path], tmp_path: Path, extra: str) -> None:
    folder = Path(shutil.copytree(intact["bert"], tmp_path / "model"))
    tensors(lambda weights: weights | {extra: torch.ones(2, dtype=torch.int64)})(folder)

    open_retriever(folder)


def test_a_tied_copy_of_the_head_may_be_there_and_no_other(intact: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(intact["bert"], tmp_path / "model"))
    name, words = "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"
    tensors(lambda weights: weights | {name: weights[words].clone()})(folder)
    open_retriever(folder)

    tensors(lambda weights: weights | {name: weights[words] + 1})(folder)
    with pytest.raises(UserError, match=r"to equal bert\.embeddings\.word_embeddings\.weight, found"):
        open_retriever(folder)
