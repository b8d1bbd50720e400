"""The tokens and FLOPs that are counted for trainings, encoding and scoring are those of the formulas."""

import dataclasses
from pathlib import Path

import pytest
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from flows.recipe.load import load_recipe
from flows.recipe.shipped import shipped_recipes
from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import BertConfig
from models.objective import Losses, Vectors
from models.retrievers.objective import Finetuning
from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.views.dense import DenseSettings
from models.retrievers.views.lexical import LexicalSettings
from models.tokens import Tokens, pad
from storage.errors import UserError
from tasks.cross_encoder.train_teacher import TeacherTraining
from tasks.estimates import flops
from tasks.estimates.flops import Costs, count
from tests.tiny import LENGTH, LEXICAL, PIECES, SHAPE, SMALL_LENGTHS, save_tokenizer

LAYERS = 6


def shape_only(folder: Path) -> Path:
    """A tiny backbone's shape and tokenizer, without weights."""
    BertConfig(**SHAPE | {"num_hidden_layers": LAYERS}).save(folder)
    save_tokenizer(folder)
    return folder


DENSE = RetrieverSettings(dense=DenseSettings(dim=None))


class Plain(nn.Module):
    """A BERT and nothing else."""

    def __init__(self, model: BertForMaskedLM) -> None:
        super().__init__()
        self.model = model

    def encode(self, batch: Tokens) -> tuple[Vectors, Losses]:
        hidden: Tensor = self.model.bert(batch.ids, batch.mask)
        return (), {"sum": hidden.sum()}

    def compare(self, vectors: Vectors, batch: Tokens) -> Losses:
        return {}


def by_hand(length: int, layers: int = LAYERS) -> int:
    """Forward, of one text: 2 m n k for every product of [m, k] by [k, n]."""
    return layers * of_a_layer(length, length)


def of_cls(length: int, layers: int = LAYERS) -> int:
    """The same where the last layer is computed for [CLS] alone."""
    return by_hand(length, layers - 1) + of_a_layer(length, 1)


def of_a_layer(length: int, rows: int) -> int:
    """Keys and values of all tokens; queries, what they attend to, and all that follows of so many."""
    hidden, inner = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    projections, widening = 2 * 2 * (length + rows) * hidden * hidden, 2 * 2 * rows * hidden * inner
    return projections + widening + 2 * 2 * rows * length * hidden


def test_flops_are_those_counted_by_hand(tmp_path: Path) -> None:
    backbone = load_recipe("cot_mae")[0].backbone
    costs = Costs(shape_only(tmp_path), backbone)
    texts = pad([costs.ids(LENGTH)] * 3)

    trained = count(Plain(costs.encoder.passage), texts)

    assert not costs.assumed
    assert trained.flops == pytest.approx(3 * 3 * by_hand(LENGTH), rel=0.01)
    assert trained.tokens == 3 * LENGTH
    assert costs.encoding(DENSE, LENGTH).flops == pytest.approx(of_cls(LENGTH), rel=0.01)
    half = Costs(tmp_path, backbone.model_copy(update={"layers": [0, 5, 2]}))
    assert half.encoding(DENSE, LENGTH).flops == pytest.approx(of_cls(LENGTH, 3), rel=0.01)


def test_a_training_costs_by_its_passages_and_all_chunks_but_the_first_encode_twice(tmp_path: Path) -> None:
    recipe, _ = load_recipe("cot_mae")
    costs = Costs(shape_only(tmp_path), recipe.backbone)
    whole = recipe.rounds[0].train.model_copy(update={"query_max_tokens": 8, "passage_max_tokens": LENGTH})
    whole = whole.model_copy(update={"passages_per_query": 5, "fit": whole.fit.model_copy(update={"chunk": None})})
    whole = whole.model_copy(update={"batch_queries": 8})
    in_fours = whole.model_copy(update={"fit": whole.fit.model_copy(update={"chunk": 2})})
    complete = whole.model_copy(update={"fit": whole.fit.model_copy(update={"chunk": 8})})

    expected = count(Finetuning(costs.retriever(whole.retriever), whole.loss), costs.examples(whole, 5))

    assert costs.training(whole) == expected
    assert expected.tokens == 8 + 5 * LENGTH
    encoding = of_cls(8) + 5 * of_cls(LENGTH)
    assert costs.training(in_fours).flops - expected.flops == pytest.approx(3 / 4 * encoding, rel=0.01)
    assert costs.training(complete) == expected


