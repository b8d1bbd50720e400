"""Fixtures of the tests of fine-tuning."""

from pathlib import Path
from typing import Any

import pytest

from tests.tasks.finetuning.training_tables import TrainingTables
from tests.tiny import save_backbone


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_backbone(tmp_path_factory.mktemp("backbone"))


@pytest.fixture
def tables(written: Any, backbone: Path) -> TrainingTables:
    return TrainingTables(written, backbone)
