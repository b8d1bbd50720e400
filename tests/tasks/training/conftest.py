"""The tokenizer that tests of trainings share."""

import pytest

from models.tokens import Tokenizer
from tests.tiny import save_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return Tokenizer.load(folder)
