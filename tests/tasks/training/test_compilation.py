"""Compiled layers compute what eager ones do, also after a resume; a missing compiler is named."""

import os
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest
import torch
from torch._dynamo.utils import counters

from models.objective import Batch
from models.tokens import Tokenizer
from storage.errors import UserError
from storage.store.store import Store
from tasks.session import Execution, Session, session
from tasks.training import loop
from tasks.training.compilation import compile_layers
from tasks.training.grad_cache import gradients
from tests.tasks.training.small_objectives import FITTING, batches, lines, objective, run
from tests.tiny_families import tiny_family

CHUNKED = FITTING.model_copy(update={"chunk": 3})


@pytest.fixture
def compiler(on_one_thread: Session) -> Iterator[None]:
    """PyTorch's compiler, which forgets what it compiled and counted, and by itself compiles one variant only."""
    if which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("no C++ compiler on PATH")
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(recompile_limit=1):
        yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_losses_and_gradients_are_those_of_eager_layers(tokenizer: Tokenizer) -> None:
    """With dropout and in chunks, of which a contrast encodes each twice; the second batch has other shapes."""
    graphs = 0
    for kind, steps in (("contrast", 2), ("ar", 1)):
        eager, compiled = (objective(kind, dropout=0.2).train() for _ in range(2))
        compile_layers(compiled)

        for step in range(steps):
            batch = batches(kind, tokenizer)(step)
            expected = gradients(eager, batch, 3, (1, step))
            losses = gradients(compiled, batch, 3, (1, step))
            assert losses.keys() == expected.keys()
            torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)

        for (name, parameter), (_, other) in zip(compiled.named_parameters(), eager.named_parameters(), strict=True):
            if other.grad is None:
                assert parameter.grad is None, name
            else:  # that of a key's bias is 0 up to rounding
                assert (parameter.grad - other.grad).norm() <= 1e-5 * other.grad.norm() + 1e-8, name
        assert counters["stats"]["unique_graphs"] > graphs  # of the decoder's layer, too
        graphs = counters["stats"]["unique_graphs"]
    assert graphs > 2  # of the encoder's layer with gradients and without
    assert not counters["graph_break"]


@pytest.mark.usefixtures("compiler")
def test_a_resumed_run_ends_with_the_losses_and_weights_of_an_eager_one(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint in the middle is loaded into newly compiled layers, which compute as eager ones: see above."""
    batch_of = batches("ar", tokenizer)

    def broken(step: int) -> Batch:
        if step == 3:
            raise KeyboardInterrupt
        return batch_of(step)

    eager = run(objective("ar", dropout=0.2), batch_of, 5, tmp_path / "eager", fitting=CHUNKED)
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    execution = Execution(workers=1, threads=1, device="cpu", compile=True)
    with session(Session(Store(tmp_path / "store"), execution)), torch.compiler.set_stance("force_eager"):
        with pytest.raises(KeyboardInterrupt):
            run(objective("ar", dropout=0.2), broken, 5, tmp_path / "compiled", fitting=CHUNKED)
        resumed = run(objective("ar", dropout=0.2), batch_of, 5, tmp_path / "compiled", fitting=CHUNKED)

    torch.testing.assert_close(resumed, eager, rtol=0, atol=0)
    assert lines(tmp_path / "compiled") == lines(tmp_path / "eager")


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "c++42")

    with pytest.raises(UserError, match=r"execution\.compile: .* found no c\+\+42 on PATH; .* CXX, or set .*=false"):
        compile_layers(objective("ae"))


def test_another_family_than_bert_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"execution\.compile: .* bert, found .*; set .*=false") as error:
        compile_layers(tiny_family(tmp_path, "modernbert"))
    assert "modernbert" in str(error.value)
