"""The simulated device as a fixture, and what a test on it compares.

With PRETRIEVE_TEST_DEVICE=cuda, the fixture is a real GPU: `python -m pytest tests/simulated_device/cases_[iort]*.py`.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

from storage.store.store import Store
from tasks.session import Execution, Session, session
from tests.simulated_device.registration import is_real, keep_ties, register
from tests.simulated_device.tensor import CountedTraffic, traffic


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """The simulated device, which stages choose in this test; it has counted nothing."""
    threads, device = torch.get_num_threads(), torch.device("cuda") if is_real() else register()
    if not is_real():
        monkeypatch.setattr(nn.Module, "to", keep_ties(nn.Module.to))
    traffic.clear()
    execution = Execution(workers=1, threads=1).model_copy(update={"device": device.type})  # a user cannot name it
    with session(Session(Store(tmp_path / "store"), execution)), CountedTraffic() if is_real() else nullcontext():
        yield device
    torch.set_num_threads(threads)


@pytest.fixture
def full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """No autocast on any device, so that results can be compared with the CPU's to the last digits."""
    monkeypatch.setattr(torch, "autocast", lambda *args, **keywords: nullcontext())
