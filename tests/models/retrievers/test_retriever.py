"""A retriever of any views: its scores, its files, and what it goes on with."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

from models.representation import Representation
from models.retrievers import retriever as retrievers
from models.retrievers import towers
from models.retrievers.bi_encoder import DenseEncoder
from models.retrievers.retriever import Retriever, load, load_for_training, save
from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.views.dense import DenseSettings
from models.retrievers.views.lexical import LexicalSettings
from models.tokens import Tokens
from tests.models.retrievers.random_examples import random_tokens
from tests.tiny import (
    LEXICAL,
    RETRIEVERS,
    SHAPE,
    save_backbone,
    save_tokenizer,
    tiny_bert,
    tiny_retriever,
    tiny_tokenizer,
)


def parts(results: Representation) -> dict[str, torch.Tensor]:
    return {name: part for name, part in vars(results).items() if part is not None}


def equal(one: Representation, other: Representation) -> bool:
    mine, theirs = parts(one), parts(other)
    return set(mine) == set(theirs) and all(torch.equal(part, theirs[name]) for name, part in mine.items())


def written(model: Retriever, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    save(model, folder)
    save_tokenizer(folder)
    return folder


@pytest.mark.parametrize("kind", RETRIEVERS)
def test_a_saved_retriever_comes_back(kind: str, tmp_path: Path) -> None:
    model, tokens = tiny_retriever(kind).eval(), random_tokens(5, 1)
    again = load(written(model, tmp_path / "saved"))

    assert again.settings == model.settings
    assert not again.training
    for role in ("query", "passage"):
        assert equal(model(tokens, role), again(tokens, role))
    assert model.settings.views == again.views


@pytest.mark.parametrize("kind", RETRIEVERS)
def test_its_folder_opens_in_transformers(kind: str, tmp_path: Path) -> None:
    model, tokens = tiny_retriever(kind).eval(), random_tokens(5, 1)

    theirs = transformers.AutoModelForMaskedLM.from_pretrained(written(model, tmp_path / "saved")).eval()

    with torch.no_grad():
        hidden = theirs.bert(tokens.ids, tokens.mask).last_hidden_state
        ours = model.encoder.passage.bert(tokens.ids, tokens.mask)
    torch.testing.assert_close(ours[tokens.mask], hidden[tokens.mask], atol=1e-5, rtol=1e-5)


def test_the_sum_is_weighted() -> None:
    model = tiny_retriever("hybrid").eval()
    queries, passages = model(random_tokens(3, 1), "query"), model(random_tokens(4, 2), "passage")

    scores = model.scores(queries, passages)

    assert list(scores) == ["dense", "lexical", "sum"]
    torch.testing.assert_close(scores["sum"], 0.5 * scores["dense"] + 2.0 * scores["lexical"])


def test_a_plain_folder_is_dense(tmp_path: Path) -> None:
    built = load(save_backbone(tmp_path))

    assert built.settings == RetrieverSettings(dense=DenseSettings(dim=None))
    assert built.own() == {}
    tokens = random_tokens(3, 1)
    torch.testing.assert_close(built(tokens, "query").dense, towers.load(tmp_path)(tokens, "query").dense)


def test_the_same_views_go_on_and_others_start_anew(tmp_path: Path) -> None:
    folder = written(tiny_retriever("mixture"), tmp_path / "saved")
    before = load(folder).own()

    same = load_for_training(folder, RETRIEVERS["mixture"])
    torch.manual_seed(9)
    other = load_for_training(folder, RETRIEVERS["colbert"])

    assert all(torch.equal(weight, before[name]) for name, weight in same.own().items())
    projection = "heads.late.projection.weight"
    assert not torch.equal(other.own()[projection], before[projection])
    torch.manual_seed(9)
    assert torch.equal(load_for_training(folder, RETRIEVERS["colbert"]).own()[projection], other.own()[projection])


def test_new_experts_read_what_the_bert_reads(tmp_path: Path) -> None:
    built = load_for_training(written(tiny_retriever("dpr"), tmp_path / "saved"), RETRIEVERS["mixture"]).eval()
    plain, tokens = load(tmp_path / "saved"), random_tokens(4, 3)

    hidden = plain.encoder.passage.bert(tokens.ids, tokens.mask)
    for states in built._hidden(built.encoder.passage, tokens, "query").values():
        assert torch.equal(states, hidden)


def test_towers_that_share_attention_have_no_experts() -> None:
    encoder = towers.build_encoders(DenseEncoder(tiny_bert(), "cls"), "mixture")

    with pytest.raises(ValueError, match="expected towers that are siamese or separate, found mixture"):
        Retriever(encoder, RETRIEVERS["mixture"], tiny_tokenizer())


def test_each_tower_has_experts_of_its_own(tmp_path: Path) -> None:
    encoder = towers.build_encoders(DenseEncoder(tiny_bert(), "cls"), "separate")
    model = Retriever(encoder, RETRIEVERS["mixture"], tiny_tokenizer())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(0.1 if "query" in name else 0.0)

    tokens = random_tokens(3, 1)
    assert not equal(model.eval()(tokens, "query"), model(tokens, "passage"))
    again = load(written(model, tmp_path / "saved"))
    for role in ("query", "passage"):
        assert equal(model(tokens, role), again(tokens, role))


@pytest.mark.parametrize("kind", RETRIEVERS)
def test_padding_changes_no_view(kind: str) -> None:
    model = tiny_retriever(kind).eval()
    queries, passages = random_tokens(3, 1), random_tokens(4, 2)

    def padded(tokens: Tokens) -> Tokens:
        return Tokens(
            torch.nn.functional.pad(tokens.ids, (0, 5)), torch.nn.functional.pad(tokens.mask, (0, 5), value=False)
        )

    short = model.scores(model(queries, "query"), model(passages, "passage"))
    long = model.scores(model(padded(queries), "query"), model(padded(passages), "passage"))
    for view, scores in short.items():
        torch.testing.assert_close(long[view], scores, atol=1e-4, rtol=1e-4)


def test_a_retriever_without_views() -> None:
    with pytest.raises(ValueError, match="expected at least one of dense, late, lexical"):
        RetrieverSettings()


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"dense": {"dimension": 3}}', "expected the views"), ("[]", "expected the views"), ("{", "expected the views")],
)
def test_a_damaged_description_is_named(tmp_path: Path, text: str, message: str) -> None:
    folder = written(tiny_retriever("dpr"), tmp_path / "saved")
    (folder / retrievers.RETRIEVER_SETTINGS).write_text(text)

    with pytest.raises(ValueError, match=message) as error:
        load(folder)
    assert str(folder) in str(error.value)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    folder = written(tiny_retriever("coil"), tmp_path / "saved")
    text = (folder / retrievers.RETRIEVER_SETTINGS).read_text()
    (folder / retrievers.RETRIEVER_SETTINGS).write_text(text.replace('"dim": 6', '"dim": 7'))

    with pytest.raises(
        ValueError,
        match=r"by retriever\.json expected heads\.dense\.projection\.weight of shape \[7, 32\], found \[6, 32\]",
    ):
        load(folder)


def test_dup_maes_own_matrix_is_taken_from_its_pretraining(tmp_path: Path) -> None:
    folder = written(tiny_retriever("dpr"), tmp_path / "saved")
    views = RetrieverSettings(lexical=LexicalSettings(**LEXICAL | {"head": "own", "activation": "none"}))
    pretrained = torch.randn(SHAPE["vocab_size"], SHAPE["hidden_size"])
    (folder / retrievers.RETRIEVER_SETTINGS).unlink()
    save_file({"projection.weight": pretrained}, folder / retrievers.HEADS_FILE)

    built = load_for_training(folder, views).eval()

    tokens = random_tokens(2, 1)
    hidden = built.encoder.passage.bert(tokens.ids, tokens.mask)
    for row in range(2):
        expected = (hidden[row][tokens.mask[row]] @ pretrained.T).amax(0)
        torch.testing.assert_close(built(tokens, "passage").lexical[row], expected)


def test_the_projection_of_sim_cse_is_not_taken_for_the_lexical_matrix(tmp_path: Path) -> None:
    folder = written(tiny_retriever("dpr"), tmp_path / "saved")
    views = RetrieverSettings(lexical=LexicalSettings(**LEXICAL | {"head": "own", "activation": "none"}))
    (folder / retrievers.RETRIEVER_SETTINGS).unlink()
    save_file(
        {"projection.weight": torch.randn(SHAPE["hidden_size"], SHAPE["hidden_size"])}, folder / retrievers.HEADS_FILE
    )

    built = load_for_training(folder, views)

    assert built.lexical is not None
    assert built.lexical.projection is not None
    assert built.lexical.projection.weight.shape == (SHAPE["vocab_size"], SHAPE["hidden_size"])


def test_a_bias_of_the_dense_projection_is_saved_and_starts_the_projection_anew(tmp_path: Path) -> None:
    plain, biased = (RetrieverSettings(dense=DenseSettings(dim=6, bias=bias)) for bias in (False, True))
    model = Retriever(DenseEncoder(tiny_bert(), "cls"), biased, tiny_tokenizer()).eval()
    torch.nn.init.normal_(model.own()["heads.dense.projection.bias"])
    folder, tokens = written(model, tmp_path / "saved"), random_tokens(4, 1)

    assert load(folder).settings == biased
    assert equal(load(folder)(tokens, "query"), model(tokens, "query"))
    assert torch.equal(load_for_training(folder, biased).own()["heads.dense.projection.weight"],
                       model.own()["heads.dense.projection.weight"])  # fmt: skip
    assert list(load_for_training(folder, plain).own()) == ["heads.dense.projection.weight"]
    described = json.loads(
        (written(Retriever(model.encoder, plain, tiny_tokenizer()), folder) / "retriever.json").read_text()
    )
    assert described == {"dense": {"dim": 6, "weight": 1.0}, "late": None, "lexical": None, "shared_layers": None}


def test_a_setting_without_weights_does_not_start_views_anew(tmp_path: Path) -> None:
    folder = written(tiny_retriever("mixture"), tmp_path / "saved")
    before, views = load(folder).own(), RETRIEVERS["mixture"]
    changed = RetrieverSettings(
        dense=DenseSettings(dim=None, weight=0.5), late=views.late, shared_layers=views.shared_layers,
        lexical=LexicalSettings(**LEXICAL | {"top_passages": 3}),
    )  # fmt: skip

    assert all(torch.equal(weight, before[name]) for name, weight in load_for_training(folder, changed).own().items())
