"""The memory formula is compared with what PyTorch's allocator hands out in complete training steps."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from flows.recipe.load import load_recipe
from models.layers.bert_config import BertConfig
from models.papers import cpdae
from models.pretraining import Initialisation
from models.retrievers.objective import Finetuning
from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.views.lexical import LexicalSettings
from models.row_random import RowRandom
from models.tokens import pad
from tasks.estimates.allocations import recording
from tasks.estimates.capacity import Capacity
from tasks.estimates.flops import Costs
from tasks.estimates.memory import Recorded, TrainingMemory, at, highest, num_parameters
from tasks.finetuning.train import PLAIN
from tasks.training.grad_cache import gradients
from tests.tiny import LEXICAL

pytestmark = pytest.mark.usefixtures("on_one_thread")

SIZES = [
    # hidden size, layers, intermediate size, query and passage tokens, batch, chunk
    (32, 2, 64, 8, 24, 8, None),
    (64, 2, 128, 16, 48, 12, 4),
    (64, 3, 256, 8, 96, 16, 2),
    (128, 2, 512, 32, 64, 8, None),
    (192, 4, 384, 16, 32, 10, 3),
]
"""Five sizes, from weights that dominate to activations that do."""
TOLERANCE = 0.15


def costs_of(folder: Path, hidden: int, layers: int, intermediate: int) -> Costs:
    """Return costs on a model of a size, with dropout as in BERT."""
    config = BertConfig(
        vocab_size=500, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=4,
        intermediate_size=intermediate, max_position_embeddings=128,
    )  # fmt: skip
    config.save(folder)
    recipe, _ = load_recipe("cot_mae")
    return Costs(folder, recipe.backbone.model_copy(update={"layers": None}), dropout=0.1)


def allocated_peak(run: Callable[[], object]) -> int:
    """Return the most bytes that PyTorch's allocator had handed out at a time, beyond those before the call.

    A call always allocates the same, but under load the profiler once returned less; the reason is not known. It is
    assumed to miss events and to add none, so the larger of two profiles counts.
    """
    return max(profiled_peak(run) for _ in range(2))


def profiled_peak(run: Callable[[], object]) -> int:
    """Return the most bytes of a call that the profiler recorded at a time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    results: Any = profiler.profiler
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    total = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    return peak


def measured_step(objective: Any, batch: Any, chunk: int | None) -> int:
    """Return the bytes of weights, moments and of what a step allocates at its peak."""
    optimiser = torch.optim.AdamW(objective.parameters(), fused=True)
    gradients(objective, batch, chunk, (1, 0))
    optimiser.step()  # creates the moments
    optimiser.zero_grad(set_to_none=True)

    def step() -> None:
        gradients(objective, batch, chunk, (1, 1))
        optimiser.step()

    return 12 * num_parameters(objective) + allocated_peak(step)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["cot_mae", "cpdae", "sim_cse"])
def test_the_peak_of_a_pretraining_is_that_of_the_allocator(tmp_path: Path, name: str, size: tuple[Any, ...]) -> None:
    """CoT-MAE compares all pairs of a batch; CPDAE in blocks, beside sums over the vocabulary; SimCSE a text twice."""
    hidden, layers, intermediate, _, length, batch, chunk = size
    costs = costs_of(tmp_path, hidden, layers, intermediate)
    lengths = dict.fromkeys(("max_tokens", "context_max_tokens"), length)
    pretraining = load_recipe(name)[0].pretrain
    assert pretraining is not None
    objective = replace(
        pretraining.objective, **{key: length for key in lengths if hasattr(pretraining.objective, key)}
    )
    pretraining = pretraining.model_copy(update={"objective": objective})
    expected = Capacity(costs, half=False).pretraining(pretraining).peak(batch, chunk)

    paper, raw = import_module(f"models.papers.{name}"), costs.raw_batch(objective, batch)
    module = paper.Pretraining(Initialisation(costs.encoder, raw.terms), objective).train()
    inputs = paper.make_batch(raw, costs.tokenizer, objective, RowRandom(5, 0))

    assert expected == pytest.approx(measured_step(module, inputs, chunk), rel=TOLERANCE)


@pytest.mark.parametrize("numbers", [4_000, 40_000, 160_000, 600_000, 1_000_000])
def test_the_peak_of_a_comparison_in_blocks_is_that_of_the_allocator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: int
) -> None:
    """From blocks of a row to blocks of ten; 96 texts are three times as many as are always counted."""
    monkeypatch.setattr(cpdae, "NUMBERS_AT_ONCE", numbers)
    costs = costs_of(tmp_path, 32, 1, 64)
    pretraining = load_recipe("cpdae")[0].pretrain
    assert pretraining is not None
    objective = replace(pretraining.objective, max_tokens=16)
    pretraining = pretraining.model_copy(update={"objective": objective})
    expected = Capacity(costs, half=False).pretraining(pretraining).peak(96, 16)

    raw = costs.raw_batch(objective, 96)
    module = cpdae.Pretraining(Initialisation(costs.encoder, raw.terms), objective).train()
    batch = cpdae.make_batch(raw, costs.tokenizer, objective, RowRandom(5, 0))

    assert expected == pytest.approx(measured_step(module, batch, 16), rel=TOLERANCE)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("view", ["dense", "lexical"])
