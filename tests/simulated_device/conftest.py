"""The simulated device as a fixture, and what a test on it compares."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

from storage.store.store import Store
from tasks.session import Execution, Session, session
from tests.simulated_device.registration import keep_ties, register
from tests.simulated_device.tensor import traffic


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """The simulated device, which stages choose in this test; it has counted nothing."""
    device, threads = register(), torch.get_num_threads()
    monkeypatch.setattr(nn.Module, "to", keep_ties(nn.Module.to))
    traffic.clear()
    execution = Execution(workers=1, threads=1).model_copy(update={"device": device.type})  # a user cannot name it
    with session(Session(Store(tmp_path / "store"), execution)):
        yield device
    torch.set_num_threads(threads)


@pytest.fixture
def full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """No autocast on any device, so that results can be compared with the CPU's to the last digits."""
    monkeypatch.setattr(torch, "autocast", lambda *args, **keywords: nullcontext())
