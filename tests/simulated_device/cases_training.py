"""The training loop on the simulated device: the CPU's losses, and one synchronisation for each logged step."""

from pathlib import Path

import pytest
import torch

from models.tokens import pad
from storage.store.store import Store
from tasks.pseudo_queries.generators.seq2seq_objective import Batch, Seq2SeqObjective
from tasks.session import Execution, Session, session
from tasks.training.loop import fit
from tasks.training.optimiser import OptimisationSettings
from tests.simulated_device.comparison import assert_equal, assert_moved_once, on_cpu, on_device
from tests.simulated_device.tensor import traffic
from tests.tasks.training.small_objectives import FITTING, batches, lines, objective
from tests.tiny import tiny_t5, tiny_tokenizer


def fitted(kind: str, steps: int, out: Path, device: str, *, chunk: int | None, log_steps: int = 1) -> int:
    """Train for some steps and return the number of synchronisations of the complete training."""
    batch_of, module = batches(kind, tiny_tokenizer()), objective(kind)
    settings = OptimisationSettings(**{**FITTING.model_dump(), "chunk": chunk, "precision": "float32"})
    execution = Execution(workers=1, threads=1, log_steps=log_steps).model_copy(update={"device": device})
    with session(Session(Store(out / "store"), execution)):
        traffic.clear()
        fit(module, batch_of, steps, out=out, settings=settings, seed=3)
    return traffic.synchronisations.total()


@pytest.mark.parametrize(("kind", "chunk"), [("ar", 3), ("ae", None), ("contrast", 3)])
def test_losses_are_those_of_the_cpu(kind: str, chunk: int | None, tmp_path: Path, simulated: torch.device) -> None:
    for device in ("cpu", simulated.type):
        fitted(kind, 2, tmp_path / device, device, chunk=chunk)

    logged, expected = lines(tmp_path / simulated.type), lines(tmp_path / "cpu")
    assert [line["step"] for line in logged] == [1, 2]
    for line, other in zip(logged, expected, strict=True):
        assert line == pytest.approx(other, rel=1e-3)


@pytest.mark.parametrize(("kind", "chunk"), [("ar", 3), ("contrast", None)])
def test_only_logged_steps_wait_and_each_once(
    kind: str, chunk: int | None, tmp_path: Path, simulated: torch.device
) -> None:
    """Before the first step and after the last, weights are read, whatever the number of steps."""
    one, three, rarely = (
        fitted(kind, steps, tmp_path / name, simulated.type, log_steps=log_steps, chunk=chunk)
        for name, steps, log_steps in (("one", 1, 1), ("three", 3, 1), ("rarely", 3, 3))
    )

    assert three - one == 2
    assert three - rarely == 2


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.usefixtures("full_precision")
def test_a_step_of_a_query_generator_never_waits(chunk: int | None, simulated: torch.device) -> None:
    objectives = []
    for _ in range(2):
        torch.manual_seed(5)
        objectives.append(Seq2SeqObjective(tiny_t5(40)).eval())
    batch = Batch(pad([[2, 7, 8, 9, 3], [2, 11, 3], [2, 12, 13, 3]]), pad([[2, 7, 3], [2, 11, 12, 13, 3], [2, 3]]))

    step = on_device(objectives[0], batch, chunk, simulated)

    if chunk is None:
        assert_moved_once(batch)
    assert not traffic.synchronisations
    assert_equal(step, on_cpu(objectives[1], batch, chunk), tolerance=1e-4)
