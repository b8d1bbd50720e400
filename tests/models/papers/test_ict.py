"""ICT: how sentences leave their texts, and the contrast against loops written from the formula."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from models.papers.ict import Batch, Pretraining, Settings, make_batch, remove_characters, remove_sentence
from models.pretraining import RawBatch
from models.representation import Pooling
from models.row_random import RowRandom
from models.tokens import Tokenizer
from tests import tokenizers
from tests.slow import Array, bert_layers, log_softmax, numbers
from tests.tiny import PIECES, SPECIALS, start
from tests.tokenizers import SENTENCES

SETTINGS = Settings(removal_rate=0.9, temperature=1.0, max_tokens=20, sentence_max_tokens=10)
CLS, SEP = (PIECES.index(piece) for piece in ("[CLS]", "[SEP]"))


def drawn(count: int = 6, seed: int = 0) -> RawBatch:
    """Texts of distinct ids, each with a run of them."""
    random, texts, sentences = np.random.default_rng(seed), [], []
    for _ in range(count):
        texts.append(random.permutation(np.arange(len(SPECIALS), len(PIECES)))[: random.integers(8, 30)].tolist())
        first = random.integers(len(texts[-1]) - 6)
        sentences.append(texts[-1][first : first + random.integers(1, 7)])
    return RawBatch(texts, sentences)


def batch(tokenizer: Tokenizer, settings: Settings = SETTINGS, seed: int = 0) -> Batch:
    return make_batch(drawn(seed=seed), tokenizer, settings, RowRandom(seed, 0))


def objective(
    settings: Settings = SETTINGS, *, pooling: Pooling = "cls", dropout: float = 0.0, spread: float = 0.2
) -> Pretraining:
    return Pretraining(start(pooling=pooling, dropout=dropout, spread=spread), settings)


# Batches


@pytest.mark.parametrize(
    ("sentence", "text", "rest"),
    [
        ([7, 8], [7, 8, 9], [9]),
        ([8, 9], [7, 8, 9], [7]),
        ([8], [7, 8, 9], [7, 9]),
        ([7, 8], [7, 9, 7, 8, 6], [7, 9, 6]),  # not where it only begins
        ([7, 8], [7, 8, 9, 7, 8], [9, 7, 8]),  # once
        ([7, 8], [7, 8], [7, 8]),  # nothing else is in it
        ([8, 7], [7, 8, 9], [7, 8, 9]),  # not in it
        ([7, 8, 9, 6], [7, 8, 9], [7, 8, 9]),
        ([7], [], []),
        ([], [7, 8], [7, 8]),
    ],
)
def test_a_sentence_is_taken_out(sentence: list[int], text: list[int], rest: list[int]) -> None:
    before = list(text)

    assert list(remove_sentence(sentence, text)) == rest
    assert text == before


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@pytest.mark.parametrize("number", range(4))
def test_a_sentence_is_removed_whatever_its_tokens_by_itself_are(kind: str, number: int) -> None:
    fast = tokenizers.fast(kind)
    own = Tokenizer(fast)
    sentences = [sentence + " " for sentence in SENTENCES]
    text, sentence = own.token_ids(["".join(sentences), sentences[number]])
    if (kind, number) == ("byte_level", 3):  # its first token is `The`, and `ĠThe` in the text
        assert list(remove_sentence(sentence, text)) == text

    rest = remove_characters(sentence, text, own.texts)

    expected = "".join(other for other in sentences if other != sentences[number])
    assert fast.decode(list(rest)).split() == expected.split()
    settings = dataclasses.replace(SETTINGS, removal_rate=1.0, max_tokens=512)
    passage = make_batch(RawBatch([text], [sentence]), own, settings, RowRandom(0, 0)).text.ids[0]
    assert passage.tolist() == [own.cls, *list(rest), own.sep]


def test_only_complete_words_of_a_text_that_has_more_are_removed() -> None:
    own = Tokenizer(tokenizers.fast("byte_level"))
    text, within, all_of_it, missing = own.token_ids(["a painter ran.", "inter", "a painter ran. ", "bridges"])

    for sentence in (within, all_of_it, missing, []):
        assert remove_characters(sentence, text, own.texts) is text
    assert remove_characters(text, [], own.texts) == []


def test_the_query_is_the_sentence_and_the_passage_the_rest(tokenizer: Tokenizer) -> None:
    inputs, settings = drawn(80), dataclasses.replace(SETTINGS, removal_rate=1.0, max_tokens=64)

    batch = make_batch(inputs, tokenizer, settings, RowRandom(0, 0))

    for row, (text, sentence) in enumerate(zip(inputs.texts, inputs.contexts, strict=True)):
        query, passage = (tokens.ids[row][tokens.mask[row]].tolist() for tokens in (batch.sentence, batch.text))
        assert query == [CLS, *sentence, SEP]
        assert passage == [CLS, *(token for token in text if token not in sentence), SEP]


@pytest.mark.parametrize("rate", [0.2, 0.9])
def test_so_many_sentences_leave_their_texts(tokenizer: Tokenizer, rate: float) -> None:
    inputs, settings = drawn(2000), dataclasses.replace(SETTINGS, removal_rate=rate, max_tokens=64)

    batch = make_batch(inputs, tokenizer, settings, RowRandom(0, 0))

    lengths = batch.text.mask.sum(1).tolist()
    kept = [length == len(text) + 2 for length, text in zip(lengths, inputs.texts, strict=True)]
    assert 1 - np.mean(kept) == pytest.approx(rate, abs=0.03)  # three standard deviations at most
    for row, (text, sentence) in enumerate(zip(inputs.texts, inputs.contexts, strict=True)):
        assert lengths[row] == len(text) + 2 - (0 if kept[row] else len(sentence))


def test_both_are_cropped_to_their_lengths(tokenizer: Tokenizer) -> None:
    inputs, settings = drawn(60), dataclasses.replace(SETTINGS, max_tokens=9, sentence_max_tokens=4, removal_rate=1.0)

    batch = make_batch(inputs, tokenizer, settings, RowRandom(0, 0))

    assert batch.text.ids.shape == (60, 9)
    assert batch.sentence.ids.shape == (60, 4)
    for row, (text, sentence) in enumerate(zip(inputs.texts, inputs.contexts, strict=True)):
        rest = [token for token in text if token not in sentence]
        for side, source in ((batch.text, rest), (batch.sentence, sentence)):
            read = side.ids[row][side.mask[row]].tolist()
            assert (read[0], read[-1]) == (CLS, SEP)
            assert " ".join(map(str, read[1:-1])) in " ".join(map(str, source))


def test_rows_of_a_batch_and_equal_seeds(tokenizer: Tokenizer) -> None:
    whole, again = batch(tokenizer), batch(tokenizer)

    assert len(whole) == 6
    assert torch.equal(whole.text.ids, again.text.ids)
    assert torch.equal(whole.sentence.ids, again.sentence.ids)
    assert torch.equal(whole.rows(1, 4).text.mask, whole.text.mask[1:4])


# The loss


def slow_contrast(sentences: Array, texts: Array, temperature: float) -> float:
    """The mean over i of -log(e^(q_i p_i / tau) / sum over j of e^(q_i p_j / tau))."""
    costs = []
    for i, q in enumerate(sentences):
        scores = [q @ p / temperature for p in texts]
        costs.append(math.log(sum(math.exp(score - max(scores)) for score in scores)) + max(scores) - scores[i])
    return float(np.mean(costs))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("temperature", [1.0, 4.0])
@torch.no_grad()
def test_the_loss_slowly(tokenizer: Tokenizer, temperature: float, pooling: Pooling) -> None:
    model = objective(dataclasses.replace(SETTINGS, temperature=temperature), pooling=pooling).eval()
    inputs, w = batch(tokenizer), numbers(model.model)

    vectors, local = model.encode(inputs)
    losses = model.compare(vectors, inputs)

    sides = []
    for side in (inputs.sentence, inputs.text):
        hidden = [bert_layers(w, ids[mask].tolist())[-1] for ids, mask in zip(side.ids, side.mask, strict=True)]
        sides.append(np.stack([states[0] if pooling == "cls" else states.mean(0) for states in hidden]))
    for results, expected in zip(vectors, sides, strict=True):
        np.testing.assert_allclose(results.numpy(), expected, atol=1e-4)
    expected, other_way = slow_contrast(*sides, temperature), slow_contrast(*reversed(sides), temperature)
    assert local == {}
    assert {name: loss.item() for name, loss in losses.items()} == {"contrast": pytest.approx(expected, rel=3e-5)}
    assert abs(expected - other_way) > 1e-3 * expected  # sentences look for texts


def test_the_loss_by_hand(tokenizer: Tokenizer) -> None:
    model, inputs = objective(dataclasses.replace(SETTINGS, temperature=0.5)), batch(tokenizer).rows(0, 2)
    sentences, texts = torch.eye(2), torch.tensor([[math.log(3) / 2, 0.0], [0.0, 0.0]])

    # The first gives its text 3 of 3 + 1, the second 1 of 1 + 1.
    expected = -(math.log(3 / 4) + math.log(1 / 2)) / 2
    assert model.compare((sentences, texts), inputs)["contrast"].item() == pytest.approx(expected, rel=1e-6)


def test_sentences_and_texts_both_learn_what_the_softmax_says(tokenizer: Tokenizer) -> None:
    model, inputs, random = (
        objective(dataclasses.replace(SETTINGS, temperature=2.0)),
        batch(tokenizer),
        torch.Generator(),
    )
    sentences, texts = (torch.randn(6, 8, generator=random.manual_seed(n)).requires_grad_() for n in range(2))

    model.compare((sentences, texts), inputs)["contrast"].backward()

    scores = (sentences @ texts.T / 2).detach().double().numpy()
    excess = (np.exp(log_softmax(scores)) - np.eye(6)) / (6 * 2)  # (p_ij - [i = j]) / (B tau)
    np.testing.assert_allclose(sentences.grad.numpy(), excess @ texts.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(texts.grad.numpy(), excess.T @ sentences.detach().numpy(), atol=1e-6)


def test_the_contrast_reaches_the_encoder_through_the_vector_alone(tokenizer: Tokenizer) -> None:
    model, given = objective(), batch(tokenizer)
    outputs: list[Tensor] = []
    model.model.bert.encoder.layer[-1].register_forward_hook(lambda module, inputs, out: outputs.append(out))

    model.compare(model.encode(given)[0], given)["contrast"].backward(inputs=outputs)

    for output, side in zip(outputs, (given.sentence, given.text), strict=True):
        first = torch.zeros_like(side.mask)
        first[:, 0] = True
        assert torch.equal(output.grad.abs().amax(1) > 0, first[side.mask])


def test_nothing_is_learned_beside_the_model() -> None:
    model = objective()

    assert all(name.startswith("model.") for name, _ in model.named_parameters())