def test_the_peak_of_a_fine_tuning_is_that_of_the_allocator(tmp_path: Path, size: tuple[Any, ...], view: str) -> None:
    hidden, layers, intermediate, query_length, length, batch, chunk = size
    costs = costs_of(tmp_path, hidden, layers, intermediate)
    training = load_recipe("cot_mae")[0].rounds[0].train
    assert training is not None
    lengths = {"query_max_tokens": query_length, "passage_max_tokens": length, "passages_per_query": 3}
    retriever = training.retriever if view == "dense" else RetrieverSettings(lexical=LexicalSettings(**LEXICAL))
    training = training.model_copy(update={**lengths, "retriever": retriever})
    expected = Capacity(costs, half=False).training(training).peak(batch, chunk)

    module = Finetuning(costs.retriever(training.retriever), training.loss).train()

    assert expected == pytest.approx(measured_step(module, costs.examples(training, 3, batch), chunk), rel=TOLERANCE)


@pytest.mark.parametrize("size", SIZES)
def test_the_peak_of_encoding_is_that_of_the_allocator(tmp_path: Path, size: tuple[Any, ...]) -> None:
    hidden, layers, intermediate, _, length, batch, _ = size
    costs = costs_of(tmp_path, hidden, layers, intermediate)
    retriever = costs.retriever(PLAIN).eval()
    expected = Capacity(costs, half=False).encoding(PLAIN, length).peak(batch)

    def run() -> None:
        with torch.no_grad():
            retriever(pad([costs.ids(length)] * batch), "passage")

    assert expected == pytest.approx(4 * num_parameters(retriever) + allocated_peak(run), rel=TOLERANCE)


def test_the_largest_chunk_is_the_last_that_fits() -> None:
    one, two = Recorded([100, 60], 10, 1), Recorded([180, 110], 20, 1)
    memory = TrainingMemory(10, 1, [one, two], [one, two], [one, two], {}, 0)
    peaks = {chunk: memory.peak(8, chunk) for chunk in range(1, 9)}

    for capacity in range(200, 1000, 7):
        fitting = [chunk for chunk, peak in peaks.items() if peak <= capacity]
        assert memory.largest_chunk(8, capacity) == max(fitting, default=None)


def test_lines_and_parabolas_are_extrapolated() -> None:
    assert [at([5, 8], rows) for rows in (1, 2, 10)] == [5, 8, 32]
    assert [at([1, 4, 9], rows) for rows in (1, 2, 3, 12)] == [1, 4, 9, 144]
    assert highest([[10, 1], [11, 5]], 4) == 13
    assert highest([[10, 1], [11, 5]], 10) == 37
    assert highest([[3], [4, 6]], 3) == 9  # other operations: the maxima 3 and 6


def test_only_live_tensors_of_the_block_are_counted() -> None:
    before = torch.ones(1000)
    with recording() as record:
        first = before + 1
        view = first[:10]
        second = first * 2
        del first, view
        third = before.exp()
        product = before.view(10, 100) @ before.view(100, 10)
    assert record.live[0] == 4000
    assert max(record.live) == 8400
    assert not product.any()
    assert record.moved == 3 * 8000
    assert second.sum() + third.sum() > 0


def test_neither_attention_nor_the_noise_of_dropout_is_computed() -> None:
    """They took most of the time of `plan --gpu`; their memory is that of the real ones, as the tests above show."""
    heads = torch.rand(2, 3, 8, 16, requires_grad=True)
    with recording():
        attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
        noisy = torch.nn.functional.dropout(torch.ones(1000), 0.5)
        attended.sum().backward()

    assert not attended.any()
    assert not noisy.any()
    assert heads.grad is not None
    assert not heads.grad.any()


def test_half_precision_keeps_fewer_bytes(tmp_path: Path) -> None:
    costs = costs_of(tmp_path, 64, 2, 128)
    training = load_recipe("cot_mae")[0].rounds[0].train
    assert training is not None
    single, half = (Capacity(costs, half=half).training(training).peak(64, None) for half in (False, True))

    assert 0.5 * single < half < 0.9 * single


@pytest.mark.parametrize(
    ("lives", "expected"),
    [
        ({1: 1, 2: 4, 3: 9, 16: 256, 32: 1024}, 4096),  # all pairs at a time
        ({1: 1, 2: 4, 3: 9, 16: 100, 32: 164}, 292),  # blocks of pairs, and 4 bytes for each further text
    ],
)
def test_a_comparison_grows_as_it_does_for_more_texts(lives: dict[int, int], expected: int) -> None:
    empty = Recorded([0], 0, 1)
    comparing = {texts: Recorded([live], 0) for texts, live in lives.items()}

    memory = TrainingMemory(0, 1, [empty, empty], [empty, empty], [empty, empty], comparing, 0)

    assert memory.peak(64, None) == expected