def test_a_vocabulary_head_and_a_cross_encoder_have_their_price(tmp_path: Path) -> None:
    costs = Costs(shape_only(tmp_path), load_recipe("cot_mae")[0].backbone)
    splade = RetrieverSettings(lexical=LexicalSettings(**LEXICAL))
    hidden, words = SHAPE["hidden_size"], SHAPE["vocab_size"]
    head = 2 * LENGTH * hidden * (hidden + words)
    teaching = TeacherTraining(
        query_max_tokens=8, max_tokens=LENGTH, epochs=1, batch_queries=2, passages_per_query=4, seed=1,
        fit={"learning_rate": 1.0, "warmup_ratio": 0.0, "weight_decay": 0.0, "max_gradient_norm": None, "chunk": None},
    )  # fmt: skip

    assert costs.encoding(splade, LENGTH).flops == pytest.approx(by_hand(LENGTH) + head, rel=0.01)
    assert costs.scoring(teaching).flops == pytest.approx(of_cls(LENGTH), rel=0.01)
    assert costs.teaching(teaching).flops == pytest.approx(4 * 3 * of_cls(LENGTH), rel=0.01)
    assert costs.teaching(teaching).tokens == 4 * LENGTH


SMALL = {name: load_recipe(name)[0].pretrain for name in shipped_recipes() if name.startswith("small/")}
PAPERS = {pretraining.paper: name for name, pretraining in SMALL.items() if pretraining is not None}


class Computed(FlopCounterMode):
    """PyTorch's own count of operations that are computed."""

    @property
    def flops(self) -> int:
        return self.get_total_flops()


@pytest.mark.parametrize("paper", sorted(PAPERS))
def test_products_that_are_not_computed_count_as_if_they_were(
    paper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, _ = load_recipe(PAPERS[paper])
    objective = recipe.pretrain.objective
    lengths = [field.name for field in dataclasses.fields(objective) if field.name.endswith("max_tokens")]
    short = dataclasses.replace(objective, **dict.fromkeys(lengths, LENGTH))
    settings = recipe.pretrain.model_copy(update={"objective": short})
    backbone = recipe.backbone.model_copy(update={"layers": None})

    result = Costs(shape_only(tmp_path), backbone).pretraining(settings)
    monkeypatch.setattr(flops, "Uncomputed", lambda: Computed(display=False))
    computed = Costs(tmp_path, backbone).pretraining(settings)

    assert result == computed
    assert result.flops > 3 * by_hand(LENGTH)
    assert result.tokens >= LENGTH


def test_a_tokenizer_is_made_where_the_backbones_is_absent(tmp_path: Path) -> None:
    recipe, _ = load_recipe("cot_mae", SMALL_LENGTHS)
    own = Costs(shape_only(tmp_path), recipe.backbone)
    (tmp_path / "tokenizer.json").unlink()

    built = Costs(tmp_path, recipe.backbone)

    assert built.tokenizer.vocab_size == own.tokenizer.vocab_size == len(PIECES)
    assert built.pretraining(recipe.pretrain) == own.pretraining(recipe.pretrain)


def test_settings_that_do_not_fit_are_told_before_anything_runs(tmp_path: Path) -> None:
    recipe, _ = load_recipe("cot_mae")
    costs = Costs(shape_only(tmp_path), recipe.backbone)

    with pytest.raises(UserError, match=r"pretrain\.objective: max_tokens: expected at most 64, found 128"):
        costs.pretraining(recipe.pretrain)
    with pytest.raises(UserError, match="train: a text has 128 tokens, but the model only 64 positions"):
        costs.training(recipe.rounds[0].train)
    with pytest.raises(UserError, match="encode: a text has 65 tokens"):
        costs.encoding(DENSE, 65)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(UserError, match=r"backbone: .*expected model_type bert, .*found t5"):
        Costs(tmp_path, recipe.backbone)
