"""Fine-tuning of every kind of retriever on the simulated device, with the complete batch and in chunks."""

from dataclasses import replace

import pytest
import torch

from models.retrievers.came import Competition
from models.retrievers.examples import Examples
from models.retrievers.objective import Distillation, Finetuning, Flops, ObjectiveSettings
from tests.models.retrievers.test_objective import examples, exclusions
from tests.simulated_device.comparison import assert_equal, assert_moved_once, on_cpu, on_device
from tests.simulated_device.tensor import traffic
from tests.tiny import RETRIEVERS, tiny_retriever

CHUNK = 3  # of 4 queries
PLAIN = ObjectiveSettings(contrasts=["sum"], temperature=4.0)
SETTINGS = dict.fromkeys(RETRIEVERS, PLAIN) | {
    "splade": replace(PLAIN, flops=Flops(queries=0.3, passages=0.2, ramp=0.5)),
    "hybrid": replace(PLAIN, contrasts=["sum", "dense", "lexical"]),
    "coil": replace(PLAIN, contrast_loss="pairwise"),
    "duplex": replace(PLAIN, distillation=Distillation(teacher_temperature=1.0, contrast_weight=0.1)),
    "mixture": replace(
        PLAIN, contrasts=[], competition=Competition(temperature=0.5, scope="batch", standardised=0.2, scale=1.0)
    ),
}  # fmt: skip


def batch_for(kind: str) -> Examples:
    """Return four sorted queries with two passages each, with exclusions or a teacher's scores."""
    teacher = torch.linspace(-1, 1, 8).view(4, 2) if kind == "duplex" else None
    return examples(2, excluded=exclusions(4, 2), teacher=teacher).sorted_by_length()


@pytest.mark.parametrize("kind", RETRIEVERS)
@pytest.mark.usefixtures("full_precision")
def test_a_step_in_chunks_equals_that_of_the_cpu(kind: str, simulated: torch.device) -> None:
    objectives = [Finetuning(tiny_retriever(kind), SETTINGS[kind]) for _ in range(2)]

    step = on_device(objectives[0], batch_for(kind), CHUNK, simulated)

    assert_equal(step, on_cpu(objectives[1], batch_for(kind), CHUNK), tolerance=1e-4)


@pytest.mark.usefixtures("full_precision")
def test_queries_longer_than_the_padded_ones_never_wait(
    simulated: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = replace(RETRIEVERS["colbert"].late, query_masks=6)
    monkeypatch.setitem(RETRIEVERS, "colbert", replace(RETRIEVERS["colbert"], late=late))
    objectives, batch = [Finetuning(tiny_retriever("colbert"), PLAIN) for _ in range(2)], batch_for("colbert")
    assert min(batch.queries.lengths) < 6 < batch.queries.longest

    step = on_device(objectives[0], batch, CHUNK, simulated)

    assert not traffic.synchronisations
    assert_equal(step, on_cpu(objectives[1], batch, CHUNK), tolerance=1e-4)


@pytest.mark.parametrize("kind", RETRIEVERS)
@pytest.mark.parametrize("chunk", [None, CHUNK])
def test_a_step_in_bfloat16_copies_the_batch_and_never_waits(
    kind: str, chunk: int | None, simulated: torch.device
) -> None:
    objective, batch = Finetuning(tiny_retriever(kind), SETTINGS[kind]), batch_for(kind)

    losses, _ = on_device(objective, batch, chunk, simulated, "bfloat16")

    if chunk is None:
        assert_moved_once(batch)
    assert set(traffic.to_device) == {"models/batch.py:moved"}
    assert not traffic.synchronisations
    expected, _ = on_cpu(Finetuning(tiny_retriever(kind), SETTINGS[kind]), batch, chunk)
    assert losses != expected
    assert losses == pytest.approx(expected, rel=0.1, abs=0.1)
